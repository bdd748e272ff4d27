"""Passthrough on this node: a card leaves its driver for a virtual machine, and comes back to the pool.

Everything that must hold is looked at in this order before anything changes: the machine confines the card's group and
the group is viable, MIG is off and the card has no virtual functions, nobody has it open, this process included. Then it
is written down, bound, and lent in the inventory's eyes. Any failure puts back what was changed. Coming back may wait for
a virtual machine that still runs; a thread of its own does that, and tries again until it is done.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import structlog

from calabash.agent.modes.passthrough_book import Given, GivenKind, PassthroughBook
from calabash.agent.modes.passthrough_machine import PLAIN, Machine, real_machine, simulated_machine
from calabash.agent.modes.protocol import NodeTools, ViewOnly
from calabash.agent.slot_content import SlotDevice
from calabash.agent.slot_pages import Pages
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, Slice
from calabash.seams.host.pci import PciDevice
from calabash.sharing import passthrough
from calabash.sharing.protocol import Edits

_TRY_AGAIN_S = 1.0

log = structlog.get_logger(__name__)


class PassthroughExecutor(ViewOnly):
    """Gives cards and parts of cards to virtual machines.

    Args:
        machine: None: the one that the tools describe.
    """

    name = passthrough.MODE.name
    standing = True

    def __init__(self, tools: NodeTools, machine: Machine | None = None) -> None:
        super().__init__(tools)
        self._machine = machine
        self._book = PassthroughBook(tools.home / "passthrough.json")
        self._changing = threading.Lock()  # one change of the machine at a time
        self._over: set[str] = set()
        self._news: list[str] = []
        self._told: dict[str, str] = {}
        self._fetching: threading.Thread | None = None
        self._fetch_lock = threading.Lock()
        self._stopped = threading.Event()
        for given in self._book.all():
            if given.card is not None:
                tools.inventory.remember(given.card)
                tools.inventory.lent.lend(given.card.uuid, to=given.allocation)

    @property
    def machine(self) -> Machine:
        """Looked at when it is first needed."""
        if self._machine is None:
            root = self._tools.device_root or Path("/")
            if self._tools.environment:
                self._machine = simulated_machine(root, self._tools.inventory.devices())
            else:
                self._machine = real_machine(root, self._apart)
        return self._machine

    def start(self) -> None:
        """What parts the cards make."""
        if self._tools.environment and not (self._tools.device_root or Path("/")).is_dir():
            return
        for device in self._tools.inventory.devices():
            profiles = self.machine.profiles(device)
            if profiles:
                self._tools.inventory.offer_parts(device.uuid, profiles)

    # -- giving ------------------------------------------------------------------------------------------------

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        if os.geteuid() != 0 and not self._tools.environment:
            raise CalabashError(
                "a card is given to a virtual machine by root only",
                reason=Reason.NOT_PERMITTED,
                hint="ask the pool of the machine, which root started",
            )
        for part in record.placement.slices:
            self.machine.card(self._device(part.device))
        return super().prepare(record)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        with self._changing:
            try:
                for part in record.placement.slices:
                    if not any(given.device == part.device for given in self._book.of(record.id)):
                        self._give(record, part)
            except OSError as error:
                raise CalabashError(
                    f"it cannot be written down what is given away: {error.strerror}", reason=Reason.DISK_FULL
                ) from error
        return super().prepare(record)

    def _give(self, record: AllocationRecord, part: Slice) -> None:
        device = self._device(part.device)
        for given in self._book.all():
            if given.device == device.uuid and (given.kind is GivenKind.CARD or not part.vf):
                raise CalabashError(
                    f"device {device.index} is with {given.allocation}, or on its way back from there",
                    reason=Reason.NO_CAPACITY,
                    hint="see `calabash vm list`",
                )
        card = self.machine.card(device)
        if part.vf:
            self._give_part(record, device, card, part.vf)
        else:
            self._give_card(record, device, card)

    def _give_card(self, record: AllocationRecord, device: Device, card: PciDevice) -> None:
        machine, inventory = self.machine, self._tools.inventory
        ours = {machine.card(self._device(part.device)).address for part in record.placement.slices}
        beside = machine.require_group(card.address, ours)
        machine.require_whole(device, card)
        addresses = (card.address, *beside)
        with inventory.lent.quiet(), machine.apart(device):
            machine.require_unused(device, card, addresses)
            self._book.add([self._entry(record, device, address, card) for address in addresses])
            inventory.lent.lend(device.uuid, to=record.id)
            for address in addresses:
                machine.vfio.bind(address)

    def _entry(self, record: AllocationRecord, device: Device, address: str, card: PciDevice) -> Given:
        return Given(
            allocation=record.id,
            device=device.uuid,
            kind=GivenKind.CARD,
            name=address,
            driver=self.machine.tree.get(address).driver,
            card=device if address == card.address else None,
            main=address == card.address,
        )

    def _give_part(self, record: AllocationRecord, device: Device, card: PciDevice, profile: str) -> None:
        machine = self.machine
        if profile != PLAIN:
            self._give_typed(record, device, card, profile)
            return
        machine.vfio.require_ready(card.address)
        made = not card.vfs or any(given.made for given in self._book.all() if given.parent == card.address)
        functions = machine.functions.make(card.address, card.vfs_total) if not card.vfs else card.vfs
        taken = {given.name for given in self._book.all()}
        free = next((function for function in functions if function not in taken), None)
        if free is None:
            raise CalabashError(
                f"all {len(functions)} virtual functions of device {device.index} are given out or on their way back",
                reason=Reason.NO_CAPACITY,
            )
        machine.require_group(free, ())
        self._book.add([_part(record, device, card, GivenKind.FUNCTION, free, made=made)])
        machine.vfio.bind(free)

    def _give_typed(self, record: AllocationRecord, device: Device, card: PciDevice, profile: str) -> None:
        """A virtual GPU of the driver's: on a free function by its list, else a mediated device."""
        machine = self.machine
        taken = {given.name for given in self._book.all()}
        for place in (*card.vfs, card.address):
            kind = next((k for k in machine.tree.virtual_types(place) if k.name == profile and k.available), None)
            if kind is None or place in taken:
                continue
            if kind.id.isdigit():
                self._book.add([_part(record, device, card, GivenKind.TYPE, place)])
                machine.functions.set_type(place, kind.id)
            else:
                name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{record.id}/{device.uuid}"))
                self._book.add([_part(record, device, card, GivenKind.MEDIATED, name)])
                machine.functions.make_mediated(place, kind.id, name)
            return
        raise CalabashError(
            f"device {device.index} has no room for another {profile}", reason=Reason.NO_CAPACITY, hint="see `vm list`"
        )

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        """Its user may open the group, where a user of the host is to."""
        del pages
        if record.uid > 0 and not self._tools.environment:
            for node in self._nodes(record.id):
                os.chown(node, record.uid, -1)

    def edits(self, record: AllocationRecord) -> Edits:
        given = [g for g in self._book.of(record.id) if g.main]
        addresses = ",".join(g.name for g in given if g.kind is not GivenKind.MEDIATED)
        mediated = ",".join(g.name for g in given if g.kind is GivenKind.MEDIATED)
        environment = []
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
        for given in self._book.of(allocation):
            device = tree.find(given.name) if given.kind is not GivenKind.MEDIATED else None
            group = device.group if device is not None else self.machine.functions.mediated_group(given.name)
            if group >= 0:
                found.append(self.machine.vfio.group_file(group))
        return found

    # -- coming back -------------------------------------------------------------------------------------------

    def leave(self, record: AllocationRecord) -> None:
        self._end({record.id})

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        known = {record.id for record in held}
        self._end({given.allocation for given in self._book.all()} - known)

    def _end(self, allocations: Collection[str]) -> None:
        """Fetch back what these have, without anybody waiting for it."""
        given = [g for g in self._book.all() if g.allocation in allocations]
        for entry in given:
            self._tools.inventory.lent.ending(DeviceUuid(entry.device))
        with self._fetch_lock:
            self._over.update(g.allocation for g in given)
            if given and self._fetching is None:
                self._fetching = threading.Thread(target=self._fetch, name="passthrough", daemon=True)
                self._fetching.start()

    def _fetch(self) -> None:
        """Until everything that is over is back."""
        while True:
            for given in [g for g in self._book.all() if g.allocation in self._over]:
                try:
                    with self._changing:
                        self._fetch_one(given)
                    self._told.pop(given.name, None)
                except (CalabashError, OSError) as error:
                    self._tell(given, error.message if isinstance(error, CalabashError) else str(error))
                except Exception:
                    log.exception("a device could not be fetched back; it is tried again", device=given.name)
            with self._fetch_lock:
                if not any(g.allocation in self._over for g in self._book.all()):
                    self._over.clear()
                    self._fetching = None
                    return
            self._stopped.wait(_TRY_AGAIN_S)

    def _tell(self, given: Given, message: str) -> None:
        if self._told.get(given.name) != message:
            self._told[given.name] = message
            self._news.append(f"{given.name} is not back yet: {message}")
            log.warning("a device is not back yet", device=given.name, why=message)

    def _fetch_one(self, given: Given) -> None:
        """Raises CalabashError, and is tried again."""
        machine = self.machine
        if given.kind is GivenKind.MEDIATED:
            machine.functions.unmake_mediated(given.name)
        elif given.kind is GivenKind.TYPE:
            machine.functions.set_type(given.name, "")
        else:
            self._fetch_device(given)
        if given.made and not any(g.parent == given.parent and g != given for g in self._book.all()):
            machine.functions.unmake(given.parent)
        self._book.remove(given)
        device = DeviceUuid(given.device)
        if given.kind is GivenKind.CARD and not any(
            g.device == device and g.kind is GivenKind.CARD for g in self._book.all()
        ):
            self._tools.inventory.came_back(device)

    def _fetch_device(self, given: Given) -> None:
        machine = self.machine
        found = machine.tree.find(given.name)
        users = machine.users([machine.vfio.group_file(found.group)]) if found is not None and found.group >= 0 else ""
        if users:
            raise CalabashError(f"its group is still open: {users}", reason=Reason.CONFLICT)
        card = given.card if given.card is not None else None
        with self._tools.inventory.lent.quiet(), machine.apart(card) if card is not None else nullcontext():
            machine.vfio.give_back(given.name, given.driver)

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        """What could not be fetched back yet, told once; and cards that somebody else has bound elsewhere."""
        del held
        told, self._news = self._news, []
        return told

    # -- the rest ----------------------------------------------------------------------------------------------

    def _device(self, wanted: DeviceUuid) -> Device:
        found = next((d for d in self._tools.inventory.devices() if d.uuid == wanted), None)
        if found is None:
            raise CalabashError(f"device {wanted} is not here", reason=Reason.UNHEALTHY)
        return found

    def _apart(self, device: Device) -> AbstractContextManager[None]:
        return self._tools.inventory.driver_of(device.uuid).apart()


def _part(
    record: AllocationRecord, device: Device, card: PciDevice, kind: GivenKind, name: str, *, made: bool = False
) -> Given:
    return Given(
        allocation=record.id, device=device.uuid, kind=kind, name=name, parent=card.address, made=made, main=True
    )


def open_mode(tools: NodeTools) -> PassthroughExecutor:
    """The executor of this mode."""
    return PassthroughExecutor(tools)
