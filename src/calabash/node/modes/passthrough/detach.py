"""How cards and parts of cards come back from virtual machines: when nobody has them any more, and without anybody waiting.

Coming back may wait for a virtual machine that still runs; a thread does that, and tries again until it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import structlog

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.passthrough.machine import Machine
from calabash.node.modes.passthrough.records import Given, GivenKind, PassthroughBook

_TRY_AGAIN_S = 1.0

log = structlog.get_logger(__name__)


class FetchingBack:
    """Fetches back what is over.

    Args:
        changing: held while the machine is changed.
    """

    def __init__(
        self,
        inventory: Inventory,
        book: PassthroughBook,
        machine: Callable[[], Machine],
        changing: AbstractContextManager[object],
    ) -> None:
        self._inventory = inventory
        self._book = book
        self._machine = machine
        self._changing = changing
        self._over: set[str] = set()
        self._news: list[str] = []
        self._told: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def fetch(self, allocations: Collection[str]) -> None:
        """Fetch back what these have, without anybody waiting for it."""
        given = [g for g in self._book.all() if g.allocation in allocations]
        for entry in given:
            self._inventory.lent.ending(DeviceUuid(entry.device))
        with self._lock:
            self._over.update(g.allocation for g in given)
            if given and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="passthrough", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Until everything that is over is back."""
        while True:
            for given in [g for g in self._book.all() if g.allocation in self._over]:
                try:
                    with self._changing:
                        self._fetch_one(given)
                    self._told.pop(given.name, None)
                except (CalabashError, OSError) as error:
                    self._tell(given, error.marked_message if isinstance(error, CalabashError) else str(error))
                except Exception:
                    log.exception("a device could not be fetched back; it is tried again", device=given.name)
            with self._lock:
                if not any(g.allocation in self._over for g in self._book.all()):
                    self._over.clear()
                    self._thread = None
                    return
            self._stopped.wait(_TRY_AGAIN_S)

    def _tell(self, given: Given, message: str) -> None:
        if self._told.get(given.name) != message:
            self._told[given.name] = message
            self._news.append(f"{given.name} is not back yet: {message}")
            log.warning("a device is not back yet", device=given.name, why=message)

    def _fetch_one(self, given: Given) -> None:
        """Raises CalabashError, and is tried again."""
        machine = self._machine()
        if given.kind is GivenKind.MEDIATED:
            machine.functions.unmake_mediated(given.name)
        elif given.kind is GivenKind.TYPE:
            machine.functions.set_type(given.name, "")
        elif given.kind is not GivenKind.FUNCTIONS:
            self._fetch_device(given)
        if given.made and not any(g.parent == given.parent and g != given for g in self._book.all()):
            machine.functions.unmake(given.parent)
        self._book.remove(given)
        device = DeviceUuid(given.device)
        if given.kind is GivenKind.CARD and not any(
            g.device == device and g.kind is GivenKind.CARD for g in self._book.all()
        ):
            self._inventory.came_back(device)

    def _fetch_device(self, given: Given) -> None:
        machine = self._machine()
        found = machine.tree.find(given.name)
        users = machine.users([machine.vfio.group_file(found.group)]) if found is not None and found.group >= 0 else ""
        if users:
            raise CalabashError(f"its group is still open: {users}", reason=Reason.CONFLICT)
        card = given.card if given.card is not None else None
        with self._inventory.lent.quiet(), machine.apart(card) if card is not None else nullcontext():
            machine.vfio.give_back(given.name, given.driver)

    def news(self) -> list[str]:
        """What could not be fetched back yet, told once."""
        told, self._news = self._news, []
        return told
