"""Backups of the database, written on SQLite and PostgreSQL and restored on either."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contract.test_billing import END_S, TARIFF, used
from tests.contract.test_store import _record, _usage
from tests.contract.test_store_networks import PORT, RED, SECRET
from tests.contract.test_store_tenancy import TOKEN, VISION
from tests.postgres import DATABASES, Server

from calabash.adapters.store import open_store, tables
from calabash.adapters.store.backup import checked_backup, restore_backup, write_backup
from calabash.adapters.store.database import Database
from calabash.api import billing
from calabash.model.allocation import QueueRecord
from calabash.model.audit import AuditLine
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.billing.rating_process import RatingOrder, rate_month
from calabash.platform.billing.service import Billing
from calabash.platform.billing.verification_process import verify
from calabash.platform.home.backup import create_backup, restore_pool
from calabash_testing.clock import VirtualClock


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    return tmp_path / "other"


@pytest.fixture(params=DATABASES)
def other(request: pytest.FixtureRequest, home: Path) -> Iterator[str]:
    """Yield the database into which the backup is restored."""
    if request.param == "sqlite":
        yield f"sqlite:///{home}/pool.db"
        return
    server: Server = request.getfixturevalue("postgres_server")
    with server.database() as found:
        yield found


def _fill(url: str, home: Path) -> None:
    store = open_store(url)
    store.grant(_record())
    store.grant(_record("a2", user="Zoë", slot="/s\u2028x"))
    store.release(AllocationId("a2"), at=20.125, reason="done", explanation="", usage=[_usage("a2")])
    store.administration.put_queue(QueueRecord(name="prod", deserved=4.1, users=("ann",)))
    store.tenancy.put_tenant(VISION)
    store.tokens.put(TOKEN)
    store.networks.change([RED, PORT], [], before=0, revision=1)
    store.networks.put_certificate(SECRET)
    store.add_events([{"at": 1.0, "kind": f"k{n}", "message": "m"} for n in range(1200)])
    trail = AuditTrail(home, store.audit, VirtualClock())
    trail.start()
    for n in range(5):
        trail.add(AuditLine(at=0, user="ann", action="PUT", target=f"/v1/queues/q{n}")).result(timeout=60)
    trail.stop()
    store.close()


def _content(url: str) -> dict[str, Any]:
    database = Database(url)
    found = sa.MetaData()
    with database.reading() as connection:
        found.reflect(connection)
        rows = {t.name: sorted(map(repr, connection.execute(sa.select(t)))) for t in found.sorted_tables}
    database.close()
    return {name: content for name, content in rows.items() if name not in {"meta", "audit"}}


def test_backup_is_restored_on_either_database_and_the_audit_log_continues(
    url: str, other: str, home: Path, tmp_path: Path
) -> None:
    _fill(url, home)
    file = tmp_path / "backup"
    facts = create_backup(url, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"cal_" not in gzip.decompress(file.read_bytes()), "only digests of secrets are in it"
    restored, wrong = restore_pool(home, other, file, by="root")
    assert (restored, wrong) == (facts, "")
    assert _content(other) == _content(url)
    again = open_store(other)
    assert [(line.id, line.action) for line in again.audit.lines()][-2:] == [(5, "PUT"), (6, "restore")]
    assert AuditTrail(home, again.audit, VirtualClock()).verify()[1] == ""
    again.add_events([{"at": 2.0, "kind": "next"}])  # IDs continue
    assert again.events(limit=2000)[-1].kind == "next"
    again.close()


class _Interrupted(io.BytesIO):
    """Backup file during whose writing another connection changes the database."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def write(self, data: Any) -> int:
        if self._url:
            url, self._url = self._url, ""
            store = open_store(url)
            store.add_events([{"at": 3.0, "kind": "late"}])
            store.close()
        return super().write(data)


def test_backup_is_of_one_moment_during_concurrent_writes(url: str, home: Path) -> None:
    _fill(url, home)
    database = Database(url)
    with database.snapshot() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one() == 1200
        store = open_store(url)
        store.add_events([{"at": 3.0, "kind": "late"}])
        store.close()
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one() == 1200
    file = _Interrupted(url)
    write_backup(database, file, at_s=1.0)
    content = gzip.decompress(file.getvalue())
    assert content.count(b'"late"') in {1, 2}, "the pool writes on while its backup is written"
    database.close()


def test_issued_invoice_that_is_restored_in_another_database_is_verified(
    url: str, home: Path, other: str, tmp_path: Path
) -> None:
    store = open_store(url)
    invoicing = Billing(store, VirtualClock(now_s=END_S + 86_400))
    invoicing.put_tariff(TARIFF)
    store.add_usage([used("a", "vision", -1, 1.0 / 3), used("b", "vision", 1.1, 7.7)])
    rate_month(store, RatingOrder(url="", month="2026-11"), clock=lambda: END_S + 3600)
    number = invoicing.issue("draft-2026-11-vision", by="root").number
    note = invoicing.credit(number, billing.CreditOrder(amount=Decimal("1.50"), reason="Zoë"), by="root").number
    invoicing.close()
    store.close()
    file = tmp_path / "invoices.backup"
    create_backup(url, file)
    restore_pool(home, other, file, by="root")
    restored = open_store(other)
    for one, states in ((number, ["ok", "ok", "ok"]), (note, ["ok"])):
        assert [check.state for check in verify(restored, one).items] == states
    restored.close()


