"""Tables of tariffs, guarantees, drafts and invoices.

The database itself guards issued invoices: it refuses every statement that changes, deletes or adds to their heads, lines and
items.
"""

from __future__ import annotations

import sqlalchemy as sa

from calabash.adapters.store.guards import guard, guard_parts, guard_replace
from calabash.adapters.store.tables import metadata

FIXED = "an issued invoice never changes"

tariffs = sa.Table(
    "tariffs",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("valid_from", sa.String(10), primary_key=True),
    sa.Column("applied_at", sa.Float(53), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
)

guarantees = sa.Table(
    "guarantees",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("tenant", sa.String(128), nullable=False, index=True),
    sa.Column("at_s", sa.Float(53), nullable=False),
    sa.Column("guarantee", sa.Float(53), nullable=False),
)

invoice_drafts = sa.Table(
    "invoice_drafts",
    metadata,
    sa.Column("tenant", sa.String(128), primary_key=True),
    sa.Column("month", sa.String(7), primary_key=True),
    sa.Column("drafted_at", sa.Float(53), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("lines", sa.JSON, nullable=False),
)

invoice_numbers = sa.Table(
    "invoice_numbers",
    metadata,
    sa.Column("series", sa.String(32), primary_key=True),
    sa.Column("last", sa.BigInteger, nullable=False),
)

invoices = sa.Table(
    "invoices",
    metadata,
    sa.Column("number", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(128), nullable=False, index=True),
    sa.Column("month", sa.String(7), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column(
        "reverses", sa.String(64), nullable=True, unique=True
    ),  # NULL unless the row is a reversal; an invoice has at most one reversal
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("net", sa.String(40), nullable=False),
    sa.Column("total", sa.String(40), nullable=False),
    sa.Column("issued_at", sa.Float(53), nullable=False),
    sa.Column("issued_by", sa.String(128), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("line_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("item_parts", sa.Integer, nullable=False, server_default="0"),
)

invoice_lines = sa.Table(
    "invoice_lines",
    metadata,
    sa.Column("number", sa.String(64), sa.ForeignKey("invoices.number"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("project", sa.String(128), nullable=False),
    sa.Column("measure", sa.String(16), nullable=False),
    sa.Column("amount", sa.String(40), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
)

# The itemised use of a draft and of an invoice, in parts of many items each.
invoice_draft_items = sa.Table(
    "invoice_draft_items",
    metadata,
    sa.Column("tenant", sa.String(128), primary_key=True),
    sa.Column("month", sa.String(7), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("items", sa.JSON, nullable=False),
)

invoice_items = sa.Table(
    "invoice_items",
    metadata,
    sa.Column("number", sa.String(64), sa.ForeignKey("invoices.number"), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("items", sa.JSON, nullable=False),
)


for _issued in (invoices, invoice_lines, invoice_items):
    guard(_issued, ("UPDATE", "DELETE"), function="calabash_fixed", why=FIXED)
guard_replace(invoices, key="number", why=FIXED)
for _part, _key, _count in ((invoice_lines, "position", "line_count"), (invoice_items, "part", "item_parts")):
    guard_parts(_part, key=_key, owner=invoices, count=_count, function=f"calabash_{_part.name}_whole", why=FIXED)
