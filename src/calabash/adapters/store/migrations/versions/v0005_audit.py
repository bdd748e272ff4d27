"""Create the table of the audit log.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("user", sa.String(256), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(128), nullable=False),
        sa.Column("tenant", sa.String(256), nullable=False, index=True),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("outcome", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("seal", sa.String(64), nullable=False),
    )
    op.execute("UPDATE meta SET value = '5' WHERE key = 'schema_version'")


def downgrade() -> None:
    op.drop_table("audit")
    op.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")
