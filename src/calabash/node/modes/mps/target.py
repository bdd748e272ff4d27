"""Target of an MPS service: a device, or a MIG instance of an operator's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.gpu.partitions import partitioning_of
from calabash.adapters.host.pci.device_nodes import mig_nodes_of
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import Slice
from calabash.node.modes.protocol import NodeTools
from calabash.sharing import mps

Place = tuple[DeviceUuid, str, int]
"""Device, and profile and first memory slice of a MIG instance; "" and -1 for the whole device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A device or MIG instance that an MPS service serves.

    Args:
        place: device, profile and first memory slice.
        uuid: UUID by which programs select it.
        name: name in messages.
        part: name in the health state of the device.
        directory: name of the service's directory.
        multiprocessors: number of its multiprocessors; 0 if unknown.
        percent_of_card: its part of the device, in percent.
        nodes: device nodes that programs need besides those of the device.
    """

    place: Place
    uuid: DeviceUuid
    name: str
    part: str
    directory: str
    multiprocessors: int
    percent_of_card: int = 100
    nodes: tuple[str, ...] = ()

    @property
    def card(self) -> DeviceUuid:
        return self.place[0]

    @property
    def whole(self) -> bool:
        """True for a whole device."""
        return not self.place[1]

    def share_of(self, part: Slice) -> int:
        """Convert the slice's percentage of the whole device to one of this device or MIG instance, 1 to 100."""
        return max(1, min(100, 100 * part.core_percent // self.percent_of_card))


def place_of(record: AllocationRecord) -> Place:
    """Return the device and MIG instance (``Place``) of an allocation's only slice."""
    (part,) = record.placement.slices
    return (part.device, part.profile, part.start)


def served_at(place: Place, tools: NodeTools) -> Served:
    """Return the device or MIG instance that ``place`` names, as the target of an MPS service.

    Raises:
        CalabashError: NO_DEVICES: the node has no such device; UNHEALTHY: the MIG instance does not exist.
    """
    uuid, profile, start = place
    device = next((d for d in tools.inventory.devices() if d.uuid == uuid), None)
    if device is None:
        raise CalabashError(f"device {uuid} is not on this node", reason=Reason.NO_DEVICES)
    name, part = f"device {device.index}", mps.service_name(profile, start)
    if not profile:
        return Served(
            place=place, uuid=uuid, name=name, part=part, directory=str(device.index),
            multiprocessors=device.multiprocessor_count,
        )  # fmt: skip
    return _instance(place, device, tools, name=f"the {profile} at {start} of {name}", part=part)


def _instance(place: Place, device: Device, tools: NodeTools, *, name: str, part: str) -> Served:
    _, profile, start = place
    driver = partitioning_of(tools.inventory.driver_of(device.uuid))
    found = driver.layout(device.uuid).at(profile, start) if driver is not None else None
    whole = max(found.parts, key=lambda p: p.compute) if found is not None and found.parts else None
    if driver is None or found is None or whole is None or device.mig is None:
        raise CalabashError(f"{name} does not exist", reason=Reason.UNHEALTHY, hint="see: calabash device mig show")
    return Served(
        place=place,
        uuid=whole.uuid,
        name=name,
        part=part,
        directory=f"{device.index}-{start}",
        multiprocessors=driver.multiprocessors(device.uuid, whole.uuid),
        percent_of_card=mps.percent_of_device(device.mig, profile),
        nodes=_nodes(tools.device_root, tools.environment, device, found.id, whole.id),
    )


def _nodes(
    root: Path | None, environment: Mapping[str, str], device: Device, instance: int, part: int
) -> tuple[str, ...]:
    """Return the capability device nodes of a MIG device; none on a simulated node.

    Args:
        instance: ID of the GPU instance.
        part: ID of the compute instance.
    """
    if root is None or environment:
        return ()
    return tuple(str(node) for node in mig_nodes_of(root, device.pci_bus_id, instance, part))
