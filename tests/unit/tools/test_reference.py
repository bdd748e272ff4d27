"""Generated reference pages are current."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import click
import pytest
from tools import reference, reference_http, reference_settings
from tools.environment_reads import read_variables, variables_of_module
from tools.reference_gangs import gangs_page
from tools.reference_glossary import glossary_page
from tools.reference_metrics import metrics_page
from tools.reference_networks import networks_page
from tools.reference_reasons import parts_of_reasons, reasons_page
from tools.reference_settings import environment_page, pool_settings_page, setting_rows
from tools.reference_states import MACHINES, states_page
from tools.reference_versions import versions_page

from calabash.api.requests import AllocationRequest
from calabash.api.routes import ROUTES
from calabash.cli.commands import cli
from calabash.cli.manual import commands
from calabash.exporter.catalogue import CATALOGUE
from calabash.kubernetes.gangs.table import OWNERS
from calabash.model.errors import REASON_ACTIONS, REASON_DESCRIPTIONS, Reason
from calabash.model.network import NetworkKind
from calabash.model.versions import FORMATS
from calabash.platform.home.limits import RetentionSettings

PAGES = Path(__file__).resolve().parents[3] / "docs" / "reference"


def test_the_pages_are_what_the_product_says_now() -> None:
    assert (PAGES / "cli.md").read_text() == reference.cli_page(), "run: make docs"
    assert (PAGES / "reasons.md").read_text() == f"{reference._GENERATED}{reasons_page()}", "run: make docs"
    assert (PAGES / "environment.md").read_text() == f"{reference._GENERATED}{environment_page()}", "run: make docs"
    assert (PAGES / "pool-settings.md").read_text() == f"{reference._GENERATED}{pool_settings_page()}", "run: make docs"


def test_every_reason_has_a_meaning_an_action_and_a_place() -> None:
    parts = parts_of_reasons()
    for reason in Reason:
        assert REASON_DESCRIPTIONS[reason].endswith("."), reason
        assert REASON_ACTIONS[reason].endswith("."), reason
        assert parts[reason], reason


def test_every_key_of_pool_toml_has_a_meaning() -> None:
    sections = {heading: rows for heading, _, rows in setting_rows()}
    assert set(sections) >= {"[user]", "[console.oidc]", "[[console.oidc.groups]]", "[tenants.NAME]"}
    assert [f"{heading} {row[0]}" for heading, rows in sections.items() for row in rows if not row[3]] == []
    assert {row[0] for row in sections["[journal]"]} == set(RetentionSettings.__struct_fields__)


def test_reads_of_environment_variables_are_found_in_every_form() -> None:
    text = """
import os
NAME = "BY_CONSTANT"
os.environ["SUBSCRIPT"], os.environ.get("GET"), os.environ.pop("POP", ""), os.getenv("GETENV", "")
os.environ.get(NAME), "COMPARED" in os.environ, option("--x", envvar="OPTION")
os.environ["WRITTEN"] = "1"
del os.environ["DELETED"]
"""
    assert set(variables_of_module(ast.parse(text), {})) == {
        *("SUBSCRIPT", "GET", "POP", "GETENV", "BY_CONSTANT", "COMPARED", "OPTION")
    }


def test_variable_that_the_page_does_not_list_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_settings, "read_variables", lambda: read_variables() | {"CALABASH_NEW"})
    with pytest.raises(ValueError, match="CALABASH_NEW"):
        environment_page()


def test_the_page_of_metrics_is_what_the_catalogue_says_now() -> None:
    page = (PAGES / "metrics.md").read_text()
    assert page == f"{reference._GENERATED}{metrics_page()}", "run: make docs"
    assert all(f"| `{spec.name}` |" in page for spec in CATALOGUE)


def test_the_page_of_state_machines_is_what_the_tables_say_now() -> None:
    page = (PAGES / "state-machines.md").read_text()
    assert page == f"{reference._GENERATED}{states_page()}", "run: make docs"
    assert all(f"| `{stage}` |" in page for machine in MACHINES for stage in machine.stages)


def test_the_page_of_network_objects_is_what_the_nouns_say_now() -> None:
    page = (PAGES / "network-objects.md").read_text()
    assert page == f"{reference._GENERATED}{networks_page()}", "run: make docs"
    assert all(f"\n## {kind}\n" in page for kind in NetworkKind)


def test_the_page_of_gang_owners_is_what_the_table_says_now() -> None:
    page = (PAGES / "gang-owners.md").read_text()
    assert page == f"{reference._GENERATED}{gangs_page()}", "run: make docs"
    assert all(f"| `{owner.kind}`, `{owner.group}` " in page for owner in OWNERS)


def test_the_page_of_versions_is_what_the_formats_say_now() -> None:
    page = (PAGES / "versions.md").read_text()
    assert page == f"{reference._GENERATED}{versions_page()}", "run: make docs"
    assert all(f"| {one.name} {one.supported} |" in page for one in FORMATS)


def test_glossary_page_is_generated_from_the_table_that_the_check_reads() -> None:
    page = (PAGES / "glossary.md").read_text()
    assert page == f"{reference._GENERATED}{glossary_page()}", "run: make docs"


def test_the_pages_of_the_http_api_are_what_its_shapes_say_now() -> None:
    for path, text in reference_http.pages(PAGES):
        assert path.read_text() == text, f"{path.name} is not current; run: make docs"


def test_the_openapi_document_refers_only_to_what_it_has() -> None:
    document = json.loads((PAGES / "openapi.json").read_text())
    assert document["openapi"].startswith("3.1")
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert len(set(names)) > 20
    assert set(names) <= set(document["components"]["schemas"])
    operations = [o["operationId"] for path in document["paths"].values() for o in path.values()]
    assert len(operations) == len(set(operations)) == len(ROUTES)


def test_every_field_of_a_request_for_a_slice_has_a_meaning() -> None:
    section = (PAGES / "pool-api.md").read_text().partition("## Request a slice")[2].partition("## Request types")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE)
    assert {name for name, meaning in rows if meaning.strip()} == set(AllocationRequest.__struct_fields__)


def test_every_command_has_a_heading_and_every_reason_a_row() -> None:
    page = (PAGES / "cli.md").read_text()
    paths = [" ".join(path) for path, _ in commands(cli, ("calabash",))]
    assert len(paths) > 20
    assert all(f"\n## {path}\n" in page for path in paths)
    reasons = (PAGES / "reasons.md").read_text()
    assert all(f"| `{reason}` |" in reasons for reason in Reason)


def test_every_command_says_what_it_does() -> None:
    for path, context in commands(cli, ("calabash",)):
        command = context.command
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.name == "version" or parameter.help or parameter.metavar or parameter.default, path


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((PAGES.parents[1] / "pyproject.toml").read_text())
    named = [
        *project["project"]["dependencies"],
        *(d for group in project["dependency-groups"].values() for d in group if isinstance(d, str)),
    ]
    page = (PAGES / "dependencies.md").read_text()
    for requirement in named:
        package = requirement.split("[")[0].split(">")[0].split("=")[0].split("~")[0].strip()
        assert package in page, f"{package} is not in docs/reference/dependencies.md"