@pytest.mark.parametrize("schema", range(1, tables.SCHEMA_VERSION + 1))
def test_a_backup_of_every_schema_is_restored_and_brought_up_to_date(
    tmp_path: Path, home: Path, other: str, schema: int
) -> None:
    old = Database(f"sqlite:///{tmp_path}/old.db")
    old.migrate(f"{schema:04}")
    with old.transaction() as connection:
        connection.execute(sa.text("INSERT INTO events VALUES (7, 1.5, 'granted', '', 'a1', '', 'told')"))
    file = tmp_path / "old.backup"
    with file.open("wb") as opened:
        assert write_backup(old, opened, at_s=1.0).schema == schema
    old.close()
    restore_pool(home, other, file, by="root")
    store = open_store(other)
    assert [(e.id, e.message) for e in store.events()] == [(7, "told")]
    store.close()
    database = Database(other)
    assert database.schema_version() == tables.SCHEMA_VERSION
    database.close()


def _spoilt(file: Path, how: str) -> Path:
    content = file.read_bytes()
    plain = gzip.decompress(content)
    spoilt = {
        "cut": content[: len(content) // 2],
        "bit": content[:200] + bytes([content[200] ^ 8]) + content[201:],
        "row": gzip.compress(plain.replace(b'"prod"', b'"dorp"')),
        "tail": gzip.compress(plain.rpartition(b'{"rows"')[0]),
        "more": gzip.compress(plain + b'["x"]\n'),
        "foreign": b"not a backup at all",
        "json": gzip.compress(b'{"a": 1}\n'),
        "newer": gzip.compress(plain.replace(b'"schema":%d' % tables.SCHEMA_VERSION, b'"schema":999', 1)),
    }[how]
    there = file.with_name(how)
    there.write_bytes(spoilt)
    return there


@pytest.mark.parametrize("how", ["cut", "bit", "row", "tail", "more", "foreign", "json", "newer"])
def test_incomplete_or_foreign_backup_file_changes_nothing(url: str, home: Path, tmp_path: Path, how: str) -> None:
    _fill(url, home)
    create_backup(url, tmp_path / "backup")
    before, head = _content(url), (home / "audit.head").read_text()
    with pytest.raises(CalabashError) as refused:
        restore_pool(home, url, _spoilt(tmp_path / "backup", how), by="root")
    assert refused.value.reason is (Reason.STORE_NEWER if how == "newer" else Reason.BAD_FILE)
    assert (_content(url), (home / "audit.head").read_text()) == (before, head)


def _fails(*_: object) -> None:
    raise CalabashError("no room", reason=Reason.DISK_FULL)


def test_failed_restore_leaves_the_database_unchanged(
    url: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(url, home)
    create_backup(url, tmp_path / "backup")
    before = _content(url)
    monkeypatch.setattr("calabash.adapters.store.backup._count_on", _fails)
    with pytest.raises(CalabashError, match="no room"):
        restore_pool(home, url, tmp_path / "backup", by="root")
    assert _content(url) == before


def test_database_of_another_program_is_not_cleared(other: str, home: Path, url: str, tmp_path: Path) -> None:
    _fill(url, home)
    create_backup(url, tmp_path / "backup")
    database = Database(other)
    with database.transaction() as connection:
        connection.execute(sa.text("CREATE TABLE theirs (id INTEGER)"))
    with pytest.raises(CalabashError, match="not Calabash's: theirs"):
        restore_backup(tmp_path / "backup", database)
    with database.reading() as connection:
        assert sa.inspect(connection).get_table_names() == ["theirs"]
    database.close()


def test_a_backup_is_never_written_over_a_file_and_is_of_a_database_that_is_there(url: str, home: Path) -> None:
    _fill(url, home)
    (home / "file").write_text("mine")
    with pytest.raises(CalabashError, match="already exists"):
        create_backup(url, home / "file")
    assert (home / "file").read_text() == "mine"
    with pytest.raises(CalabashError, match="there is no database"):
        create_backup(f"sqlite:///{home}/none.db", home / "new")
    assert not [*home.glob("*none*"), *home.glob("*new*")]
    create_backup(url, home / "good")
    assert checked_backup(home / "good").schema == tables.SCHEMA_VERSION


def test_changed_line_of_the_audit_log_is_detected_on_either_database(url: str, home: Path) -> None:
    _fill(url, home)
    store = open_store(url)
    trail = AuditTrail(home, store.audit, VirtualClock())
    assert trail.verify()[1] == ""
    database = Database(url)
    line = store.audit.lines(limit=3)[-1]
    change = sa.update(tables.audit).where(tables.audit.c.id == 3).values(user="bob")
    with pytest.raises(CalabashError, match="a line of the audit log never changes"), database.transaction() as refused:
        refused.execute(change)
    sqlite = url.startswith("sqlite")
    off = ["DROP TRIGGER audit_no_update", "DROP TRIGGER audit_no_delete"]
    off = off if sqlite else ["ALTER TABLE audit DISABLE TRIGGER USER"]
    with database.transaction() as connection:  # only the owner of the tables can do that, and the change is detected
        for statement in off:
            connection.execute(sa.text(statement))
    for spoil, said in (
        (change, "line 3 was changed after it was written"),
        (sa.delete(tables.audit).where(tables.audit.c.id == 3), "line 3 is missing"),
    ):
        with database.transaction() as connection:
            connection.execute(spoil)
        assert trail.verify()[1] == said
    store.audit.add([replace(line, id=3)])
    assert trail.verify()[1] == "", "the very line again"
    database.close()
    store.close()
