"""Database triggers that refuse changes of immutable rows by any client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def guard(table: sa.Table, forbidden: Sequence[str], *, function: str, why: str) -> None:
    """Add triggers to a table that refuse to change its rows. They are created together with the table.

    Migrations of older databases contain the same triggers in their own text.

    Args:
        table: the table.
        forbidden: the statements to refuse: ``UPDATE``, ``DELETE`` or both. PostgreSQL's ``TRUNCATE`` is always
            refused.
        function: name of the PostgreSQL function that the triggers call.
        why: message of the error; without quotation marks.
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
    """Add a trigger to a table of SQLite that refuses ``INSERT OR REPLACE`` of an existing row.

    This statement deletes the row that it replaces, but SQLite does not call the trigger for ``DELETE`` then.
    PostgreSQL has no such statement. Migrations of older databases contain the same trigger in their own text.

    Args:
        table: the table.
        key: column that identifies a row.
        why: message of the error; without quotation marks.
    """
    name = table.name
    there = f"EXISTS (SELECT 1 FROM {name} WHERE {key} = NEW.{key})"  # noqa: S608 - names of this program
    trigger = f"CREATE TRIGGER {name}_no_replace BEFORE INSERT ON {name} WHEN {there}"
    sqlite = _ddl(f"{trigger} BEGIN SELECT RAISE(ABORT, '{why}'); END")
    sa.event.listen(table, "after_create", sqlite.execute_if(dialect="sqlite"))


def guard_parts(table: sa.Table, *, key: str, owner: sa.Table, count: str, function: str, why: str) -> None:
    """Add a trigger to a table that refuses to add rows to an owner row which already has all of its rows.

    For example, an invoice (the owner) is written with its number of lines, and then that many lines are written. Each
    row has the number of its owner and a position, from 1 to the owner's count. The trigger refuses other positions and
    positions that exist. Migrations of older databases contain the same trigger in their own text.

    Args:
        table: table of the rows, with a column ``number`` that names the owner.
        key: column of the position.
        owner: table of the owners, with a column ``number``; its row is written first.
        count: column of ``owner`` with the number of rows.
        function: name of the PostgreSQL function that the trigger calls.
        why: message of the error; without quotation marks.
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
    """Add a trigger to a table that refuses to delete or change some of its rows.

    Migrations of older databases contain the same trigger in their own text.

    Args:
        table: the table.
        name: name of the trigger.
        before: statement to refuse: ``DELETE``, or ``UPDATE OF`` some columns.
        sqlite: condition in SQLite's dialect on the row ``OLD``; the statement is refused if it is true.
        postgresql: the same condition in PostgreSQL's dialect.
        function: name of the PostgreSQL function that the trigger calls; triggers with the same condition may share it.
        why: message of the error; without quotation marks.
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
