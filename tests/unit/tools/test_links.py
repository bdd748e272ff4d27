"""Links of the documentation: the check finds each kind of fault, and the pages of this repository have none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.links import ROOT, distances, findings, read_page, read_pages

START = ROOT / "docs" / "README.md"
CLICKS_MAX = 3
# Frequent tasks: the page that describes each, and words by which a reader recognises the answer.
TASKS = {
    "run a program on a slice": ("docs/tutorial/first-slice.md", "calabash run --memory"),
    "install as a service": ("docs/how-to/install.md", "calabash service install"),
    "give a team a quota": ("docs/how-to/tenants.md", "--guarantee"),
    "install on Kubernetes": ("docs/how-to/install-on-kubernetes.md", "helm install"),
    "find out why a pod waits": ("docs/how-to/find-out-why-a-request-waits.md", "kubectl calabash why"),
}


def test_pages_of_this_repository_have_no_dead_links_and_are_all_indexed() -> None:
    pages = read_pages()
    assert len(pages) > 150
    assert list(findings(pages)) == []


@pytest.mark.parametrize("task", TASKS)
def test_page_of_a_frequent_task_is_at_most_three_clicks_from_the_start_page(task: str) -> None:
    name, words = TASKS[task]
    assert words in (ROOT / name).read_text()
    assert distances(read_pages(), START)[ROOT / name] <= CLICKS_MAX


def _tree(root: Path, **files: str) -> Path:
    docs = root / "docs"
    (docs / "how-to").mkdir(parents=True)
    (docs / "README.md").write_text("# Start\n\n[How-to](how-to/README.md)\n")
    (docs / "how-to" / "README.md").write_text(
        "# Index\n\n## Group\n\n* [One](one.md): first\n* [Two](two.md): second\n"
    )
    (docs / "how-to" / "one.md").write_text("# One\n")
    (docs / "how-to" / "two.md").write_text(
        "# Two\n\n## Same\n\n## Same\n\n## A `code` heading: with [a link](one.md)\n"
    )
    for name, text in files.items():
        (docs / "how-to" / f"{name}.md").write_text(text)
    return root


def _found(root: Path) -> list[str]:
    return list(findings(read_pages(root), root))


def test_sound_tree_has_no_findings(tmp_path: Path) -> None:
    text = "# One\n\n[a](two.md#same) [b](two.md#same-1) [c](two.md#a-code-heading-with-a-link) [d](#one) [e](https://x/#y)\n"
    assert _found(_tree(tmp_path, one=text)) == []


def test_dead_link_and_dead_anchors_are_found(tmp_path: Path) -> None:
    found = _found(_tree(tmp_path, one="# One\n\n[a](three.md) [b](two.md#same-2) [c](#two) ![d](none.png)\n"))
    assert found == [
        "docs/how-to/one.md: link to three.md, which does not exist",
        "docs/how-to/one.md: link to two.md#same-2, which has no such heading",
        "docs/how-to/one.md: link to #two, which has no such heading",
        "docs/how-to/one.md: link to none.png, which does not exist",
    ]


def test_links_in_code_are_not_checked(tmp_path: Path) -> None:
    assert _found(_tree(tmp_path, one="# One\n\n`[a](none.md)`\n\n```\n[a](none.md)\n# no heading\n```\n")) == []


def test_page_that_its_index_does_not_list_is_found(tmp_path: Path) -> None:
    assert _found(_tree(tmp_path, three="# Three\n")) == ["docs/how-to/three.md: no entry in docs/how-to/README.md"]


def test_index_that_the_start_page_does_not_list_is_found(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    (root / "docs" / "README.md").write_text("# Start\n")
    assert _found(root) == ["docs/how-to/README.md: no entry in docs/README.md"]


def test_link_has_the_heading_above_it(tmp_path: Path) -> None:
    page = read_page(_tree(tmp_path) / "docs" / "how-to" / "README.md")
    assert [(link.text, link.section) for link in page.links] == [("One", "Group"), ("Two", "Group")]


def test_distance_is_the_least_number_of_clicks(tmp_path: Path) -> None:
    root = _tree(tmp_path, one="# One\n\n[two](two.md)\n")
    found = distances(read_pages(root), root / "docs" / "README.md")
    assert {path.name: clicks for path, clicks in found.items() if path.name != "README.md"} == {
        "one.md": 1 + 1,
        "two.md": 2,
    }
