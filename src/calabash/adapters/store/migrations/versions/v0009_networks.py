"""Create the tables of tenant networks: their objects, the revision of all objects, and certificates of load balancers.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "network_objects",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("applied", sa.Boolean, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("status", sa.JSON, nullable=False),
    )
    op.create_table(
        "network_revision",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "network_certificates",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Float(53), nullable=False),
    )
    op.execute("UPDATE meta SET value = '9' WHERE key = 'schema_version'")


def downgrade() -> None:
    for table in ("network_certificates", "network_revision", "network_objects"):
        op.drop_table(table)
    op.execute("UPDATE meta SET value = '8' WHERE key = 'schema_version'")
