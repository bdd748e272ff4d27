"""Database triggers that refuse changes of immutable rows by any client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def guard(table: sa.Table, forbidden: Sequence[str], *, function: str, why: str) -> None:
    """Arrange that triggers which refuse the forbidden statements are created together with a table.

    Migrations of existing databases create the same triggers.

    Args:
        forbidden: ``UPDATE``, ``DELETE`` or both. In PostgreSQL ``TRUNCATE`` is always refused too.
        function: name of PostgreSQL's function that refuses.
        why: message of the error; without quotes.
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


def guard_replace(table: sa.Table, *, key: str, why: str) -> None:
    """Arrange that a trigger which refuses ``INSERT OR REPLACE`` of existing rows is created together with a table.

    The trigger is needed in SQLite only: REPLACE removes a row there without calling the trigger for DELETE. PostgreSQL
    has no such statement.

    Args:
        key: column by which an existing row is recognised.
        why: message of the error; without quotes.
    """
    name = table.name
    there = f"EXISTS (SELECT 1 FROM {name} WHERE {key} = NEW.{key})"  # noqa: S608 - names of this program
    trigger = f"CREATE TRIGGER {name}_no_replace BEFORE INSERT ON {name} WHEN {there}"
    sqlite = _ddl(f"{trigger} BEGIN SELECT RAISE(ABORT, '{why}'); END")
    sa.event.listen(table, "after_create", sqlite.execute_if(dialect="sqlite"))


def guard_parts(table: sa.Table, *, key: str, owner: sa.Table, count: str, function: str, why: str) -> None:
    """Arrange that a trigger which refuses additional rows is created together with a table of parts.

    A row of ``table``, such as a line of an invoice, has the number of its owner and a position from 1 to the number of
    rows that the owner's row announces. When all positions have a row, no row can be added or replaced.

    Args:
        key: the column of the position.
        owner: table of the owners, with a column ``number``. The row of an owner is written before its parts.
        count: column of ``owner`` with the number of parts.
        function: the name of PostgreSQL's function that refuses.
        why: the message of the error; without quotes.
    """
    name = table.name
    refused = (  # every name is that of a table or column of this program
        f"NEW.{key} < 1 OR NEW.{key} > COALESCE((SELECT {count} FROM {owner.name} WHERE number = NEW.number), 0)"  # noqa: S608
        f" OR EXISTS (SELECT 1 FROM {name} WHERE number = NEW.number AND {key} = NEW.{key})"
    )
    trigger = f"CREATE TRIGGER {name}_whole BEFORE INSERT ON {name}"
    sqlite = _ddl(f"{trigger} WHEN {refused} BEGIN SELECT RAISE(ABORT, '{why}'); END")
    sa.event.listen(table, "after_create", sqlite.execute_if(dialect="sqlite"))
    refuse = _ddl(
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN IF {refused} THEN RAISE EXCEPTION ''{why}''; END IF; RETURN NEW; END'"
    )
    for statement in (refuse, _ddl(f"{trigger} FOR EACH ROW EXECUTE FUNCTION {function}()")):
        sa.event.listen(table, "after_create", statement.execute_if(dialect="postgresql"))


def guard_rows(
    table: sa.Table, name: str, *, before: str, sqlite: str, postgresql: str, function: str, why: str
) -> None:
    """Arrange that a trigger which refuses to delete or change some rows is created together with a table.

    Args:
        name: the name of the trigger.
        before: ``DELETE``, or ``UPDATE OF`` some columns.
        sqlite, postgresql: the condition in either dialect under which the statement is refused for a row, ``OLD``.
        function: the name of PostgreSQL's function that refuses; triggers with the same condition may share it.
        why: the message of the error; without quotes.
    """
    trigger = f"CREATE TRIGGER {name} BEFORE {before} ON {table.name}"
    refuse = _ddl(f"{trigger} WHEN {sqlite} BEGIN SELECT RAISE(ABORT, '{why}'); END")
    sa.event.listen(table, "after_create", refuse.execute_if(dialect="sqlite"))
    quoted = postgresql.replace("'", "''")
    body = (
        f"BEGIN IF {quoted} THEN RAISE EXCEPTION ''{why}''; END IF;"
        " IF TG_OP = ''DELETE'' THEN RETURN OLD; END IF; RETURN NEW; END"
    )
    for statement in (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        f"{trigger} FOR EACH ROW EXECUTE FUNCTION {function}()",
    ):
        sa.event.listen(table, "after_create", _ddl(statement).execute_if(dialect="postgresql"))


def _ddl(text: str) -> Any:
    return sa.DDL(text)  # type: ignore[no-untyped-call]
