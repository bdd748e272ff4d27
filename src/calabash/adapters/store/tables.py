"""Definitions of the tables, equal to the result of all migrations; tests compare the two."""

from __future__ import annotations

import sqlalchemy as sa

from calabash.adapters.store.guards import guard, guard_replace, guard_rows
from calabash.model.versions import JOURNAL

SCHEMA_VERSION = JOURNAL.newest
REVISION_TABLE = "alembic_version"

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

allocations = sa.Table(
    "allocations",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("tenant", sa.String(128), nullable=False, index=True),
    sa.Column("queue", sa.String(128), nullable=False),
    sa.Column("user", sa.String(128), nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=False),
    sa.Column("client_pid", sa.BigInteger, nullable=False),
    sa.Column("client_start_time", sa.BigInteger, nullable=False),
    sa.Column("program_pid", sa.BigInteger, nullable=False),
    sa.Column("program_start_time", sa.BigInteger, nullable=False),
    sa.Column("command", sa.JSON, nullable=False),
    sa.Column("slot", sa.Text, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("placement", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float(53), nullable=False, index=True),
    sa.Column("granted_at", sa.Float(53), nullable=False),
    sa.Column("granted_ns", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("boot", sa.String(64), nullable=False, server_default=""),
    sa.Column("started_at", sa.Float(53), nullable=False),
    sa.Column("ended_at", sa.Float(53), nullable=False, index=True),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("explanation", sa.Text, nullable=False),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("allocation", sa.String(64), nullable=False),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("queue", sa.String(128), nullable=False),
    sa.Column("from_s", sa.Float(53), nullable=False),
    sa.Column("to_s", sa.Float(53), nullable=False, index=True),
    sa.Column("memory_mib", sa.BigInteger, nullable=False),
    sa.Column("core_percent", sa.Integer, nullable=False),
    sa.Column("allocated_gpu_s", sa.Float(53), nullable=False),
    sa.Column("used_gpu_s", sa.Float(53), nullable=False),
    sa.Column("memory_mib_s", sa.Float(53), nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("device_model", sa.String(128), nullable=False, server_default=""),
    sa.Column("mode", sa.String(32), nullable=False, server_default=""),
    sa.Column("preemptible", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("project", sa.String(128), nullable=False, server_default=""),
    sa.Column("user", sa.String(128), nullable=False, server_default=""),
    sa.Column("idle_s", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("uncertain_s", sa.Float(53), nullable=False, server_default="0"),
    # One record per number: writing again after a crash must not invoice it twice.
    sa.UniqueConstraint("allocation", "device", "sequence", name="uq_usage_sequence"),
)

# The database refuses to change or delete a usage record that reaches into an invoiced month of its tenant. Retention removes
# and merges such records in a transaction in which ``meta`` has this key (``removed_usage``).
USAGE_REMOVING = "usage_removing"
USAGE_FIXED = "a usage record behind an issued invoice never changes"
USAGE_MEASURED = (
    'tenant, queue, project, "user", device, device_model, mode, preemptible, from_s, to_s, memory_mib, core_percent,'
    " allocated_gpu_s, used_gpu_s, memory_mib_s, idle_s, uncertain_s, sequence"
)  # every column but the allocation, whose name may be granted again


def _invoiced(from_us: str, to_us: str) -> str:
    """Return the SQL condition under which a change of usage record ``OLD`` is refused.

    It is refused if an invoice covers the record, except in a transaction of retention.

    Args:
        from_us, to_us: SQL expressions of the invoice's period, in microseconds since 1970.
    """
    return (
        f"NOT EXISTS (SELECT 1 FROM meta WHERE key = '{USAGE_REMOVING}') AND EXISTS (SELECT 1 FROM invoices"  # noqa: S608
        " WHERE invoices.tenant = OLD.tenant AND invoices.kind = 'invoice'"
        f" AND {from_us} < OLD.to_s * 1000000 AND {to_us} > OLD.from_s * 1000000)"
    )


for _name, _before in (("usage_no_delete", "DELETE"), ("usage_no_update", f"UPDATE OF {USAGE_MEASURED}")):
    guard_rows(
        usage,
        _name,
        before=_before,
        sqlite=_invoiced(
            "json_extract(invoices.document, '$.period.from_us')", "json_extract(invoices.document, '$.period.to_us')"
        ),
        postgresql=_invoiced(
            "CAST(invoices.document -> 'period' ->> 'from_us' AS numeric)",
            "CAST(invoices.document -> 'period' ->> 'to_us' AS numeric)",
        ),
        function="calabash_usage_invoiced",
        why=USAGE_FIXED,
    )
guard(usage, (), function="calabash_usage_fixed", why=USAGE_FIXED)

usage_sources = sa.Table(
    "usage_sources",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("node", sa.String(253), nullable=False),
    sa.Column("epoch", sa.String(64), nullable=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("at_s", sa.Float(53), nullable=False),
    sa.UniqueConstraint("node", "epoch", name="uq_usage_sources"),
)

queues = sa.Table(
    "queues",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("parent", sa.String(128), nullable=False),
    sa.Column("deserved", sa.Float(53), nullable=False),
    sa.Column("limit", sa.Float(53), nullable=True),
    sa.Column("weight", sa.Float(53), nullable=False),
    sa.Column("users", sa.JSON, nullable=False, server_default="[]"),
    sa.Column("groups", sa.JSON, nullable=False, server_default="[]"),
)

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("groups", sa.JSON, nullable=False),
    sa.Column("guarantee", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("limit", sa.Float(53), nullable=True),
    sa.Column("weight", sa.Float(53), nullable=False, server_default="1"),
    sa.Column("budget", sa.String(32), nullable=False, server_default=""),
    sa.Column("currency", sa.String(3), nullable=False, server_default=""),
    sa.Column("priorities", sa.JSON, nullable=False, server_default="[-1000, 1000]"),
    sa.Column("modes", sa.JSON, nullable=False, server_default="[]"),
    sa.Column("models", sa.JSON, nullable=False, server_default="[]"),
    sa.Column("slices_per_user", sa.Integer, nullable=False, server_default="0"),
    sa.Column("run_s_max", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("networks", sa.JSON, nullable=False, server_default="{}"),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("tenant", sa.String(128), primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("guarantee", sa.Float(53), nullable=False),
    sa.Column("limit", sa.Float(53), nullable=True),
    sa.Column("weight", sa.Float(53), nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("login", sa.String(128), nullable=False),
    sa.Column("subject", sa.String(512), nullable=False),
    sa.Column("email", sa.String(256), nullable=False),
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("user", sa.String(128), primary_key=True),
    sa.Column("tenant", sa.String(128), primary_key=True),  # "": the role holds on the whole platform
    sa.Column("project", sa.String(128), primary_key=True),  # "": the role holds in the whole tenant
    sa.Column("role", sa.String(16), nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("user", sa.String(128), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # SHA-256 of the secret, which is not stored
    sa.Column("created_at", sa.Float(53), nullable=False),
    sa.Column("expires_at", sa.Float(53), nullable=False, index=True),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("revoked_at", sa.Float(53), nullable=False),
    sa.Column("note", sa.String(256), nullable=False),
)

audit = sa.Table(
    "audit",
    metadata,
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
_AUDIT_FIXED = "a line of the audit log never changes"
guard(audit, ("UPDATE",), function="calabash_audit_fixed", why=_AUDIT_FIXED)
guard_replace(audit, key="id", why=_AUDIT_FIXED)

# The number and the seal of the last line that retention has removed. The database refuses to delete the lines after it, and
# the newest line in any case.
AUDIT_BEGINNING = "audit_beginning"
_BEGINNING = f"(SELECT value FROM meta WHERE key = '{AUDIT_BEGINNING}')"  # noqa: S608 - a constant
_NEWEST = "OLD.id >= (SELECT max(id) FROM audit)"
guard_rows(
    audit,
    "audit_no_delete",
    before="DELETE",
    sqlite=f"OLD.id > COALESCE(CAST({_BEGINNING} AS INTEGER), 0) OR {_NEWEST}",
    postgresql=f"OLD.id > COALESCE(CAST(split_part({_BEGINNING}, ' ', 1) AS bigint), 0) OR {_NEWEST}",
    function="calabash_audit_kept",
    why=_AUDIT_FIXED,
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float(53), nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("allocation", sa.String(64), nullable=False),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
)


notifications = sa.Table(
    "notifications",
    metadata,
    sa.Column("tenant", sa.String(128), primary_key=True),  # "" is the platform's
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

deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("at", sa.Float(53), nullable=False),
    sa.Column("notice", sa.JSON, nullable=False),
    sa.Index("ix_deliveries_receiver", "tenant", "name", "at"),
)

notices_told = sa.Table(
    "notices_told",
    metadata,
    sa.Column("id", sa.String(128), primary_key=True),  # one row per notice, so that none is sent twice
    sa.Column("at", sa.Float(53), nullable=False, index=True),
)

network_objects = sa.Table(
    "network_objects",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("applied", sa.Boolean, nullable=False),  # True if applying a file created it
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("status", sa.JSON, nullable=False),
)

network_revision = sa.Table(
    "network_revision",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),  # 1: there is one row, or none yet
    sa.Column("revision", sa.BigInteger, nullable=False),
)

network_certificates = sa.Table(
    "network_certificates",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("certificate", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("changed_at", sa.Float(53), nullable=False),
)


def create(connection: sa.Connection) -> None:
    """Create all tables in an empty database, and write the newest version of the schema.

    The result equals that of all migrations. Alembic is not used, because loading it takes longer than all the rest.
    """
    metadata.create_all(connection, checkfirst=False)
    revision = sa.Column("version_num", sa.String(32), nullable=False)
    name = f"{REVISION_TABLE}_pkc"
    versions = sa.Table(REVISION_TABLE, sa.MetaData(), revision, sa.PrimaryKeyConstraint("version_num", name=name))
    versions.create(connection)
    connection.execute(sa.insert(versions).values(version_num=f"{SCHEMA_VERSION:04}"))
    connection.execute(sa.insert(meta).values(key="schema_version", value=str(SCHEMA_VERSION)))
