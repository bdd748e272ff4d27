"""``calabash invoice``: draft, issue, show, verify, credit and void invoices."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.cli.tenancy.tariff import tariff
from calabash.model.errors import CalabashError, Reason

RATING_S = 1000.0


def _moment(at_s: float) -> str:
    """Return a time in ISO format, in this machine's time zone, to the second."""
    return datetime.fromtimestamp(at_s).astimezone().isoformat(timespec="seconds")


def _counted_to(row: Mapping[str, Any]) -> str:
    """Return the time up to which a draft includes usage; "-" for an issued invoice, which includes its whole month."""
    known = row["state"] == "draft" and row["counted_to_s"]
    return _moment(row["counted_to_s"]) if known else dash("")


COLUMNS = (
    Column(title="NUMBER", text=lambda r: r["number"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="KIND", text=lambda r: r["kind"]),
    Column(title="TENANT", text=lambda r: r["tenant"]),
    Column(title="MONTH", text=lambda r: r["month"]),
    Column(title="NET", text=lambda r: r["net"], right=True),
    Column(title="TOTAL", text=lambda r: r["total"], right=True),
    Column(title="CURRENCY", text=lambda r: dash(r["currency"])),
    Column(title="USAGE UNTIL", text=_counted_to),
    Column(title="DUE", text=lambda r: dash(r["due"]), wide=True, right=True),
    Column(title="CREDITS", text=lambda r: dash(r["credits"]), wide=True),
    Column(title="OPEN", text=lambda r: dash(r["open"]), wide=True, right=True),
    Column(title="REVERSES", text=lambda r: dash(r["reverses"]), wide=True),
    Column(title="REVERSED BY", text=lambda r: dash(r["reversed_by"]), wide=True),
)
LINE_COLUMNS = (
    Column(title="PROJECT", text=lambda r: dash(r["project"])),
    Column(title="MEASURE", text=lambda r: r["measure"]),
    Column(title="MODEL", text=lambda r: dash(r["model"])),
    Column(title="MODE", text=lambda r: dash(r["mode"])),
    Column(title="PRICE RULE", text=lambda r: dash(r["price"])),
    Column(title="HOURS", text=lambda r: r["hours"], right=True),
    Column(title="UNIT", text=lambda r: r["unit"]),
    Column(title="UNIT PRICE", text=lambda r: r["unit_price"], right=True),
    Column(title="AMOUNT", text=lambda r: r["amount"], right=True),
)

ITEM_COLUMNS = (
    Column(title="ALLOCATION", text=lambda r: dash(r["allocation"])),
    Column(title="USER", text=lambda r: dash(r["user"])),
    Column(title="DEVICE", text=lambda r: dash(r["device"])),
    Column(title="SHARE", text=lambda r: f"{r['share_percent']}%", right=True),
    Column(title="FROM", text=lambda r: _moment(r["from_s"])),
    Column(title="TO", text=lambda r: _moment(r["to_s"]) + ("?" if r["uncertain_s"] else "")),
    Column(title="MEASURE", text=lambda r: r["measure"]),
    Column(title="PRICE RULE", text=lambda r: dash(r["price"])),
    Column(title="HOURS", text=lambda r: r["hours"], right=True),
    Column(title="UNIT", text=lambda r: r["unit"]),
    Column(title="AMOUNT", text=lambda r: r["amount"], right=True),
)
CHECK_COLUMNS = (
    Column(title="NUMBER", text=lambda r: r["number"]),
    Column(title="CHECK", text=lambda r: r["what"]),
    Column(title="STATE", text=lambda r: r["state"]),
    Column(title="DETAIL", text=lambda r: r["detail"]),
)

_tenant = click.option("--tenant", default="", metavar="NAME", help="Only invoices of this tenant.")


@click.group()
def invoice() -> None:
    """Draft, issue, show, itemise, verify, credit and void invoices.

    INVOICE is the number of an invoice, the name of a draft, or a month such as 2026-11.
    """


invoice.add_command(tariff)


@invoice.command("draft")
@click.argument("month")
@_tenant
@output.option
def draft(month: str, tenant: str, fmt: str) -> None:
    """Rate the usage of MONTH and create drafts, which replace earlier drafts of that month.

    Creates a draft for each tenant with usage in the month or with a commitment in force. The draft of a month that is not
    over includes usage until the time in column USAGE UNTIL, also that of running programs. If a tenant cannot be rated, the
    drafts of the others are created, and the command names the tenant and exits with status 1.
    """
    if re.fullmatch(r"2[0-9]{3}-(0[1-9]|1[0-2])", month) is None:
        raise CalabashError(f"{month[:40]!r} is not a month", hint="write year and month, such as 2026-11")
    found = client().send(endpoints.DRAFT_INVOICES, body={"month": month, "tenant": tenant}, timeout_s=RATING_S)
    output.emit("InvoiceList", found["items"], COLUMNS, fmt, name="number")
    _require_all(found.get("failed", []), month)


@invoice.command("list")
@click.option("--month", default="", metavar="MONTH", help="Only invoices of this month, such as 2026-11.")
@_tenant
@output.option
def list_invoices(month: str, tenant: str, fmt: str) -> None:
    """List drafts and invoices."""
    output.emit("InvoiceList", _listed(month, tenant), COLUMNS, fmt, name="number")


@invoice.command("show")
@click.argument("what", metavar="INVOICE")
@_tenant
@output.option_of("table", "pdf", "html", "csv", "json", "yaml")
@click.option(
    "--output-file",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file. Default: standard output.",
)
def show(what: str, tenant: str, fmt: str, file: Path | None) -> None:
    """Show an invoice or a draft."""
    row = client().send(endpoints.SHOW_INVOICE, _one(what, tenant))
    if fmt == "pdf" and file is None and sys.stdout.isatty():
        raise CalabashError("a PDF cannot be shown in a terminal", hint="write it to a file: --output-file invoice.pdf")
    _deliver(_written(row, fmt), file)


@invoice.command("items")
@click.argument("what", metavar="INVOICE")
@_tenant
@output.option_of("table", "csv", "json", "yaml")
@click.option(
    "--output-file",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file. Default: standard output.",
)
def items(what: str, tenant: str, fmt: str, file: Path | None) -> None:
    """Show the itemised usage of an invoice or a draft.

    An item is a period in which one allocation had a constant share of one device, at one price. Amounts have four decimals
    more than the currency and add up to the net amount of the invoice. A commitment is an item without an allocation.
    """
    number = _one(what, tenant)
    found = client().items(endpoints.LIST_INVOICE_ITEMS, number, timeout_s=120.0)
    if fmt == "csv":
        from calabash.adapters.documents.invoice_csv import items_csv  # noqa: PLC0415 - only for documents

        zone = client().send(endpoints.SHOW_INVOICE, number)["time_zone"]
        text = items_csv(found, time_zone=zone)
    elif fmt == "table":
        text = output.table(ITEM_COLUMNS, found) + "\n"
    else:
        text = output.document("InvoiceItemList", found, fmt) + "\n"
    _deliver(text.encode(), file)


@invoice.command("verify")
@click.argument("what", metavar="INVOICE")
@_tenant
@output.option
def verify(what: str, tenant: str, fmt: str) -> None:
    """Verify issued invoices, their items and their usage records against the seals made when they were issued.

    Exits with status 1 if anything was changed. Usage records that retention has removed or merged have the state not-kept;
    the invoice is then verified by its seal and its items.
    """
    numbers = _numbers(what, tenant, lambda row: row["state"] != "draft")
    verdicts = [client().send(endpoints.VERIFY_INVOICE, number, timeout_s=RATING_S) for number in numbers]
    checks = [check for verdict in verdicts for check in verdict["items"]]
    output.emit("InvoiceCheckList", checks, CHECK_COLUMNS, fmt, name="number")
    changed = [verdict["number"] for verdict in verdicts if not verdict["sound"]]
    if changed:
        raise CalabashError(
            f"{len(changed)} of {len(verdicts)} invoices differ from their seals: {', '.join(changed[:5])}",
            reason=Reason.CONFLICT,
            hint="compare them with an earlier backup, and with the documents that the tenant received",
        )


@invoice.command("issue")
@click.argument("what", metavar="INVOICE")
@_tenant
@output.option
def issue(what: str, tenant: str, fmt: str) -> None:
    """Issue drafts: each gets an invoice number and cannot be changed afterwards."""
    numbers = _numbers(what, tenant, lambda row: row["state"] == "draft")
    found = [client().send(endpoints.ISSUE_INVOICE, number) for number in numbers]
    output.emit("InvoiceList", found, COLUMNS, fmt, name="number")


@invoice.command("credit")
@click.argument("what", metavar="INVOICE")
@_tenant
@click.option("--amount", required=True, metavar="NET", help="Net amount, above 0, in the invoice's currency.")
@click.option(
    "--reason", required=True, metavar="TEXT", help="Reason, written on the credit note and into the audit log."
)
@output.option
def credit(what: str, tenant: str, amount: str, reason: str, fmt: str) -> None:
    """Credit an issued invoice with a credit note, which has its own number.

    The credit note has the tax rates of the invoice. It is applied to the tenant's next invoices in the same currency, to each
    up to its total, until it is used up. The credit notes of an invoice together cannot exceed its net amount.
    """
    if re.fullmatch(r"[0-9]{1,15}([.][0-9]{1,9})?", amount) is None:
        raise CalabashError(
            f"amount {amount[:40]!r} is not a number above 0", reason=Reason.BAD_REQUEST, hint="for example 12.50"
        )
    number = _one(what, tenant)
    note = client().send(endpoints.CREDIT_INVOICE, number, body={"amount": amount, "reason": reason})
    output.emit("InvoiceList", [note], COLUMNS, fmt, name="number")


@invoice.command("void")
@click.argument("what", metavar="INVOICE")
@_tenant
@output.option
def void(what: str, tenant: str, fmt: str) -> None:
    """Void issued invoices, each with a reversal that has its own number. Drafts are not affected.

    A voided invoice keeps its number and its contents.
    """
    standing = _numbers(what, tenant, lambda row: row["state"] == "issued" and row["kind"] == "invoice")
    found = [client().send(endpoints.VOID_INVOICE, number) for number in standing]
    output.emit("InvoiceList", found, COLUMNS, fmt, name="number")


def _require_all(failed: Sequence[dict[str, Any]], month: str) -> None:
    """Raise the error that names all tenants that could not be drafted; none if the list is empty."""
    if failed:
        raise CalabashError(
            f"{len(failed)} tenants were not drafted for {month}: " + "; ".join(f["message"] for f in failed),
            reason=Reason.CONFLICT,
            hint=failed[0]["hint"] or f"correct the cause, then run: calabash invoice draft {month}",
        )


def _listed(month: str, tenant: str) -> list[Any]:
    return client().items(endpoints.LIST_INVOICES, query={"month": month, "tenant": tenant})


def _numbers(what: str, tenant: str, meant: Callable[[dict[str, Any]], bool]) -> list[str]:
    """Return the numbers of the invoices that the argument ``what`` names: a month, or the number of one invoice.

    Raises NOT_FOUND if a month has no invoice for which ``meant`` returns True.

    Args:
        tenant: tenant of the invoices; "" for all.
        meant: returns True for the invoices of a month that are to be returned.
    """
    if re.fullmatch(r"\d{4}-\d{2}", what) is None:
        return [what]
    found = [row["number"] for row in _listed(what, tenant) if meant(row)]
    if not found:
        of = f" of {tenant}" if tenant else ""
        raise CalabashError(
            f"no matching invoice{of} for {what}",
            reason=Reason.NOT_FOUND,
            hint=f"see `calabash invoice list --month {what}`, or draft it: calabash invoice draft {what}",
        )
    return found


def _one(what: str, tenant: str) -> str:
    """Return the number of the invoice or draft that ``what`` names: its number, or a month with one invoice.

    Raises CalabashError if the month has no invoice that is not void, or several.
    """
    numbers = _numbers(what, tenant, lambda row: row["state"] != "void" and row["kind"] == "invoice")
    if len(numbers) > 1:
        raise CalabashError(
            f"{what} matches {len(numbers)} invoices: {', '.join(numbers[:5])}",
            hint="give the number of one of them, or --tenant",
        )
    return numbers[0]


def _deliver(data: bytes, file: Path | None) -> None:
    """Write a document to a file, or to standard output."""
    if file is not None:
        file.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)


