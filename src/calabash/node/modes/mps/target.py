"""What one multi-process service serves: a card, or a MIG instance of one that its operator has cut."""

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
"""A card, and profile and first memory slice of an instance; "" and -1 for the whole card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """It.

    Args:
        uuid: by which programs know it.
        name: for people.
        part: by which the health of the card knows it.
        directory: name of its own directory.
        multiprocessors: that it has; 0 where nobody knows.
        percent_of_card: how many percent of the card it is.
        nodes: device nodes that open it, beside those of the card.
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
        """Whether it is a whole card."""
        return not self.place[1]

    def share_of(self, part: Slice) -> int:
        """Percent of what is served: slices count percent of cards."""
        return max(1, min(100, 100 * part.core_percent // self.percent_of_card))


def place_of(record: AllocationRecord) -> Place:
    """Where an allocation's one slice is."""
    (part,) = record.placement.slices
    return (part.device, part.profile, part.start)


def served_at(place: Place, tools: NodeTools) -> Served:
    """What is there now. Raises CalabashError when the node has no such card, or the instance is gone."""
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
        raise CalabashError(f"{name} is not there", reason=Reason.UNHEALTHY, hint="see: calabash mig show")
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
    """The capabilities that open a MIG device; those of simulated cards are none."""
    if root is None or environment:
        return ()
    return tuple(str(node) for node in mig_nodes_of(root, device.pci_bus_id, instance, part))
