"""Lines and items of an invoice as CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from calabash.api.billing import InvoiceView

LINE_FIELDS = (
    "project",
    "measure",
    "model",
    "mode",
    "preemptible",
    "tariff",
    "price",
    "window",
    "tier",
    "committed",
    "hours",
    "unit",
    "unit_price",
    "discount_percent",
    "amount",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # characters that begin a formula
_NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]+)?")


def invoice_csv(invoice: InvoiceView) -> str:
    """Return the invoice's lines as CSV with a header row.

    Texts that a spreadsheet would take for a formula are prefixed with an apostrophe.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(LINE_FIELDS)
    for line in invoice.lines:
        known = msgspec.to_builtins(line)
        rows.writerow([_plain(known[name]) for name in LINE_FIELDS])
    return text.getvalue()


ITEM_FIELDS = (
    "allocation",
    "user",
    "device",
    "share_percent",
    "memory_mib",
    "project",
    "model",
    "mode",
    "preemptible",
    "from",
    "to",
    "uncertain_s",
    "measure",
    "tariff",
    "price",
    "window",
    "hours",
    "unit",
    "amount",
)


def items_csv(items: Sequence[Mapping[str, Any]], *, time_zone: str) -> str:
    """Return the items of an invoice as CSV with a header row; times are ISO 8601 in the invoice's time zone."""
    zone, text = ZoneInfo(time_zone), io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(ITEM_FIELDS)
    for item in items:
        moments = {name: datetime.fromtimestamp(item[f"{name}_s"], zone).isoformat() for name in ("from", "to")}
        rows.writerow([_plain({**item, **moments}[name]) for name in ITEM_FIELDS])
    return text.getvalue()


def _plain(value: object) -> object:
    formula = isinstance(value, str) and value.startswith(_FORMULA) and _NUMBER.fullmatch(value) is None
    return f"'{value}" if formula else value
