"""Create the table with the last usage record that each node of a cluster has sent.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_sources",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("epoch", sa.String(64), nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("at_s", sa.Float(53), nullable=False),
        sa.UniqueConstraint("node", "epoch", name="uq_usage_sources"),
    )
    op.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")


def downgrade() -> None:
    op.drop_table("usage_sources")
    op.execute("UPDATE meta SET value = '6' WHERE key = 'schema_version'")
