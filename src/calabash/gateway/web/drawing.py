"""Cards drawn to scale: what is held of a device as pieces with a place and a width, in percent of the whole lane.

Templates make SVG of them. Percent, so that a lane is as wide as its page; the order of slices is the order of their
allocation, since memory of a card has no place that anybody could see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.api.mig import MigCardView
from calabash.api.replies import AllocationView, DeviceView, SliceUseView
from calabash.gateway.web.words import hue, memory, percent, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a lane: ``at`` and ``wide`` of the lane, ``used`` of the piece, all in percent. ``hue`` 0 is grey."""

    at: float
    wide: float
    used: float
    hue: int
    label: str
    title: str
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A slice of a device with whose it is."""

    allocation: AllocationView
    part: SliceUseView


def held_of(device: DeviceView, allocations: Sequence[AllocationView]) -> list[Held]:
    """The slices of one device."""
    return [Held(allocation=a, part=s) for a in allocations for s in a.slices if s.device == device.uuid]


def by_device(allocations: Sequence[AllocationView]) -> dict[str, list[Held]]:
    """All slices, by the UUID of their device."""
    found: dict[str, list[Held]] = {}
    for allocation in allocations:
        for part in allocation.slices:
            found.setdefault(part.device, []).append(Held(allocation=allocation, part=part))
    return found


def _owner(held: Held) -> str:
    return held.allocation.tenant or held.allocation.user


def memory_lane(device: DeviceView, slices: Sequence[Held]) -> list[Piece]:
    """Memory of a device: slices from the left, what processes without a slice hold at the right end.

    Where more is promised than there is, which turns allow, the lane is the sum of what is promised.
    """
    sizes = [(h.part.memory_mib - h.part.spill_mib) or device.memory_mib for h in slices]
    foreign = sum(s.memory_mib for s in device.strangers if not s.allocation)
    scale = max(device.memory_mib, sum(sizes) + foreign, 1)
    pieces, at = [], 0.0
    for held, size in zip(slices, sizes, strict=True):
        wide = 100.0 * size / scale
        owner = _owner(held)
        used = held.part.memory_used_mib
        pieces.append(
            Piece(
                at=round(at, 3),
                wide=round(wide, 3),
                used=share(used, size),
                hue=hue(owner),
                label=f"{owner} {memory(size)}",
                title=f"{owner}: {memory(used)} of {memory(size)} used",
                href=f"/workloads/{held.allocation.id}",
            )
        )
        at += wide
    if foreign:
        wide = 100.0 * foreign / scale
        title = f"{memory(foreign)} held by processes without a slice"
        pieces.append(
            Piece(at=round(100 - wide, 3), wide=round(wide, 3), used=100, hue=0, label="no slice", title=title)
        )
    return pieces


def compute_lane(slices: Sequence[Held]) -> list[Piece]:
    """Compute of a device: shares asked from the left, and of each what it got in the last second."""
    scale = max(100.0, float(sum(h.part.core_percent for h in slices)))
    pieces, at = [], 0.0
    for held in slices:
        wide = 100.0 * held.part.core_percent / scale
        owner, got = _owner(held), held.part.core_used_percent
        pieces.append(
            Piece(
                at=round(at, 3),
                wide=round(wide, 3),
                used=share(got, held.part.core_percent),
                hue=hue(owner),
                label=f"{owner} {percent(held.part.core_percent)}",
                title=f"{owner}: got {percent(got)}, asked {percent(held.part.core_percent)}, {held.allocation.policy}",
                href=f"/workloads/{held.allocation.id}",
            )
        )
        at += wide
    return pieces


def mig_lane(card: MigCardView, slices: Sequence[Held]) -> list[Piece]:
    """The memory slices of a card that MIG has cut, each instance where it begins."""
    owners = {h.allocation.id: h for h in slices}
    pieces = []
    for instance in sorted(card.instances, key=lambda i: i.start):
        held = next((owners[a] for a in instance.allocations if a in owners), None)
        owner = _owner(held) if held else ""
        pieces.append(
            Piece(
                at=round(100.0 * instance.start / max(1, card.slices), 3),
                wide=round(100.0 * instance.slices / max(1, card.slices), 3),
                used=share(held.part.memory_used_mib, instance.memory_mib) if held else 0.0,
                hue=hue(owner) if owner else 0,
                label=f"{instance.profile} {owner or instance.state}",
                title=f"{instance.profile} from slice {instance.start}, {memory(instance.memory_mib)}: "
                + (owner or instance.state),
                href=f"/workloads/{held.allocation.id}" if held else "",
            )
        )
    return pieces
