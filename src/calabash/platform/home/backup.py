"""Create and restore backups of a pool's database."""

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
    """Write the database to a new file with mode 0600. The pool may run. Raises CalabashError."""
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
        os.link(temporary, target)  # fails if the target exists
    except FileExistsError:
        raise CalabashError(f"{target} already exists", reason=Reason.CONFLICT, hint="name a new file") from None
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
    """Replace the database of a stopped pool with a backup, completely or not at all.

    Return facts of the backup, and the first error in the chain of its audit log ("" if there is none).

    Args:
        home: home of the pool.
        url: URL of the pool's database.
        source: file of the backup.
        by: name of the user who restores, for the line that is added to the audit log.

    Raises CalabashError: POOL_RUNNING, BAD_FILE, STORE_NEWER, STORE_UNAVAILABLE, DISK_FULL, CONFLICT.
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
        open_store(f"{SQLITE}:///{built}").close()  # migrates the schema before the file is put in place
        _settled(path)
        replace_file(path, built)
    finally:
        for companion in ("", "-wal", "-shm"):
            Path(f"{built}{companion}").unlink(missing_ok=True)


def _settled(path: Path) -> None:
    """Merge the -wal and -shm files of a killed pool into the database; do nothing if the database cannot be read."""
    if path.exists():
        database = Database(f"{SQLITE}:///{path}")
        with contextlib.suppress(CalabashError):
            database.check_writable()
        database.close()


def _audited(home: Path, url: str, facts: BackupFacts, *, by: str) -> str:
    """Set the audit log's head to that of the backup, verify the chain, and add a line about the restore.

    Return a text that names the first error of the chain; "" if there is none.
    """
    store = open_store(url)
    try:
        write_head(home, store.audit.end())
        trail = AuditTrail(home, store.audit, SystemClock())
        wrong = trail.verify()[1]
        trail.start()
        with contextlib.suppress(CalabashError):  # an unwritable audit line does not undo the restore
            line = AuditLine(at=0.0, user=by, action="restore", target=f"{facts.rows} rows of {facts.written_at:.0f}")
            trail.add(line).result(timeout=30)
        trail.stop()
        return wrong
    finally:
        store.close()


def _path(url: str) -> Path | None:
    """Return the file of an SQLite database; None for another database. Raises CalabashError for an invalid URL."""
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
