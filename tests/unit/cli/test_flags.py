"""Flags of all commands: a flag has the same meaning and the same type of value wherever it occurs.

The table ``flags.toml`` has the type of value and the meanings of each flag. A new flag, or a known flag with another meaning,
needs a row there: choose a known flag with this meaning, or a new name, and run this module to write the table.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from calabash.cli.commands import cli
from calabash.cli.former import FORMER_OPTIONS
from calabash.cli.kubectl.group import cli as kubectl
from calabash.cli.manual import commands
from calabash.model.errors import CalabashError, Reason

TABLE = Path(__file__).with_name("flags.toml")
# Flags with several types of values, and the reason. No flag is added here.
SEVERAL_TYPES = {
    "--by": "fields to sum by; the usage of a pool is summed by several fields, that of a cluster by one of others",
    "--gpus": "the GPUs of a program, which are counted, and those of a simulated node, whose models are named too",
    "--server": "the server to use: before the command the pool's URL, after a command of remote devices a name",
}
# Options of commands that are followed by words of another program, which must not be taken for former options.
WITH_PROGRAMS = {"net ctl", "run"}
ROOT = Path(__file__).resolve().parents[3]
_COMMAND_LINE = re.compile(r"calabash ((?:[^`\n\\|;&]|\\\n|(?<=[a-z\-])\n(?=[ #]*-))*)")


def value_type(option: click.Option) -> str:
    """Return the type of an option's value as its help shows it."""
    if option.is_flag:
        return "flag"
    if isinstance(option.type, click.Choice):
        return "choice"
    return option.metavar or option.type.name


def meanings() -> dict[str, dict[str, list[str]]]:
    """Return the meanings of each flag, by the type of its value."""
    found: dict[str, dict[str, list[str]]] = {}
    for tree, name in ((cli, "calabash"), (kubectl, "kubectl calabash")):
        for _, context in commands(tree, (name,)):
            for option in context.command.params:
                if isinstance(option, click.Option) and not option.hidden:
                    texts = found.setdefault(max(option.opts, key=len), {}).setdefault(value_type(option), [])
                    if (option.help or "") not in texts:
                        texts.append(option.help or "")
    return {flag: {kind: sorted(texts) for kind, texts in sorted(found[flag].items())} for flag in sorted(found)}


def as_toml(table: dict[str, dict[str, list[str]]]) -> str:
    """Return the table as TOML."""
    lines = [
        "# Flag -> type of its value -> meanings, as help shows them. Written by: python -m tests.unit.cli.test_flags"
    ]
    for flag, kinds in table.items():
        lines.append(f'\n["{flag}"]')
        lines += [
            f"{json.dumps(kind)} = {json.dumps(texts, indent=2, ensure_ascii=False)}" for kind, texts in kinds.items()
        ]
    return "\n".join(lines) + "\n"


def test_every_flag_has_the_meanings_of_the_table() -> None:
    assert meanings() == tomllib.loads(TABLE.read_text())


def test_no_further_flag_has_values_of_several_types() -> None:
    assert {flag for flag, kinds in meanings().items() if len(kinds) > 1} == SEVERAL_TYPES.keys()
    assert len(SEVERAL_TYPES) <= 3


def test_json_is_written_by_the_output_option_only() -> None:
    assert not {"--json", "--yaml"} & meanings().keys()


@pytest.mark.parametrize("path", FORMER_OPTIONS)
def test_former_options_are_not_options_and_the_present_ones_are(path: str) -> None:
    known = {" ".join(found[1:]): context.command for found, context in commands(cli, ("calabash",))}
    options = {name for p in known[path].params if isinstance(p, click.Option) for name in p.opts}
    for former, present in FORMER_OPTIONS[path].items():
        assert former not in options
        assert present.partition("=")[0] in options
    assert path not in WITH_PROGRAMS


def test_former_option_is_read_with_a_warning_on_standard_error() -> None:
    done = CliRunner().invoke(cli, ["up", "--strangers", "perhaps"], prog_name="calabash")
    assert done.stderr.startswith("warning: option --strangers is deprecated; use --unmanaged\n")
    assert done.exit_code == 2
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("given", "present"),
    [
        ("net lb create red/web --vip 10.0.1.100:80 --to web1:80", "--backends"),
        ("net route set red/lab --from 10.0.0.0/8", "--source"),
        ("net gateway create red/out --eip 198.51.100.7", "--address"),
        ("device set 0 --spill on", "--allow-spill"),
        ("user token create --login", "--link"),
        ("notify create hook --on budget", "--event"),
    ],
)
def test_former_option_means_the_present_one(
    given: str, present: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALABASH_HOME", str(tmp_path))  # no pool runs there
    done = CliRunner().invoke(cli, given.split(), prog_name="calabash")
    (options,) = [options for path, options in FORMER_OPTIONS.items() if given.startswith(f"{path} ")]
    (former,) = [name for name in options if name in given.split() and options[name] == present]
    assert done.stderr == f"warning: option {former} is deprecated; use {present}\n"
    assert isinstance(done.exception, CalabashError)
    assert done.exception.reason is Reason.POOL_DOWN


def test_pages_and_product_use_present_options() -> None:
    files = [p for folder in ("docs", "src", "charts", "examples") for p in (ROOT / folder).rglob("*.*")]
    found = []
    for path in [*files, *ROOT.glob("*.md")]:
        if path.suffix in {".py", ".md", ".yaml", ".html"} and "measurements" not in path.parts:
            for line in _COMMAND_LINE.findall(path.read_text()):
                words = line.split()
                for at in range(1, 5):
                    former = FORMER_OPTIONS.get(" ".join(words[:at]), {})
                    found += [f"{path.relative_to(ROOT)}: {line}" for word in words if word in former]
    assert found == []


if __name__ == "__main__":
    TABLE.write_text(as_toml(meanings()))
