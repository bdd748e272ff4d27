"""Rows of one owner while they are being drawn up."""

from __future__ import annotations

from collections.abc import Mapping

from calabash.net.ovn.northbound.rows import KEY, OWNER, Columns, Ref, Rows, Value
from calabash.net.ovn.northbound.tables import TABLES


class Draft:
    """Rows that are added one after another, each with the defaults of what it does not say, and sets that grow.

    Args:
        owner: the VPC, or PLATFORM.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._rows: dict[Ref, dict[str, Value]] = {}
        self._sets: dict[tuple[Ref, str], set[str | Ref]] = {}

    def add(self, table: str, key: str, columns: Mapping[str, Value], *, under: tuple[Ref, str] | None = None) -> Ref:
        """A row; ``under``: the row and column of a set that point to it."""
        row = Ref(table, key)
        owned = TABLES[table]
        ids = {} if owned.single else {"external_ids": {OWNER: self._owner} | ({} if owned.named else {KEY: key})}
        self._rows[row] = {**owned.columns, **ids, **columns}
        if under is not None:
            self.put_into(*under, row)
        return row

    def change(self, row: Ref, columns: Mapping[str, Value]) -> None:
        """Sets columns of a row that has been added."""
        self._rows[row].update(columns)

    def note(self, row: Ref, key: str, text: str) -> None:
        """Sets one of the ``external_ids`` of a row that has been added."""
        ids = self._rows[row]["external_ids"]
        if isinstance(ids, Mapping):
            self._rows[row]["external_ids"] = {name: str(value) for name, value in ids.items()} | {key: text}

    def put_into(self, row: Ref, column: str, item: str | Ref) -> None:
        """Adds to a set of a row that is drawn up, now or later."""
        self._sets.setdefault((row, column), set()).add(item)

    def rows(self) -> Rows:
        finished: dict[Ref, Columns] = dict(self._rows)
        for (row, column), items in self._sets.items():
            finished[row] = {**finished[row], column: frozenset(items)}
        return finished
