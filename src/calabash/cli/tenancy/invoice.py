"""``calabash invoice``: draft, issue, show, verify, credit and void invoices."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from calabash.adapters.pool.client import quoted
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, dash
from calabash.model.errors import CalabashError, Reason

RATING_S = 1000.0


def _moment(at_s: float) -> str:
    """Return a time in ISO format, in this machine's time zone, to the second."""
    return datetime.fromtimestamp(at_s).astimezone().isoformat(timespec="seconds")


def _counted_to(row: Mapping[str, Any]) -> str:
    """Return the time up to which a draft has usage; "-" for an issued invoice, which has its whole month."""
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
    Column(title="COUNTED TO", text=_counted_to),
    Column(title="DUE", text=lambda r: dash(r["due"]), wide=True, right=True),
    Column(title="CREDITS", text=lambda r: dash(r["credits"]), wide=True),
    Column(title="OPEN", text=lambda r: dash(r["open"]), wide=True, right=True),
    Column(title="REVERSES", text=lambda r: dash(r["reverses"]), wide=True),
    Column(title="REVERSED BY", text=lambda r: dash(r["reversed_by"]), wide=True),
)
LINE_COLUMNS = (
    Column(title="PROJECT", text=lambda r: dash(r["project"])),
    Column(title="WHAT", text=lambda r: r["measure"]),
    Column(title="MODEL", text=lambda r: dash(r["model"])),
    Column(title="MODE", text=lambda r: dash(r["mode"])),
    Column(title="PRICE OF", text=lambda r: dash(r["price"])),
    Column(title="HOURS", text=lambda r: r["hours"], right=True),
    Column(title="UNIT", text=lambda r: r["unit"]),
    Column(title="PRICE", text=lambda r: r["unit_price"], right=True),
    Column(title="AMOUNT", text=lambda r: r["amount"], right=True),
)

