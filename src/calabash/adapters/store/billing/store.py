"""Tariffs, guarantees, drafts and invoices in the database.

An invoice gets its number in the transaction that writes it, so that the numbers of a series have no gaps: a concurrent
issue waits for the counter, and a failure rolls the number back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store.billing import tables
from calabash.adapters.store.billing.documents import Document, InvoiceFilter, InvoiceRecord
from calabash.adapters.store.billing.seals import SEAL
from calabash.adapters.store.database import Database
from calabash.model.errors import CalabashError, Reason

_ALL_SERIES = "*"  # a row without numbers; every transaction that issues locks it


class BillingTables:
    """Billing tables. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put_tariff(self, name: str, valid_from: str, document: Document, *, at: float) -> None:
        """Create a tariff, valid from a day (``YYYY-MM-DD``), or replace the tariff with this name and day."""
        table = tables.tariffs
        with self._database.transaction() as connection:
            connection.execute(sa.delete(table).where(table.c.name == name, table.c.valid_from == valid_from))
            connection.execute(
                sa.insert(table).values(name=name, valid_from=valid_from, applied_at=at, document=dict(document))
            )

    def tariffs(self) -> list[Document]:
        """Return all tariffs, ordered by name and by the day from which they are valid."""
        table = tables.tariffs
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table.c.document).order_by(table.c.name, table.c.valid_from))
            return [dict(document) for document in rows.scalars()]

    def guarantees(self) -> dict[str, list[tuple[float, float]]]:
        """Return the history of each tenant's guarantee, oldest first: time (seconds since the epoch), and devices."""
        table, found = tables.guarantees, dict[str, list[tuple[float, float]]]()
        with self._database.reading() as connection:
            for row in connection.execute(sa.select(table).order_by(table.c.id)):
                found.setdefault(row.tenant, []).append((row.at_s, row.guarantee))
        return found

    # -- drafts ------------------------------------------------------------------------------------------------

    def put_drafts(self, drafts: Sequence[InvoiceRecord], *, month: str, tenant: str = "") -> None:
        """Replace the drafts of a month by ``drafts``, for one tenant, or for all tenants if ``tenant`` is ""."""
        table, items = tables.invoice_drafts, tables.invoice_draft_items
        with self._database.transaction() as connection:
            for each in (table, items):
                replaced = sa.delete(each).where(each.c.month == month)
                connection.execute(replaced.where(each.c.tenant == tenant) if tenant else replaced)
            for draft in drafts:
                values = {"tenant": draft.tenant, "month": draft.month, "drafted_at": draft.at}
                connection.execute(
                    sa.insert(table).values(document=dict(draft.document), lines=list(draft.lines), **values)
                )
                parts = [
                    {
                        "tenant": draft.tenant,
                        "month": draft.month,
                        "part": part,
                        "items": [dict(item) for item in found],
                    }
                    for part, found in enumerate(draft.items, 1)
                ]
                if parts:
                    connection.execute(sa.insert(items), parts)

    def drafts(self, which: InvoiceFilter) -> list[InvoiceRecord]:
        """Return the drafts that a filter permits, with their lines, ordered by month and tenant."""
        table = tables.invoice_drafts
        query = _filtered(sa.select(table), table, which).order_by(table.c.month.desc(), table.c.tenant)
        with self._database.reading() as connection:
            return [_draft(dict(row)) for row in connection.execute(query.limit(which.limit)).mappings()]

    def delete_draft(self, tenant: str, month: str) -> bool:
        """Delete the draft; return False if it does not exist."""
        with self._database.transaction() as connection:
            return _delete_draft(connection, tenant, month)

    # -- invoices ----------------------------------------------------------------------------------------------

    def issue(
        self,
        tenant: str,
        month: str,
        *,
        series: str,
        at: float,
        by: str,
        complete: Callable[[InvoiceRecord, Sequence[InvoiceRecord]], InvoiceRecord] = lambda draft, _: draft,
    ) -> str:
        """Turn the draft of a tenant and month into an invoice; return its number.

        Args:
            series: series of the invoice's number, such as the year. The numbers of a series have no gaps.
            at: time of the issue, in seconds since the epoch.
            by: name of the user who issues it.
            complete: makes the invoice from the draft and all invoices of the tenant.

        Raises CalabashError: NOT_FOUND without a draft, CONFLICT if the month is invoiced already.
        """
        with self._database.transaction() as connection:
            self._serialise(connection)
            number = self._next(connection, series)
            table = tables.invoice_drafts
            row = (
                connection.execute(sa.select(table).where(table.c.tenant == tenant, table.c.month == month))
                .mappings()
                .one_or_none()
            )
            if row is None:
                raise CalabashError(
                    f"there is no draft for {tenant} in {month}",
                    reason=Reason.NOT_FOUND,
                    hint=f"calabash invoice draft {month} --tenant {tenant}",
                )
            standing = _standing(connection, tenant, month)
            if standing is not None:
                raise CalabashError(
                    f"{tenant} has invoice {standing} for {month} already",
                    reason=Reason.CONFLICT,
                    hint=f"take it back first: calabash invoice void {standing}",
                )
            items = tables.invoice_draft_items
            mine = items.c.tenant == tenant, items.c.month == month
            parts = connection.execute(sa.select(sa.func.count()).select_from(items).where(*mine)).scalar_one()
            issued = complete(_draft(dict(row)), _invoices_of(connection, tenant))
            _write(connection, issued, number=number, at=at, by=by, item_parts=parts)
            moved = sa.select(sa.literal(number), items.c.part, items.c["items"]).where(*mine).order_by(items.c.part)
            connection.execute(sa.insert(tables.invoice_items).from_select(["number", "part", "items"], moved))
            _delete_draft(connection, tenant, month)
        return number

    def reverse(
        self,
        reversal: InvoiceRecord,
        *,
        series: str,
        at: float,
        by: str,
        check: Callable[[Sequence[InvoiceRecord]], None] = lambda _: None,
    ) -> str:
        """Write the reversal of an invoice; return its number.

        Raises CalabashError(CONFLICT) if it is reversed already.

        Args:
            reversal: the reversal without its number.
            series: series of its number, as for ``issue``.
            at: time of the issue, in seconds since the epoch.
            by: name of the user who reverses the invoice.
            check: raises CalabashError if another invoice of the tenant forbids the reversal.
        """
        with self._database.transaction() as connection:
            self._serialise(connection)
            number = self._next(connection, series)
            table = tables.invoices
            before = sa.select(table.c.number).where(table.c.reverses == reversal.reverses)
            found = connection.execute(before).scalar_one_or_none()
            if found is not None:
                raise CalabashError(
                    f"invoice {reversal.reverses} was taken back by {found} already", reason=Reason.CONFLICT
                )
            check(_invoices_of(connection, reversal.tenant))
            _write(connection, reversal, number=number, at=at, by=by)
        return number

    def credit(
        self, tenant: str, *, make: Callable[[Sequence[InvoiceRecord]], InvoiceRecord], series: str, at: float, by: str
    ) -> str:
        """Write a credit note; return its number.

        Args:
            make: makes the credit note from all invoices of the tenant. It may raise CalabashError.
            series: series of its number, as for ``issue``.
            by: name of the user who issues it.
        """
        with self._database.transaction() as connection:
            self._serialise(connection)
            note = make(_invoices_of(connection, tenant))
            number = self._next(connection, series)
            _write(connection, note, number=number, at=at, by=by)
        return number

    def invoices_of(self, tenant: str) -> list[InvoiceRecord]:
        """Return all invoices of a tenant in the order of issue, without lines."""
        with self._database.reading() as connection:
            return _invoices_of(connection, tenant)

    def invoices(self, which: InvoiceFilter) -> list[InvoiceRecord]:
        """Return the issued invoices that a filter permits, without their lines, ordered by number."""
        table = tables.invoices
        query = _filtered(_select_invoices(), table, which).order_by(table.c.number).limit(which.limit)
        if which.after:
            query = query.where(table.c.number > which.after)
        with self._database.reading() as connection:
            return [_invoice(dict(row)) for row in connection.execute(query).mappings()]

    def invoice(self, number: str) -> InvoiceRecord | None:
        """Return an issued invoice with its lines, or None."""
        lines = tables.invoice_lines
        with self._database.reading() as connection:
            row = (
                connection.execute(_select_invoices().where(tables.invoices.c.number == number))
                .mappings()
                .one_or_none()
            )
            if row is None:
                return None
            found = connection.execute(
                sa.select(lines.c.document).where(lines.c.number == number).order_by(lines.c.position)
            )
            return _invoice(dict(row), [dict(line) for line in found.scalars()])

    def items(self, record: InvoiceRecord, *, after: int = 0, limit: int = 1) -> list[tuple[int, list[Document]]]:
        """Return the next blocks of the itemised usage of an invoice or draft, each with its number and its items.

        Args:
            after: number of the last block that was read before; 0 for the first page.
            limit: greatest number of blocks.
        """
        table = tables.invoice_items if record.number else tables.invoice_draft_items
        mine = (
            [table.c.number == record.number]
            if record.number
            else [table.c.tenant == record.tenant, table.c.month == record.month]
        )
        query = sa.select(table.c.part, table.c["items"]).where(*mine, table.c.part > after)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.part).limit(limit)).all()
        return [(row[0], [dict(item) for item in row[1]]) for row in rows]

    def _serialise(self, connection: sa.Connection) -> None:
        """Wait for every other transaction that issues, reverses or credits."""
        table = tables.invoice_numbers
        connection.execute(self._database.insert_or_ignore(table, ["series"]).values(series=_ALL_SERIES, last=0))
        connection.execute(sa.update(table).where(table.c.series == _ALL_SERIES).values(last=table.c.last))

    def _next(self, connection: sa.Connection, series: str) -> str:
        table = tables.invoice_numbers
        connection.execute(self._database.insert_or_ignore(table, ["series"]).values(series=series, last=0))
        mine = table.c.series == series
        connection.execute(sa.update(table).where(mine).values(last=table.c.last + 1))
        last: int = connection.execute(sa.select(table.c.last).where(mine)).scalar_one()
        return f"{series}-{last:06}"


