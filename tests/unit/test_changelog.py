"""The change log: names and text of the fragments, the section of the present version, and the commands that it names."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import click
import pytest

import calabash
from calabash.cli.commands import cli
from calabash.cli.kubectl.group import cli as kubectl

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = ROOT / "changelog.d"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.(added|changed|fixed|removed|security)\.md")
_COMMAND = re.compile(r"`(kubectl calabash|calabash)((?: [a-z|-]+)*)")
_SECTION = re.compile(r"^## (\S+)$", re.MULTILINE)


def problem_of_fragment(name: str, text: str) -> str:
    """Return what is wrong with a fragment, or ""."""
    if not _NAME.fullmatch(name):
        return f"{name}: its name is not <name>.<added|changed|fixed|removed|security>.md"
    if not text.strip():
        return f"{name} is empty"
    return f"{name} has a heading; a fragment is one or two sentences" if re.search(r"^#", text, re.MULTILINE) else ""


def unknown_commands(text: str) -> list[str]:
    """Return the commands in ``text``, between backquotes, that the command tree does not have or hides.

    ``a|b`` names two commands. Words after the last command of a path are arguments.
    """
    unknown = []
    for start, words in _COMMAND.findall(text.replace("\n  ", " ")):
        paths = itertools.product(*(word.split("|") for word in words.split()))
        unknown += [" ".join((start, *path)) for path in paths if not _is_command(start, path)]
    return unknown


def _is_command(start: str, path: tuple[str, ...]) -> bool:
    command: click.Command = kubectl if start.startswith("kubectl") else cli
    context = click.Context(command, info_name=start)
    for word in path:
        if not isinstance(command, click.Group) or word.startswith("-"):
            return True
        child = command.get_command(context, word)
        if child is None or child.hidden:
            return False
        command = child
    return True


def test_each_fragment_has_a_kind_and_a_text() -> None:
    found = [path for path in FRAGMENTS.iterdir() if path.name != "README.md"]
    assert not [why for path in found if (why := problem_of_fragment(path.name, path.read_text()))]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("slot-names.fixed.md", "A slot has a random name.", ""),
        ("slot-names.md", "A slot has a random name.", "its name is not"),
        ("slot-names.repaired.md", "A slot has a random name.", "its name is not"),
        ("slot-names.fixed.md", "\n", "is empty"),
        ("slot-names.fixed.md", "# Slots\n", "has a heading"),
    ],
)
def test_fragment_of_another_form_is_reported(name: str, text: str, problem: str) -> None:
    found = problem_of_fragment(name, text)
    assert problem in found if problem else not found


def test_the_change_log_begins_with_the_present_version() -> None:
    versions = _SECTION.findall((ROOT / "CHANGELOG.md").read_text())
    assert versions[0] == calabash.__version__
    assert len(set(versions)) == len(versions)


def test_the_commands_in_the_change_log_exist() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert len(_COMMAND.findall(text)) > 20
    assert not unknown_commands(text)


def test_a_command_that_does_not_exist_or_is_hidden_is_found() -> None:
    text = "`calabash device mig show|cut`, `calabash run --cores 3`, and\n  `kubectl calabash\n  drain`, `calabash vpc list`"
    assert unknown_commands(text) == ["calabash device mig cut", "calabash vpc list"]
