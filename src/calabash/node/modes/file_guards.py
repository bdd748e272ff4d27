"""Guarded files: what access was before is remembered on disk first, and put back in the end."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.acl import Access, access_for, access_of, set_access
from calabash.adapters.host.failures import failure
from calabash.adapters.host.files import write_durably
from calabash.model.request import AllocationId

log = structlog.get_logger(__name__)


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One file: for whom it is guarded, and what its access was."""

    allocation: str
    path: str
    uid: int
    before: Access


class Guards:
    """All guarded files of a pool. Used under the agent's lock; ``renew`` from one thread beside it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._guards = self._read()
        self._lock = threading.Lock()  # what is just put back is not guarded again

    def set(self, allocation: AllocationId, path: str, *, uid: int) -> None:
        """Let this user and root alone open the file. Raises CalabashError and then nothing has changed."""
        try:
            with self._lock:
                self._set(allocation, path, uid)
        except OSError as error:
            raise failure(error, f"cannot keep others from {path}") from error

    def _set(self, allocation: AllocationId, path: str, uid: int) -> None:
        known = next((g for g in self._guards if g.path == path), None)
        before = known.before if known is not None else access_of(path)
        guard = Guard(allocation=allocation, path=path, uid=uid, before=before)
        self._write([g for g in self._guards if g.path != path] + [guard])
        set_access(path, access_for(uid, before))

    def restore(self, allocation: AllocationId) -> None:
        """Put back what was there before the allocation."""
        self.keep_only({g.allocation for g in self._guards} - {allocation})

    def keep_only(self, allocations: Collection[str]) -> None:
        """Put back what was there before all others."""
        with self._lock:
            for guard in [g for g in self._guards if g.allocation not in allocations]:
                try:
                    set_access(guard.path, guard.before)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    log.error("access could not be put back", path=guard.path, error=error.strerror)
                    continue
                self._write([g for g in self._guards if g is not guard])

    def renew(self) -> list[str]:
        """Guard again what somebody has opened up; the paths."""
        found = []
        for guard in list(self._guards):
            wanted = access_for(guard.uid, guard.before)
            try:
                with self._lock:
                    if guard in self._guards and access_of(guard.path) != wanted:
                        set_access(guard.path, wanted)
                        found.append(guard.path)
            except OSError as error:
                log.debug("a guarded file cannot be looked at", path=guard.path, error=error.strerror)
        return found

    def _read(self) -> list[Guard]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Guard])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("what guards were set is not known", file=str(self._file), error=str(error))
            return []

    def _write(self, guards: list[Guard]) -> None:
        if guards:
            write_durably(self._file, msgspec.json.encode(guards))
        else:
            self._file.unlink(missing_ok=True)
        self._guards = guards
