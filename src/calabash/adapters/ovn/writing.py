"""Encode changes of rows as operations of one OVSDB transaction.

A reference to a row that does not exist is an error. It is not left out, because OVN would then run an incomplete
network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calabash.adapters.ovn.index import OURS, OwnedRows
from calabash.adapters.ovn.replica import Replica
from calabash.adapters.ovn.schema import Cardinality, NewRow, RowId
from calabash.model.errors import CalabashError, Reason
from calabash.net.ovn.northbound.rows import REVISION, Change, Delete, Insert, Ref, Update
from calabash.net.ovn.northbound.tables import TABLES

FEW = 16  # larger sets are changed by added and removed members


class Writer:
    """Converts changes of rows to OVSDB operations.

    Raises CalabashError if a change refers to a row, table or column that does not exist, or inserts a row twice.

    Args:
        replica: copy of the database.
        owned: index of the rows that the product owns.
        changes: the changes.
    """

    def __init__(self, replica: Replica, owned: OwnedRows, changes: Sequence[Change]) -> None:
        self._replica, self._owned = replica, owned
        self._new: dict[Ref, NewRow] = {}
        self._adopted: dict[Ref, RowId] = {}
        for change in changes:
            if isinstance(change, Insert):
                adopted = owned.unmarked(change.row) if change.row.key.startswith(OURS) else None
                if adopted is not None:
                    self._adopted[change.row] = adopted
                elif change.row in self._new:
                    raise CalabashError(f"{_name(change.row)} would be inserted twice")
                else:
                    self._new[change.row] = NewRow(f"row{len(self._new)}")
        self.operations = [operation for change in changes for operation in self._of(change)]

    @property
    def inserted(self) -> tuple[Ref, ...]:
        return tuple(self._new)

    def _of(self, change: Change) -> list[dict[str, Any]]:
        table = change.row.table
        if table not in self._replica.types:
            raise CalabashError(
                f"this version of OVN's northbound database has no table {table}", reason=Reason.UNSUPPORTED
            )
        if isinstance(change, Delete):
            row = self._owned.row(change.row)  # a row that is gone needs no deletion
            return [{"op": "delete", "table": table, "where": _is(row)}] if row is not None else []
        if isinstance(change, Insert):
            columns = {name: self._told(change.row, name, value) for name, value in change.columns.items()}
            if TABLES[table].named:
                columns["name"] = change.row.key
            if change.row in self._adopted:
                where = _is(self._adopted[change.row])
                return [{"op": "update", "table": table, "where": where, "row": columns}]
            return [{"op": "insert", "table": table, "row": columns, "uuid-name": self._new[change.row].name}]
        return self._update(change)

    def _update(self, change: Update) -> list[dict[str, Any]]:
        row = self._owned.row(change.row)
        if row is None:
            raise CalabashError(f"{_name(change.row)} would be updated, but does not exist", reason=Reason.CONFLICT)
        table = change.row.table
        plain: dict[str, Any] = {}
        mutations: list[Any] = []
        for name, value in change.columns.items():
            keys = TABLES[table].shared.get(name)
            if keys is not None and isinstance(value, Mapping):
                mutations += shared_pairs(name, keys, value)
                continue
            told = self._told(change.row, name, value)
            before = self._replica.tables[table][row].get(name)
            if isinstance(before, frozenset) and len(before) > FEW and isinstance(value, frozenset):
                mutations += self._members(change.row, name, value, before)
            else:
                plain[name] = told
        operations: list[dict[str, Any]] = []
        if plain:
            operations.append({"op": "update", "table": table, "where": _is(row), "row": plain})
        if mutations:
            operations.append({"op": "mutate", "table": table, "where": _is(row), "mutations": mutations})
        return operations

    def _members(self, ref: Ref, name: str, value: frozenset[Any], before: frozenset[Any]) -> list[Any]:
        kind = self._replica.types[ref.table][name]
        where = f"{name} of {_name(ref)}"
        after = frozenset(self._resolved(where, member) for member in value)
        return [
            [name, word, kind.encoded(members, where)]
            for word, members in (("insert", after - before), ("delete", before - after))
            if members
        ]

    def _told(self, ref: Ref, name: str, value: Any) -> Any:
        kind = self._replica.types[ref.table].get(name)
        where = f"{name} of {_name(ref)}"
        if kind is None:
            raise CalabashError(
                f"this version of OVN's northbound database has no column {name} in {ref.table}",
                reason=Reason.UNSUPPORTED,
            )
        if kind.shape is Cardinality.MAP or kind.key != "uuid":
            return kind.encoded(value, where)
        if isinstance(value, frozenset | set | list | tuple):
            return kind.encoded(frozenset(self._resolved(where, member) for member in value), where)
        return kind.encoded(self._resolved(where, value), where)

    def _resolved(self, where: str, value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        found = self._new.get(value) or self._owned.row(value) or self._adopted.get(value)
        if found is None:
            raise CalabashError(f"{where} refers to {_name(value)}, which does not exist", reason=Reason.CONFLICT)
        return found


def _is(row: RowId) -> list[Any]:
    return [["_uuid", "==", ["uuid", str(row)]]]


def _name(ref: Ref) -> str:
    return f"{ref.table} {ref.key}"


def bumped(global_row: RowId | None) -> list[dict[str, Any]]:
    """Return operations that increment ``nb_cfg`` and read it.

    Args:
        global_row: the only row of the table NB_Global; None to insert it.
    """
    if global_row is None:
        return [
            {"op": "insert", "table": "NB_Global", "row": {"nb_cfg": 1}},
            {"op": "select", "table": "NB_Global", "where": [], "columns": ["nb_cfg"]},
        ]
    return [
        {"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["nb_cfg", "+=", 1]]},
        {"op": "select", "table": "NB_Global", "where": [], "columns": ["nb_cfg"]},
    ]


def stamped(router: str, revision: int) -> dict[str, Any]:
    """Return an operation that records the network store's revision on a VPC's router."""
    pairs = shared_pairs("external_ids", frozenset((REVISION,)), {REVISION: str(revision)})
    return {"op": "mutate", "table": "Logical_Router", "where": [["name", "==", router]], "mutations": pairs}


def shared_pairs(column: str, keys: frozenset[str], pairs: Mapping[str, Any]) -> list[Any]:
    """Return mutations of a map column that other programs also write.

    Pairs with a key in ``keys`` are deleted, and then ``pairs`` are inserted. Pairs with other keys are unchanged.
    """
    return [
        [column, "delete", ["set", sorted(keys)]],
        [column, "insert", ["map", [[key, text] for key, text in pairs.items()]]],
    ]
