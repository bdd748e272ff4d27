"""Index of the northbound rows that the product owns, by owner, and by table and key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calabash.adapters.ovn.replica import Replica, Row, RowEvent
from calabash.adapters.ovn.schema import RowId
from calabash.net.ovn.northbound.rows import KEY, OWNER, Ref
from calabash.net.ovn.northbound.tables import TABLES

OURS = ("cb-", "cb:", "cb.")  # prefixes of the names that the product gives switches, routers and groups


class OwnedRows:
    """Index over a replica of the northbound database: rows by owner, and by table and key. Not safe for threads.

    The owner of a row is a VPC or the platform; its name is stored in the row's ``external_ids``. The key identifies
    the row within its table: its name, or another key in ``external_ids``.
    """

    def __init__(self) -> None:
        self._of_owner: dict[str, dict[RowId, str]] = {}
        self._of_ref: dict[Ref, list[RowId]] = {}
        self._refs: dict[RowId, tuple[str, Ref]] = {}
        self._unmarked: dict[Ref, RowId] = {}

    def rebuild(self, replica: Replica) -> None:
        self._of_owner, self._of_ref, self._refs, self._unmarked = {}, {}, {}, {}
        for table, rows in replica.tables.items():
            for row, columns in rows.items():
                self._add(table, row, columns)

    def take(self, events: Iterable[RowEvent]) -> None:
        for event in events:
            if event.before is not None:
                self._remove(event.table, event.row, event.before)
            if event.after is not None:
                self._add(event.table, event.row, event.after)

    def owners(self) -> frozenset[str]:
        return frozenset(self._of_owner)

    def of_owner(self, owner: str) -> Mapping[RowId, str]:
        """Return the owner's rows with their tables."""
        return self._of_owner.get(owner, {})

    def row(self, ref: Ref) -> RowId | None:
        """Return the row to which a reference refers; None if there is none.

        A reference has the key of a row, or the UUID of an owned row. If several rows have the same key, the one with
        the lowest UUID is returned.
        """
        found = self._of_ref.get(ref)
        if found:
            return min(found)
        exact = RowId(ref.key)
        return exact if exact in self._refs else None

    def unmarked(self, ref: Ref) -> RowId | None:
        """Return the row without an owner that has this reference, if its name is one of the product's; else None.

        Such a row belongs to the product, but lacks the mark of its owner.
        """
        return self._unmarked.get(ref)

    def ref(self, row: RowId, table: str) -> Ref:
        """Return the reference to a row: its table and key.

        The UUID takes the place of the key if the row does not belong to the product, or if another row has the same
        key and a lower UUID.
        """
        known = self._refs.get(row)
        if known is None:
            return Ref(table, row)
        return known[1] if min(self._of_ref[known[1]]) == row else Ref(table, row)

    def _add(self, table: str, row: RowId, columns: Row) -> None:
        owner, ref = marks(table, columns)
        if not owner:
            if ref is not None and ref.key.startswith(OURS):
                self._unmarked[ref] = row
            return
        ref = ref or Ref(table, row)
        self._refs[row] = (owner, ref)
        self._of_owner.setdefault(owner, {})[row] = table
        self._of_ref.setdefault(ref, []).append(row)

    def _remove(self, table: str, row: RowId, columns: Row) -> None:
        known = self._refs.pop(row, None)
        if known is None:
            ref = marks(table, columns)[1]
            if ref is not None and self._unmarked.get(ref) == row:
                del self._unmarked[ref]
            return
        owner, ref = known
        rows = self._of_owner[owner]
        del rows[row]
        if not rows:
            del self._of_owner[owner]
        self._of_ref[ref].remove(row)
        if not self._of_ref[ref]:
            del self._of_ref[ref]


def marks(table: str, columns: Mapping[str, Any]) -> tuple[str, Ref | None]:
    """Return the owner of a row ("" for none) and its reference, if it has a key."""
    told = columns.get("external_ids") or {}
    owned = TABLES.get(table)
    key = columns.get("name") if owned is not None and owned.named else told.get(KEY)
    return told.get(OWNER, ""), Ref(table, key) if key else None
