"""Differences between desired and observed rows, as changes in an order in which they can be made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from calabash.net.ovn.northbound.rows import Change, Delete, Insert, Rows, Update, Value
from calabash.net.ovn.northbound.tables import TABLES

_RANK = {table: rank for rank, table in enumerate(TABLES)}


def diff(desired: Rows, actual: Rows) -> tuple[Change, ...]:
    """Return the changes that turn ``actual`` into ``desired``: inserts, then updates, then deletes.

    A row is inserted before the rows that refer to it, and deleted after them. Columns that Calabash does not own,
    and keys of shared maps that it does not own, are left unchanged. The row of a single-row table is never deleted.
    """
    inserts: list[Insert] = []
    updates: list[Update] = []
    for row, columns in desired.items():
        found = actual.get(row)
        if found is None:
            inserts.append(Insert(row, columns))
            continue
        differing = {
            name: value for name, value in columns.items() if _owned_value(row.table, name, found.get(name)) != value
        }
        if differing:
            updates.append(Update(row, differing))
    deletes = [Delete(row) for row in actual if row not in desired and not TABLES[row.table].single]
    inserts.sort(key=lambda change: _RANK[change.row.table])
    updates.sort(key=lambda change: _RANK[change.row.table])
    deletes.sort(key=lambda change: -_RANK[change.row.table])
    return (*inserts, *updates, *deletes)


def _owned_value(table: str, column: str, value: Value) -> Value:
    """Return the value of a column, reduced to the owned keys if the column is a map that other clients write too."""
    keys = TABLES[table].shared.get(column)
    if keys is None or not isinstance(value, Mapping):
        return value
    return {key: cast(str, content) for key, content in value.items() if key in keys}
