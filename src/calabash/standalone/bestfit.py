"""Best fit on one node: the devices that the request leaves the least room on, or why there are not enough.

Theory of operation. Every device is asked through its sharing mode what the request would get (``sharing.registry``).
Among those that fit, a device that is already shared goes before an idle one, then the one with the least memory and
compute left over, then the lowest index: whole devices stay whole for those who need them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from calabash.model.device import Device, NodeName
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest, ModeName, Placement, Slice
from calabash.sharing.protocol import Held, Misfit
from calabash.sharing.registry import fits, mode_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device and what is on it."""

    device: Device
    mode: ModeName | None = None
    held: Sequence[Held] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not placed: the most telling reason, one line, and what each device says (by index)."""

    reason: Reason
    message: str
    devices: tuple[tuple[int, Misfit], ...] = ()

    @property
    def hopeless(self) -> bool:
        """No release can ever make room for it."""
        return self.reason in {Reason.TOO_LARGE, Reason.NO_DEVICES, Reason.SELECTOR_MISMATCH}


# What waiting can cure comes first: it is what the user wants to know.
_TELLING = (
    Reason.NO_MEMORY,
    Reason.NO_CORES,
    Reason.NO_CAPACITY,
    Reason.MODE_CONFLICT,
    Reason.UNHEALTHY,
    Reason.TOO_LARGE,
    Reason.SELECTOR_MISMATCH,
)


def place(node: NodeName, candidates: Sequence[Candidate], request: GpuRequest) -> Placement | Refusal:
    """The placement with the least left over. Raises CalabashError for a mode that does not exist."""
    mode = mode_for(request)
    fitting: list[tuple[tuple[int, int, int, int], Slice]] = []
    misfits: list[tuple[int, Misfit]] = []
    for candidate in candidates:
        device = candidate.device
        answer = fits(device, candidate.mode, candidate.held, request)
        if isinstance(answer, Misfit):
            misfits.append((device.index, answer))
            continue
        left = mode.division(device, [*candidate.held, Held(slice=answer, policy=request.policy)])
        key = (0 if candidate.held else 1, left.memory_free_mib, left.core_free_percent, device.index)
        fitting.append((key, answer))
    if len(fitting) < request.count:
        return _refusal(candidates, request, len(fitting), misfits)
    chosen = sorted(fitting, key=lambda pair: pair[0])[: request.count]
    return Placement(node=node, mode=mode.name, slices=tuple(part for _, part in chosen))


def _refusal(
    candidates: Sequence[Candidate], request: GpuRequest, fitting: int, misfits: list[tuple[int, Misfit]]
) -> Refusal:
    if len(candidates) < request.count:
        return Refusal(
            reason=Reason.NO_DEVICES,
            message=f"the pool has {len(candidates)} devices, asked {request.count}",
            devices=tuple(misfits),
        )
    counts = Counter(m.reason for _, m in misfits)
    permanent = counts[Reason.TOO_LARGE] + counts[Reason.SELECTOR_MISMATCH]
    curable = len(candidates) - permanent >= request.count
    order = _TELLING if curable else tuple(reversed(_TELLING))
    reason = min(counts, key=lambda r: order.index(r) if r in order else len(order))
    if not curable and reason not in {Reason.TOO_LARGE, Reason.SELECTOR_MISMATCH}:
        reason = Reason.TOO_LARGE
    details = "; ".join(f"device {index}: {misfit.message}" for index, misfit in misfits[:8])
    more = f"; and {len(misfits) - 8} more" if len(misfits) > 8 else ""
    return Refusal(
        reason=reason,
        message=f"{fitting} of {len(candidates)} devices have room, asked {request.count}: {details}{more}",
        devices=tuple(misfits),
    )
