"""Create the tables of notifications (receivers and kinds of notices) and of waiting deliveries.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notifications",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("channel", sa.String(16), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("kinds", sa.JSON, nullable=False),
        sa.Column("secret", sa.String(128), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("delivered", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("failed", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("dropped", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
        sa.Column("next_at", sa.Float(53), nullable=False, server_default="0"),
        sa.Column("last_at", sa.Float(53), nullable=False, server_default="0"),
        sa.Column("last_error", sa.Text, nullable=False, server_default=""),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("notice", sa.JSON, nullable=False),
    )
    op.create_index("ix_deliveries_receiver", "deliveries", ["tenant", "name", "at"])
    op.create_table(
        "notices_told",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_notices_told_at", "notices_told", ["at"])
    op.execute("UPDATE meta SET value = '8' WHERE key = 'schema_version'")


def downgrade() -> None:
    for table in ("notices_told", "deliveries", "notifications"):
        op.drop_table(table)
    op.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
