"""Add numbers and properties (such as the device model) to usage records, and the monotonic time of grants.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_USAGE = (
    ("sequence", sa.BigInteger, "0"),
    ("device_model", sa.String(128), ""),
    ("mode", sa.String(32), ""),
    ("preemptible", sa.Boolean, sa.false()),
    ("project", sa.String(128), ""),
    ("user", sa.String(128), ""),
    ("idle_s", sa.Float(53), "0"),
)
_NUMBERED = """
UPDATE usage SET sequence = numbered.n FROM (
    SELECT id AS numbered_id, ROW_NUMBER() OVER (PARTITION BY allocation ORDER BY id) - 1 AS n FROM usage
) AS numbered WHERE usage.id = numbered.numbered_id
"""
_NAMED = """
UPDATE usage SET "user" = COALESCE((SELECT a."user" FROM allocations AS a WHERE a.id = usage.allocation), '')
"""


def upgrade() -> None:
    op.add_column("allocations", sa.Column("granted_ns", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("allocations", sa.Column("boot", sa.String(64), nullable=False, server_default=""))
    for name, kind, default in _USAGE:
        op.add_column("usage", sa.Column(name, kind, nullable=False, server_default=default))
    op.execute(_NUMBERED)
    op.execute(_NAMED)
    with op.batch_alter_table("usage") as usage:
        usage.drop_constraint("uq_usage_interval", type_="unique")
        usage.create_unique_constraint("uq_usage_sequence", ["allocation", "device", "sequence"])
    op.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")


def downgrade() -> None:
    with op.batch_alter_table("usage") as usage:
        usage.drop_constraint("uq_usage_sequence", type_="unique")
        usage.create_unique_constraint("uq_usage_interval", ["allocation", "device", "from_s"])
    for name, _, _ in reversed(_USAGE):
        op.drop_column("usage", name)
    for name in ("boot", "granted_ns"):
        op.drop_column("allocations", name)
    op.execute("UPDATE meta SET value = '3' WHERE key = 'schema_version'")
