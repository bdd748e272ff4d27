"""Add triggers to SQLite that refuse INSERT OR REPLACE of issued invoices and of lines of the audit log.

This statement deletes the row that it replaces, but SQLite does not call the trigger for DELETE then. PostgreSQL has no
such statement. Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_GUARDED = (
    ("invoices", "number", "an issued invoice never changes"),
    ("audit", "id", "a line of the audit log never changes"),
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table, key, why in _GUARDED:
            there = f"EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key})"  # noqa: S608 - constants above
            op.execute(
                f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {there}"
                f" BEGIN SELECT RAISE(ABORT, '{why}'); END"
            )
    op.execute("UPDATE meta SET value = '13' WHERE key = 'schema_version'")


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table, _, _ in _GUARDED:
            op.execute(f"DROP TRIGGER {table}_no_replace")
    op.execute("UPDATE meta SET value = '12' WHERE key = 'schema_version'")
