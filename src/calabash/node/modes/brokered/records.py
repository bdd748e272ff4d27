"""File of the running worker hosts, from which the next pool adopts the hosts that are needed and ends the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably

log = structlog.get_logger(__name__)


class RunningHost(msgspec.Struct, frozen=True, kw_only=True):
    """A running worker host.

    ``user`` is -1 if it runs as the pool's user. ``name`` is the name of its slot; "" if the slot is named by the
    allocation's ID.
    """

    allocation: str
    pid: int
    start_time: int
    user: int = -1
    name: str = ""


class WorkerHostFile:
    """The file of running worker hosts. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._written: tuple[RunningHost, ...] | None = None

    def write(self, running: Callable[[], Iterable[RunningHost]]) -> None:
        """Replace the content by the hosts that ``running`` returns, which is called with the lock of the file held."""
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
                log.error("the file of worker hosts cannot be written", file=str(self._file), error=error.strerror)
                return
            self._written = hosts

    def read(self) -> tuple[RunningHost, ...]:
        """Return the hosts that an earlier pool wrote; none if the file does not exist or is damaged."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[RunningHost, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of worker hosts cannot be read", file=str(self._file), error=str(error))
            return ()
