"""Add limits on the number of network objects of each tenant.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("networks", sa.JSON, nullable=False, server_default="{}"))
    op.execute("UPDATE meta SET value = '11' WHERE key = 'schema_version'")


def downgrade() -> None:
    op.drop_column("tenants", "networks")
    op.execute("UPDATE meta SET value = '10' WHERE key = 'schema_version'")
