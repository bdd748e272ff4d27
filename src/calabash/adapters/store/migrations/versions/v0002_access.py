"""Add the access lists of queues and tenants, and the indexes with which retention finds old rows.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("users", "groups"):
        op.add_column("queues", sa.Column(name, sa.JSON, nullable=False, server_default="[]"))
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("users", sa.JSON, nullable=False),
        sa.Column("groups", sa.JSON, nullable=False),
    )
    op.create_index("ix_allocations_ended_at", "allocations", ["ended_at"])
    op.create_index("ix_usage_to_s", "usage", ["to_s"])
    op.execute("UPDATE meta SET value = '2' WHERE key = 'schema_version'")


def downgrade() -> None:
    op.drop_index("ix_usage_to_s", "usage")
    op.drop_index("ix_allocations_ended_at", "allocations")
    op.drop_table("tenants")
    for name in ("groups", "users"):
        op.drop_column("queues", name)
    op.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
