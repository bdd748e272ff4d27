"""Restriction of files to one user, with the previous access recorded on disk and restored afterwards."""

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
    """A guarded file (``path``), the user and the allocation that may use it, and its previous access (``before``)."""

    allocation: str
    path: str
    uid: int
    before: Access


class Guards:
    """All guarded files of a pool. Methods are called under the agent's lock, except ``renew``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._guards = self._read()
        self._lock = threading.Lock()  # so that ``renew`` does not guard a file that is being restored

    def set(self, allocation: AllocationId, path: str, *, uid: int) -> None:
        """Allow only this user and root to open the file. Raises CalabashError if that fails."""
        try:
            with self._lock:
                self._set(allocation, path, uid)
        except OSError as error:
            raise failure(error, f"cannot restrict access to {path}") from error

    def _set(self, allocation: AllocationId, path: str, uid: int) -> None:
        known = next((g for g in self._guards if g.path == path), None)
        before = known.before if known is not None else access_of(path)
        guard = Guard(allocation=allocation, path=path, uid=uid, before=before)
        self._write([g for g in self._guards if g.path != path] + [guard])
        set_access(path, access_for(uid, before))

    def restore(self, allocation: AllocationId) -> None:
        """Restore the previous access of the allocation's files."""
        self.keep_only({g.allocation for g in self._guards} - {allocation})

    def keep_only(self, allocations: Collection[str]) -> None:
        """Restore the previous access to the files of all allocations except these. A later call retries failures."""
        with self._lock:
            for guard in [g for g in self._guards if g.allocation not in allocations]:
                try:
                    set_access(guard.path, guard.before)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    log.error("the previous access cannot be restored", path=guard.path, error=error.strerror)
                    continue
                self._write([g for g in self._guards if g is not guard])

    def renew(self) -> list[str]:
        """Set the access of guarded files again if it was changed. Return their paths."""
        found = []
        for guard in list(self._guards):
            wanted = access_for(guard.uid, guard.before)
            try:
                with self._lock:
                    if guard in self._guards and access_of(guard.path) != wanted:
                        set_access(guard.path, wanted)
                        found.append(guard.path)
            except OSError as error:
                log.debug("the access of a guarded file cannot be read", path=guard.path, error=error.strerror)
        return found

    def _read(self) -> list[Guard]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Guard])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of guards cannot be read", file=str(self._file), error=str(error))
            return []

    def _write(self, guards: list[Guard]) -> None:
        if guards:
            write_durably(self._file, msgspec.json.encode(guards))
        else:
            self._file.unlink(missing_ok=True)
        self._guards = guards
