"""Add to usage records the time by which an allocation with an estimated end may have ended later.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("uncertain_s", sa.Float(53), nullable=False, server_default="0"))
    op.execute("UPDATE meta SET value = '14' WHERE key = 'schema_version'")


def downgrade() -> None:
    op.drop_column("usage", "uncertain_s")
    op.execute("UPDATE meta SET value = '13' WHERE key = 'schema_version'")
