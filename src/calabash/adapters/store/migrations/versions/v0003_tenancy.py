"""Add tenants with amounts and bounds, projects, users, members and tokens.

The users that were listed for a tenant become its members.

Frozen: a later change of the tables is a later revision.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _name(name: str, *, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(128), nullable=False, primary_key=primary_key)


def _number(name: str, default: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=False, server_default=default)


def _without_slashes() -> None:
    """Rename tenants with a slash in their name, because a slash separates tenant and project from now on."""
    known = {name for (name,) in op.get_bind().execute(sa.text("SELECT name FROM tenants")).all()}
    tenants = sa.table("tenants", sa.column("name", sa.String))
    for name in sorted(n for n in known if "/" in n):
        wanted = name.replace("/", ".")
        while wanted in known:
            wanted += "-"
        known.add(wanted)
        op.execute(sa.update(tenants).where(tenants.c.name == name).values(name=wanted))


def upgrade() -> None:
    members = op.create_table(
        "members",
        _name("user", primary_key=True),
        _name("tenant", primary_key=True),
        _name("project", primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
    )
    _without_slashes()
    for name, users in op.get_bind().execute(sa.text("SELECT name, users FROM tenants")).all():
        # A user with the same name as a tenant could always submit requests for this tenant.
        listed = dict.fromkeys([*(json.loads(users) if isinstance(users, str) else users), name])
        rows = [{"user": user, "tenant": name, "project": "", "role": "member"} for user in listed]
        op.bulk_insert(members, rows)
    op.drop_column("tenants", "users")
    op.add_column("tenants", _number("guarantee", "0"))
    op.add_column("tenants", sa.Column("limit", sa.Float(53), nullable=True))
    op.add_column("tenants", _number("weight", "1"))
    op.add_column("tenants", sa.Column("budget", sa.String(32), nullable=False, server_default=""))
    op.add_column("tenants", sa.Column("currency", sa.String(3), nullable=False, server_default=""))
    op.add_column("tenants", sa.Column("priorities", sa.JSON, nullable=False, server_default="[-1000, 1000]"))
    for name in ("modes", "models"):
        op.add_column("tenants", sa.Column(name, sa.JSON, nullable=False, server_default="[]"))
    op.add_column("tenants", sa.Column("slices_per_user", sa.Integer, nullable=False, server_default="0"))
    op.add_column("tenants", _number("run_s_max", "0"))
    op.create_table(
        "projects",
        _name("tenant", primary_key=True),
        _name("name", primary_key=True),
        sa.Column("guarantee", sa.Float(53), nullable=False),
        sa.Column("limit", sa.Float(53), nullable=True),
        sa.Column("weight", sa.Float(53), nullable=False),
    )
    op.create_table(
        "users",
        _name("name", primary_key=True),
        _name("login"),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("email", sa.String(256), nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), primary_key=True),
        _name("user"),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False, index=True),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("revoked_at", sa.Float(53), nullable=False),
        sa.Column("note", sa.String(256), nullable=False),
    )
    op.execute("UPDATE meta SET value = '3' WHERE key = 'schema_version'")


def downgrade() -> None:
    members = op.get_bind().execute(sa.text("SELECT tenant, \"user\" FROM members WHERE tenant <> ''")).all()
    op.add_column("tenants", sa.Column("users", sa.JSON, nullable=False, server_default="[]"))
    tenants = sa.table("tenants", sa.column("name", sa.String), sa.column("users", sa.JSON))
    for tenant in {tenant for tenant, _ in members}:
        listed = sorted({user for name, user in members if name == tenant})
        op.execute(sa.update(tenants).where(tenants.c.name == tenant).values(users=listed))
    for table in ("tokens", "users", "projects", "members"):
        op.drop_table(table)
    for name in ("run_s_max", "slices_per_user", "models", "modes", "priorities", "currency", "budget"):
        op.drop_column("tenants", name)
    for name in ("weight", "limit", "guarantee"):
        op.drop_column("tenants", name)
    op.execute("UPDATE meta SET value = '2' WHERE key = 'schema_version'")
