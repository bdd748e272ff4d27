"""Add triggers that refuse changes of lines of the audit log. Retention can still remove the oldest lines.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_WHY = "a line of the audit log never changes"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION calabash_audit_fixed() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN RAISE EXCEPTION ''{_WHY}''; END'"
        )
        op.execute(
            "CREATE TRIGGER audit_fixed BEFORE UPDATE OR TRUNCATE ON audit"
            " FOR EACH STATEMENT EXECUTE FUNCTION calabash_audit_fixed()"
        )
    else:
        op.execute(f"CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{_WHY}'); END")
    op.execute("UPDATE meta SET value = '10' WHERE key = 'schema_version'")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_fixed ON audit")
        op.execute("DROP FUNCTION calabash_audit_fixed()")
    else:
        op.execute("DROP TRIGGER audit_no_update")
    op.execute("UPDATE meta SET value = '9' WHERE key = 'schema_version'")
