"""Read all cards in parallel, one thread for each, so that a card that blocks does not delay the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import DeviceReading, DeviceUuid
from calabash.model.errors import CalabashError, Reason


class _Reader:
    """Thread that reads one card on request. A request during a pending one waits for the pending answer."""

    def __init__(self, uuid: DeviceUuid, driver: GpuDriver) -> None:
        self._uuid = uuid
        self._driver = driver
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._pending = False
        self._answer: DeviceReading | CalabashError = CalabashError("it was never read")
        threading.Thread(target=self._work, name="readings", daemon=True).start()

    def ask(self) -> None:
        if not self._pending:
            self._pending = True
            self._done.clear()
            self._asked.put(None)

    def answer(self, deadline: float, within_s: float) -> DeviceReading | CalabashError:
        if not self._done.wait(max(0.0, deadline - time.monotonic())):
            return CalabashError(f"it has not answered within {within_s:g} s", reason=Reason.TIMEOUT)
        self._pending = False
        return self._answer

    def _work(self) -> None:
        while True:
            self._asked.get()
            try:
                self._answer = self._driver.read(self._uuid)
            except CalabashError as error:
                self._answer = error
            except Exception as error:  # reported to the caller of `answer`
                self._answer = CalabashError(f"it cannot be read: {error!r}", reason=Reason.UNHEALTHY)
            self._done.set()


class CardPoller:
    """Readers of all cards. Used by one thread."""

    def __init__(self, drivers: Mapping[DeviceUuid, GpuDriver]) -> None:
        self._readers = {uuid: _Reader(uuid, driver) for uuid, driver in drivers.items()}

    def add(self, uuid: DeviceUuid, driver: GpuDriver) -> None:
        """Add a card, before another thread takes readings."""
        self._readers[uuid] = _Reader(uuid, driver)

    def take(self, within_s: float) -> dict[DeviceUuid, DeviceReading | CalabashError]:
        """Return a reading or an error of every card; TIMEOUT for a card that does not answer within ``within_s``."""
        for reader in self._readers.values():
            reader.ask()
        deadline = time.monotonic() + within_s
        return {uuid: reader.answer(deadline, within_s) for uuid, reader in self._readers.items()}