ITEM_COLUMNS = (
    Column(title="ALLOCATION", text=lambda r: dash(r["allocation"])),
    Column(title="USER", text=lambda r: dash(r["user"])),
    Column(title="DEVICE", text=lambda r: dash(r["device"])),
    Column(title="SHARE", text=lambda r: f"{r['share_percent']}%", right=True),
    Column(title="FROM", text=lambda r: _moment(r["from_s"])),
    Column(title="TO", text=lambda r: _moment(r["to_s"]) + ("?" if r["uncertain_s"] else "")),
    Column(title="WHAT", text=lambda r: r["measure"]),
    Column(title="PRICE OF", text=lambda r: dash(r["price"])),
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

_tenant = click.option("--tenant", default="", metavar="NAME", help="Of that tenant only.")


@click.group()
def invoice() -> None:
    """Draft, issue, show, itemise, verify, credit and take back invoices.

    WHAT is the number of an invoice, the name of a draft, or a month like 2026-11.
    """


@invoice.command("draft")
@click.argument("month")
@_tenant
@output.option
def draft(month: str, tenant: str, fmt: str) -> None:
    """Rate a month, as drafts that replace earlier ones.

    A draft of a month that is not over has the usage up to COUNTED TO, of programs that still run too.
    Drafts all tenants that have use in the month or a commitment in force. A tenant that cannot be rated is named, and the
    other tenants are drafted; the command then exits with status 1.
    """
    if re.fullmatch(r"2[0-9]{3}-(0[1-9]|1[0-2])", month) is None:
        raise CalabashError(f"{month[:40]!r} is not a month", hint="write it like 2026-11")
    found = client().post("/v1/invoices", {"month": month, "tenant": tenant}, timeout_s=RATING_S)
    output.emit("InvoiceList", found["items"], COLUMNS, fmt, name="number")
    _require_all(found.get("failed", []), month)


@invoice.command("list")
@click.option("--month", default="", metavar="MONTH", help="Of that month only.")
@_tenant
@output.option
def list_invoices(month: str, tenant: str, fmt: str) -> None:
    """List drafts and invoices."""
    output.emit("InvoiceList", _listed(month, tenant), COLUMNS, fmt, name="number")


@invoice.command("show")
@click.argument("what")
@_tenant
@output.option_of("table", "pdf", "html", "csv", "json", "yaml")
@click.option("--file", type=click.Path(path_type=Path), help="Write it there. Default: standard output.")
def show(what: str, tenant: str, fmt: str, file: Path | None) -> None:
    """Show an invoice or a draft."""
    row = client().get(f"/v1/invoices/{quoted(_one(what, tenant))}")
    if fmt == "pdf" and file is None and sys.stdout.isatty():
        raise CalabashError("a PDF is not for a terminal", hint="write it to a file: --file invoice.pdf")
    _deliver(_written(row, fmt), file)


@invoice.command("items")
@click.argument("what")
@_tenant
@output.option_of("table", "csv", "json", "yaml")
@click.option("--file", type=click.Path(path_type=Path), help="Write it there. Default: standard output.")
def items(what: str, tenant: str, fmt: str, file: Path | None) -> None:
    """Show the itemised use of an invoice or a draft.

    An item is what one allocation used of one device without a change, at one price. Its amount has four more decimals than the
    currency; all amounts add up to the net amount of the invoice. A commitment is an item without an allocation.
    """
    number = _one(what, tenant)
    found = client().items(f"/v1/invoices/{quoted(number)}/items", timeout_s=120.0)
    if fmt == "csv":
        from calabash.adapters.documents.invoice_csv import items_csv  # noqa: PLC0415 - only for documents

        zone = client().get(f"/v1/invoices/{quoted(number)}")["time_zone"]
        text = items_csv(found, time_zone=zone)
    elif fmt == "table":
        text = output.table(ITEM_COLUMNS, found) + "\n"
    else:
        text = output.document("InvoiceItemList", found, fmt) + "\n"
    _deliver(text.encode(), file)


@invoice.command("verify")
@click.argument("what")
@_tenant
@output.option
def verify(what: str, tenant: str, fmt: str) -> None:
    """Check issued invoices, their items and the usage records behind them against their seals.

    Exits with status 1 if anything was changed. Usage records that retention has removed or merged are not-kept: the seal
    and the items still prove the invoice.
    """
    numbers = _numbers(what, tenant, lambda row: row["state"] != "draft")
    verdicts = [client().get(f"/v1/invoices/{quoted(number)}/verify", timeout_s=RATING_S) for number in numbers]
    checks = [check for verdict in verdicts for check in verdict["items"]]
    output.emit("InvoiceCheckList", checks, CHECK_COLUMNS, fmt, name="number")
    changed = [verdict["number"] for verdict in verdicts if not verdict["sound"]]
    if changed:
        raise CalabashError(
            f"{len(changed)} of {len(verdicts)} invoices are not what was sealed: {', '.join(changed[:5])}",
            reason=Reason.CONFLICT,
            hint="compare with a backup from before the change, and with the documents that the tenant has",
        )


@invoice.command("issue")
@click.argument("what")
@_tenant
@output.option
def issue(what: str, tenant: str, fmt: str) -> None:
    """Give drafts their numbers: from then on they never change."""
    numbers = _numbers(what, tenant, lambda row: row["state"] == "draft")
    found = [client().post(f"/v1/invoices/{quoted(number)}/issue") for number in numbers]
    output.emit("InvoiceList", found, COLUMNS, fmt, name="number")


@invoice.command("credit")
@click.argument("what")
@_tenant
@click.option("--amount", required=True, metavar="NET", help="Net amount, above 0, in the invoice's currency.")
@click.option("--reason", required=True, metavar="TEXT", help="Stands on the credit note and in the audit log.")
@output.option
def credit(what: str, tenant: str, amount: str, reason: str, fmt: str) -> None:
    """Credit an issued invoice, by a credit note with a number of its own.

    The credit note has the tax of the invoice. The next invoices of the tenant in the same currency are paid with it, each up
    to its total; what one does not use stays open for the next. All credit notes of an invoice are at most its net amount.
    """
    if re.fullmatch(r"[0-9]{1,15}([.][0-9]{1,9})?", amount) is None:
        raise CalabashError(
            f"amount {amount[:40]!r} is not a number above 0", reason=Reason.BAD_REQUEST, hint="for example 12.50"
        )
    number = _one(what, tenant)
    note = client().post(f"/v1/invoices/{quoted(number)}/credit", {"amount": amount, "reason": reason})
    output.emit("InvoiceList", [note], COLUMNS, fmt, name="number")


@invoice.command("void")
@click.argument("what")
@_tenant
@output.option
def void(what: str, tenant: str, fmt: str) -> None:
    """Take invoices back, each by a reversal with a number of its own; drafts are deleted.

    An invoice that was taken back keeps its number and stays as it is.
    """
    standing = _numbers(what, tenant, lambda row: row["state"] == "issued" and row["kind"] == "invoice")
    found = [client().post(f"/v1/invoices/{quoted(number)}/void") for number in standing]
    output.emit("InvoiceList", found, COLUMNS, fmt, name="number")


def _require_all(failed: Sequence[dict[str, Any]], month: str) -> None:
    """Raise the error that names all tenants that could not be drafted; none if the list is empty."""
    if failed:
        raise CalabashError(
            f"{len(failed)} tenants were not drafted for {month}: " + "; ".join(f["message"] for f in failed),
            reason=Reason.CONFLICT,
            hint=failed[0]["hint"] or f"then draft it again: calabash invoice draft {month}",
        )


def _listed(month: str, tenant: str) -> list[Any]:
    query = urlencode({"month": month, "tenant": tenant})
    return client().items(f"/v1/invoices?{query}")


def _numbers(what: str, tenant: str, meant: Callable[[dict[str, Any]], bool]) -> list[str]:
    """Return the numbers of a month's invoices that ``meant`` selects, or the given number. Raises NOT_FOUND for none."""
    if re.fullmatch(r"\d{4}-\d{2}", what) is None:
        return [what]
    found = [row["number"] for row in _listed(what, tenant) if meant(row)]
    if not found:
        of = f" of {tenant}" if tenant else ""
        raise CalabashError(
            f"there is no such invoice{of} for {what}",
            reason=Reason.NOT_FOUND,
            hint=f"see `calabash invoice list --month {what}`, or draft it: calabash invoice draft {what}",
        )
    return found


def _one(what: str, tenant: str) -> str:
    """Return the number of the only matching invoice or draft. Raises CalabashError for none and for several."""
    numbers = _numbers(what, tenant, lambda row: row["state"] != "void" and row["kind"] == "invoice")
    if len(numbers) > 1:
        raise CalabashError(
            f"{len(numbers)} invoices are meant: {', '.join(numbers[:5])}", hint="name one of them, or a tenant"
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
    sums = [("counted up to", _counted_to(row))] if _counted_to(row) != dash("") else []
    sums += [("net", row["net"]), *((f"{t['name']} {t['percent']}%", t["amount"]) for t in row["taxes"])]
    sums.append(("total", row["total"]))
    sums += [(f"credit note {s['number']}, {s['reason']}", f"-{s['amount']}".replace("--", "")) for s in row["settled"]]
    sums += [("due", row["due"])] if row["settled"] else []
    sums += [("credits", f"{row['credits']}, {row['reason']}")] if row["credits"] else []
    rows = [f"{output.printable(name)}: {output.printable(amount)}" for name, amount in sums]
    return "\n".join([head, "", lines, "", *rows])
