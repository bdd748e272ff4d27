"""Drafts, invoices and their numbers, on SQLite and on PostgreSQL."""

from __future__ import annotations

import csv
import hashlib
import io
import random
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tests.postgres import DATABASES

from calabash.adapters.documents.invoice_csv import items_csv
from calabash.adapters.store import Retention, Store, open_store, tables
from calabash.adapters.store.audit import AuditTable
from calabash.adapters.store.billing.documents import InvoiceFilter
from calabash.adapters.store.billing.store import note_guarantee
from calabash.adapters.store.database import Database
from calabash.adapters.store.sql import earlier_name
from calabash.api import billing
from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.tenancy import Tenant
from calabash.platform.billing.documents import draft_number, invoice_of
from calabash.platform.billing.rating_process import RatingOrder, rate_month
from calabash.platform.billing.service import Billing
from calabash.platform.billing.verification_process import verify
from calabash_testing.clock import VirtualClock

BEGIN_S = datetime(2026, 11, 1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
END_S = datetime(2026, 12, 1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
TARIFF = billing.TariffSettings(
    name="standard",
    currency="EUR",
    time_zone="Europe/Berlin",
    valid_from="2026-01-01",
    prices=[
        billing.PriceSettings(name="own", measure="guaranteed", price=Decimal("2.00")),
        billing.PriceSettings(name="lent", measure="borrowed", price=Decimal("1.00")),
    ],
    tax=billing.TaxSettings(name="VAT", percent=Decimal(19)),
    seller=["GPU Centre", "Main Street 1"],
)
ALL = InvoiceFilter()


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/pool.db"
        return
    with request.getfixturevalue("postgres_server").database() as found:
        yield found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def invoicing(store: Store) -> Iterator[Billing]:
    """Return the billing of a pool on the second of December."""
    opened = Billing(store, VirtualClock(now_s=END_S + 86_400))
    opened.put_tariff(TARIFF)
    yield opened
    opened.close()


def used(
    allocation: str, tenant: str, from_h: float, to_h: float, *, project: str = "p", user: str = "ann"
) -> UsageRecord:
    """Return a record of a whole device, from and to in hours of the month, with GPU time for half of it."""
    length_s = (to_h - from_h) * 3600
    return UsageRecord(
        allocation=AllocationId(allocation),
        device=DeviceUuid("GPU-1"),
        tenant=tenant,
        queue=tenant,
        from_s=BEGIN_S + from_h * 3600,
        to_s=BEGIN_S + to_h * 3600,
        memory_mib=1024,
        core_percent=100,
        allocated_gpu_s=length_s,
        used_gpu_s=length_s / 2,
        memory_mib_s=length_s * 1024,
        device_model="T4",
        mode="exclusive",
        project=project,
        user=user,
    )


def drafted(store: Store, *, tenant: str = "", at: float = END_S + 3600) -> None:
    rate_month(store, RatingOrder(url="", month="2026-11", tenant=tenant), clock=lambda: at)


def test_a_month_becomes_drafts_then_invoices_then_reversals(store: Store, invoicing: Billing) -> None:
    store.add_usage([used("a", "vision", 0, 10), used("b", "vision", 5, 10), used("c", "speech", -2, 2)])
    with Database(store.url).transaction() as connection:
        note_guarantee(connection, "vision", 1.0, at=BEGIN_S - 1000)
    drafted(store)
    listed = invoicing.invoices(billing.InvoicePage(), tenants=None, drafts=True).items
    assert [(i.number, i.state, i.net) for i in listed] == [
        ("draft-2026-11-speech", "draft", "2.00"),
        ("draft-2026-11-vision", "draft", "25.00"),
    ]
    issued = invoicing.issue("draft-2026-11-vision", by="root")
    assert (issued.number, issued.net, issued.total, issued.by) == ("2026-000001", "25.00", "29.75", "root")
    assert [(line.measure, line.hours, line.amount) for line in issued.lines] == [
        ("guaranteed", "10.000000", "20.00"),
        ("borrowed", "5.000000", "5.00"),
    ]
    assert issued.seller == ["GPU Centre", "Main Street 1"]
    with pytest.raises(CalabashError, match="no invoice 'draft-2026-11-vision'"):
        invoicing.issue("draft-2026-11-vision", by="root")
    drafted(store, tenant="vision")
    with pytest.raises(CalabashError, match="has invoice 2026-000001"):
        invoicing.issue("draft-2026-11-vision", by="root")
    back = invoicing.void("2026-000001", by="root")
    assert (back.number, back.reverses, back.kind, back.total) == ("2026-000002", "2026-000001", "reversal", "-29.75")
    assert [line.hours for line in back.lines] == ["-10.000000", "-5.000000"]
    with pytest.raises(CalabashError, match=r"taken back by 2026-000002|was taken back"):
        invoicing.void("2026-000001", by="root")
    with pytest.raises(CalabashError, match="is a reversal"):
        invoicing.void("2026-000002", by="root")
    assert invoicing.issue("draft-2026-11-vision", by="root").number == "2026-000003"
    states = {i.number: i.state for i in invoicing.invoices(billing.InvoicePage(), tenants=None, drafts=False).items}
    assert states == {"2026-000001": "void", "2026-000002": "issued", "2026-000003": "issued"}


def commitment(**changes: object) -> billing.TariffSettings:
    """Return a tariff in euros that commits its tenants to ten hours for one euro each."""
    ten = billing.CommitmentSettings(of="own", hours=Decimal(10), price=Decimal("1.00"))
    return msgspec.structs.replace(TARIFF, **({"commitments": [ten]} | changes))


def nets(store: Store, invoicing: Billing) -> dict[str, str]:
    """Draft the month; return the net amount of each drafted tenant."""
    drafted(store)
    page = billing.InvoicePage(month="2026-11")
    return {i.tenant: i.net for i in invoicing.invoices(page, tenants=None, drafts=True).items if i.state == "draft"}


def test_commitment_of_a_tenant_without_use_is_drafted(store: Store, invoicing: Billing) -> None:
    store.tenancy.put_tenant(Tenant(name="idle"))
    with Database(store.url).transaction() as connection:
        connection.execute(sa.text("UPDATE guarantees SET at_s = 0"))
    invoicing.put_tariff(commitment())
    store.add_usage([used("a", "vision", 0, 2)])
    assert nets(store, invoicing) == {"idle": "10.00", "vision": "12.00"}


def test_commitment_for_all_counts_for_a_tenant_only_after_its_creation(store: Store, invoicing: Billing) -> None:
    for name, at in (("old", BEGIN_S + 86_400), ("new", END_S + 1)):
        store.tenancy.put_tenant(Tenant(name=name))
        with Database(store.url).transaction() as connection:
            connection.execute(sa.text(f"UPDATE guarantees SET at_s = {at} WHERE tenant = '{name}'"))
    invoicing.put_tariff(commitment())
    assert nets(store, invoicing) == {"old": "10.00"}


def test_commitment_that_is_not_in_force_in_the_month_is_not_drafted(store: Store, invoicing: Billing) -> None:
    invoicing.put_tariff(commitment(name="later", valid_from="2027-01-01", tenants=["vision"]))
    invoicing.put_tariff(commitment(name="past", valid_to="2026-11-01", tenants=["speech"]))
    invoicing.put_tariff(commitment(name="now", valid_from="2026-11-16", tenants=["robots"]))
    assert nets(store, invoicing) == {"robots": "5.00"}


def test_use_only_outside_the_month_makes_no_draft(store: Store, invoicing: Billing) -> None:
    store.add_usage([used("a", "late", 720, 722), used("b", "early", -3, 0), used("c", "vision", 719, 723)])
    assert nets(store, invoicing) == {"vision": "1.00"}
    with pytest.raises(CalabashError, match="late has neither usage nor a commitment in 2026-11") as none:
        drafted(store, tenant="late")
    assert none.value.reason is Reason.NOT_FOUND


def test_draft_of_a_tenant_without_use_any_more_is_removed_by_the_next_rating(store: Store, invoicing: Billing) -> None:
    invoicing.put_tariff(commitment(name="own", tenants=["speech"]))
    store.add_usage([used("a", "vision", 0, 2)])
    assert nets(store, invoicing) == {"speech": "10.00", "vision": "2.00"}
    invoicing.put_tariff(commitment(name="own", tenants=["speech"], commitments=[]))
    assert nets(store, invoicing) == {"vision": "2.00"}


def test_empty_draft_or_draft_without_a_tariff_cannot_be_issued(store: Store, invoicing: Billing) -> None:
    store.add_usage([used("a", "vision", 0, 2)])
    drafted(store)
    with Database(store.url).transaction() as connection:  # as an earlier version wrote it
        connection.execute(sa.text("UPDATE invoice_drafts SET lines = '[]'"))
    with pytest.raises(CalabashError, match="the draft for vision in 2026-11 has no usage and no commitment") as empty:
        invoicing.issue("draft-2026-11-vision", by="root")
    assert empty.value.reason is Reason.CONFLICT
    invoicing.put_tariff(msgspec.structs.replace(TARIFF, valid_to="2026-02-01"))
    drafted(store)
    with pytest.raises(CalabashError, match="has no tariff, so no currency"):
        invoicing.issue("draft-2026-11-vision", by="root")
    assert store.billing.invoices(ALL) == []


def test_tariffs_of_two_currencies_fail_the_draft_of_their_tenant_alone(store: Store, invoicing: Billing) -> None:
    dollars = msgspec.structs.replace(TARIFF, name="us", currency="USD", valid_from="2026-11-16", tenants=["vision"])
    store.add_usage([used("a", "vision", 0, 2), used("b", "speech", 0, 3), used("c", "vision", 400, 401)])
    drafted(store)
    invoicing.put_tariff(dollars)
    answer = rate_month(store, RatingOrder(url="", month="2026-11"), clock=lambda: END_S + 3600)
    assert [(r.tenant, r.net) for r in answer.items] == [("speech", "3.00")]
    assert [f.tenant for f in answer.failed] == ["vision"]
    assert "tenant vision has tariffs in EUR and USD in one month" in answer.failed[0].message
    assert answer.failed[0].hint
    with pytest.raises(CalabashError, match="no invoice 'draft-2026-11-vision'"):
        invoicing.issue("draft-2026-11-vision", by="root")
    with pytest.raises(CalabashError, match="tenant vision has tariffs in EUR and USD"):
        drafted(store, tenant="vision")
    made = invoicing.draft(billing.InvoiceOrder(month="2026-11")).result(timeout=120)
    assert ([i.tenant for i in made.items], [f.tenant for f in made.failed]) == (["speech"], ["vision"])


def test_record_that_ends_before_it_begins_fails_the_draft_of_its_tenant_alone(
    store: Store, invoicing: Billing
) -> None:
    store.add_usage([used("a", "vision", 5, 2), used("b", "speech", 0, 3)])
    answer = rate_month(store, RatingOrder(url="", month="2026-11"), clock=lambda: END_S + 3600)
    assert [(r.tenant, r.net) for r in answer.items] == [("speech", "3.00")]
    assert [f.message for f in answer.failed] == ["tenant vision: a usage interval ends before it begins"]


def test_an_invoice_is_issued_only_when_its_month_is_over_and_all_of_it_was_rated(store: Store) -> None:
    clock = VirtualClock(now_s=END_S - 10)
    invoicing = Billing(store, clock)
    invoicing.put_tariff(TARIFF)
    store.add_usage([used("a", "vision", 0, 10)])
    drafted(store, at=END_S - 20)
    with pytest.raises(CalabashError, match="is not over in Europe/Berlin") as early:
        invoicing.issue("draft-2026-11-vision", by="root")
    assert early.value.reason is Reason.CONFLICT
    clock.advance(3600)
    with pytest.raises(CalabashError, match="before the end of 2026-11"):
        invoicing.issue("draft-2026-11-vision", by="root")
    assert invoicing.invoices(billing.InvoicePage(), tenants=None, drafts=False).items == []
    drafted(store)
    assert invoicing.issue("draft-2026-11-vision", by="root").number == "2026-000001"
    invoicing.close()


def test_numbers_run_without_gaps_however_many_issue_at_once_and_fail(store: Store, invoicing: Billing) -> None:
    tenants = [f"t{i:02}" for i in range(12)]
    store.add_usage([used(name, name, 0, 1) for name in tenants])
    drafted(store)
    failures: list[Reason] = []

    def issue(names: list[str]) -> None:
        for name in names:
            try:
                store.billing.issue(name, "2026-11", series="2026", at=END_S, by="root")
            except CalabashError as error:
                failures.append(error.reason)

    threads = [threading.Thread(target=issue, args=([*tenants[i::3], "nobody", tenants[0]],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.number for one in store.billing.invoices(ALL)] == [f"2026-{i:06}" for i in range(1, 13)]
    assert set(failures) <= {Reason.NOT_FOUND, Reason.CONFLICT}
    assert len(failures) == 6


def test_no_statement_changes_or_deletes_what_was_issued(url: str, store: Store, invoicing: Billing) -> None:
    store.add_usage([used("a", "vision", 0, 10)])
    drafted(store)
    number = invoicing.issue("draft-2026-11-vision", by="root").number
    before = store.billing.invoice(number)
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    for statement in (
        "UPDATE invoices SET net = '0.01'",
        "DELETE FROM invoices",
        "UPDATE invoice_lines SET amount = '0.01' WHERE position = 1",
        "DELETE FROM invoice_lines",
        "TRUNCATE invoices CASCADE",
        "UPDATE invoice_items SET items = '[]'",
        "DELETE FROM invoice_items",
        f"INSERT INTO invoice_lines VALUES ('{number}', 2, 'p', 'borrowed', '0.01', '{{}}')",
        f"INSERT INTO invoice_lines VALUES ('{number}', 0, 'p', 'borrowed', '0.01', '{{}}')",
        f"INSERT OR REPLACE INTO invoice_lines VALUES ('{number}', 1, 'p', 'borrowed', '0.01', '{{}}')",
        f"INSERT INTO invoice_items VALUES ('{number}', 2, '[]')",
        f"INSERT OR REPLACE INTO invoice_items VALUES ('{number}', 1, '[]')",
        "INSERT INTO invoice_lines VALUES ('2026-000009', 1, 'p', 'borrowed', '0.01', '{}')",
    ):
        with pytest.raises(DBAPIError), engine.begin() as connection:
            connection.execute(sa.text(statement))
    engine.dispose()
    assert store.billing.invoice(number) == before
    assert verify(store, number).sound


def test_a_database_that_was_migrated_guards_its_invoices_too(url: str) -> None:
    database = Database(url)
    database.migrate()
    row = "'n','t','2026-11','invoice',NULL,'EUR','1','1',0,'me','{}'"
    line = "INSERT INTO invoice_lines VALUES ('n', {}, 'p', 'borrowed', '1', '{{}}')"
    with database.transaction() as connection:
        connection.execute(sa.text(f"INSERT INTO invoices VALUES ({row}, 1, 1)"))
        connection.execute(sa.text(line.format(1)))
        connection.execute(sa.text("INSERT INTO invoice_items VALUES ('n', 1, '[]')"))
    for statement in (
        "UPDATE invoices SET net = '2'",
        "DELETE FROM invoices",
        "UPDATE invoice_items SET items = '[1]'",
        "DELETE FROM invoice_items",
        line.format(2),
        "INSERT INTO invoice_items VALUES ('n', 2, '[]')",
    ):
        with (
            pytest.raises(CalabashError, match="an issued invoice never changes"),
            database.transaction() as connection,
        ):
            connection.execute(sa.text(statement))
    database.close()


def test_invoice_of_an_earlier_schema_takes_no_more_lines_after_the_migration(url: str) -> None:
    database = Database(url)
    database.migrate("0011")
    row = "'n','t','2026-11','invoice',NULL,'EUR','1','1',0,'me','{}'"
    line = "INSERT INTO invoice_lines VALUES ('n', {}, 'p', 'borrowed', '1', '{{}}')"
    with database.transaction() as connection:
        connection.execute(sa.text(f"INSERT INTO invoices VALUES ({row})"))
        for position in (1, 2):
            connection.execute(sa.text(line.format(position)))
    database.migrate()
    for statement in (line.format(3), "UPDATE invoices SET net = '2'", "DELETE FROM invoices"):
        with (
            pytest.raises(CalabashError, match="an issued invoice never changes"),
            database.transaction() as connection,
        ):
            connection.execute(sa.text(statement))
    with database.transaction() as connection:
        assert connection.execute(sa.text("SELECT line_count, item_parts FROM invoices")).one() == (2, 0)
    database.close()


@pytest.mark.parametrize("migrated", [False, True])
def test_sqlite_refuses_to_replace_invoices_and_lines_of_the_audit_log(tmp_path: Path, migrated: bool) -> None:
    """REPLACE deletes without a trigger, and the shell of SQLite checks no foreign keys."""
    file = tmp_path / "pool.db"
    database = Database(f"sqlite:///{file}")
    database.migrate() if migrated else database.bring_up_to_date()
    row = "'n','t','2026-11','invoice',NULL,'EUR','1','1',0,'me','{}', 1, 0"
    with database.transaction() as connection:
        connection.execute(sa.text(f"INSERT INTO invoices VALUES ({row})"))
        connection.execute(sa.text("INSERT INTO invoice_lines VALUES ('n', 1, 'p', 'borrowed', '1', '{}')"))
        connection.execute(sa.text("INSERT INTO audit VALUES (1,0,'ann','','','','PUT','x',200,'','s')"))
    database.close()
    shell = sqlite3.connect(file)
    for statement, why in (
        (f"INSERT OR REPLACE INTO invoices VALUES ({row.replace('EUR', 'USD')})", "an issued invoice never changes"),
        ("REPLACE INTO invoice_lines VALUES ('n', 1, 'p', 'borrowed', '0', '{}')", "an issued invoice never changes"),
        (
            "REPLACE INTO audit VALUES (1,0,'eve','','','','PUT','x',200,'','s')",
            "a line of the audit log never changes",
        ),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=why):
            shell.execute(statement)
    shell.close()


def changed(store: Store, statement: str) -> None:
    """Run a statement in the database, past the store and past the guards of usage records."""
    with Database(store.url).transaction() as connection:
        for guard in ("usage_no_delete", "usage_no_update"):
            connection.execute(
                sa.text(f"DROP TRIGGER {guard}" + (" ON usage" if store.url.startswith("postgresql") else ""))
            )
        assert connection.execute(sa.text(statement)).rowcount > 0


def checks(store: Store, number: str) -> dict[str, str]:
    return {check.what: check.state for check in verify(store, number).items}


@pytest.fixture
def issued(store: Store, invoicing: Billing) -> str:
    """Issue an invoice of vision for two allocations, one of them with several records; return its number."""
    invoicing.put_tariff(commitment(name="own", tenants=["vision"]))
    store.add_usage([used("a", "vision", 0, 10), used("c", "speech", 0, 4)])
    store.add_usage([replace(used("b", "vision", hour, hour + 1, user="bob"), sequence=hour) for hour in range(-1, 3)])
    store.add_usage([replace(used("b", "vision", 5, 6, user="bob"), sequence=4, core_percent=50)])
    with Database(store.url).transaction() as connection:
        note_guarantee(connection, "vision", 1.0, at=BEGIN_S - 1000)
    drafted(store)
    return invoicing.issue("draft-2026-11-vision", by="root").number


def test_items_of_an_invoice_name_allocation_user_share_and_time_and_add_up(
    store: Store, invoicing: Billing, issued: str
) -> None:
    found = invoicing.items(invoicing.invoice(issued), billing.ItemPage()).items
    told = [
        (i.allocation, i.user, i.share_percent, (i.from_s - BEGIN_S) / 3600, (i.to_s - BEGIN_S) / 3600) for i in found
    ]
    assert told == [
        ("", "", 0, 0, 720),
        *[("a", "ann", 100, 0, 10)] * 2,
        *[("b", "bob", 100, 0, 3)] * 2,
        *[("b", "bob", 50, 5, 6)] * 2,
    ]
    record = invoicing.invoice(issued)
    assert sum(Decimal(item.amount) for item in found) == Decimal(record.net)
    assert {(i.measure, i.amount) for i in found if i.allocation == ""} == {("commitment", "10.000000")}
    lent = sum(Decimal(item.hours) for item in found if item.measure == "borrowed")
    assert lent == sum(Decimal(str(view.hours)) for view in invoice_of(record).lines if view.measure == "borrowed")
    page = invoicing.items(record, billing.ItemPage(after="1"))
    assert (page.items, page.next) == ([], "")


def test_estimated_end_is_marked_in_usage_and_items_is_not_charged_and_is_sealed(
    store: Store, invoicing: Billing
) -> None:
    invoicing.put_tariff(commitment(name="own", tenants=["vision"]))
    store.add_usage([replace(used("a", "vision", 0, 10), core_percent=50)])
    store.add_usage([replace(used("a", "vision", 10, 11), sequence=1, core_percent=50, uncertain_s=7200.0)])
    store.add_usage([replace(used("b", "vision", 719, 721), uncertain_s=60.0)])  # the allocation ended after the month
    question = billing.UsageQuestion(by="tenant", from_s=BEGIN_S, to_s=BEGIN_S + 20 * 3600)
    (sums,) = invoicing.usage(question, tenants=None, user="").items
    assert sums.uncertain_hours == pytest.approx(1.0)
    drafted(store)
    number = invoicing.issue("draft-2026-11-vision", by="root").number
    found = invoicing.items(invoicing.invoice(number), billing.ItemPage()).items
    assert {(i.allocation, i.uncertain_s) for i in found} == {("", 0.0), ("a", 7200.0), ("b", 0.0)}
    assert {i.to_s for i in found if i.allocation == "a"} == {BEGIN_S + 11 * 3600}
    table = items_csv([msgspec.to_builtins(i) for i in found], time_zone="UTC")
    (row, *_) = [row for row in csv.DictReader(io.StringIO(table)) if row["allocation"] == "a"]
    assert row["uncertain_s"] == "7200.0"
    assert checks(store, number)["usage"] == "ok"
    changed(store, "UPDATE usage SET uncertain_s = 0 WHERE allocation = 'a'")
    assert checks(store, number)["usage"] == "changed"


def test_digest_without_an_estimated_end_is_that_of_versions_without_the_mark(store: Store, issued: str) -> None:
    (rows,) = store.usage_reader.pages(from_s=0.0, to_s=1e11, tenant="vision")
    inside = [row[:16] for row in rows if row[6] > BEGIN_S and row[5] < BEGIN_S + 720 * 3600]
    digest = hashlib.sha256("".join(f"{row[11]} {row!r}" for row in inside).encode()).hexdigest()
    sealed = store.billing.invoice(issued)
    assert sealed is not None
    assert sealed.document["evidence"]["usage"]["sha256"] == digest


def test_issued_invoice_is_verified_against_its_lines_items_and_usage_records(store: Store, issued: str) -> None:
    verdict = verify(store, issued)
    assert verdict.sound
    assert {check.what: check.state for check in verdict.items} == {"seal": "ok", "items": "ok", "usage": "ok"}
    assert len(verdict.seal) == 64
    with pytest.raises(CalabashError, match="no issued invoice 'draft-2026-11-speech'"):
        verify(store, "draft-2026-11-speech")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE usage SET used_gpu_s = used_gpu_s + 1 WHERE allocation = 'a'",
        "UPDATE usage SET core_percent = 99 WHERE allocation = 'a'",
        "UPDATE usage SET tenant = 'speech' WHERE allocation = 'a'",
        "UPDATE usage SET allocation = 'z' WHERE allocation = 'a'",
        """UPDATE usage SET "user" = 'eve' WHERE allocation = 'a'""",
        "UPDATE usage SET to_s = to_s - 60 WHERE allocation = 'a'",
        "DELETE FROM usage WHERE allocation = 'a'",
    ],
)
def test_verification_finds_a_changed_usage_record(store: Store, issued: str, statement: str) -> None:
    changed(store, statement)
    verdict = verify(store, issued)
    assert not verdict.sound
    assert checks(store, issued) == {"seal": "ok", "items": "ok", "usage": "changed"}


def test_verification_finds_changes_made_after_the_guards_were_removed(url: str, store: Store, issued: str) -> None:
    sqlite = url.startswith("sqlite")
    tables_of = {
        "invoice_items": ("UPDATE invoice_items SET items = '[]'", "items"),
        "invoice_lines": ("UPDATE invoice_lines SET document = '{}' WHERE position = 1", "seal"),
        "invoices": ("UPDATE invoices SET total = '1.00' WHERE kind = 'invoice'", "seal"),
    }
    for table, (statement, what) in tables_of.items():
        before = checks(store, issued)
        with Database(store.url).transaction() as connection:
            connection.execute(
                sa.text(f"DROP TRIGGER {table}_no_update" if sqlite else f"DROP TRIGGER {table}_fixed ON {table}")
            )
            kept = connection.execute(sa.text(f"SELECT * FROM {table}")).mappings().all()
            assert kept
            connection.execute(sa.text(statement))
        assert checks(store, issued) == before | {what: "changed"}


def test_allocation_that_is_renamed_when_its_name_is_granted_again_is_no_change(store: Store, issued: str) -> None:
    changed(store, f"UPDATE usage SET allocation = '{earlier_name('a', 1.0)}' WHERE allocation = 'a'")
    assert checks(store, issued)["usage"] == "ok"


def test_usage_that_comes_after_the_rating_is_reported_and_is_no_change(store: Store, issued: str) -> None:
    store.add_usage([used("late", "vision", 20, 21)])
    verdict = verify(store, issued)
    assert verdict.sound
    assert "1 records came after the rating" in {check.what: check.detail for check in verdict.items}["usage"]


def test_usage_that_retention_removed_is_not_kept_and_no_change(store: Store, issued: str) -> None:
    changed(store, "UPDATE usage SET used_gpu_s = 1 WHERE allocation = 'a'")
    assert checks(store, issued)["usage"] == "changed"
    while store.trim(Retention(usage_days=30), now_s=END_S + 35 * 86_400):
        pass
    assert verify(store, issued).sound
    assert checks(store, issued) == {"seal": "ok", "items": "ok", "usage": "not-kept"}


def test_usage_that_retention_merged_after_the_rating_is_not_kept_and_no_change(
    store: Store, invoicing: Billing
) -> None:
    store.add_usage([used(f"a{i}", "vision", i / 100, (i + 1) / 100) for i in range(20)])
    drafted(store)
    number = invoicing.issue("draft-2026-11-vision", by="root").number
    assert checks(store, number)["usage"] == "ok"
    while store.trim(Retention(usage=5), now_s=END_S + 7200):
        pass
    assert 0 < len(store.usage()) < 20
    assert checks(store, number) == {"seal": "ok", "items": "ok", "usage": "not-kept"}
    assert {item.user for item in invoicing.items(invoicing.invoice(number), billing.ItemPage()).items} == {"ann"}


def test_reversal_is_sealed_and_verified_too(store: Store, invoicing: Billing, issued: str) -> None:
    back = invoicing.void(issued, by="root").number
    assert checks(store, back) == {"seal": "ok"}
    assert verify(store, issued).sound
    assert invoicing.verify(issued).result(timeout=120).sound


DECEMBER_S = END_S + 31 * 86_400


@pytest.fixture
def two_months(store: Store) -> Iterator[Billing]:
    """Yield the billing of January: vision has an issued invoice of 10.00 for November, and a draft of 4.00 for December."""
    opened = Billing(store, VirtualClock(now_s=DECEMBER_S + 86_400))
    opened.put_tariff(TARIFF)
    store.add_usage([used("a", "vision", 0, 10), used("b", "vision", 720, 724), used("c", "speech", 720, 724)])
    for month in ("2026-11", "2026-12"):
        rate_month(store, RatingOrder(url="", month=month), clock=lambda: DECEMBER_S + 3600)
    opened.issue("draft-2026-11-vision", by="root")
    yield opened
    opened.close()


def credited(invoicing: Billing, number: str, amount: str, reason: str = "the network was down") -> billing.InvoiceView:
    return invoicing.credit(number, billing.CreditOrder(amount=Decimal(amount), reason=reason), by="root")


def test_next_invoice_is_paid_with_a_credit_note_that_has_a_number_of_its_own(
    two_months: Billing, store: Store
) -> None:
    note = credited(two_months, "2027-000001", "3.00")
    assert (note.number, note.kind, note.credits, note.reason) == (
        "C2027-000001",
        "credit",
        "2027-000001",
        "the network was down",
    )
    assert (note.net, note.total, note.open, note.by) == ("-3.00", "-3.57", "3.57", "root")
    assert [(tax.name, tax.net, tax.amount) for tax in note.taxes] == [("VAT", "-3.00", "-0.57")]
    draft = two_months.view(two_months.invoice("draft-2026-12-vision"))
    assert (draft.total, draft.due) == ("4.76", "1.19")
    issued = two_months.issue("draft-2026-12-vision", by="root")
    assert (issued.number, issued.total, issued.due) == ("2027-000002", "4.76", "1.19")
    assert [(s.number, s.reason, s.amount) for s in issued.settled] == [
        ("C2027-000001", "the network was down", "3.57")
    ]
    assert two_months.view(two_months.invoice(note.number)).open == "0"
    other = two_months.issue("draft-2026-12-speech", by="root")
    assert (other.settled, other.due) == ([], "4.76")
    assert [verify(store, number).sound for number in ("2027-000001", "2027-000002", "C2027-000001")] == [True] * 3


def test_credit_that_an_invoice_does_not_use_up_stays_open(two_months: Billing) -> None:
    credited(two_months, "2027-000001", "6.00", "first")
    credited(two_months, "2027-000001", "1.00", "second")
    issued = two_months.issue("draft-2026-12-vision", by="root")
    assert (issued.due, [(s.number, s.amount) for s in issued.settled]) == ("0.00", [("C2027-000001", "4.76")])
    left = [two_months.view(two_months.invoice(number)).open for number in ("C2027-000001", "C2027-000002")]
    assert left == ["2.38", "1.19"]
    back = two_months.void(issued.number, by="root")
    assert (back.total, back.due) == ("-4.76", "0.00")
    left = [two_months.view(two_months.invoice(number)).open for number in ("C2027-000001", "C2027-000002")]
    assert left == ["7.14", "1.19"]


def test_credit_in_another_currency_stays_open(two_months: Billing, store: Store) -> None:
    credited(two_months, "2027-000001", "3.00")
    dollars = msgspec.structs.replace(TARIFF, name="us", currency="USD", valid_from="2026-12-01", tenants=["vision"])
    two_months.put_tariff(dollars)
    rate_month(store, RatingOrder(url="", month="2026-12"), clock=lambda: DECEMBER_S + 3600)
    issued = two_months.issue("draft-2026-12-vision", by="root")
    assert (issued.currency, issued.due, issued.settled) == ("USD", issued.total, [])
    assert two_months.view(two_months.invoice("C2027-000001")).open == "3.57"


@pytest.mark.parametrize("amount", ["0", "-1", "10.01", "1.001", "NaN", "Infinity"])
def test_credit_with_an_amount_out_of_range_is_refused_with_the_limit(two_months: Billing, amount: str) -> None:
    with pytest.raises(CalabashError, match=r"the limit is 10.00 EUR") as refused:
        credited(two_months, "2027-000001", amount)
    assert refused.value.reason is Reason.BAD_REQUEST
    assert refused.value.hint


def test_credit_notes_of_an_invoice_are_at_most_its_net_amount(two_months: Billing, store: Store) -> None:
    credited(two_months, "2027-000001", "7.00")
    with pytest.raises(CalabashError, match=r"cannot be credited with 3.01: the limit is 3.00 EUR"):
        credited(two_months, "2027-000001", "3.01")
    assert credited(two_months, "2027-000001", "3.00").number == "C2027-000002", "a refusal takes no number"
    for number, words in (
        ("draft-2026-12-vision", "a draft is not issued"),
        ("C2027-000001", "C2027-000001 is a credit"),
        ("2027-000009", "no invoice"),
    ):
        with pytest.raises(CalabashError, match=words):
            credited(two_months, number, "1.00")


def test_credited_invoice_and_used_credit_note_cannot_be_reversed(two_months: Billing) -> None:
    credited(two_months, "2027-000001", "3.00")
    with pytest.raises(CalabashError, match="invoice 2027-000001 has credit notes: C2027-000001") as first:
        two_months.void("2027-000001", by="root")
    assert first.value.reason is Reason.CONFLICT
    two_months.issue("draft-2026-12-vision", by="root")
    with pytest.raises(CalabashError, match="credit note C2027-000001 was used by invoice 2027-000002"):
        two_months.void("C2027-000001", by="root")
    two_months.void("2027-000002", by="root")
    back = two_months.void("C2027-000001", by="root")
    assert (back.reverses, back.total) == ("C2027-000001", "3.57")
    assert two_months.void("2027-000001", by="root").reverses == "2027-000001"
    with pytest.raises(CalabashError, match="invoice 2027-000001 was taken back by 2027-000005 and cannot be credited"):
        credited(two_months, "2027-000001", "1.00")


def test_credits_and_issues_at_once_use_each_credit_once(store: Store, invoicing: Billing) -> None:
    store.add_usage([used("a", "vision", 0, 10), *(used(f"b{i}", "vision", 720 + i, 721 + i) for i in range(4))])
    january = Billing(store, VirtualClock(now_s=DECEMBER_S + 86_400))
    for month in ("2026-11", "2026-12"):
        rate_month(store, RatingOrder(url="", month=month), clock=lambda: DECEMBER_S + 3600)
    first = january.issue("draft-2026-11-vision", by="root")

    def credit() -> None:
        for _ in range(3):
            credited(january, first.number, "0.50")

    threads = [threading.Thread(target=credit) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: january.issue("draft-2026-12-vision", by="root")))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = store.billing.invoices_of("vision")
    notes = [one for one in everything if one.kind == "credit"]
    assert sorted(note.number for note in notes) == [f"C2027-{i:06}" for i in range(1, 10)]
    settled = sum(Decimal(part["amount"]) for one in everything for part in one.document.get("settled", ()))
    still_open = sum(Decimal(january.view(january.invoice(note.number)).open) for note in notes)
    assert settled + still_open == -sum(Decimal(note.total) for note in notes)
    january.close()


def test_draft_of_an_earlier_version_is_drafted_again_before_it_is_issued(store: Store, invoicing: Billing) -> None:
    store.add_usage([used("a", "vision", 0, 10)])
    drafted(store)
    draft = store.billing.drafts(ALL)[0]
    old = {name: value for name, value in draft.document.items() if name != "evidence"}
    store.billing.put_drafts([replace(draft, document=old)], month="2026-11")
    with pytest.raises(CalabashError, match="was made by an earlier version, without itemised usage"):
        invoicing.issue("draft-2026-11-vision", by="root")


def test_a_database_that_was_migrated_guards_its_audit_log_too(url: str) -> None:
    database = Database(url)
    database.migrate()
    with database.transaction() as connection:
        connection.execute(sa.text("INSERT INTO audit VALUES (1,0,'ann','','','','PUT','x',200,'','s')"))
        connection.execute(sa.text("INSERT INTO audit VALUES (2,0,'ann','','','','PUT','x',200,'','t')"))
    truncation = () if url.startswith("sqlite") else ("TRUNCATE audit",)
    for statement in (
        "UPDATE audit SET outcome = 403",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE id = 1",
        *truncation,
    ):
        with (
            pytest.raises(CalabashError, match="a line of the audit log never changes"),
            database.transaction() as connection,
        ):
            connection.execute(sa.text(statement))
    assert AuditTable(database).trim(kept=1, before_s=0.0) == 1, "retention may"
    assert [line.id for line in AuditTable(database).lines()] == [2]
    database.close()


USAGE_STATEMENTS = (
    "UPDATE usage SET used_gpu_s = used_gpu_s + 1 WHERE allocation = 'a'",
    "UPDATE usage SET tenant = 'speech' WHERE allocation = 'a'",
    "UPDATE usage SET idle_s = 1 WHERE allocation = 'b' AND sequence = 4",
    "UPDATE usage SET uncertain_s = 1 WHERE allocation = 'b' AND sequence = 4",
    """UPDATE usage SET "user" = 'eve'""",
    "DELETE FROM usage WHERE allocation = 'a'",
    "DELETE FROM usage",
)


def test_every_column_of_a_usage_record_but_its_number_and_name_is_guarded() -> None:
    guarded = {name.strip(' "') for name in tables.USAGE_MEASURED.split(",")}
    assert guarded == set(tables.usage.columns.keys()) - {"id", "allocation"}


@pytest.mark.parametrize("statement", USAGE_STATEMENTS)
def test_database_refuses_to_change_or_delete_usage_records_behind_an_issued_invoice(
    store: Store, issued: str, statement: str
) -> None:
    before = store.usage()
    with (
        pytest.raises(CalabashError, match="a usage record behind an issued invoice never changes"),
        Database(store.url).transaction() as connection,
    ):
        connection.execute(sa.text(statement))
    assert store.usage() == before
    assert checks(store, issued)["usage"] == "ok"


def test_postgresql_refuses_to_truncate_the_evidence_of_invoices(store: Store, invoicing: Billing, issued: str) -> None:
    if store.url.startswith("sqlite"):
        return  # SQLite has no such statement
    for table in ("usage", "audit", "invoices CASCADE", "invoice_lines", "invoice_items"):
        with pytest.raises(CalabashError, match="never changes"), Database(store.url).transaction() as connection:
            connection.execute(sa.text(f"TRUNCATE {table}"))
    assert verify(store, issued).sound


def test_usage_of_other_tenants_and_months_and_of_drafts_may_be_deleted(store: Store, issued: str) -> None:
    store.add_usage([used("before", "vision", -9, -8), used("after", "vision", 800, 801)])
    drafted(store)
    with Database(store.url).transaction() as connection:
        for name in ("before", "after", "c"):  # c: of a tenant without an invoice
            assert connection.execute(sa.text(f"DELETE FROM usage WHERE allocation = '{name}'")).rowcount == 1
    assert checks(store, issued)["usage"] == "ok"


def test_database_refuses_to_change_or_delete_a_credit_note(store: Store, invoicing: Billing, issued: str) -> None:
    note = invoicing.credit(issued, billing.CreditOrder(reason="slow", amount=Decimal("1.00")), by="root").number
    for statement in (
        f"DELETE FROM invoices WHERE number = '{note}'",
        f"UPDATE invoices SET net = '-9.00' WHERE number = '{note}'",
        f"DELETE FROM invoice_lines WHERE number = '{note}'",
    ):
        with (
            pytest.raises(CalabashError, match="an issued invoice never changes"),
            Database(store.url).transaction() as connection,
        ):
            connection.execute(sa.text(statement))
    assert verify(store, note).sound


def test_a_database_that_was_migrated_guards_its_usage_records_too_and_retention_removes_them(url: str) -> None:
    database = Database(url)
    database.migrate()
    database.close()
    store = open_store(url)
    invoicing = Billing(store, VirtualClock(now_s=END_S + 86_400))
    invoicing.put_tariff(commitment(name="own", tenants=["vision"]))
    store.add_usage([used("a", "vision", 0, 10)])
    drafted(store)
    invoicing.issue("draft-2026-11-vision", by="root")
    for statement in ("DELETE FROM usage", "UPDATE usage SET core_percent = 1"):
        with (
            pytest.raises(CalabashError, match="a usage record behind an issued invoice never changes"),
            Database(url).transaction() as connection,
        ):
            connection.execute(sa.text(statement))
    while store.trim(Retention(usage_days=30), now_s=END_S + 35 * 86_400):
        pass
    assert store.usage() == []
    with Database(url).reading() as connection:
        left = connection.execute(sa.text("SELECT count(*) FROM meta WHERE key = 'usage_removing'")).scalar_one()
    assert left == 0, "the mark of retention ends with its transaction"
    invoicing.close()
    store.close()


def test_reading_a_month_does_not_block_writers(store: Store) -> None:
    store.add_usage([used(f"a{i}", "vision", i, i + 1) for i in range(20)])
    pages = store.usage_reader.pages(from_s=BEGIN_S, to_s=END_S)
    with Database(store.url).reading() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM usage")).scalar_one() == 20
        store.add_usage([used("b", "vision", 0, 1)])
        assert connection.execute(sa.text("SELECT count(*) FROM usage")).scalar_one() in {20, 21}
    assert sum(len(page) for page in pages) == 21


def test_usage_is_summed_by_the_requested_key_within_the_visible_tenants(store: Store, invoicing: Billing) -> None:
    store.add_usage(
        [
            used("a", "vision", 0, 10),
            used("b", "vision", -2, 2, project="q", user="bob"),
            used("c", "speech", 0, 4, user="ann"),
        ]
    )

    def sums(by: str, **seen: object) -> list[tuple[object, ...]]:
        asked = billing.UsageQuestion(by=by, from_s=BEGIN_S, to_s=END_S)
        shown = {"tenants": None, "user": ""} | seen
        found = invoicing.usage(asked, **shown).items  # type: ignore[arg-type]
        return [
            (*(getattr(i, name) for name in by.split(",")), round(i.gpu_hours, 6), round(i.busy_hours, 6))
            for i in found
        ]

    assert sums("tenant") == [("speech", 4, 2), ("vision", 12, 6)]
    assert sums("tenant,project") == [("speech", "p", 4, 2), ("vision", "p", 10, 5), ("vision", "q", 2, 1)]
    assert sums("user", tenants=frozenset(), user="bob") == [("bob", 2, 1)]
    assert sums("tenant", tenants=frozenset({"speech"}), user="bob") == [("speech", 4, 2), ("vision", 2, 1)]
    with pytest.raises(CalabashError, match="cannot be summed by colour"):
        sums("colour")


@dataclass
class Running:
    """Usage of running allocations as the agent of a pool reports it."""

    store: Store
    use: list[UsageRecord] = field(default_factory=list)
    until_s: float = BEGIN_S
    behind: dict[str, float] = field(default_factory=dict)

    def records(self) -> tuple[list[UsageRecord], float]:
        return self.use, self.until_s

    def write(self) -> tuple[float, dict[str, float]]:
        self.store.add_usage(self.use)
        return self.until_s, self.behind


def test_usage_includes_running_allocations_once(store: Store) -> None:
    running = Running(store, until_s=BEGIN_S + 5 * 3600)
    invoicing = Billing(store, VirtualClock(now_s=running.until_s), running)

    def hours(by: str = "tenant", from_h: float = 0, to_h: float = 720, **seen: Any) -> dict[str, tuple[float, ...]]:
        asked = billing.UsageQuestion(by=by, from_s=BEGIN_S + from_h * 3600, to_s=BEGIN_S + to_h * 3600)
        found = invoicing.usage(asked, **({"tenants": None, "user": ""} | seen))
        assert found.counted_to_s == min(running.until_s, asked.to_s)
        return {
            ",".join(getattr(i, name) for name in by.split(",") if name): tuple(
                round(hours, 6) for hours in (i.gpu_hours, i.busy_hours, i.idle_hours, i.memory_gib_hours)
            )
            for i in found.items
        }

    assert hours() == {}
    assert hours("") == {"": (0, 0, 0, 0)}
    running.use = [shared("a", 1, 5, share=50, idle=0.5), replace(used("b", "speech", 4, 5, user="bob"), sequence=3)]
    whole = {"vision": (2, 1, 1, 4), "speech": (1, 0.5, 0, 1)}
    assert hours() == whole
    assert hours("") == {"": (3, 1.5, 1, 5)}
    assert hours("user,model") == {"ann,T4": (2, 1, 1, 4), "bob,T4": (1, 0.5, 0, 1)}
    assert hours(from_h=2, to_h=4) == {"vision": (1, 0.5, 0.5, 2)}
    assert hours(tenants=frozenset({"vision"}), user="") == {"vision": whole["vision"]}
    assert hours(tenants=frozenset({"vision"}), user="bob") == whole
    store.add_usage([used("b", "speech", 0, 4, user="bob")])  # the records before
    whole["speech"] = (5, 2.5, 0, 5)
    assert hours() == whole
    store.add_usage([replace(used("b", "speech", 4, 5.01, user="bob"), sequence=3)])  # written since it was measured
    assert hours(to_h=5) == whole
    store.add_usage([replace(shared("a", 1, 3, share=50, idle=0.5))])  # a part of it was written since
    assert hours(to_h=5) == whole
    invoicing.close()


def test_draft_includes_running_allocations_and_says_up_to_when(store: Store) -> None:
    running = Running(store, [used("a", "vision", 0, 10)], until_s=BEGIN_S + 10 * 3600)
    clock = VirtualClock(now_s=running.until_s + 1)
    invoicing = Billing(store, clock, running)
    invoicing.put_tariff(TARIFF)
    (draft,) = invoicing.draft(billing.InvoiceOrder(month="2026-11")).result(timeout=120).items
    assert (draft.tenant, draft.net, draft.counted_to_s) == ("vision", "10.00", running.until_s)
    with pytest.raises(CalabashError, match="2026-11 is not over"):
        invoicing.issue(draft.number, by="root")
    clock.advance(END_S - clock.now_s() + 3600)
    with pytest.raises(CalabashError, match="usage from before the end of 2026-11 only") as early:
        invoicing.issue(draft.number, by="root")
    assert "draft it again" in early.value.hint
    drafted(store)
    assert invoicing.view(invoicing.invoice(draft.number)).counted_to_s == END_S
    assert invoicing.issue(draft.number, by="root").counted_to_s == END_S
    invoicing.close()


def test_draft_of_a_tenant_whose_usage_comes_late_says_so_and_is_not_issued(store: Store) -> None:
    late_s = END_S - 100
    use = [used("a", "vision", 0, 10), used("b", "speech", 0, 10)]
    invoicing = Billing(store, VirtualClock(now_s=END_S + 60), Running(store, use, END_S + 60, {"vision": late_s}))
    invoicing.put_tariff(TARIFF)
    store.add_usage(use)
    order = RatingOrder(url="", month="2026-11", counted_to_s=END_S + 60, behind={"vision": late_s})
    rate_month(store, order, clock=lambda: END_S + 60)
    assert invoicing.view(invoicing.invoice("draft-2026-11-vision")).counted_to_s == late_s
    with pytest.raises(CalabashError, match="the draft for vision counts usage from before the end of 2026-11 only"):
        invoicing.issue("draft-2026-11-vision", by="root")
    assert invoicing.issue("draft-2026-11-speech", by="root").counted_to_s == END_S
    (draft,) = invoicing.draft(billing.InvoiceOrder(month="2026-11", tenant="vision")).result(timeout=120).items
    assert draft.counted_to_s == late_s
    invoicing.close()


def idle_lines(store: Store, invoicing: Billing) -> dict[str, Decimal]:
    """Draft the month with a price for idle hours; return the held and the idle hours."""
    prices = [*TARIFF.prices, billing.PriceSettings(name="idle", measure="idle", price=Decimal("1.00"))]
    invoicing.put_tariff(msgspec.structs.replace(TARIFF, prices=prices))
    drafted(store)
    lines = invoice_of(invoicing.invoice(draft_number("vision", "2026-11"))).lines
    held = sum((line.hours for line in lines if line.measure in {"guaranteed", "borrowed"}), Decimal(0))
    return {"held": held, "idle": sum((line.hours for line in lines if line.measure == "idle"), Decimal(0))}


def shared(name: str, from_h: float, to_h: float, *, share: int, idle: float) -> UsageRecord:
    """Return a record of a share in percent that is without GPU time for part ``idle``, and uses its share in the rest."""
    whole = used(name, "vision", from_h, to_h)
    length_s = whole.to_s - whole.from_s
    return replace(
        whole,
        core_percent=share,
        allocated_gpu_s=length_s * share / 100,
        used_gpu_s=length_s * (1 - idle) * share / 100,
        idle_s=length_s * idle,
    )


def test_idle_hours_are_device_hours_in_usage_and_invoices(store: Store, invoicing: Billing) -> None:
    store.add_usage([shared(f"s{i}", 0, 1, share=2, idle=1.0) for i in range(800)])
    (row,) = invoicing.usage(billing.UsageQuestion(from_s=BEGIN_S, to_s=END_S), tenants=None, user="").items
    assert (round(row.gpu_hours, 6), round(row.idle_hours, 6), row.busy_hours) == (16, 16, 0)
    assert idle_lines(store, invoicing) == {"held": 16, "idle": 16}


def test_slices_of_any_share_have_no_more_idle_hours_than_hours_held(store: Store, invoicing: Billing) -> None:
    dice = random.Random(6)
    records = []
    for number in range(300):
        begin_h, length_h = dice.uniform(0, 700), dice.uniform(0.001, 10)
        record = shared(f"s{number}", begin_h, begin_h + length_h, share=dice.randrange(0, 101), idle=dice.random())
        # Every tenth record is one of an earlier version's merged records, with the idle time of many slices.
        records.append(replace(record, idle_s=record.idle_s * 50) if number % 10 == 0 else record)
    store.add_usage(records)
    for from_h, to_h in ((0, 720), (0, 1), (300, 333.3), (700, 710)):
        asked = billing.UsageQuestion(by="user", from_s=BEGIN_S + from_h * 3600, to_s=BEGIN_S + to_h * 3600)
        for row in invoicing.usage(asked, tenants=None, user="").items:
            assert 0 < row.idle_hours <= row.gpu_hours
    honest = [one for index, one in enumerate(records) if index % 10]
    exact = sum(one.idle_s * one.core_percent / 100 for one in honest) / 3600
    most = sum(one.allocated_gpu_s for one in records if one not in honest) / 3600
    hours = idle_lines(store, invoicing)
    assert exact - 0.001 <= float(hours["idle"]) <= exact + most + 0.001
    assert hours["idle"] <= hours["held"]


def test_spending_is_counted_in_a_process_of_its_own(store: Store) -> None:
    invoicing = Billing(store, VirtualClock(now_s=END_S - 3600))
    invoicing.put_tariff(TARIFF)
    store.add_usage([used("a", "vision", 0, 10)])
    assert invoicing.spent("vision") is None, "the first question starts the count and does not wait for it"
    for running in invoicing._counting.values():
        running.result(timeout=120)
    found = invoicing.spent("vision")
    assert found is not None
    assert (found.amount, found.currency) == (Decimal("10.00"), "EUR")
    assert invoicing.spent("speech") is None
    invoicing.close()


def test_retention_keeps_usage_until_its_month_can_be_invoiced(store: Store) -> None:
    store.add_usage([used(f"a{i}", "vision", i, i + 1) for i in range(5)])
    kept = Retention(usage=2)
    while store.trim(kept, now_s=END_S + 20 * 86_400):
        pass
    assert len(store.usage()) == 5
    while store.trim(kept, now_s=END_S + 80 * 86_400):
        pass
    assert len(store.usage()) == 2


def test_draft_is_made_by_a_process_that_reads_the_database_url_from_its_input(
    store: Store, invoicing: Billing
) -> None:
    store.add_usage([used("a", "vision", 0, 10)])
    made = invoicing.draft(billing.InvoiceOrder(month="2026-11")).result(timeout=120)
    assert [(one.number, one.net) for one in made.items] == [(draft_number("vision", "2026-11"), "10.00")]


def test_tariff_is_read_as_it_was_applied(invoicing: Billing) -> None:
    later = msgspec.structs.replace(TARIFF, valid_from="2027-01-01")
    invoicing.put_tariff(later)
    invoicing.put_tariff(later)
    assert invoicing.tariffs() == [TARIFF, later]
    price = msgspec.structs.replace(TARIFF.prices[0], window="night")
    wrong = msgspec.structs.replace(TARIFF, prices=[price])
    with pytest.raises(CalabashError, match="names window night"):
        invoicing.put_tariff(wrong)