def note_guarantee(connection: sa.Connection, tenant: str, guarantee: float, *, at: float) -> None:
    """Add an entry to the history of a tenant's guarantee, unless the last entry has the same number of devices.

    The first entry of a tenant, which may be 0, tells when the tenant was created.
    """
    table = tables.guarantees
    before = sa.select(table.c.guarantee).where(table.c.tenant == tenant).order_by(table.c.id.desc()).limit(1)
    if connection.execute(before).scalar_one_or_none() != guarantee:
        connection.execute(sa.insert(table).values(tenant=tenant, at_s=at, guarantee=guarantee))


def _select_invoices() -> sa.Select[Any]:
    table, later = tables.invoices, tables.invoices.alias()
    taken_back = sa.select(later.c.number).where(later.c.reverses == table.c.number).scalar_subquery()
    return sa.select(table, taken_back.label("reversed_by"))


def _invoices_of(connection: sa.Connection, tenant: str) -> list[InvoiceRecord]:
    table = tables.invoices
    query = _select_invoices().where(table.c.tenant == tenant).order_by(table.c.issued_at, table.c.number)
    return [_invoice(dict(row)) for row in connection.execute(query).mappings()]


def _standing(connection: sa.Connection, tenant: str, month: str) -> str | None:
    query = _select_invoices().where(
        tables.invoices.c.tenant == tenant, tables.invoices.c.month == month, tables.invoices.c.kind == "invoice"
    )
    rows = connection.execute(query).all()
    return next((row.number for row in rows if row.reversed_by is None), None)


