"""Navigation of the documentation site."""

from __future__ import annotations

from typing import Any

from tools.site import DOCS, SECTIONS, section_navigation


def _paths(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [path for part in entries for path in _paths(part)]


def test_navigation_has_every_page_of_docs() -> None:
    listed = {path for name in SECTIONS for path in _paths(section_navigation(DOCS / name / "README.md"))}
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert pages - listed == set()


def test_navigation_groups_pages_by_the_headings_of_the_index() -> None:
    (section,) = section_navigation(DOCS / "how-to" / "README.md").values()
    assert section[0] == "how-to/README.md"
    groups = {heading: _paths(pages) for entry in section[1:] for heading, pages in entry.items()}
    assert "how-to/mps.md" in groups["Sharing modes"]
    assert "how-to/install-on-kubernetes.md" in groups["Kubernetes"]
