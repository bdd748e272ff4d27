"""Detachment of devices, virtual functions and mediated devices from virtual machines, in a background thread.

A device can be detached only when the virtual machine has closed it; the thread tries again until all are detached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import structlog

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, Text, in_full
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.passthrough.machine import Machine
from calabash.node.modes.passthrough.records import Given, GivenDevices, GivenKind

_TRY_AGAIN_S = 1.0

log = structlog.get_logger(__name__)


class DeviceDetacher:
    """Detaches the devices of ended allocations from virtual machines, in a background thread.

    Args:
        inventory: the node's inventory.
        attachments: the record of attached devices.
        machine: returns the ``Machine`` whose PCI devices are managed: this host, or a simulated one.
        changing: context to hold while PCI devices are bound, created or removed.
    """

    def __init__(
        self,
        inventory: Inventory,
        attachments: GivenDevices,
        machine: Callable[[], Machine],
        changing: AbstractContextManager[object],
    ) -> None:
        self._inventory = inventory
        self._attachments = attachments
        self._machine = machine
        self._changing = changing
        self._ended: set[str] = set()
        self._failures: list[Text] = []
        self._reported: dict[str, Text] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def detach(self, allocations: Collection[str]) -> None:
        """Schedule the detachment of all devices of these allocations. Does not wait."""
        given = [g for g in self._attachments.all() if g.allocation in allocations]
        for entry in given:
            self._inventory.lent.ending(DeviceUuid(entry.device))
        with self._lock:
            self._ended.update(g.allocation for g in given)
            if given and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="passthrough", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Detach devices until no recorded device belongs to an ended allocation."""
        while True:
            for given in [g for g in self._attachments.all() if g.allocation in self._ended]:
                try:
                    with self._changing:
                        self._detach_one(given)
                    self._reported.pop(given.name, None)
                except (CalabashError, OSError) as error:
                    self._report_failure(given, error.message_text if isinstance(error, CalabashError) else str(error))
                except Exception:
                    log.exception("a device could not be detached; it is tried again", device=given.name)
            with self._lock:
                if not any(g.allocation in self._ended for g in self._attachments.all()):
                    self._ended.clear()
                    self._thread = None
                    return
            self._stopped.wait(_TRY_AGAIN_S)

    def _report_failure(self, given: Given, message: Text) -> None:
        if self._reported.get(given.name) != message:
            self._reported[given.name] = message
            self._failures.append(
                Message("{device} is not detached yet: {why}", device=given.name, why=in_full(message))
            )
            log.warning("a device is not detached yet", device=given.name, why=in_full(message))

    def _detach_one(self, given: Given) -> None:
        """Detach one device and remove its record. Raises CalabashError or OSError; the caller tries again."""
        machine = self._machine()
        if given.kind is GivenKind.MEDIATED:
            machine.functions.unmake_mediated(given.name)
        elif given.kind is GivenKind.TYPE:
            machine.functions.set_type(given.name, "")
        elif given.kind is not GivenKind.FUNCTIONS:
            self._unbind_device(given)
        if given.made and not any(g.parent == given.parent and g != given for g in self._attachments.all()):
            machine.functions.unmake(given.parent)
        self._attachments.remove(given)
        device = DeviceUuid(given.device)
        if given.kind is GivenKind.CARD and not any(
            g.device == device and g.kind is GivenKind.CARD for g in self._attachments.all()
        ):
            self._inventory.came_back(device)

    def _unbind_device(self, given: Given) -> None:
        machine = self._machine()
        found = machine.tree.find(given.name)
        users = machine.users([machine.vfio.group_file(found.group)]) if found is not None and found.group >= 0 else ""
        if users:
            raise CalabashError(f"its IOMMU group is still open: {users}", reason=Reason.CONFLICT)
        card = given.card if given.card is not None else None
        with self._inventory.lent.quiet(), machine.apart(card) if card is not None else nullcontext():
            machine.vfio.give_back(given.name, given.driver)

    def failures(self) -> list[Text]:
        """Return the reasons why devices could not be detached yet; each one once."""
        told, self._failures = self._failures, []
        return told