def _delete_draft(connection: sa.Connection, tenant: str, month: str) -> bool:
    """Delete a draft with its items; return False if it does not exist."""
    items, table = tables.invoice_draft_items, tables.invoice_drafts
    connection.execute(sa.delete(items).where(items.c.tenant == tenant, items.c.month == month))
    return connection.execute(sa.delete(table).where(table.c.tenant == tenant, table.c.month == month)).rowcount > 0


def _write(
    connection: sa.Connection, record: InvoiceRecord, *, number: str, at: float, by: str, item_parts: int = 0
) -> None:
    """Write an issued invoice with its seal, and its lines.

    Args:
        by: name of the user who issues the invoice.
        item_parts: number of blocks of itemised usage, which the caller writes.
    """
    record = replace(record, number=number, at=at, by=by, document={**record.document, "number": number})
    connection.execute(
        sa.insert(tables.invoices).values(
            number=number,
            tenant=record.tenant,
            month=record.month,
            kind=record.kind,
            reverses=record.reverses or None,
            currency=record.currency,
            net=record.net,
            total=record.total,
            issued_at=at,
            issued_by=by,
            document={**record.document, SEAL: record.seal},
            line_count=len(record.lines),
            item_parts=item_parts,
        )
    )
    rows = [
        {
            "number": number,
            "position": position,
            "project": line["project"],
            "measure": line["measure"],
            "amount": line["amount"],
            "document": dict(line),
        }
        for position, line in enumerate(record.lines, 1)
    ]
    if rows:
        connection.execute(sa.insert(tables.invoice_lines), rows)


def _filtered(query: sa.Select[Any], table: sa.Table, which: InvoiceFilter) -> sa.Select[Any]:
    if which.tenant:
        query = query.where(table.c.tenant == which.tenant)
    if which.month:
        query = query.where(table.c.month == which.month)
    if which.tenants is not None:
        query = query.where(table.c.tenant.in_(sorted(which.tenants)))
    return query


def _draft(row: Mapping[str, Any]) -> InvoiceRecord:
    document = row["document"]
    return InvoiceRecord(
        tenant=row["tenant"],
        month=row["month"],
        document=dict(document),
        lines=list(row["lines"]),
        currency=document["currency"],
        net=document["net"],
        total=document["total"],
        at=row["drafted_at"],
    )


def _invoice(row: Mapping[str, Any], lines: Sequence[Document] = ()) -> InvoiceRecord:
    return InvoiceRecord(
        tenant=row["tenant"],
        month=row["month"],
        document=dict(row["document"]),
        lines=lines,
        number=row["number"],
        kind=row["kind"],
        reverses=row["reverses"] or "",
        reversed_by=row["reversed_by"] or "",
        currency=row["currency"],
        net=row["net"],
        total=row["total"],
        at=row["issued_at"],
        by=row["issued_by"],
    )
