"""Convert slices of a node to the scheduler's placement, and describe a choice of devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calabash.binder.cluster.bundle import places_of
from calabash.binder.cluster.nodes import ClusterNode
from calabash.binder.cluster.tenancy import HeldSlices
from calabash.model.device import DeviceUuid
from calabash.model.request import Slice
from calabash.sched import NodePlacement


def place_of(
    row: int, number: Mapping[DeviceUuid, int], slices: Sequence[Slice], profiles: Sequence[str]
) -> NodePlacement:
    """Return the position of slices as a scheduler placement: node row, device indexes and MIG positions."""
    devices = tuple(sorted({number[part.device] for part in slices}))
    on = [[part for part in slices if number[part.device] == device] for device in devices]
    places = tuple(places_of(profiles, parts) for parts in on) if profiles else ()
    return NodePlacement(node=row, devices=devices, mig_places=places)


def choice_text(node: ClusterNode, devices: Sequence[int], tenancy: HeldSlices, policy: str) -> str:
    """Return a text about the devices of a placement and their choice. ``tenancy`` must not have the placement yet."""
    places = ", ".join(f"device {node.devices[i].device.index}" for i in devices)
    shared = sum(tenancy.is_shared((node.name, node.devices[i].device.uuid)) for i in devices)
    beside = f"{shared} of {len(devices)} shared with others already" if shared else "idle before"
    return f"{node.name}: {places} ({beside}); policy {policy}"
