"""Compute the metric families of the catalogue from one reading of the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from calabash.adapters.exposition import Family
from calabash.api import replies
from calabash.exporter import catalogue as c
from calabash.exporter.families import Row, family
from calabash.exporter.queues import queue_families
from calabash.exporter.reading import PENDING, PoolReading
from calabash.exporter.tenants import tenant_families
from calabash.model.device import Health
from calabash.model.network_status import ConditionKind, VpcReady
from calabash.model.units import MIB

READY = ConditionKind.READY
UNEXPLAINED = "queued"


def families(reading: PoolReading) -> Iterator[Family]:
    """Yield all metric families of a pool that answered, in the order of the catalogue for each kind of object."""
    yield from _of_pool(reading)
    yield from _of_devices(reading)
    yield from _of_slices(reading)
    yield from queue_families(reading)
    yield from tenant_families(reading)
    yield family(c.NETWORK_AFFECTED, _affected(reading))


def _affected(reading: PoolReading) -> list[Row]:
    """Return a row for each part of OVN that can fail, with the number of VPCs affected by it; [] without VPCs.

    Parts that work have a row with 0.
    """
    told = Counter(
        condition.reason for vpc in reading.vpcs for condition in vpc.status.conditions if condition.kind is READY
    )
    parts = [reason for reason in VpcReady if reason is not VpcReady.ACTIVE] if reading.vpcs else []
    return [((reading.status.node, reason.value), told[reason.value]) for reason in parts]


def _of_pool(reading: PoolReading) -> Iterator[Family]:
    status, node = reading.status, reading.status.node
    simulated = "true" if status.sim else "false"
    yield family(c.POOL_INFO, [((node, status.version, status.driver, simulated), 1)])
    yield family(c.POOL_START, [((node,), status.started_at)])
    held = Counter((node, a.mode, a.state) for a in reading.allocations if a.state != PENDING)
    yield family(c.HELD, [(labels, count) for labels, count in sorted(held.items())])
    waiting = Counter((node, a.queue, a.reason or UNEXPLAINED) for a in reading.allocations if a.state == PENDING)
    yield family(c.WAITING, [(labels, count) for labels, count in sorted(waiting.items())])
    yield family(c.EVENTS, [((node, *key), count) for key, count in sorted(reading.events.items())])


def _of_devices(reading: PoolReading) -> Iterator[Family]:
    node = reading.status.node
    devices = [((node, d.uuid, str(d.index)), d) for d in reading.devices]
    described = [((*key, d.model, d.vendor, d.compute_capability, d.mode or d.pinned), 1.0) for key, d in devices]
    yield family(c.DEVICE_INFO, described)
    yield family(c.DEVICE_HEALTHY, [(key, float(d.health == Health.HEALTHY)) for key, d in devices])
    yield family(c.DEVICE_HEALTH_INFO, [((*key, d.health, d.cause), 1.0) for key, d in devices])
    yield family(c.DEVICE_MEMORY, [(key, d.memory_mib * MIB) for key, d in devices])
    yield family(c.DEVICE_MEMORY_USED, [(key, d.memory_used_mib * MIB) for key, d in devices])
    yield family(c.DEVICE_MEMORY_ALLOCATED, [(key, d.memory_allocated_mib * MIB) for key, d in devices])
    yield family(c.DEVICE_MEMORY_FREE, [(key, d.memory_free_mib * MIB) for key, d in devices])
    yield family(c.DEVICE_CORE_ALLOCATED, [(key, d.core_allocated_percent / 100) for key, d in devices])
    yield family(c.DEVICE_BUSY, [(key, d.utilization_percent / 100) for key, d in devices])
    yield family(c.DEVICE_TEMPERATURE, [(key, d.temperature_c) for key, d in devices])
    yield family(c.DEVICE_POWER, [(key, d.power_w) for key, d in devices])
    yield family(c.DEVICE_SLICES, [(key, len(d.allocations)) for key, d in devices])
    yield family(c.DEVICE_STRANGERS, [(key, len(d.unmanaged_processes)) for key, d in devices])
    memory = [(key, sum(s.memory_mib for s in d.unmanaged_processes) * MIB) for key, d in devices]
    yield family(c.DEVICE_STRANGERS_MEMORY, memory)


def slices(reading: PoolReading) -> Iterator[tuple[replies.AllocationView, replies.SliceUseView]]:
    """Yield every held slice with its allocation.

    An allocation may hold several MIG instances of one device. They are yielded as one slice: see ``joined``.
    """
    for allocation in reading.allocations:
        if allocation.state != PENDING:
            for part in joined(allocation.slices):
                yield allocation, part


def joined(parts: Sequence[replies.SliceUseView]) -> list[replies.SliceUseView]:
    """Return one slice for each device, with the sums over the MIG instances of the device.

    Several instances of one device would have the same labels, and the labels must identify a series.
    """
    found: dict[str, replies.SliceUseView] = {}
    for part in parts:
        before = found.get(part.device)
        found[part.device] = (
            part
            if before is None
            else replies.SliceUseView(
                device=part.device,
                device_index=part.device_index,
                memory_mib=before.memory_mib + part.memory_mib,
                core_percent=before.core_percent + part.core_percent,
                memory_used_mib=before.memory_used_mib + part.memory_used_mib,
                core_used_percent=before.core_used_percent + part.core_used_percent,
                denied=before.denied + part.denied,
                throttled_s=before.throttled_s + part.throttled_s,
                profile=",".join(filter(None, (before.profile, part.profile))),
            )
        )
    return list(found.values())


def _of_slices(reading: PoolReading) -> Iterator[Family]:
    node = reading.status.node
    held = [((node, a.id, part.device, a.tenant, a.queue), a, part) for a, part in slices(reading)]
    described = [
        ((*key, str(part.device_index), a.user, a.mode, a.policy, part.profile, a.gang), 1.0) for key, a, part in held
    ]
    yield family(c.SLICE_INFO, described)
    yield family(c.SLICE_MEMORY_LIMIT, [(key, part.memory_mib * MIB) for key, _, part in held])
    yield family(c.SLICE_MEMORY_USED, [(key, part.memory_used_mib * MIB) for key, _, part in held])
    yield family(c.SLICE_CORE_LIMIT, [(key, part.core_percent / 100) for key, _, part in held])
    yield family(c.SLICE_CORE_USED, [(key, part.core_used_percent / 100) for key, _, part in held])
    yield family(c.SLICE_THROTTLED, [(key, part.throttled_s) for key, _, part in held])
    yield family(c.SLICE_DENIED, [(key, part.denied) for key, _, part in held])
