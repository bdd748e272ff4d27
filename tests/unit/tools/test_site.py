"""Navigation of the documentation site, and its links to files outside docs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from tools.site import DOCS, SECTIONS, on_page_markdown, section_navigation


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


def _rewritten(name: str, markdown: str) -> str:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=name))
    return on_page_markdown(markdown, page, config=MkDocsConfig(), files=Files([]))


def test_link_from_docs_to_another_file_of_the_repository_leads_to_its_page_on_the_site() -> None:
    href = "../../ARCHITECTURE.md#where-to-change-what"
    assert f"]({href})" in (DOCS / "contributing" / "inner-loop.md").read_text()
    found = _rewritten("contributing/inner-loop.md", f"[a]({href}) [b](tests.md)")
    assert found == "[a](../repository/ARCHITECTURE.md#where-to-change-what) [b](tests.md)"


def test_link_to_a_source_file_leads_to_a_page_with_its_text() -> None:
    found = _rewritten("concepts/comparison.md", "[a](../../tests/daemons/test_every_mode.py)")
    assert found == "[a](../repository/tests/daemons/test_every_mode.py.md)"


def test_link_from_outside_docs_into_docs_leads_to_the_page() -> None:
    found = _rewritten("repository/ARCHITECTURE.md", "[a](docs/adr/README.md)")
    assert found == "[a](../adr/README.md)"
