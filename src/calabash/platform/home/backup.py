"""Backups of a pool's database, and back: the file, the pool's lock, and the audit log that goes on after it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import sqlalchemy as sa

from calabash.adapters.clock import SystemClock
from calabash.adapters.store import open_store
from calabash.adapters.store.backup import BackupFacts, checked_backup, replace_file, restore_backup, write_backup
from calabash.adapters.store.database import Database
from calabash.adapters.store.errors import public_url
from calabash.model.audit import AuditLine
from calabash.model.errors import CalabashError, Reason, file_reason
from calabash.platform.audit.trail import AuditTrail, write_head
from calabash.platform.home.directory import own_home

SQLITE = "sqlite"


def create_backup(url: str, target: Path) -> BackupFacts:
    """Write the database to a new file that its owner alone may read. The pool may run. Raises CalabashError."""
    path = _path(url)
    if path is not None and not path.exists():
        raise CalabashError(f"there is no database {path}", reason=Reason.NOT_FOUND, hint="name another one with --db")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    database = Database(url)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            facts = write_backup(database, file, at_s=SystemClock().now_s())
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, target)  # never over a file that is there
    except FileExistsError:
        raise CalabashError(f"{target} is there already", reason=Reason.CONFLICT, hint="name a new file") from None
    except OSError as error:
        raise CalabashError(
            f"{target} cannot be written: {error.strerror}",
            reason=file_reason(error),
            hint="name a new file in a directory that exists and is yours to write",
        ) from None
    finally:
        database.close()
        temporary.unlink(missing_ok=True)
    return facts


def restore_pool(home: Path, url: str, source: Path, *, by: str) -> tuple[BackupFacts, str]:
    """Put a backup in the place of the database of a pool that is down; all or nothing.

    What was restored, and what is wrong with the chain of its audit log: "" when nothing is. Raises CalabashError:
    POOL_RUNNING, BAD_FILE, STORE_NEWER, STORE_UNAVAILABLE, DISK_FULL, CONFLICT.
    """
    with own_home(home):
        facts = checked_backup(source)
        path = _path(url)
        if path is None:
            database = Database(url)
            try:
                restore_backup(source, database)
            finally:
                database.close()
        else:
            _restored_file(source, path)
        return facts, _audited(home, url, facts, by=by)


def _restored_file(source: Path, path: Path) -> None:
    built = path.with_name(f"{path.name}.restoring")
    built.unlink(missing_ok=True)
    try:
        database = Database(f"{SQLITE}:///{built}")
        try:
            restore_backup(source, database)
        finally:
            database.close()
        open_store(f"{SQLITE}:///{built}").close()  # brought up to date before it takes its place
        _settled(path)
        replace_file(path, built)
    finally:
        for companion in ("", "-wal", "-shm"):
            Path(f"{built}{companion}").unlink(missing_ok=True)


def _settled(path: Path) -> None:
    """What a pool that was killed has left in the companions of its database goes into it, as far as it can be read."""
    if path.exists():
        database = Database(f"{SQLITE}:///{path}")
        with contextlib.suppress(CalabashError):
            database.check_writable()
        database.close()


def _audited(home: Path, url: str, facts: BackupFacts, *, by: str) -> str:
    """The log ends where the backup did, and goes on with a line about that; what is wrong with its chain."""
    store = open_store(url)
    try:
        write_head(home, store.audit.end())
        trail = AuditTrail(home, store.audit, SystemClock())
        wrong = trail.verify()[1]
        trail.start()
        with contextlib.suppress(CalabashError):  # what was restored stays restored
            line = AuditLine(at=0.0, user=by, action="restore", target=f"{facts.rows} rows of {facts.written_at:.0f}")
            trail.add(line).result(timeout=30)
        trail.stop()
        return wrong
    finally:
        store.close()


def _path(url: str) -> Path | None:
    """The file of a database of SQLite. Raises CalabashError for what is no URL."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise CalabashError(
            "the database URL cannot be read", hint="write sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from None
    if parsed.get_backend_name() != SQLITE:
        return None
    if not parsed.database:
        raise CalabashError(f"{public_url(url)} names no file", hint="write sqlite:///PATH")
    return Path(parsed.database)
