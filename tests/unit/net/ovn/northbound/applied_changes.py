"""Rows after changes, as OVN would have them."""

from __future__ import annotations

from collections.abc import Mapping

from calabash.net.ovn.northbound.rows import Change, Columns, Delete, Insert, Ref, Rows, Update, Value
from calabash.net.ovn.northbound.tables import TABLES


def apply_changes(changes: tuple[Change, ...], actual: Rows) -> Rows:
    """Return the rows after the changes."""
    rows: dict[Ref, Columns] = dict(actual)
    for change in changes:
        match change:
            case Insert(row, columns):
                rows[row] = columns
            case Update(row, columns):
                rows[row] = {**rows[row], **_merged(row.table, rows[row], columns)}
            case Delete(row):
                del rows[row]
    return rows


def _merged(table: str, found: Columns, wanted: Columns) -> Columns:
    """Return the wanted columns; a map that other clients write too also has their keys in ``found``."""
    merged: dict[str, Value] = dict(wanted)
    for column, owned in TABLES[table].shared.items():
        before, value = found.get(column), wanted.get(column)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            kept: dict[str, str] = {key: str(content) for key, content in before.items() if key not in owned}
            merged[column] = kept | {key: str(content) for key, content in value.items()}
    return merged
