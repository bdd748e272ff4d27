"""Executor of mode passthrough: attaches devices to virtual machines through VFIO and returns them to their drivers.

Each attachment is recorded before the first change, so that after a failure this pool, or the next one, can undo it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId
from calabash.node.modes.passthrough.attach import DeviceAttacher
from calabash.node.modes.passthrough.detach import DeviceDetacher
from calabash.node.modes.passthrough.machine import Machine, real_machine, simulated_machine
from calabash.node.modes.passthrough.records import GivenDevices, GivenKind
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.open_pages import Pages
from calabash.sharing import passthrough
from calabash.sharing.protocol import Edits

OFFER_EVERY_S = 5.0


class PassthroughExecutor(ViewOnly):
    """Executor of allocations for virtual machines.

    Args:
        tools: tools of the node.
        machine: host whose PCI devices are managed; None: the one that ``tools`` describes.
    """

    name = passthrough.MODE.name
    standing = True

    def __init__(self, tools: NodeTools, machine: Machine | None = None) -> None:
        super().__init__(tools)
        self._machine = machine
        self._attachments = GivenDevices(tools.home / "passthrough.json")
        self._changing = threading.Lock()  # one change of the machine at a time
        self._offer_again_s = 0.0
        self._attaching = DeviceAttacher(tools.inventory, self._attachments, lambda: self.machine)
        self._detaching = DeviceDetacher(tools.inventory, self._attachments, lambda: self.machine, self._changing)
        for given in self._attachments.all():
            if given.card is not None:
                tools.inventory.remember(given.card)
                tools.inventory.lent.lend(given.card.uuid, to=given.allocation)

    @property
    def machine(self) -> Machine:
        """The host whose PCI devices are managed, opened at the first use."""
        if self._machine is None:
            root = self._tools.device_root or Path("/")
            if self._tools.environment:
                self._machine = simulated_machine(root, self._tools.inventory.devices())
            else:
                self._machine = real_machine(root, self._apart)
        return self._machine

    def start(self) -> None:
        """Publish the virtual GPU profiles of all devices in the inventory."""
        self._offer(())

    def _offer(self, held: Sequence[AllocationRecord]) -> None:
        """Update the virtual GPU profiles in the inventory: those that the driver offers and those that are attached."""
        if self._tools.environment and not (self._tools.device_root or Path("/")).is_dir():
            return
        at = {given.name for given in self._attachments.all() if given.kind is GivenKind.TYPE}
        for device in self._tools.inventory.devices():
            if self._tools.inventory.lent.loan(device.uuid) is not None:
                continue
            parts = (part for record in held for part in record.placement.slices if part.device == device.uuid)
            profiles = self.machine.profiles(device, given=Counter(p.vf for p in parts if p.vf), at=at)
            if profiles != device.vf_profiles:
                self._tools.inventory.offer_parts(device.uuid, profiles)

    # -- attachment --------------------------------------------------------------------------------------------

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Check the devices. Raises NOT_PERMITTED if the pool is not root's, UNHEALTHY for an unknown device."""
        if os.geteuid() != 0 and not self._tools.environment:
            raise CalabashError(
                "only a pool of root can attach a device to a virtual machine",
                reason=Reason.NOT_PERMITTED,
                hint="use the pool of the machine, which root started",
            )
        for part in record.placement.slices:
            self.machine.card(self._attaching.device(part.device))
        return super().prepare(record)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Attach the devices that are not attached yet. Raises CalabashError; DISK_FULL if they cannot be recorded."""
        with self._changing:
            try:
                for part in record.placement.slices:
                    if not any(given.device == part.device for given in self._attachments.of_allocation(record.id)):
                        self._attaching.attach(record, part)
            except OSError as error:
                raise CalabashError(
                    f"the attachment of a device cannot be recorded: {error.strerror}", reason=Reason.DISK_FULL
                ) from error
        return super().prepare(record)

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        """Make the allocation's user, if it is a user of this host, the owner of the VFIO groups."""
        del pages
        if record.uid > 0 and not self._tools.environment:
            for node in self._nodes(record.id):
                os.chown(node, record.uid, -1)

    def edits(self, record: AllocationRecord) -> Edits:
        given = [g for g in self._attachments.of_allocation(record.id) if g.main]
        addresses = ",".join(g.name for g in given if g.kind is not GivenKind.MEDIATED)
        mediated = ",".join(g.name for g in given if g.kind is GivenKind.MEDIATED)
        environment = []
        beside = ",".join(g.name for g in self._attachments.of_allocation(record.id) if not g.main)
        if beside:
            environment.append(("CALABASH_PCI_BESIDE", beside))
        for value, ours, is_mediated in ((addresses, "CALABASH_PCI", False), (mediated, "CALABASH_MDEV", True)):
            if value:
                models = {self._tools.inventory.model_of(part.device) for part in record.placement.slices}
                resources = [passthrough.RESOURCE, *(passthrough.vendor_resource(m) for m in sorted(models) if m)]
                names = [ours, *(passthrough.kubevirt_variable(r, mediated=is_mediated) for r in resources)]
                environment += [(name, value) for name in names]
        nodes = [self.machine.root / "dev/vfio/vfio", *self._nodes(record.id)]
        seen_from_host = [str(Path("/") / node.relative_to(self.machine.root)) for node in nodes]
        return Edits(environment=tuple(environment), device_nodes=tuple(dict.fromkeys(seen_from_host)))

    def _nodes(self, allocation: AllocationId) -> list[Path]:
        tree, found = self.machine.tree, []
        for given in self._attachments.of_allocation(allocation):
            device = tree.find(given.name) if given.kind is not GivenKind.MEDIATED else None
            group = device.group if device is not None else self.machine.functions.mediated_group(given.name)
            if group >= 0:
                found.append(self.machine.vfio.group_file(group))
        return found

    # -- detachment --------------------------------------------------------------------------------------------

    def leave(self, record: AllocationRecord) -> None:
        self._detaching.detach({record.id})

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        known = {record.id for record in held}
        self._detaching.detach({given.allocation for given in self._attachments.all()} - known)

    def verify(self, held: Sequence[AllocationRecord]) -> Sequence[Text]:
        """Return the reasons why devices could not be detached yet; each one once.

        Every ``OFFER_EVERY_S`` the virtual GPU profiles are updated, because an operator may have created functions or changed
        their types.
        """
        now_s = time.monotonic()
        if now_s >= self._offer_again_s and self._changing.acquire(blocking=False):
            try:
                self._offer_again_s = now_s + OFFER_EVERY_S
                self._offer(held)
            finally:
                self._changing.release()
        return self._detaching.failures()

    # -- the rest ----------------------------------------------------------------------------------------------

    def _apart(self, device: Device) -> AbstractContextManager[None]:
        return self._tools.inventory.driver_of(device.uuid).released()


def open_mode(tools: NodeTools) -> PassthroughExecutor:
    """Return the executor of mode passthrough."""
    return PassthroughExecutor(tools)
