"""Backup of a whole database as one file, and its restore, into SQLite or PostgreSQL.

The file is gzip of lines of JSON: a head (format, schema, time), for each table its columns and then its rows, and a
tail with the number of rows and the SHA-256 of all lines before it. All rows are read in one transaction, so the backup
is consistent even if writing it takes long. A file is read to its end and checked before anything is changed. A SQLite
database is built beside the old one and replaces it in one step; in PostgreSQL the restore is one transaction. Tables
are created with the schema of the file; the store then migrates them.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.errors import CalabashError, Reason, file_reason
from calabash.model.versions import BACKUP, JOURNAL

LINE_BYTES_MAX = 64 << 20
ROWS_AT_ONCE = 500


class BackupHead(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """First line of a backup: version of the file format, version of the schema, and time in seconds since the epoch."""

    calabash_backup: int
    schema: int
    written_at: float


class BackupTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Line of a backup that names the table and the columns of the rows in the following lines."""

    table: str
    columns: list[str]


class BackupTail(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Last line of a backup: number of rows, and checksum of all lines before."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFacts:
    """Facts of a valid backup: version of its schema, time in seconds since the epoch, and number of rows."""

    schema: int
    written_at: float
    rows: int


# -- writing -----------------------------------------------------------------------------------------------------------


def write_backup(database: Database, file: BinaryIO, *, at_s: float) -> BackupFacts:
    """Write a consistent backup of the database to a file. Raises BAD_REQUEST if the database is empty.

    ``at_s`` is the time that is stored in the backup, in seconds since the epoch.
    """
    schema = database.schema_version()
    if not schema:
        raise CalabashError("the database is empty: there is nothing to keep", hint="has the pool been up with it?")
    digest, rows = hashlib.sha256(), 0
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed, database.snapshot() as connection:

        def line(value: Any) -> None:
            text = msgspec.json.encode(value) + b"\n"
            digest.update(text)
            packed.write(text)

        line(BackupHead(calabash_backup=BACKUP.newest, schema=schema, written_at=at_s))
        for table in _tables(connection):
            line(BackupTable(table=str(table.name), columns=[str(c.name) for c in table.columns]))
            for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(sa.select(table)):
                line(list(row))
                rows += 1
        packed.write(msgspec.json.encode(BackupTail(rows=rows, sha256=digest.hexdigest())) + b"\n")
    return BackupFacts(schema=schema, written_at=at_s, rows=rows)


def _tables(connection: sa.Connection) -> list[sa.Table]:
    """Return all tables except Alembic's; referenced tables come first."""
    found = sa.MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name != tables.REVISION_TABLE]


# -- reading -----------------------------------------------------------------------------------------------------------


def checked_backup(path: Path) -> BackupFacts:
    """Read a backup to its end and return its facts.

    Raises CalabashError: BAD_FILE if it is not a backup or damaged, STORE_NEWER if a newer program wrote it.
    """
    digest, rows, schema, written_at = hashlib.sha256(), 0, 0, 0.0
    tail: BackupTail | None = None
    for number, line in enumerate(_lines(path)):
        if tail is not None:
            raise _damaged(path, "something follows its end")
        if not number:
            head = _head(path, line)
            schema, written_at = head.schema, head.written_at
        elif line.startswith(b"["):
            rows += 1
        elif line.startswith(b'{"rows"'):
            tail = _decoded(path, line, BackupTail)
            continue
        digest.update(line)
    if tail is None or tail.rows != rows or tail.sha256 != digest.hexdigest():
        raise _damaged(path, "it is cut off" if tail is None else "its content is not what its checksum says")
    return BackupFacts(schema=schema, written_at=written_at, rows=rows)


