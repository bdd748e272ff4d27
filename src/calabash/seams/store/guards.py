"""Triggers by which a database itself refuses to change what is never changed, whoever asks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def guard(table: sa.Table, forbidden: Sequence[str], *, function: str, why: str) -> None:
    """Have a new table made with its triggers; migrations write the same ones out.

    Args:
        forbidden: of ``UPDATE`` and ``DELETE``. Where a database knows ``TRUNCATE``, it is always forbidden.
        function: the name of PostgreSQL's function that refuses.
        why: what who tries is told; without quotes.
    """
    for what in forbidden:
        trigger = f"CREATE TRIGGER {table.name}_no_{what.lower()} BEFORE {what} ON {table.name}"
        sqlite = _ddl(f"{trigger} BEGIN SELECT RAISE(ABORT, '{why}'); END")
        sa.event.listen(table, "after_create", sqlite.execute_if(dialect="sqlite"))
    refuse = _ddl(
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN RAISE EXCEPTION ''{why}''; END'"
    )
    trigger = _ddl(
        f"CREATE TRIGGER {table.name}_fixed BEFORE {' OR '.join((*forbidden, 'TRUNCATE'))} ON {table.name}"
        f" FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
    )
    for statement in (refuse, trigger):
        sa.event.listen(table, "after_create", statement.execute_if(dialect="postgresql"))


def _ddl(text: str) -> Any:
    return sa.DDL(text)  # type: ignore[no-untyped-call]
