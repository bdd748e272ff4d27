"""Tests of the pages for users of a release on Kubernetes: their commands use the files of the release."""

from __future__ import annotations

import re
from pathlib import Path

from tools import dist

import calabash

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to"
NAMES = ("install-on-kubernetes.md", "upgrade-kubernetes.md", "tenants-on-kubernetes.md", "use-resource-claims.md")
PLACEHOLDERS = re.compile(r"\b(NODE|FILE|ISSUER|VERSION)\b")  # a command with one is completed by the reader


def commands(page: str) -> list[str]:
    """Return the commands of a page, one a line; blocks with a language are for reading."""
    found, fence = [], ""
    for line in (PAGES / page).read_text().splitlines(keepends=True):
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence == "```\n":
            found.append(line)
    lines = re.sub(r"\\\n *", "", "".join(found)).splitlines()
    return [line for line in lines if not PLACEHOLDERS.search(line)]


def test_commands_use_no_file_of_the_source_tree() -> None:
    found = [(page, line) for page in NAMES for line in commands(page)]
    assert len(found) > 18
    assert [one for one in found if "charts/" in one[1] or one[1].startswith("make ")] == []


def test_files_in_the_commands_are_those_of_a_release(tmp_path: Path) -> None:
    chart = dist.write_chart(tmp_path)
    sums = dist.write_sums(tmp_path)
    image = f"calabash-{calabash.__version__}.oci.tar"
    words = [word for page in NAMES for line in commands(page) for word in re.split(r"[ :]", line)]
    assert {word for word in words if word.endswith((".tgz", ".tar"))} == {chart.name, image}
    assert sums.name in words
