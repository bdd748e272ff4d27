"""``tools/bootstrap`` in a tree of its own, with stand-ins for the programs that it calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Tree:
    """A tree that has the script, and programs that do as they are told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "programs"
        for folder in ("tools", "native", "programs", "src", ".venv/bin"):
            (root / folder).mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "bootstrap", root / "tools")
        (root / "pyproject.toml").write_text("")
        self.program("gcc", "echo /usr/lib/libssl.a")
        self.program("uv", "echo noise; echo more noise >&2")
        self.program("make", '[ -f native/built ] || { case "$*" in *-q*) exit 1;; esac; touch native/built; }')

        (root / ".venv/bin/python").symlink_to(
            self.program("python", 'echo "$*" "[$PYTHONDONTWRITEBYTECODE]" >>compilations')
        )

    def program(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def __call__(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "tools" / "bootstrap", *options],
            env={"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    if subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip("this machine's own python3 has no ensurepip, which set-up would install first")
    return Tree(tmp_path)


def test_each_step_is_a_line_with_its_time_and_the_last_line_says_what_to_try(tree: Tree) -> None:
    done = tree("--try")
    assert (done.returncode, done.stderr) == (0, "")
    *steps, last = done.stdout.splitlines()
    assert [re.sub(r" +\d+\.\d s$", "", step) for step in steps] == [
        "Python environment, in .venv",
        "compiled modules, in .venv and src",
        "C libraries, in src/calabash/_native",
    ]
    assert "try:" in last


def test_a_tree_that_is_in_place_is_left_alone_in_silence(tree: Tree) -> None:
    tree()
    done = tree()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_modules_are_compiled_whatever_the_environment_says_and_again_when_a_source_is_newer(tree: Tree) -> None:
    tree()
    compiled = (tree.root / "compilations").read_text()
    assert "-m compileall -q src []" in compiled
    assert "calabash.standalone.daemon" in compiled
    for stamp in (".calabash-synced", ".calabash-compiled"):
        os.utime(tree.root / ".venv" / stamp, (1, 1))
    os.utime(tree.root / "pyproject.toml", (0, 0))
    assert tree().stdout == ""
    (tree.root / "src/new.py").touch()
    assert "compiled modules" in tree().stdout
    assert tree().stdout == ""


def test_a_step_that_fails_shows_what_it_said_and_ends_the_set_up(tree: Tree) -> None:
    tree.program("uv", "echo no network; exit 3")
    done = tree("--try")
    assert done.returncode != 0
    assert done.stdout.rstrip().endswith("failed")
    assert done.stderr == "no network\n"


def test_kubernetes_for_the_tests_is_built_where_go_and_root_are(tree: Tree) -> None:
    tree.program("id", "echo 0")
    tree.program("apt-get", "exit 0")
    tree.program("go", "exit 0")
    tree.program("python", 'echo building "$@"')
    told = tree("--tests").stdout.splitlines()
    assert told[-3:] == [
        "building -m tests.kube.programs",
        "building -m tests.kube.charts",
        "building -m tests.contract.go_programs",
    ]
    assert tree("--kube").stdout.splitlines() == ["building -m tests.kube.programs"]
    assert "building" not in tree().stdout
    tree.program("id", "echo 1000")
    assert "building" not in tree("--tests").stdout
