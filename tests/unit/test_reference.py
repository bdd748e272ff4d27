"""The reference pages are generated from the product and must be current."""

from __future__ import annotations

import tomllib
from pathlib import Path

import click
from tools import reference

from calabash.cli.commands import cli
from calabash.model.errors import Reason

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"


def test_the_pages_are_what_the_product_says_now() -> None:
    assert (PAGES / "cli.md").read_text() == reference.cli_page(), "run: make docs"
    assert (PAGES / "reasons.md").read_text() == reference.reasons_page(), "run: make docs"


def test_every_command_has_a_heading_and_every_reason_a_row() -> None:
    page = (PAGES / "cli.md").read_text()
    paths = [" ".join(path) for path, _ in reference.commands(cli, ("calabash",))]
    assert len(paths) > 20
    assert all(f"\n## {path}\n" in page for path in paths)
    reasons = (PAGES / "reasons.md").read_text()
    assert all(f"| `{reason}` |" in reasons for reason in Reason)


def test_every_command_says_what_it_does() -> None:
    for path, command in reference.commands(cli, ("calabash",)):
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.name == "version" or parameter.help or parameter.metavar or parameter.default, path


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((PAGES.parents[1] / "pyproject.toml").read_text())
    named = [
        *project["project"]["dependencies"],
        *(d for d in project["dependency-groups"]["dev"] if isinstance(d, str)),
    ]
    page = (PAGES / "dependencies.md").read_text()
    for requirement in named:
        package = requirement.split("[")[0].split(">")[0].split("=")[0].split("~")[0].strip()
        assert package in page, f"{package} is not in docs/reference/dependencies.md"
