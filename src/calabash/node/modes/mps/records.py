"""File of the running MPS daemons, from which the next pool adopts the daemons that are needed and ends the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably

log = structlog.get_logger(__name__)


class RunningDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon of a device, or of a MIG instance of it (profile, first memory slice)."""

    device: str
    pid: int
    start_time: int
    profile: str = ""
    start: int = -1


class MpsDaemonFile:
    """The file of running MPS daemons. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._written: tuple[RunningDaemon, ...] | None = None

    def write(self, running: Callable[[], Iterable[RunningDaemon | None]]) -> None:
        """Replace the content by the daemons that ``running`` returns, without None. The lock of the file is held then."""
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
            log.error("the file of MPS daemons cannot be written", file=str(self._file), error=error.strerror)
            return
        self._written = daemons

    def read(self) -> tuple[RunningDaemon, ...]:
        """Return the daemons that an earlier pool wrote; none if the file does not exist or is damaged."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[RunningDaemon, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of MPS daemons cannot be read", file=str(self._file), error=str(error))
            return ()
