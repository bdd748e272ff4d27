"""Types of OVSDB columns: strict conversion between the protocol's JSON and Python values.

A column with at most one value is a value or None, others are ``frozenset``; maps are ``dict`` from text to text or
numbers. References are :class:`RowId`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from calabash.model.errors import CalabashError

_TYPES: dict[str, type] = {"integer": int, "real": float, "boolean": bool, "string": str}
_NOTHING: dict[str, Any] = {"integer": 0, "real": 0.0, "boolean": False, "string": ""}


class RowId(str):
    """UUID of a row."""

    __slots__ = ()


class Cardinality(Enum):
    """Number of values of a column."""

    ONE = auto()
    OPTIONAL = auto()
    SET = auto()
    MAP = auto()


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Type of a column.

    Args:
        shape: number of values.
        key: basic type (OVSDB) of the values, or of the keys of a map.
        value: basic type of the values of a map; "" for other columns.
        refers: table to which the references of the column point; "" for a column without references.
    """

    shape: Cardinality
    key: str
    value: str = ""
    refers: str = ""

    def default(self) -> Any:
        """Return the value of a column of a new row if the update with this row does not mention the column."""
        if self.shape is Cardinality.ONE:
            return RowId("00000000-0000-0000-0000-000000000000") if self.key == "uuid" else _NOTHING[self.key]
        return None if self.shape is Cardinality.OPTIONAL else {} if self.shape is Cardinality.MAP else frozenset()

    def decoded(self, told: Any) -> Any:
        """Return a value in the form of the protocol (``told``) as a Python value."""
        if self.shape is Cardinality.MAP:
            return {str(_atom(key)): _atom(value) for key, value in told[1]}
        many = type(told) is list and told[0] == "set"
        if self.shape is Cardinality.SET:
            return frozenset(map(_atom, told[1])) if many else frozenset((_atom(told),))
        if not many:
            return _atom(told)
        return _atom(told[1][0]) if told[1] else None

    def patched(self, before: Any, told: Any) -> Any:
        """Return the value of a column after a change that the server reports as a difference.

        For a set the difference has the members that were added or removed; for a map the pairs that were added,
        removed or changed.

        Args:
            before: value before the change.
            told: the difference in the form of the protocol.
        """
        difference = self.decoded(told)
        if self.shape is Cardinality.SET:
            return before ^ difference
        if self.shape is not Cardinality.MAP:
            return difference
        after = dict(before)
        for key, value in difference.items():
            if after.get(key) == value:
                del after[key]
            else:
                after[key] = value
        return after

    def encoded(self, value: Any, where: str) -> Any:
        """Return a Python value in the form of the protocol.

        Raises CalabashError for a value that the column cannot hold; ``where`` names the column in the message.
        """
        if self.shape is Cardinality.MAP:
            if not isinstance(value, Mapping):
                raise _wrong(where, value, "a map")
            pairs = value.items()
            return ["map", [[self._told(k, self.key, where), self._told(v, self.value, where)] for k, v in pairs]]
        if self.shape is Cardinality.SET:
            members = value if isinstance(value, frozenset | set | tuple | list) else () if value is None else (value,)
            return ["set", [self._told(member, self.key, where) for member in members]]
        if value is None and self.shape is Cardinality.OPTIONAL:
            return ["set", []]
        return self._told(value, self.key, where)

    def _told(self, value: Any, basic: str, where: str) -> Any:
        if basic == "uuid":
            if isinstance(value, RowId):
                return ["uuid", str(value)]
            if isinstance(value, NewRow):
                return ["named-uuid", value.name]
            raise _wrong(where, value, "a row")
        wanted = _TYPES[basic]
        if type(value) is wanted or (wanted is float and type(value) is int):
            return value
        raise _wrong(where, value, basic)


@dataclass(frozen=True, slots=True)
class NewRow:
    """Reference to a row that the same transaction inserts; ``name`` is the row's ``uuid-name`` in the transaction."""

    name: str


def _wrong(where: str, value: Any, wanted: str) -> CalabashError:
    return CalabashError(f"{where} must be {wanted}, not {value!r:.200}")


def _atom(told: Any) -> Any:
    return RowId(told[1]) if type(told) is list else told


def tables_of(schema: Mapping[str, Any]) -> dict[str, dict[str, ColumnType]]:
    """Return the columns of each table of a schema. Raises CalabashError if it cannot be read."""
    try:
        return {
            table: {name: _column(column["type"]) for name, column in content["columns"].items()}
            for table, content in schema["tables"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CalabashError(f"the database's schema cannot be read: {error!r}") from error


def _column(told: Any) -> ColumnType:
    if type(told) is str:
        return ColumnType(Cardinality.ONE, told)
    key = told["key"]
    basic, refers = (key, "") if type(key) is str else (key["type"], key.get("refTable", ""))
    if "value" in told:
        value = told["value"]
        return ColumnType(Cardinality.MAP, basic, value if type(value) is str else value["type"], refers)
    least, most = told.get("min", 1), told.get("max", 1)
    shape = Cardinality.SET if most != 1 else Cardinality.ONE if least == 1 else Cardinality.OPTIONAL
    return ColumnType(shape, basic, "", refers)
