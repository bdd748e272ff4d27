"""Exclusive-process compute mode of devices, with the previous mode recorded on disk and restored afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.adapters.host.files import write_durably
from calabash.model.device import ComputeMode, DeviceUuid
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)


class ComputeModes:
    """Compute modes of the devices of one sharing mode.

    Methods may be called from any thread. Changes of one device are serialised, so that its previous mode is never read while
    it is being restored.
    """

    def __init__(self, file: Path, driver_of: Callable[[DeviceUuid], GpuDriver]) -> None:
        self._file = file
        self._driver_of = driver_of
        self._lock = threading.Lock()
        self._cards: dict[DeviceUuid, threading.Lock] = {}
        self._before = self._read()

    def make_exclusive(self, uuid: DeviceUuid) -> bool:
        """Allow one process at a time on a device.

        Returns True if the pool had set this mode before, and another program has changed it since. Raises
        CalabashError if the mode cannot be set or the previous one cannot be recorded.
        """
        driver = self._driver_of(uuid)
        with self._cards.setdefault(uuid, threading.Lock()):
            now = driver.compute_mode(uuid)
            with self._lock:
                known = uuid in self._before
                if not known:
                    self._write(self._before | {uuid: now})
            if now is ComputeMode.EXCLUSIVE_PROCESS:
                return False
            driver.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
            return known

    def restore(self, uuid: DeviceUuid) -> None:
        """Restore the previous mode of a device. If the driver refuses, ``keep_only`` tries again later."""
        with self._cards.setdefault(uuid, threading.Lock()):
            before = self._before.get(uuid)
            if before is None:
                return
            try:
                self._driver_of(uuid).set_compute_mode(uuid, before)
                with self._lock:
                    self._write({card: mode for card, mode in self._before.items() if card != uuid})
            except (CalabashError, KeyError) as error:
                log.debug("the compute mode is not restored yet", device=uuid, error=str(error))

    def keep_only(self, uuids: Collection[DeviceUuid]) -> None:
        """Restore the previous mode of all devices except these."""
        for uuid in self._before.keys() - set(uuids):
            self.restore(uuid)

    def _read(self) -> dict[DeviceUuid, ComputeMode]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[DeviceUuid, ComputeMode])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of previous compute modes cannot be read", file=str(self._file), error=str(error))
            return {}

    def _write(self, before: dict[DeviceUuid, ComputeMode]) -> None:
        try:
            if before:
                write_durably(self._file, msgspec.json.encode(before))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise CalabashError(f"cannot write {self._file}: {error.strerror}") from error
        self._before = before
