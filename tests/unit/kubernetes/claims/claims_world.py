"""Devices as drivers describe them, and claims as the scheduler allocates them."""

from __future__ import annotations

from typing import Any

import msgspec

from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.request import AllocationId, ModeName, Slice
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing.protocol import HeldSlice

NODE = "gpu-1"
MIB = 1 << 20


def card(index: int = 0, **changes: Any) -> Device:
    """Return an H100 with MIG."""
    facts: dict[str, Any] = {
        "uuid": DeviceUuid(f"GPU-{index:08x}-0000-4000-8000-00000000000{index}"),
        "index": index,
        "vendor": "nvidia",
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81_559,
        "compute_capability": (9, 0),
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "numa_node": 0,
        "mig": GEOMETRIES["H100"],
    }
    return Device(**(facts | changes))


def result(device: str, *, request: str = "gpu", pool: str = NODE, driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    """Return one device of an allocation, in the API server's form."""
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def share(
    device: str, memory_mib: int = 10_272, cores: int = 30, *, share_id: str = "s-1", **more: Any
) -> dict[str, Any]:
    """Return a share of a device; ``memory_mib`` is the consumed memory."""
    capacity = {"memory": f"{memory_mib}Mi", "cores": str(cores), "slices": "1"}
    return result(device, **({"shareID": share_id, "consumedCapacity": capacity} | more))


def config(parameters: Any, *, source: str = "FromClaim", requests: tuple[str, ...] = (), driver: str = DRIVER) -> Any:
    """Return parameters for a driver, in the form of an allocation."""
    opaque = {"driver": driver, "parameters": parameters}
    return {"source": source, "requests": list(requests), "opaque": opaque}


def slice_config(**fields: Any) -> dict[str, Any]:
    """Return a SliceConfig document."""
    return {"apiVersion": "calabash.dev/v1", "kind": "SliceConfig", **fields}


def allocated(*results: dict[str, Any], configs: tuple[Any, ...] = ()) -> ResourceClaim:
    """Return an allocated claim."""
    devices = {"results": list(results), "config": list(configs)}
    value = {
        "metadata": {"name": "c", "namespace": "ml", "uid": "11111111-2222-3333-4444-555555555555"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "calabash.dev"}}]}},
        "status": {"allocation": {"devices": devices}},
    }
    return msgspec.convert(value, ResourceClaim)


def snapshot(*states: DeviceSnapshot | Device) -> NodeSnapshot:
    """Return the state of a node with these devices; a device without a state is idle."""
    devices = tuple(
        one if isinstance(one, DeviceSnapshot) else DeviceSnapshot(device=one, mode=None, held=()) for one in states
    )
    return NodeSnapshot(node=NodeName(NODE), devices=devices, allocations=(), membership="kernel", slots="tmpfs")


def snapshot_with(device: Device, name: str, part: Slice, mode: str = "vgpu") -> DeviceSnapshot:
    """Return the state of a device of which an allocation has a slice."""
    return DeviceSnapshot(
        device=device,
        mode=ModeName(mode),
        held=(HeldSlice(slice=part),),
        allocations=(AllocationId(name),),
    )
