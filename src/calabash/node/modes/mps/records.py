"""Which MPS daemons run, in a file of the home: the next pool takes over what is still needed and ends the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably

log = structlog.get_logger(__name__)


class RunningDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that was started, for a card or for a MIG instance of it (profile, first memory slice)."""

    device: str
    pid: int
    start_time: int
    profile: str = ""
    start: int = -1


class DaemonBook:
    """The file. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._written: tuple[RunningDaemon, ...] | None = None

    def write(self, running: Callable[[], Iterable[RunningDaemon | None]]) -> None:
        """These and no others run, by what is found when it is this one's turn to write; None does not."""
        with self._lock:
            self._write(tuple(one for one in running() if one is not None))

    def _write(self, daemons: tuple[RunningDaemon, ...]) -> None:
        if daemons == self._written:
            return
        try:
            if daemons:
                write_durably(self._file, msgspec.json.encode(daemons))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            log.error("which MPS daemons run is not written down", error=error.strerror)
            return
        self._written = daemons

    def read(self) -> tuple[RunningDaemon, ...]:
        """What an earlier pool has written."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[RunningDaemon, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.error("what MPS daemons an earlier pool has left is not known", error=str(error))
            return ()
