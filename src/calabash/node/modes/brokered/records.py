"""Which hosts of workers run, in a file of the home: the next pool takes over those that are needed and ends the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably

log = structlog.get_logger(__name__)


class RunningHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that was started; ``user`` -1: as the pool itself; ``name`` is that of its slot, "" as the allocation."""

    allocation: str
    pid: int
    start_time: int
    user: int = -1
    name: str = ""


class HostBook:
    """The file. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._written: tuple[RunningHost, ...] | None = None

    def write(self, running: Callable[[], Iterable[RunningHost]]) -> None:
        """These and no others run, by what is found when it is this one's turn to write."""
        with self._lock:
            hosts = tuple(running())
            if hosts == self._written:
                return
            try:
                if hosts:
                    write_durably(self._file, msgspec.json.encode(hosts))
                else:
                    self._file.unlink(missing_ok=True)
            except OSError as error:
                log.error("which hosts of workers run is not written down", error=error.strerror)
                return
            self._written = hosts

    def read(self) -> tuple[RunningHost, ...]:
        """What an earlier pool has written."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[RunningHost, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.error("what hosts of workers an earlier pool has left is not known", error=str(error))
            return ()
