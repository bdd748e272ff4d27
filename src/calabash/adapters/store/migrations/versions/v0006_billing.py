"""Create the tables of tariffs, guarantees, drafts and invoices, and triggers that protect issued invoices.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_FIXED = "an issued invoice never changes"


def upgrade() -> None:
    op.create_table(
        "tariffs",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("valid_from", sa.String(10), primary_key=True),
        sa.Column("applied_at", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_table(
        "guarantees",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("at_s", sa.Float(53), nullable=False),
        sa.Column("guarantee", sa.Float(53), nullable=False),
    )
    op.create_index("ix_guarantees_tenant", "guarantees", ["tenant"])
    op.create_table(
        "invoice_drafts",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("drafted_at", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("lines", sa.JSON, nullable=False),
    )
    op.create_table(
        "invoice_numbers",
        sa.Column("series", sa.String(32), primary_key=True),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
    _invoices()
    for table in ("invoices", "invoice_lines"):
        _guard(table)
    op.execute("UPDATE meta SET value = '6' WHERE key = 'schema_version'")


def _invoices() -> None:
    op.create_table(
        "invoices",
        sa.Column("number", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("reverses", sa.String(64), nullable=True, unique=True),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("net", sa.String(40), nullable=False),
        sa.Column("total", sa.String(40), nullable=False),
        sa.Column("issued_at", sa.Float(53), nullable=False),
        sa.Column("issued_by", sa.String(128), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_invoices_tenant", "invoices", ["tenant"])
    op.create_table(
        "invoice_lines",
        sa.Column("number", sa.String(64), sa.ForeignKey("invoices.number"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("measure", sa.String(16), nullable=False),
        sa.Column("amount", sa.String(40), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )


def _guard(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION calabash_fixed() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN RAISE EXCEPTION ''{_FIXED}''; END'"
        )
        op.execute(
            f"CREATE TRIGGER {table}_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION calabash_fixed()"
        )
        return
    for what in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{what.lower()} BEFORE {what} ON {table}"
            f" BEGIN SELECT RAISE(ABORT, '{_FIXED}'); END"
        )


def downgrade() -> None:
    for table in ("invoice_lines", "invoices", "invoice_numbers", "invoice_drafts", "guarantees", "tariffs"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION calabash_fixed()")
    op.execute("UPDATE meta SET value = '5' WHERE key = 'schema_version'")
