"""Metrics of the pool's devices and slices under the names of HAMi's exporters, for existing dashboards.

Names and units are those of HAMi 2.10 (``cmd/scheduler/metrics.go``, ``cmd/vGPUmonitor/metrics.go``). A pool has no
pods: the tenant stands for the namespace, the allocation for the pod, the program's user for the container.
"""

from __future__ import annotations

from collections.abc import Iterator

from calabash.adapters.exposition import Family
from calabash.exporter.native import slices
from calabash.exporter.reading import PoolReading
from calabash.model.units import MIB

_DEVICE = ("node", "device_uuid", "device_index", "device_type")
_SLICE = ("node", "device_uuid", "device_index", "namespace", "pod", "container")


def hami_families(reading: PoolReading) -> Iterator[Family]:
    """Yield the metric families of devices, then those of slices."""
    yield from _devices(reading)
    yield from _slices(reading)


def _devices(reading: PoolReading) -> Iterator[Family]:
    limit = Family(name="hami_gpu_memory_limit_bytes", help="Memory of the device.", labels=_DEVICE)
    allocated = Family(name="hami_gpu_memory_allocated_bytes", help="Memory that is allocated.", labels=_DEVICE)
    core_limit = Family(name="hami_gpu_core_limit_ratio", help="Compute that can be allocated.", labels=_DEVICE)
    core = Family(name="hami_gpu_core_allocated_ratio", help="Compute that is allocated.", labels=_DEVICE)
    shared = Family(name="hami_gpu_shared_count", help="Containers that share the device.", labels=_DEVICE)
    for device in reading.devices:
        labels = (reading.status.node, device.uuid, str(device.index), device.model)
        limit.add(labels, device.memory_mib * MIB)
        allocated.add(labels, device.memory_allocated_mib * MIB)
        core_limit.add(labels, 1.0)
        core.add(labels, device.core_allocated_percent / 100)
        shared.add(labels, len(device.allocations))
    yield from (limit, allocated, core_limit, core, shared)


def _slices(reading: PoolReading) -> Iterator[Family]:
    limit = Family(name="hami_vgpu_memory_limit_bytes", help="Memory of the slice.", labels=_SLICE)
    used = Family(name="hami_vgpu_memory_used_bytes", help="Memory of the slice in use.", labels=_SLICE)
    busy = Family(name="hami_container_device_utilization_ratio", help="Compute that it uses.", labels=_SLICE)
    for allocation, part in slices(reading):
        labels = (
            reading.status.node,
            part.device,
            str(part.device_index),
            allocation.tenant,
            allocation.id,
            allocation.user,
        )
        limit.add(labels, part.memory_mib * MIB)
        used.add(labels, part.memory_used_mib * MIB)
        busy.add(labels, part.core_used_percent / 100)
    yield from (limit, used, busy)
