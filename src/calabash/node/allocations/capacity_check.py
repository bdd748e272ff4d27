"""Check that devices and host memory have capacity for an allocation, made by the agent when it grants one.

The scheduler has chosen the devices, but its view may be outdated; this check uses the held allocations themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, RequestName, Text, joined
from calabash.model.request import AllocationId
from calabash.model.units import format_mib
from calabash.node.audit.process_census import describe_process
from calabash.node.snapshot import DeviceSnapshot
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import RequestModes


def require_room(
    record: AllocationRecord,
    rules: RequestModes,
    devices: Iterable[DeviceSnapshot],
    *,
    but: Collection[AllocationId] = (),
) -> None:
    """Raise an error if a slice of an allocation does not fit on its device now.

    Args:
        rules: request of the allocation with the mode of its placement.
        devices: all devices of the node with the slices that are held of each.
        but: allocations whose slices count as free.

    Raises:
        CalabashError: the reason of the first slice that does not fit; UNHEALTHY if its device is missing or takes no
            work.
    """
    known = {state.device.uuid: state for state in devices}
    _require_host_memory(record, known.values(), but)
    for part in record.placement.slices:
        state = known.get(part.device)
        if state is None:
            raise CalabashError(f"device {part.device} is not on this node", reason=Reason.UNHEALTHY)
        index = state.device.index
        if state.orphans:
            raise CalabashError(
                Message(
                    "device {device} is used by {allocation}, which the journal does not know",
                    device=index,
                    allocation=RequestName(state.orphans[0]),
                ),
                reason=Reason.UNHEALTHY,
                hint="the device takes new work when those programs have ended",
            )
        if not state.takes_work:
            raise CalabashError(
                Message(
                    "device {device}: {process} and has no slice of it",
                    device=index,
                    process=describe_process(state.unmanaged[0]),
                ),
                reason=Reason.UNHEALTHY,
                hint="the device takes new work when that process has ended",
            )
        answer = rules.fits(state.device, *state.beside(but), place=part.place)
        if isinstance(answer, Misfit):
            message = Message(
                "device {device} {misfit}{beside}", device=index, misfit=answer.message, beside=_beside(state)
            )
            raise CalabashError(message, reason=answer.reason)


def _require_host_memory(
    record: AllocationRecord, devices: Iterable[DeviceSnapshot], but: Collection[AllocationId]
) -> None:
    """Raise NO_HOST_MEMORY if the slices may spill more than the free part of the host memory reserved for spilling."""
    wanted_mib = sum(part.spill_mib for part in record.placement.slices)
    if not wanted_mib:
        return
    states = list(devices)
    given_mib = max(state.device.spill_mib for state in states)
    taken_mib = sum(
        held.slice.spill_mib
        for state in states
        for held, name in zip(state.held, state.allocations, strict=True)
        if name not in but
    )
    free_mib = max(0, given_mib - taken_mib)
    if wanted_mib > free_mib:
        raise CalabashError(
            f"{format_mib(free_mib)} of {format_mib(given_mib)} of host memory is free for what is spilled,"
            f" asked {format_mib(wanted_mib)}",
            reason=Reason.NO_HOST_MEMORY,
            hint="ask for less --spill, or wait until others have ended",
        )


def _beside(state: DeviceSnapshot) -> Text:
    found = state.unmanaged[:2]
    return joined("", (Message("; {process} without a slice", process=describe_process(one)) for one in found))


def require_served(record: AllocationRecord, *, membership: str, own_uid: int) -> None:
    """Raise NOT_PERMITTED if the node cannot serve the user of an allocation.

    Without control groups (``membership`` is "lease"), only allocations of the pool's own user are served, because the
    pool cannot signal processes of other users. A user ID of -1 stands for no particular user.
    """
    if membership == "lease" and record.uid not in {-1, own_uid}:
        raise CalabashError(
            f"this pool serves user {own_uid} only, not {record.uid}: it has no control groups",
            reason=Reason.NOT_PERMITTED,
            hint="start a pool as root, or one of your own: calabash up",
        )