def _head(path: Path, line: bytes) -> BackupHead:
    try:
        head = msgspec.json.decode(line, type=BackupHead)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise _foreign(path) from None
    BACKUP.require(head.calabash_backup, f"backup {path}")
    JOURNAL.require(head.schema, f"backup {path}")
    return head


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as packed:
            while line := packed.readline(LINE_BYTES_MAX):
                yield line
    except gzip.BadGzipFile:
        raise _foreign(path) from None
    except (EOFError, zlib.error):
        raise _damaged(path, "it is cut off or was changed") from None
    except OSError as error:
        raise CalabashError(
            f"{path} cannot be read: {error.strerror or error}", reason=file_reason(error), hint="name another file"
        ) from None


def _decoded(path: Path, line: bytes, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(line, type=shape)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise _damaged(path, "a line of it is not understood") from None


def _foreign(path: Path) -> CalabashError:
    return CalabashError(
        f"{path} is no backup of Calabash", reason=Reason.BAD_FILE, hint="`calabash backup create FILE` writes one"
    )


def _damaged(path: Path, how: str) -> CalabashError:
    return CalabashError(
        f"{path} is damaged: {how}", reason=Reason.BAD_FILE, hint="take another backup; nothing was changed"
    )


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore_backup(path: Path, database: Database) -> BackupFacts:
    """Replace the whole content of the database by a backup, or change nothing if that fails.

    No other process may use the database. Raises the errors of :func:`checked_backup`, and STORE_UNAVAILABLE,
    DISK_FULL.
    """
    facts = checked_backup(path)
    with database.transaction() as connection:
        _cleared(connection)
        database.make(connection, facts.schema)
        connection.execute(sa.text("DELETE FROM meta"))
        known = {table.name: table for table in _tables(connection)}
        into: sa.Table | None = None
        columns: list[str] = []
        rows: list[dict[str, Any]] = []
        for line in _lines(path):
            if line.startswith(b"["):
                rows.append(dict(zip(columns, _decoded(path, line, list), strict=True)))
            if into is not None and (len(rows) >= ROWS_AT_ONCE or (rows and not line.startswith(b"["))):
                connection.execute(sa.insert(into), rows)
                rows = []
            if line.startswith(b'{"table"'):
                table = _decoded(path, line, BackupTable)
                if table.table not in known:
                    raise _damaged(path, f"schema {facts.schema} has no table {table.table}")
                into, columns = known[table.table], table.columns
        _count_on(connection, known.values())
    return facts


def _cleared(connection: sa.Connection) -> None:
    """Drop all tables of the database. Raises CONFLICT if it has tables of another program."""
    found = sa.MetaData()
    found.reflect(connection)
    if found.tables and "meta" not in found.tables:
        raise CalabashError(
            f"the database has tables that are not Calabash's: {', '.join(sorted(found.tables)[:5])}",
            reason=Reason.CONFLICT,
            hint="name an empty database with --db",
        )
    found.drop_all(connection)


def _count_on(connection: sa.Connection, restored: Any) -> None:
    """Set the sequences of PostgreSQL to the largest ID in the restored tables, so that new rows get larger IDs."""
    if connection.dialect.name != "postgresql":
        return
    for table in restored:
        if "id" in table.columns and isinstance(table.columns["id"].type, sa.Integer):
            name = connection.dialect.identifier_preparer.format_table(table)
            sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence(name, "id"))).scalar_one_or_none()
            most = connection.execute(sa.select(sa.func.max(table.columns["id"]))).scalar_one_or_none()
            if sequence and most:
                connection.execute(sa.select(sa.func.setval(sequence, most)))


def replace_file(path: Path, restored: Path) -> None:
    """Replace the SQLite database ``path`` by the file ``restored``; the old database is kept as ``NAME.replaced``."""
    for companion in ("-wal", "-shm"):  # the old one's: they would be taken for the new one's
        Path(f"{path}{companion}").unlink(missing_ok=True)
    if path.exists():
        kept = path.with_name(f"{path.name}.replaced")
        kept.unlink(missing_ok=True)
        os.link(path, kept)
    with restored.open("rb") as file:
        os.fsync(file.fileno())
    restored.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
