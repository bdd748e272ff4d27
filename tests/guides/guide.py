"""Executable how-to guides: the fenced blocks of a guide are files of a copy of this tree, and commands in it.

Two kinds of blocks count; all others are for reading::

    ```python src/calabash/sharing/pairs.py      a new file with this content
    ```text native/shim/hooks.txt append         these lines at the end of a file that is there
    ```c native/sim/nvml/identity.c append
    ```console
    $ command                                    run in the copy; it must succeed
    line                                         and must print this line, in this order (... stands for any lines)
    ```
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "native", "tests", "bench", "tools", "examples", "pyproject.toml", "Makefile")
COMMAND_TIMEOUT_S = 240.0
_FENCE = re.compile(r"^```(?P<language>\w+)(?: (?P<path>\S+/\S+|\S+\.\w+))?(?: (?P<how>append))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that the reader writes, or lines that the reader adds to one."""

    path: str
    content: str
    append: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that the reader types, and lines of its output."""

    line: str
    expected: tuple[str, ...]


def steps_of(text: str) -> list[WrittenFile | Command]:
    """Return the steps of the guide, in order."""
    steps: list[WrittenFile | Command] = []
    for fence, body in _blocks(text):
        if fence["language"] == "console":
            steps.extend(_commands(body))
        elif fence["path"]:
            content = "\n".join(body) + "\n"
            steps.append(WrittenFile(path=fence["path"], content=content, append=fence["how"] == "append"))
    return steps


def _blocks(text: str) -> Iterator[tuple[re.Match[str], list[str]]]:
    fence: re.Match[str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        if fence is None:
            fence = _FENCE.match(line)
            assert fence or not line.startswith("```") or line == "```", f"a fence that says nothing: {line!r}"
            body = []
        elif line == "```":
            yield fence, body
            fence = None
        else:
            body.append(line)
    assert fence is None, "a fence is not closed"


def _commands(body: list[str]) -> Iterator[Command]:
    line, expected = "", list[str]()
    for text in [*body, "$ "]:
        if text.startswith("$ "):
            if line:
                yield Command(line=line, expected=tuple(expected))
            line, expected = text[2:], []
        elif text != "...":
            expected.append(text)


class Copy:
    """A copy of this tree in which a guide is followed; built files are copied with their times, so that little is rebuilt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, symlinks=True)
            else:
                shutil.copy2(source, root / name)
        shutil.copytree(ROOT / "build" / "native", root / "build" / "native", symlinks=True)
        (root / ".venv").symlink_to(ROOT / ".venv")

    def write(self, step: WrittenFile) -> None:
        """Write a file, or add lines to one, as the guide says."""
        path = self.root / step.path
        assert path.exists() == step.append, f"{step.path} {'is not there' if step.append else 'is there already'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if step.append else ""
        path.write_text(before + step.content)

    def run(self, command: Command) -> None:
        """Run a command; check that it succeeds and prints the lines that the guide shows."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        home = self.root / "home"
        environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(self.root / "src"),
            "CALABASH_HOME": str(home),
            "COLUMNS": "140",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.line],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"$ {command.line}\n{done.stdout}"
        printed = iter(done.stdout.splitlines())
        for line in command.expected:
            assert any(line.rstrip() == seen.rstrip() for seen in printed), (
                f"$ {command.line}\nno {line!r} in:\n{done.stdout}"
            )
