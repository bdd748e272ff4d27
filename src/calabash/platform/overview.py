"""Overview of the whole pool: sums over its devices, allocations and waiting requests. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from calabash.api.overview import OverviewCell, OverviewCount, OverviewModel, OverviewReply
from calabash.api.replies import AllocationView, DeviceView

IDLE_PERCENT = 0.5  # utilization below which a slice counts as idle


def overview(
    devices: Sequence[DeviceView],
    allocations: Sequence[AllocationView],
    *,
    pending: int,
    reasons: Iterable[str],
    at_s: float,
) -> OverviewReply:
    """Return the overview of a pool.

    Args:
        pending: number of waiting requests.
        reasons: reason of each waiting request that has one.
        at_s: time of the measured values, in seconds since the epoch.
    """
    memory_mib = {d.uuid: d.memory_mib for d in devices}
    idle = [amount for held in allocations for amount in _idle(held, memory_mib)]
    given = {d.uuid: _given(d) for d in devices}
    explained = Counter(reasons)
    return OverviewReply(
        at=at_s,
        devices=len(devices),
        given=round(sum(given.values()), 3),
        busy=round(sum(d.utilization_percent for d in devices) / 100, 3),
        memory_mib=sum(memory_mib.values()),
        memory_given_mib=sum(d.memory_allocated_mib for d in devices),
        memory_used_mib=sum(d.memory_used_mib for d in devices),
        power_w=round(sum(d.power_w for d in devices), 1),
        allocations=len(allocations),
        slices=sum(len(held.slices) for held in allocations),
        idle_held=len(idle),
        idle_held_devices=round(sum(idle), 3),
        unmanaged_processes=sum(len(d.unmanaged_processes) for d in devices),
        pending=pending,
        pending_by_reason=_counts(explained),
        unexplained=max(0, pending - explained.total()),
        health=_counts(Counter(str(d.health) for d in devices)),
        models=[
            _model(name, [d for d in devices if d.model == name], given) for name in sorted({d.model for d in devices})
        ],
        tenants=_counts(Counter(held.tenant for held in allocations)),
        cells=[_cell(d, given[d.uuid]) for d in devices],
    )


def _given(device: DeviceView) -> float:
    """Return the allocated fraction of a device, 0 to 1: the larger one of the fractions of memory and of compute."""
    memory = device.memory_allocated_mib / device.memory_mib if device.memory_mib else 0.0
    return min(1.0, max(memory, device.core_allocated_percent / 100))


def _idle(held: AllocationView, memory_mib: dict[str, int]) -> list[float]:
    """Return for each idle slice of an allocation the fraction of the device that the slice has, 0 to 1.

    It is the larger one of the fractions of memory and compute. ``memory_mib`` has the memory of each device by UUID.
    """
    found = []
    for part in held.slices:
        if part.core_used_percent < IDLE_PERCENT:
            whole = memory_mib.get(part.device, 0)
            resident = part.memory_mib - part.spill_mib
            found.append(min(1.0, max(resident / whole if whole else 0.0, part.core_percent / 100)))
    return found


def _counts(counted: Counter[str]) -> list[OverviewCount]:
    """Return the counts, most frequent first."""
    return [OverviewCount(name=n, count=c) for n, c in sorted(counted.items(), key=lambda item: (-item[1], item[0]))]


def _model(name: str, devices: Sequence[DeviceView], given: dict[str, float]) -> OverviewModel:
    return OverviewModel(
        model=name,
        devices=len(devices),
        given=round(sum(given[d.uuid] for d in devices), 3),
        busy=round(sum(d.utilization_percent for d in devices) / 100, 3),
    )


def _cell(device: DeviceView, given: float) -> OverviewCell:
    return OverviewCell(
        index=device.index,
        health=str(device.health),
        given_percent=round(100 * given),
        memory_percent=round(100 * device.memory_used_mib / device.memory_mib) if device.memory_mib else 0,
        busy_percent=device.utilization_percent,
    )
