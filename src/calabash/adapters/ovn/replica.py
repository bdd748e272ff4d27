"""Local copy of database tables, which the server's updates keep up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from calabash.adapters.ovn.schema import ColumnType, RowId

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowEvent:
    """Change of a row: ``before`` is None for a new row, ``after`` is None for a deleted one."""

    table: str
    row: RowId
    before: Row | None
    after: Row | None


class Replica:
    """Local copy of tables. A row is a mapping that is never changed: an update replaces it. Not safe for threads."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, ColumnType]] = {}
        self.tables: dict[str, dict[RowId, Row]] = {}
        self._defaults: dict[str, dict[str, Any]] = {}

    def begin(self, types: Mapping[str, Mapping[str, ColumnType]]) -> None:
        """Set the types of the columns that the copy has, by table."""
        self.types = {table: dict(columns) for table, columns in types.items()}
        self._defaults = {
            table: {name: column.default() for name, column in columns.items()} for table, columns in types.items()
        }
        self.tables = {table: self.tables.get(table, {}) for table in types}

    def clear(self) -> None:
        self.tables = {table: {} for table in self.types}

    def take(self, updates: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[RowEvent]:
        """Apply updates in the format of ``monitor_cond_since`` (``update3``); return the changes of rows."""
        return [
            event
            for table, rows in updates.items()
            if table in self.types
            for event in self._changed(table, rows.items())
        ]

    def _changed(self, table: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterable[RowEvent]:
        known, types = self.tables[table], self.types[table]
        for text, told in rows:
            row = RowId(text)
            before = known.get(row)
            if "delete" in told:
                known.pop(row, None)
                after = None
            elif "modify" in told:
                if before is None:
                    continue
                changed = {c: types[c].patched(before[c], v) for c, v in told["modify"].items() if c in types}
                after = known[row] = {**before, **changed}
            else:
                content = told.get("initial") or told.get("insert") or {}
                values = {c: types[c].decoded(v) for c, v in content.items() if c in types}
                after = known[row] = {**self._defaults[table], **values}
            yield RowEvent(table, row, before, after)
