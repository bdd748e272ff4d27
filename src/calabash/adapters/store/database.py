"""Database connection: opening, transactions, and the version of the schema.

SQLite runs with a write-ahead log and ``synchronous=FULL``: a commit that returned survives a power cut. PostgreSQL
does the same by default. Only the pool's user can access a SQLite file and its companions.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from calabash.adapters.store import tables
from calabash.adapters.store.errors import damaged, public_url, translated
from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import require
from calabash.model.versions import JOURNAL

BUSY_TIMEOUT_S = 5
_READS = "calabash_reads"


class Database:
    """Connection pool of one database, and its transactions. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.url = url
        self._damaged: CalabashError | None = None  # set once damage was found; every later call raises it

    def _require_sound(self) -> None:
        """Raise STORE_DAMAGED if the database was found to be damaged; it is then neither read nor written any more."""
        if self._damaged is not None:
            raise CalabashError(self._damaged.message, reason=self._damaged.reason, hint=self._damaged.hint)

    def _failed(self, error: DBAPIError) -> CalabashError:
        told = translated(error, self.url)
        if told.reason is Reason.STORE_DAMAGED:
            self._damaged = told
        return told

    def check(self) -> None:
        """Check all pages and indexes of a SQLite database. Raises STORE_DAMAGED."""
        if self.engine.dialect.name != "sqlite":
            return  # a server checks its own files
        with self.reading() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
        if found != "ok":
            self._damaged = damaged(self.url, str(found).strip().splitlines()[-1])
            self._require_sound()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Context of a transaction. If it raises CalabashError (STORE_UNAVAILABLE, DISK_FULL), nothing was written."""
        self._require_sound()
        try:
            with self.engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise self._failed(error) from error

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Context of a read-only transaction, which never blocks writers."""
        self._require_sound()
        try:
            with self.engine.connect() as connection:
                connection = connection.execution_options(**{_READS: True})  # noqa: PLW2901
                with connection.begin():
                    yield connection
        except DBAPIError as error:
            raise self._failed(error) from error

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Context of a read-only transaction with a consistent view of one moment."""
        wanted = {"isolation_level": "REPEATABLE READ"} if self.engine.dialect.name == "postgresql" else {_READS: True}
        self._require_sound()
        try:
            with self.engine.connect() as connection:
                connection = connection.execution_options(**wanted)  # noqa: PLW2901
                with connection.begin():
                    yield connection
        except DBAPIError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        self.engine.dispose()

    def insert_or_ignore(self, table: sa.Table, keys: Sequence[str]) -> Any:
        """Return an INSERT that does nothing if a row with those keys exists."""
        if self.engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - a pool loads the dialect that it uses

            return postgresql.insert(table).on_conflict_do_nothing(index_elements=keys)
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415

        return sqlite.insert(table).on_conflict_do_nothing(index_elements=keys)

    def bring_up_to_date(self) -> None:
        """Create the tables in an empty database, migrate an older schema, and refuse a newer one.

        Raises CalabashError: STORE_NEWER, STORE_UNAVAILABLE, STORE_DAMAGED, DISK_FULL.
        """
        self.check()
        with self.transaction() as connection:
            if not {"meta", tables.REVISION_TABLE} & set(sa.inspect(connection).get_table_names()):
                tables.create(connection)
                return
        found = self.schema_version()
        if found:  # 0 if a first start was interrupted
            JOURNAL.require(found, f"database {public_url(self.url)}")
        if found < tables.SCHEMA_VERSION:
            self.migrate()

    def schema_version(self) -> int:
        """Return the version of the schema; 0 for an empty database. Raises CalabashError(STORE_UNAVAILABLE)."""
        with self.transaction() as connection:
            if not sa.inspect(connection).has_table("meta"):
                return 0
            query = sa.select(tables.meta.c.value).where(tables.meta.c.key == "schema_version")
            value = connection.execute(query).scalar_one_or_none()
        try:
            return int(value or 0)
        except ValueError:
            raise CalabashError(
                f"database {public_url(self.url)} has schema {value!r}, which is not a number",
                reason=Reason.STORE_UNAVAILABLE,
                hint="it is not a Calabash database, or it was changed by hand",
            ) from None

    def migrate(self, revision: str = "head") -> None:
        """Apply the missing revisions up to that one; all or nothing."""
        with self.transaction() as connection:
            _upgrade(connection, revision)

    def make(self, connection: sa.Connection, schema: int) -> None:
        """Create the tables of a schema in an empty database, within a transaction."""
        if schema == tables.SCHEMA_VERSION:
            tables.create(connection)
        else:
            _upgrade(connection, f"{schema:04}")

    def check_writable(self) -> None:
        """Commit a small write, to check that grants can be journalled. Raises CalabashError if they cannot."""
        with self.transaction() as connection:
            connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == "probe"))
            connection.execute(sa.insert(tables.meta).values(key="probe", value="x" * 512))


def absolute_url(url: str) -> str:
    """Return the URL with the path of a SQLite file made absolute; any other URL, and text that is no URL, unchanged."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        return url
    file = parsed.database or ""
    if parsed.get_backend_name() != "sqlite" or not file or file.startswith((":", "file:")):
        return url
    return parsed.set(database=str(Path(file).absolute())).render_as_string(hide_password=False)


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise CalabashError(
            "the database URL cannot be read", hint="write sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        _keep_private(parsed.database or "")
        # Few connections are kept open: each has two descriptors, and those of a burst of requests would all stay open.
        engine = sa.create_engine(parsed, pool_size=3, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        # The driver's own BEGIN comes late and would let DDL escape the transaction.
        sa.event.listen(engine, "begin", _begin)
        return engine
    if backend == "postgresql":
        require("postgresql")
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            pool_size=2,
            connect_args={"connect_timeout": 5, "application_name": "calabash", "client_encoding": "utf8"},
        )
    raise CalabashError(
        f"database kind {backend!r} is not supported", hint="write sqlite:///PATH or postgresql://USER@HOST/NAME"
    )


def _upgrade(connection: sa.Connection, revision: str) -> None:
    # Alembic takes a third of a second to import and is needed only here.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _keep_private(path: str) -> None:
    """Restrict a SQLite file and its companions (``-wal``, ``-shm``, ``-journal``) to their owner.

    A process that can open a companion can lock it and so block every grant. SQLite gives new companions the mode of
    the file. The modes do not depend on the umask.
    """
    if path in {"", ":memory:"}:
        return
    with contextlib.suppress(OSError):  # SQLite reports later what is wrong with the path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for companion in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            Path(path + companion).chmod(0o600)
