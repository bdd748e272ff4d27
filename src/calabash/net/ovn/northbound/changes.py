"""What differs between the rows that should be and those that are, as changes that can be made in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from calabash.net.ovn.northbound.rows import Change, Columns, Delete, Insert, Ref, Rows, Update, Value
from calabash.net.ovn.northbound.tables import TABLES, merged

_RANK = {table: rank for rank, table in enumerate(TABLES)}


def diff(desired: Rows, actual: Rows) -> tuple[Change, ...]:
    """Changes that make ``actual`` like ``desired``: inserts before what points to them, then updates, deletes last.

    Keys of shared maps that are not ours are left alone, and so are columns that we do not own and tables with one row.
    """
    inserts: list[Insert] = []
    updates: list[Update] = []
    for row, columns in desired.items():
        found = actual.get(row)
        if found is None:
            inserts.append(Insert(row, columns))
            continue
        differing = {name: value for name, value in columns.items() if _ours(row.table, name, found.get(name)) != value}
        if differing:
            updates.append(Update(row, differing))
    deletes = [Delete(row) for row in actual if row not in desired and not TABLES[row.table].single]
    inserts.sort(key=lambda change: _RANK[change.row.table])
    updates.sort(key=lambda change: _RANK[change.row.table])
    deletes.sort(key=lambda change: -_RANK[change.row.table])
    return (*inserts, *updates, *deletes)


def applied(changes: tuple[Change, ...], actual: Rows) -> Rows:
    """``actual`` after the changes, as OVN would have it."""
    rows: dict[Ref, Columns] = dict(actual)
    for change in changes:
        match change:
            case Insert(row, columns):
                rows[row] = columns
            case Update(row, columns):
                found = rows[row]
                rows[row] = {**found, **{name: _joined(row, name, found, value) for name, value in columns.items()}}
            case Delete(row):
                del rows[row]
    return rows


def _ours(table: str, column: str, value: Value) -> Value:
    """Of a shared map the keys that are ours; all else as it is."""
    keys = TABLES[table].shared.get(column)
    if keys is None or not isinstance(value, Mapping):
        return value
    return {key: cast(str, content) for key, content in value.items() if key in keys}


def _joined(row: Ref, column: str, found: Columns, wanted: Value) -> Value:
    before = found.get(column)
    if column not in TABLES[row.table].shared or not isinstance(before, Mapping) or not isinstance(wanted, Mapping):
        return wanted
    return merged(row.table, column, cast(Mapping[str, str], before), cast(Mapping[str, str], wanted))
