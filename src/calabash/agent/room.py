"""Whether there is room for an allocation on this node now: asked at the grant, whatever a scheduler believes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from calabash.agent.census import described
from calabash.agent.snapshot import DeviceSnapshot
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import fits


def require_room(
    record: AllocationRecord, devices: Iterable[DeviceSnapshot], *, but: Collection[AllocationId] = ()
) -> None:
    """Raises CalabashError with the reason of the first slice that has no room; UNHEALTHY for a device out of use.

    Args:
        but: allocations that do not count.
    """
    known = {state.device.uuid: state for state in devices}
    for part in record.placement.slices:
        state = known.get(part.device)
        if state is None:
            raise CalabashError(f"device {part.device} is not here", reason=Reason.UNHEALTHY)
        index = state.device.index
        if state.orphans:
            raise CalabashError(
                f"device {index} is used by {state.orphans[0]}, which the journal does not know",
                reason=Reason.UNHEALTHY,
                hint="it takes new work when those programs have ended",
            )
        if not state.takes_work:
            raise CalabashError(
                f"device {index}: {described(state.strangers[0])} and has no slice of it",
                reason=Reason.UNHEALTHY,
                hint="it takes new work when that process has left it",
            )
        request = replace(record.request, mode=record.placement.mode)
        answer = fits(state.device, *state.beside(but), request, start=part.start)
        if isinstance(answer, Misfit):
            raise CalabashError(f"device {index} {answer.message}{_beside(state)}", reason=answer.reason)


def _beside(state: DeviceSnapshot) -> str:
    return "".join(f"; {described(stranger)} without a slice" for stranger in state.strangers[:2])


def require_served(record: AllocationRecord, *, membership: str, own_uid: int) -> None:
    """Raises NOT_PERMITTED where members are known by leases and the allocation is not the pool's own user's."""
    if membership == "lease" and record.uid not in {-1, own_uid}:
        raise CalabashError(
            f"this pool serves user {own_uid} only, not {record.uid}: it has no control groups",
            reason=Reason.NOT_PERMITTED,
            hint="start a pool as root, or one of your own: calabash up",
        )
