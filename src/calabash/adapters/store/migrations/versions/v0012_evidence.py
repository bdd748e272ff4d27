"""Add the itemised usage of invoices, and triggers that refuse further lines and items for an issued invoice.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_FIXED = "an issued invoice never changes"
_PARTS = (("invoice_lines", "position", "line_count"), ("invoice_items", "part", "item_parts"))


def upgrade() -> None:
    _unguard("invoices")
    for name in ("line_count", "item_parts"):
        op.add_column("invoices", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.execute(
        "UPDATE invoices SET line_count = (SELECT count(*) FROM invoice_lines WHERE invoice_lines.number = invoices.number)"
    )
    op.create_table(
        "invoice_items",
        sa.Column("number", sa.String(64), sa.ForeignKey("invoices.number"), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("items", sa.JSON, nullable=False),
    )
    op.create_table(
        "invoice_draft_items",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("items", sa.JSON, nullable=False),
    )
    for table in ("invoices", "invoice_items"):
        _guard(table)
    for table, key, count in _PARTS:
        _guard_inserts(table, key, count)
    op.execute("UPDATE meta SET value = '12' WHERE key = 'schema_version'")


def _guard(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION calabash_fixed()"
        )
        return
    for what in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{what.lower()} BEFORE {what} ON {table} BEGIN SELECT RAISE(ABORT, '{_FIXED}'); END"
        )


def _unguard(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER {table}_fixed ON {table}")
        return
    for what in ("update", "delete"):
        op.execute(f"DROP TRIGGER {table}_no_{what}")


def _guard_inserts(table: str, key: str, count: str) -> None:
    refused = (  # every name is a constant above
        f"NEW.{key} < 1 OR NEW.{key} > COALESCE((SELECT {count} FROM invoices WHERE number = NEW.number), 0)"  # noqa: S608
        f" OR EXISTS (SELECT 1 FROM {table} WHERE number = NEW.number AND {key} = NEW.{key})"
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE OR REPLACE FUNCTION calabash_{table}_whole() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN IF {refused} THEN RAISE EXCEPTION ''{_FIXED}''; END IF; RETURN NEW; END'"
        )
        op.execute(
            f"CREATE TRIGGER {table}_whole BEFORE INSERT ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION calabash_{table}_whole()"
        )
        return
    op.execute(
        f"CREATE TRIGGER {table}_whole BEFORE INSERT ON {table} WHEN {refused}"
        f" BEGIN SELECT RAISE(ABORT, '{_FIXED}'); END"
    )


def downgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    op.execute("DROP TRIGGER invoice_lines_whole" + (" ON invoice_lines" if postgresql else ""))
    op.drop_table("invoice_draft_items")
    op.drop_table("invoice_items")
    if postgresql:
        for function in ("calabash_invoice_lines_whole", "calabash_invoice_items_whole"):
            op.execute(f"DROP FUNCTION {function}()")
    op.drop_column("invoices", "item_parts")
    op.drop_column("invoices", "line_count")
    op.execute("UPDATE meta SET value = '11' WHERE key = 'schema_version'")
