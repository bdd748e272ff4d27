"""Builder of the rows of OVN's northbound database for one VPC, or for the platform."""

from __future__ import annotations

from collections.abc import Mapping

from calabash.net.ovn.northbound.rows import KEY, OWNER, Columns, Ref, Rows, Value
from calabash.net.ovn.northbound.tables import TABLES


class Draft:
    """Rows under construction: each starts with the defaults of its table, and sets are filled item by item.

    Args:
        owner: name of the VPC, or PLATFORM; written to the ``external_ids`` of each row.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._rows: dict[Ref, dict[str, Value]] = {}
        self._sets: dict[tuple[Ref, str], set[str | Ref]] = {}

    def add(self, table: str, key: str, columns: Mapping[str, Value], *, under: tuple[Ref, str] | None = None) -> Ref:
        """Add a row and return a reference to it.

        Args:
            key: name of the row if the table has names, else its key in ``external_ids``.
            columns: values that differ from the defaults of the table.
            under: row and set column that must refer to the new row; None for none.
        """
        row = Ref(table, key)
        owned = TABLES[table]
        ids = {} if owned.single else {"external_ids": {OWNER: self._owner} | ({} if owned.named else {KEY: key})}
        self._rows[row] = {**owned.columns, **ids, **columns}
        if under is not None:
            self.add_to_set(*under, row)
        return row

    def change(self, row: Ref, columns: Mapping[str, Value]) -> None:
        """Set columns of an added row."""
        self._rows[row].update(columns)

    def set_external_id(self, row: Ref, key: str, text: str) -> None:
        """Set one key of the ``external_ids`` of an added row."""
        ids = self._rows[row]["external_ids"]
        if isinstance(ids, Mapping):
            self._rows[row]["external_ids"] = {name: str(value) for name, value in ids.items()} | {key: text}

    def add_to_set(self, row: Ref, column: str, item: str | Ref) -> None:
        """Add an item to a set column of a row. The row itself may be added to the draft later."""
        self._sets.setdefault((row, column), set()).add(item)

    def rows(self) -> Rows:
        """Return all rows with their sets."""
        finished: dict[Ref, Columns] = dict(self._rows)
        for (row, column), items in self._sets.items():
            finished[row] = {**finished[row], column: frozenset(items)}
        return finished
