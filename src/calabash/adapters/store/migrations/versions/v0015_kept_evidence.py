"""Add triggers that refuse to delete lines of the audit log, and to change or delete usage records of issued invoices.

Retention can still remove both. Before it removes lines of the audit log, it stores the number of the last line that
it is going to remove. It marks the transaction in which it removes usage records.

Never changed after its release: later changes of the tables are later revisions.
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_AUDIT = "a line of the audit log never changes"
_USAGE = "a usage record behind an issued invoice never changes"
_MEASURED = (
    'tenant, queue, project, "user", device, device_model, mode, preemptible, from_s, to_s, memory_mib, core_percent,'
    " allocated_gpu_s, used_gpu_s, memory_mib_s, idle_s, uncertain_s, sequence"
)
_BEGINNING = "(SELECT value FROM meta WHERE key = 'audit_beginning')"
_NEWEST = "OLD.id >= (SELECT max(id) FROM audit)"


def _invoiced(from_us: str, to_us: str) -> str:
    return (  # every name is a constant
        "NOT EXISTS (SELECT 1 FROM meta WHERE key = 'usage_removing') AND EXISTS (SELECT 1 FROM invoices"  # noqa: S608
        " WHERE invoices.tenant = OLD.tenant AND invoices.kind = 'invoice'"
        f" AND {from_us} < OLD.to_s * 1000000 AND {to_us} > OLD.from_s * 1000000)"
    )


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        invoiced = _invoiced(
            "CAST(invoices.document -> 'period' ->> 'from_us' AS numeric)",
            "CAST(invoices.document -> 'period' ->> 'to_us' AS numeric)",
        )
        kept = f"OLD.id > COALESCE(CAST(split_part({_BEGINNING}, ' ', 1) AS bigint), 0) OR {_NEWEST}"
        _function("calabash_audit_kept", kept, _AUDIT)
        _function("calabash_usage_invoiced", invoiced, _USAGE)
        op.execute(
            "CREATE OR REPLACE FUNCTION calabash_usage_fixed() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN RAISE EXCEPTION ''{_USAGE}''; END'"
        )
        op.execute(
            "CREATE TRIGGER usage_fixed BEFORE TRUNCATE ON usage FOR EACH STATEMENT EXECUTE FUNCTION calabash_usage_fixed()"
        )
        for name, before, function in (
            ("audit_no_delete", "DELETE ON audit", "calabash_audit_kept"),
            ("usage_no_delete", "DELETE ON usage", "calabash_usage_invoiced"),
            ("usage_no_update", f"UPDATE OF {_MEASURED} ON usage", "calabash_usage_invoiced"),
        ):
            op.execute(f"CREATE TRIGGER {name} BEFORE {before} FOR EACH ROW EXECUTE FUNCTION {function}()")
    else:
        invoiced = _invoiced(
            "json_extract(invoices.document, '$.period.from_us')", "json_extract(invoices.document, '$.period.to_us')"
        )
        kept = f"OLD.id > COALESCE(CAST({_BEGINNING} AS INTEGER), 0) OR {_NEWEST}"
        for name, before, refused, why in (
            ("audit_no_delete", "DELETE ON audit", kept, _AUDIT),
            ("usage_no_delete", "DELETE ON usage", invoiced, _USAGE),
            ("usage_no_update", f"UPDATE OF {_MEASURED} ON usage", invoiced, _USAGE),
        ):
            op.execute(f"CREATE TRIGGER {name} BEFORE {before} WHEN {refused} BEGIN SELECT RAISE(ABORT, '{why}'); END")
    op.execute("UPDATE meta SET value = '15' WHERE key = 'schema_version'")


def _function(name: str, refused: str, why: str) -> None:
    quoted = refused.replace("'", "''")
    op.execute(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN IF {quoted} THEN RAISE EXCEPTION ''{why}''; END IF;"
        " IF TG_OP = ''DELETE'' THEN RETURN OLD; END IF; RETURN NEW; END'"
    )


def downgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    for name, table in (("audit_no_delete", "audit"), ("usage_no_delete", "usage"), ("usage_no_update", "usage")):
        op.execute(f"DROP TRIGGER {name}" + (f" ON {table}" if postgresql else ""))
    if postgresql:
        op.execute("DROP TRIGGER usage_fixed ON usage")
        for function in ("calabash_audit_kept", "calabash_usage_invoiced", "calabash_usage_fixed"):
            op.execute(f"DROP FUNCTION {function}()")
    op.execute("UPDATE meta SET value = '14' WHERE key = 'schema_version'")
