"""Create the tables of allocations, usage records, queues and events.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _text(name: str, length: int, *, primary_key: bool = False, index: bool = False) -> sa.Column[str]:
    if primary_key:
        return sa.Column(name, sa.String(length), primary_key=True)
    return sa.Column(name, sa.String(length), nullable=False, index=index)


def _number(name: str, *, index: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=False, index=index)


def upgrade() -> None:
    meta = op.create_table("meta", _text("key", 64, primary_key=True), sa.Column("value", sa.Text, nullable=False))
    op.bulk_insert(meta, [{"key": "schema_version", "value": "1"}])
    op.create_table(
        "allocations",
        _text("id", 64, primary_key=True),
        _text("state", 16, index=True),
        _text("tenant", 128, index=True),
        _text("queue", 128),
        _text("user", 128),
        sa.Column("uid", sa.BigInteger, nullable=False),
        sa.Column("client_pid", sa.BigInteger, nullable=False),
        sa.Column("client_start_time", sa.BigInteger, nullable=False),
        sa.Column("program_pid", sa.BigInteger, nullable=False),
        sa.Column("program_start_time", sa.BigInteger, nullable=False),
        sa.Column("command", sa.JSON, nullable=False),
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("placement", sa.JSON, nullable=False),
        _number("created_at", index=True),
        _number("granted_at"),
        _number("started_at"),
        _number("ended_at"),
        _text("reason", 64),
        sa.Column("explanation", sa.Text, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        _text("allocation", 64),
        _text("device", 64),
        _text("tenant", 128),
        _text("queue", 128),
        _number("from_s"),
        _number("to_s"),
        sa.Column("memory_mib", sa.BigInteger, nullable=False),
        sa.Column("core_percent", sa.Integer, nullable=False),
        _number("allocated_gpu_s"),
        _number("used_gpu_s"),
        _number("memory_mib_s"),
        sa.UniqueConstraint("allocation", "device", "from_s", name="uq_usage_interval"),
    )
    op.create_table(
        "queues",
        _text("name", 128, primary_key=True),
        _text("parent", 128),
        _number("deserved"),
        sa.Column("limit", sa.Float(53), nullable=True),
        _number("weight"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        _number("at"),
        _text("kind", 64),
        _text("reason", 64),
        _text("allocation", 64),
        _text("device", 64),
        sa.Column("message", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for table in ("events", "queues", "usage", "allocations", "meta"):
        op.drop_table(table)
