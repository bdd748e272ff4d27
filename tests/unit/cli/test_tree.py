"""The command tree: named sections, a short top level, former names, and suggestions for unknown commands."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import calabash.cli
from calabash.cli import manual
from calabash.cli.commands import SECTIONS, cli
from calabash.cli.former import FORMER
from calabash.cli.kubectl.group import cli as kubectl
from calabash.cli.lazy import LazyGroup
from calabash.cli.main import main
from calabash.cli.remote import server

TOP_LEVEL_MAX = 31


def commands(group: click.Group) -> dict[tuple[str, ...], click.Command]:
    """Return all commands below a group, by their path."""
    return {path[1:]: context.command for path, context in manual.commands(group, ("calabash",)) if len(path) > 1}


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), prog_name="calabash")


def test_help_lists_every_command_once_in_a_named_section_with_one_line() -> None:
    said = run("--help").output
    names = [name for section in SECTIONS.values() for name in section]
    assert len(names) == len(set(names)) <= TOP_LEVEL_MAX
    assert names == cli.list_commands(click.Context(cli))
    lines = said.splitlines()
    for title, section in SECTIONS.items():
        assert f"{title}:" in lines
        for name, (_, text) in section.items():
            (line,) = [line for line in lines if line.split()[:1] == [name]]
            assert line.endswith(text), f"the help of {name} does not fit one line of 80 columns"


def test_every_command_of_the_package_is_in_a_section_of_the_help() -> None:
    reachable = {id(command) for tree in (cli, kubectl) for command in commands(tree).values()} | {id(cli), id(kubectl)}
    lost = []
    for module in pkgutil.walk_packages(calabash.cli.__path__, "calabash.cli."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, click.Command) and id(value) not in reachable:
                lost.append(f"{module.name}:{name}")
    assert lost == [], "add these commands to a section (SECTIONS in cli/commands.py) or to a group"


def test_no_command_is_added_to_a_group_with_sections_beside_them() -> None:
    groups = [c for c in (cli, *commands(cli).values()) if isinstance(c, LazyGroup)]
    assert len(groups) >= 3
    assert all(not group.commands for group in groups)


@pytest.mark.parametrize("name", FORMER)
def test_former_name_leads_to_the_help_of_the_present_command(name: str) -> None:
    assert tuple(name.split()) not in commands(cli), "a present command has this name"
    former = FORMER[name]
    if former.rewrite is None:
        path = [word for word in former.path.split() if not word.startswith("-")]
        assert tuple(path) in commands(cli)
    done = run(*name.split(), "--help")
    assert done.exit_code == 0
    assert done.stderr == f"warning: `calabash {name}` is deprecated; use `calabash {former.path}`\n"
    assert "deprecated" not in done.stdout


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("vpc peer red blue --routes 10.0.0.0/8", "net peer create red/blue --routes 10.0.0.0/8"),
        ("vpc peer red blue", "net peer create red/blue"),
        ("quota set red --limit 4", "tenant set red --limit 4"),
        ("quota set --project train red --limit 4", "tenant project set red --limit 4 train"),
        ("quota set red --project=train --weight 2", "tenant project set red --weight 2 train"),
        ("net fabric run --once", "serve fabric --once"),
        ("login-link", "login --link"),
    ],
)
def test_former_command_is_rewritten_to_the_present_words(former: str, present: str) -> None:
    context = click.Context(cli, info_name="calabash", resilient_parsing=True)
    assert cli._with_present_names(context, former.split()) == present.split()


def test_warning_of_a_former_name_is_not_in_json(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALABASH_HOME", str(tmp_path))
    done = run("simulate", "scenario", "/nosuch")
    assert done.stdout == ""
    listed = run("sim", "list", "-o", "json")
    assert json.loads(listed.stdout)["items"] == []


@pytest.mark.parametrize(
    ("typed", "near"),
    [("tenent", "tenant"), ("vcp", "net vpc"), ("plannr", "serve planner"), ("statsu", "status"), ("simulat", "sim")],
)
def test_unknown_command_names_the_nearest_one(typed: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([typed])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"error: no such command '{typed}'\nhint: did you mean ")
    assert near in said


def test_unknown_command_without_a_near_one_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "see `calabash --help`" in capsys.readouterr().err


ROOT = Path(__file__).resolve().parents[3]
_FORMER_FORM = re.compile(
    r"(?<!kubectl )(?<![\w.\-@])calabash[ \n]+("
    + "|".join(re.escape(name) for name in sorted(FORMER, key=len, reverse=True))
    + r")(?![\w/]|-\w|\.\w)|\[calabash, (?!serve,|uninstall,)[a-z]"
)
_NO_COMMANDS = {"calabash admission"}  # begin of the name of a certificate authority


@pytest.mark.parametrize("folder", ["docs", "charts", "src", "examples", "README.md", "SECURITY.md", "ARCHITECTURE.md"])
def test_product_and_pages_use_present_names_of_commands(folder: str) -> None:
    place = ROOT / folder
    files = (
        [place]
        if place.is_file()
        else [p for p in place.rglob("*.*") if p.suffix in {".py", ".md", ".yaml", ".html", ".txt"}]
    )
    assert files
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in files
        if path.name != "former.py" and "measurements" not in path.parts
        for match in _FORMER_FORM.finditer(path.read_text())
        if match.group() not in _NO_COMMANDS
    ]
    assert found == []


def test_server_of_remote_devices_is_started_by_its_present_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    class Ended:
        returncode = 1
        pid = 0

        def poll(self) -> int:
            return 1

    def start(*words: str, **_: object) -> Ended:
        started.append(words)
        return Ended()

    monkeypatch.setenv("CALABASH_HOME", str(tmp_path))
    monkeypatch.setattr(server, "start_module", start)
    monkeypatch.setattr(server, "_pool_is_up", lambda _: None)
    run("remote", "server", "up", "--listen", "127.0.0.1:0")
    ((_, *words),) = started
    assert words[:3] == ["remote", "server", "up"]
