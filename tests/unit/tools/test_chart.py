"""Agreement of the chart with the product and with itself, as far as it can be checked without Helm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tools import chart, reference_chart

import calabash
from calabash.kubernetes.gangs.table import read_kinds, table_with

CHART = chart.CHART
PAGES = Path(__file__).resolve().parents[3] / "docs" / "reference"


def objects(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every part of a schema with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from objects(f"{path}.{name}", part)
    if isinstance(schema.get("items"), dict):
        yield from objects(f"{path}[]", schema["items"])


def schema() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return read


def test_the_chart_has_the_version_of_the_product() -> None:
    said = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (said["version"], said["appVersion"]) == (calabash.__version__, calabash.__version__)


def test_what_the_chart_has_from_the_product_is_what_the_product_says_now() -> None:
    for path, content in chart.files().items():
        assert path.read_text() == content, f"{path.name} is not current; run: make docs"


def test_role_of_admission_permits_to_get_exactly_the_kinds_that_lead_to_gang_owners() -> None:
    rules = chart.owner_rules()
    assert all(rule["verbs"] == ["get"] for rule in rules)
    permitted = {(group, plural) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}
    assert permitted == {(kind.group, kind.plural) for kind in read_kinds(table_with()).values()}


def test_every_value_is_described() -> None:
    parts = [(path, part) for path, part in objects("", schema()) if "[]" not in path or "properties" in part]
    assert len(parts) > 40
    assert [path for path, part in parts if not part.get("description")] == []


def test_no_group_of_values_takes_a_name_that_it_does_not_know() -> None:
    groups = [(path, part) for path, part in objects("", schema()) if "properties" in part]
    assert len(groups) > 10
    assert [path for path, part in groups if part.get("additionalProperties") is not False] == []


def test_every_value_of_the_schema_has_a_default_and_every_default_is_in_the_schema() -> None:
    def leaves(path: str, value: Any, known: Mapping[str, Any]) -> Iterator[str]:
        if isinstance(value, dict) and "properties" in known:
            for name, inner in value.items():
                yield from leaves(f"{path}.{name}" if path else name, inner, known["properties"].get(name, {}))
        else:
            yield path

    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    in_schema = {value.path for value in reference_chart.values()} - {"global"}
    assert set(leaves("", defaults, schema())) == in_schema


def test_the_page_of_values_is_what_the_schema_says_now() -> None:
    assert (PAGES / "helm-values.md").read_text().endswith(reference_chart.values_page()), "run: make docs"
