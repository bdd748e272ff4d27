"""Page of the chart's values: meanings from the schema, defaults from values.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent.parent / "charts" / "calabash"

_INTRODUCTION = """# Values of the chart

Set values with `--set NAME=VALUE` or in a file, `--values FILE`. Helm refuses unknown names and invalid values.

| value | meaning | default |
|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the chart: its path, its part of the schema and its default."""

    path: str
    schema: Mapping[str, Any]
    default: Any


def values() -> Iterator[Value]:
    """Yield every value that is no group of other values and no former name, in the order of the schema."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    yield from _below("", schema, yaml.safe_load((CHART / "values.yaml").read_text()))


def _below(path: str, schema: Mapping[str, Any], default: Any) -> Iterator[Value]:
    for name, part in schema["properties"].items():
        if part.get("deprecated"):
            continue
        inner = f"{path}.{name}" if path else name
        value = default.get(name) if isinstance(default, Mapping) else None
        if "properties" in part:
            yield from _below(inner, part, value)
        else:
            yield Value(path=inner, schema=part, default=value)


def values_page() -> str:
    """Return the page without its mark as generated."""
    return _INTRODUCTION + "".join(_row(value) for value in values() if value.path != "global")


def _row(value: Value) -> str:
    meaning = value.schema["description"]
    fields = value.schema.get("items", {}).get("properties")
    if fields:
        meaning += " Each has " + "; ".join(f"`{name}`: {_clause(part)}" for name, part in fields.items()) + "."
    choices = value.schema.get("enum")
    if choices:
        meaning += " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
    default = "" if value.default in (None, "") else f"`{json.dumps(value.default)}`"
    return f"| `{value.path}` | {meaning} | {default} |\n"


def _clause(part: Mapping[str, Any]) -> str:
    text: str = part["description"]
    return text[0].lower() + text[1:].rstrip(".")
