"""Compute the layout of device drawings.

A drawing shows a device as lanes: horizontal bars for its memory, its compute and its MIG instances. Slices are pieces
of a lane, each with a position and a width in percent of the lane, so that a lane can be as wide as the page. Templates
turn the pieces into SVG. Pieces of memory are in the order of allocations, because the address of memory on a device is
not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.api.mig import MigCardView
from calabash.api.replies import AllocationView, DeviceView, SliceUseView
from calabash.gateway.web.words import hue, memory, percent, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Piece of a lane.

    Args:
        at: position of its left end in percent of the lane.
        wide: width in percent of the lane.
        used: used share in percent of the piece.
        hue: number of its colour; 0 is grey.
        label: text on the piece.
        title: text that is shown when the pointer is on the piece.
        href: page of its allocation; "" for none.
    """

    at: float
    wide: float
    used: float
    hue: int
    label: str
    title: str
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlice:
    """Slice of a device with its allocation."""

    allocation: AllocationView
    part: SliceUseView


def held_of(device: DeviceView, allocations: Sequence[AllocationView]) -> list[HeldSlice]:
    """Return the slices of one device."""
    return [HeldSlice(allocation=a, part=s) for a in allocations for s in a.slices if s.device == device.uuid]


def by_device(allocations: Sequence[AllocationView]) -> dict[str, list[HeldSlice]]:
    """Return all slices by the UUID of their device."""
    found: dict[str, list[HeldSlice]] = {}
    for allocation in allocations:
        for part in allocation.slices:
            found.setdefault(part.device, []).append(HeldSlice(allocation=allocation, part=part))
    return found


def _owner(held: HeldSlice) -> str:
    return held.allocation.tenant or held.allocation.user


def memory_lane(device: DeviceView, slices: Sequence[HeldSlice]) -> list[Piece]:
    """Return the memory lane of a device: slices from the left, memory of unmanaged processes at the right end.

    In the sharing mode with time windows, slices may together have more memory than the device. The width of the lane
    then stands for the sum of the slices instead of the memory of the device.
    """
    sizes = [(h.part.memory_mib - h.part.spill_mib) or device.memory_mib for h in slices]
    unmanaged = sum(s.memory_mib for s in device.unmanaged_processes if not s.allocation)
    scale = max(device.memory_mib, sum(sizes) + unmanaged, 1)
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
    if unmanaged:
        wide = 100.0 * unmanaged / scale
        title = f"{memory(unmanaged)} used by processes without a slice"
        pieces.append(
            Piece(at=round(100 - wide, 3), wide=round(wide, 3), used=100, hue=0, label="no slice", title=title)
        )
    return pieces


def compute_lane(slices: Sequence[HeldSlice]) -> list[Piece]:
    """Return the compute lane of a device: requested shares from the left, each with its usage in the last second."""
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
                title=f"{owner}: used {percent(got)}, requested {percent(held.part.core_percent)}, {held.allocation.policy}",
                href=f"/workloads/{held.allocation.id}",
            )
        )
        at += wide
    return pieces


def mig_lane(card: MigCardView, slices: Sequence[HeldSlice]) -> list[Piece]:
    """Return the lane of a MIG device: each instance at the position of its memory slices."""
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
