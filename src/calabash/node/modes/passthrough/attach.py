"""Attachment of devices, virtual functions and mediated devices to virtual machines.

Conditions are checked in this order before anything is changed: the IOMMU isolates the device's group, and all devices
of the group can be passed to one virtual machine; MIG is off and the device has no virtual functions; no process,
including this one, has the device open. Then the device is recorded, marked as lent in the inventory, and bound to the
VFIO driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from calabash.adapters.host.pci.devices import PciDevice
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, RequestName
from calabash.model.request import Slice
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.passthrough.machine import PLAIN, Machine
from calabash.node.modes.passthrough.records import Given, GivenDevices, GivenKind


class DeviceAttacher:
    """Attaches devices to virtual machines. One call at a time."""

    def __init__(self, inventory: Inventory, attachments: GivenDevices, machine: Callable[[], Machine]) -> None:
        self._inventory = inventory
        self._attachments = attachments
        self._machine = machine

    def device(self, wanted: DeviceUuid) -> Device:
        """Return the device with this UUID. Raises UNHEALTHY if the node does not have it now."""
        found = next((d for d in self._inventory.devices() if d.uuid == wanted), None)
        if found is None:
            raise CalabashError(f"device {wanted} is not on this node", reason=Reason.UNHEALTHY)
        return found

    def attach(self, record: AllocationRecord, part: Slice) -> None:
        """Attach one slice of an allocation.

        Raises CalabashError or OSError; the caller must then detach what has been recorded for the allocation.
        """
        device = self.device(part.device)
        for given in self._attachments.all():
            if given.device == device.uuid and (given.kind is GivenKind.CARD or not part.vf):
                raise CalabashError(
                    Message(
                        "device {device} is attached for allocation {allocation}, or is being detached from there",
                        device=device.index,
                        allocation=RequestName(given.allocation),
                    ),
                    reason=Reason.NO_CAPACITY,
                    hint="see `calabash device vm list`",
                )
        card = self._machine().card(device)
        if part.vf:
            self._attach_part(record, device, card, part.vf)
        else:
            self._attach_card(record, device, card)

    def _attach_card(self, record: AllocationRecord, device: Device, card: PciDevice) -> None:
        machine, inventory = self._machine(), self._inventory
        ours = {machine.card(self.device(part.device)).address for part in record.placement.slices}
        beside = machine.require_group(card.address, ours)
        machine.require_whole(device, card)
        addresses = (card.address, *beside)
        with inventory.lent.quiet(), machine.apart(device):
            machine.require_unused(device, card, addresses)
            self._attachments.add([self._entry(record, device, address, card) for address in addresses])
            inventory.lent.lend(device.uuid, to=record.id)
            for address in addresses:
                machine.vfio.bind(address)

    def _entry(self, record: AllocationRecord, device: Device, address: str, card: PciDevice) -> Given:
        return Given(
            allocation=record.id,
            device=device.uuid,
            kind=GivenKind.CARD,
            name=address,
            driver=self._machine().tree.get(address).driver,
            card=device if address == card.address else None,
            main=address == card.address,
        )

    def _attach_part(self, record: AllocationRecord, device: Device, card: PciDevice, profile: str) -> None:
        machine = self._machine()
        if profile != PLAIN:
            self._attach_typed(record, device, card, profile)
            return
        machine.vfio.require_ready(card.address)
        made = not card.vfs or any(given.made for given in self._attachments.all() if given.parent == card.address)
        functions, making = card.vfs, None
        if not functions:
            making = _part(record, device, card, GivenKind.FUNCTIONS, card.address, made=True)
            self._attachments.add([making])
            functions = machine.functions.make(card.address, card.vfs_total)
        taken = {given.name for given in self._attachments.all()}
        free = next((function for function in functions if function not in taken), None)
        if free is None:
            raise CalabashError(
                f"all {len(functions)} virtual functions of device {device.index} are attached or being detached",
                reason=Reason.NO_CAPACITY,
            )
        machine.require_group(free, ())
        self._attachments.add([_part(record, device, card, GivenKind.FUNCTION, free, made=made)], instead_of=making)
        machine.vfio.bind(free)

    def _attach_typed(self, record: AllocationRecord, device: Device, card: PciDevice, profile: str) -> None:
        """Attach a virtual GPU of the vendor's driver: a free virtual function with a vGPU type, or a mediated device."""
        machine = self._machine()
        taken = {given.name for given in self._attachments.all()}
        for place in (*card.vfs, card.address):
            kind = next((k for k in machine.tree.virtual_types(place) if k.name == profile and k.available), None)
            if kind is None or place in taken:
                continue
            if kind.id.isdigit():
                self._attachments.add([_part(record, device, card, GivenKind.TYPE, place)])
                machine.functions.set_type(place, kind.id)
            else:
                name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{record.id}/{device.uuid}"))
                self._attachments.add([_part(record, device, card, GivenKind.MEDIATED, name)])
                machine.functions.make_mediated(place, kind.id, name)
            return
        raise CalabashError(
            f"device {device.index} has no room for another {profile}", reason=Reason.NO_CAPACITY, hint="see `vm list`"
        )


def _part(
    record: AllocationRecord, device: Device, card: PciDevice, kind: GivenKind, name: str, *, made: bool = False
) -> Given:
    return Given(
        allocation=record.id, device=device.uuid, kind=kind, name=name, parent=card.address, made=made, main=True
    )
