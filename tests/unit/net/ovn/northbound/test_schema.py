"""Conformity of rows to the schema of OVN: every table, column and type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.net import needs
from tests.unit.net.sample_tenants import HOSTS, sample_tenants

from calabash.controllers.lab import programs
from calabash.net.ovn.northbound.rows import Ref, Rows, Value
from calabash.net.ovn.northbound.tables import TABLES
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.vpc import vpc_rows

_PYTHON = {"string": str, "integer": int, "boolean": bool}


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Any]:
    needs.need(packets=False)
    found = programs.find()
    assert found is not None
    read: Mapping[str, Any] = json.loads(found.schema("nb").read_text())["tables"]
    return read


@pytest.fixture(scope="module")
def all_rows() -> Rows:
    networks = sample_tenants()
    rows: dict[Ref, Mapping[str, Value]] = dict(platform_rows(networks))
    for vpc in ("red", "blue", "green"):
        rows.update(vpc_rows(networks, vpc, hosts=HOSTS))
    return rows


def test_owned_columns_and_their_defaults_match_the_schema(tables: Mapping[str, Any]) -> None:
    for name, table in TABLES.items():
        columns = tables[name]["columns"]
        assert table.named == ("name" in columns and name not in {"ACL", "NB_Global"}), name
        for column, default in table.columns.items():
            assert _shape(columns[column]["type"]) == _kind(default, columns[column]["type"]), (name, column)


def test_sample_tenants_have_rows_in_every_owned_table(all_rows: Rows) -> None:
    assert {row.table for row in all_rows} == set(TABLES)


def test_every_value_matches_the_schema(tables: Mapping[str, Any], all_rows: Rows) -> None:
    for row, columns in all_rows.items():
        for column, value in columns.items():
            kind = tables[row.table]["columns"][column]["type"]
            assert _fits(value, kind), f"{row.table} {row.key}: {column} is {value!r}, and may be {kind}"


def _shape(kind: Any) -> str:
    if isinstance(kind, str) or kind.get("min", 1) == kind.get("max", 1) == 1:
        return "one"
    if "value" in kind:
        return "map"
    return "set" if kind["max"] == "unlimited" else "optional"


def _kind(value: Value, kind: Any) -> str:
    if isinstance(value, Mapping):
        return "map"
    if isinstance(value, frozenset):
        return "set"
    return "optional" if value is None or _shape(kind) == "optional" else "one"


def _fits(value: Value, kind: Any) -> bool:
    match _shape(kind):
        case "map":
            return isinstance(value, Mapping) and all(
                _atom(key, kind["key"]) and _atom(content, kind["value"]) for key, content in value.items()
            )
        case "set":
            return isinstance(value, frozenset) and all(_atom(item, kind["key"]) for item in value)
        case "optional":
            return value is None or _atom(value, kind["key"])
    return _atom(value, kind if isinstance(kind, str) else kind["key"])


def _atom(value: object, kind: Any) -> bool:
    base = kind if isinstance(kind, str) else kind["type"]
    if base == "uuid":
        return isinstance(value, Ref) and value.table == kind["refTable"]
    if type(value) is not _PYTHON[base]:
        return False
    rules: Mapping[str, Any] = {} if isinstance(kind, str) else kind
    if "enum" in rules and value not in rules["enum"][1]:
        return False
    if isinstance(value, int) and not rules.get("minInteger", value) <= value <= rules.get("maxInteger", value):
        return False
    return not isinstance(value, str) or len(value) <= rules.get("maxLength", len(value))
