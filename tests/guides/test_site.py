"""`make site` builds the documentation site, and fails on a dead link or anchor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("docs", "examples", "tests", "tools")
BUILD_TIMEOUT_S = 300.0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files from which the site is built."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy2(path, tmp_path / path.name)
    return tmp_path


def _command() -> list[str]:
    """Return the command of the Makefile that builds the site."""
    recipe = subprocess.run(["make", "-n", "site"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in recipe.splitlines() if " mkdocs " in line)
    words = shlex.split(line)
    return [sys.executable, *words[words.index("python") + 1 :]]


def _build(tree: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.run(
        _command(), cwd=tree, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )


def test_site_has_the_start_page_generated_references_and_linked_sources(tree: Path) -> None:
    done = _build(tree)
    assert done.returncode == 0, done.stderr
    site = tree / "build" / "site"
    assert "How it works" in (site / "index.html").read_text()
    for name in ("reference/cli.html", "repository/ARCHITECTURE.html", "search/search_index.json"):
        assert (site / name).is_file(), name


@pytest.mark.parametrize("link", ["none.md", "tests.md#none"])
def test_dead_link_or_anchor_fails_the_build(tree: Path, link: str) -> None:
    page = tree / "docs" / "contributing" / "inner-loop.md"
    page.write_text(f"{page.read_text()}\n[dead]({link})\n")
    done = _build(tree)
    assert done.returncode != 0
    assert link in done.stderr
