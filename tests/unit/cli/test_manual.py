"""Man pages and shell completion, generated from the command tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from calabash.cli.commands import SECTIONS, cli
from calabash.cli.manual import SHELLS, commands, man_pages

_MACROS = {"TH", "SH", "PP", "TP", "B", "BR", "nf", "fi"}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(man_pages(cli, "calabash"))


def test_every_command_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    found = list(commands(cli, ("calabash",)))
    assert set(pages) == {f"{'-'.join(path)}.1" for path, _ in found}
    for path, context in found:
        text = pages[f"{'-'.join(path)}.1"]
        assert text.startswith(".TH ")
        assert ".SH NAME\n" in text
        for parameter in context.command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1].replace("-", "\\-") in text, (path, parameter.opts)


def test_page_of_the_product_has_the_exit_codes(pages: dict[str, str]) -> None:
    listed = pages["calabash.1"].partition(".SH EXIT STATUS\n")[2]
    assert re.findall(r"^\.B (\d+)$", listed, flags=re.MULTILINE) == ["0", "1", "2", "3", "4", "5", "6", "130"]


def test_pages_use_known_macros_only_and_escape_text(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for line in text.splitlines():
            assert line, name
            if line.startswith((".", "'")):
                assert line.split()[0][1:] in _MACROS, (name, line)
            assert not re.search(r"\\(?![-e&(])", line), (name, line)


def test_formatter_has_no_warnings(pages: dict[str, str], tmp_path: Path) -> None:
    groff = shutil.which("groff")
    chosen = {n: t for n, t in pages.items() if n in {"calabash.1", "calabash-run.1", "calabash-net-lb-create.1"}}
    assert len(chosen) == 3
    for name, text in chosen.items():
        (tmp_path / name).write_text(text)
        if groff:
            done = subprocess.run(
                [groff, "-man", "-ww", "-Tutf8", name], cwd=tmp_path, capture_output=True, text=True, check=True
            )
            assert done.stderr == ""
            assert "calabash" in done.stdout


def test_examples_are_not_filled(pages: dict[str, str]) -> None:
    assert ".nf\ncalabash run \\-\\-memory 8GiB \\-\\- python train.py\n" in pages["calabash-run.1"]
    assert all("\b" not in text for text in pages.values())


def test_man_writes_the_pages_of_both_programs(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["man", str(tmp_path / "man1")])
    assert done.exit_code == 0
    assert (tmp_path / "man1" / "calabash-net-vpc-create.1").is_file()
    assert (tmp_path / "man1" / "kubectl-calabash-why.1").is_file()


def completed(tmp_path: Path, *words: str) -> list[str]:
    """Return what bash completes after these words, by the generated script."""
    script = CliRunner().invoke(cli, ["completion", "bash"]).stdout
    (tmp_path / "calabash").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m calabash.cli.main "$@"\n')
    (tmp_path / "calabash").chmod(0o755)
    (tmp_path / "script").write_text(script)
    line = " ".join(f"'{word}'" for word in ("calabash", *words))
    program = (
        f'. ./script; PATH="$PWD:$PATH"; COMP_WORDS=({line}); COMP_CWORD={len(words)};'
        f" _calabash_completion calabash; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_of_every_level(tmp_path: Path) -> None:
    names = {name for section in SECTIONS.values() for name in section}
    assert set(completed(tmp_path, "")) == names
    assert completed(tmp_path, "ten") == ["tenant"]
    assert completed(tmp_path, "net", "vp") == ["vpc"]
    assert "plugin-relay" in completed(tmp_path, "serve", "")


def test_bash_completes_options_and_choices_and_former_names(tmp_path: Path) -> None:
    assert "--memory" in completed(tmp_path, "run", "--mem")
    assert set(completed(tmp_path, "completion", "")) == set(SHELLS)
    assert "create" in completed(tmp_path, "vpc", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_script_of_each_shell_calls_the_program(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_CALABASH_COMPLETE" in done.stdout