def _written(row: dict[str, Any], fmt: str) -> bytes:
    if fmt in ("json", "yaml"):
        return (output.document("Invoice", row, fmt) + "\n").encode()
    if fmt == "table":
        return (_table(row) + "\n").encode()
    import msgspec  # noqa: PLC0415 - only for documents

    from calabash.api.billing import InvoiceView  # noqa: PLC0415

    view = msgspec.convert(row, InvoiceView)
    if fmt == "csv":
        from calabash.adapters.documents.invoice_csv import invoice_csv  # noqa: PLC0415

        return invoice_csv(view).encode()
    if fmt == "html":
        from calabash.adapters.documents.invoice_html import invoice_html  # noqa: PLC0415

        return invoice_html(view).encode()
    from calabash.adapters.documents.invoice_pdf import invoice_pdf  # noqa: PLC0415 - takes a third of a second to load

    return invoice_pdf(view)


def _table(row: dict[str, Any]) -> str:
    head = output.table(COLUMNS[:8], [row])
    lines = output.table(LINE_COLUMNS, row["lines"])
    sums = [("usage until", _counted_to(row))] if _counted_to(row) != dash("") else []
    sums += [("net", row["net"]), *((f"{t['name']} {t['percent']}%", t["amount"]) for t in row["taxes"])]
    sums.append(("total", row["total"]))
    sums += [(f"credit note {s['number']}, {s['reason']}", f"-{s['amount']}".replace("--", "")) for s in row["settled"]]
    sums += [("due", row["due"])] if row["settled"] else []
    sums += [("credits", f"{row['credits']}, {row['reason']}")] if row["credits"] else []
    rows = [f"{output.printable(name)}: {output.printable(amount)}" for name, amount in sums]
    return "\n".join([head, "", lines, "", *rows])
