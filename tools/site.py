"""Hooks of the documentation site (mkdocs.yml): its navigation, and the files outside ``docs`` that pages link.

The navigation comes from the index pages (``README.md`` of each folder), so that it lists the pages as they do. Files of
the repository that pages link are part of the site too: Markdown files as pages, others as pages with their text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page as SitePage

from tools.links import INDEX, ROOT, Page, read_page

DOCS = ROOT / "docs"
SECTIONS = ("tutorial", "how-to", "concepts", "reference", "measurements", "adr", "contributing")
REPOSITORY = "repository"  # folder of the site with files from outside docs
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".c": "c", ".h": "c", ".sh": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    config.nav = [INDEX, *(section_navigation(DOCS / name / INDEX) for name in SECTIONS)]
    return config


def section_navigation(index: Path) -> dict[str, list[Any]]:
    """Return the navigation of one folder: its index, and the pages that the index lists, by heading."""
    page = read_page(index)
    entries: list[Any] = [_site_path(index)]
    groups: dict[str, list[dict[str, str]]] = {}
    for link in page.links:
        if link.target.suffix == ".md" and (link.target.parent == index.parent or not link.target.is_relative_to(DOCS)):
            group = groups.setdefault(link.section, [])
            group.append({link.text: _site_path(link.target)})
    for heading, pages in groups.items():
        entries += [{heading: pages}] if heading else pages
    return {page.title: entries}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside ``docs`` that pages link, and those that these link."""
    for target in sorted(_linked_from_site()):
        text = target.read_text()
        if target.suffix != ".md":
            text = f"# {target.relative_to(ROOT)}\n\n````{_LANGUAGES.get(target.suffix, 'text')}\n{text}\n````\n"
        files.append(File.generated(config, _site_path(target), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: SitePage, config: MkDocsConfig, files: Files) -> str:
    """Replace links from and to files outside ``docs`` by links between pages of the site."""
    del config, files
    name = page.file.src_uri
    source = ROOT / name.removeprefix(f"{REPOSITORY}/") if name.startswith(f"{REPOSITORY}/") else DOCS / name
    if source.suffix != ".md" or not source.exists():
        return markdown
    here = os.path.dirname(name)
    for link in read_page(source).links:
        if link.href.startswith("#") or (source.is_relative_to(DOCS) and link.target.is_relative_to(DOCS)):
            continue
        anchor = f"#{link.anchor}" if link.anchor else ""
        markdown = markdown.replace(f"]({link.href})", f"]({os.path.relpath(_site_path(link.target), here)}{anchor})")
    return markdown


def _site_path(path: Path) -> str:
    """Return the path of a file of the repository in the site's sources."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    name = str(path.relative_to(ROOT))
    return f"{REPOSITORY}/{name}" if path.suffix == ".md" else f"{REPOSITORY}/{name}.md"


def _linked_from_site() -> set[Path]:
    """Return the files outside ``docs`` that a page of the site links, directly or through other such files."""
    found: set[Path] = set()
    waiting = list(_outside(read_page(path) for path in DOCS.rglob("*.md")))
    while waiting:
        target = waiting.pop()
        if target not in found:
            found.add(target)
            waiting += _outside([read_page(target)] if target.suffix == ".md" else [])
    return found


def _outside(pages: Iterator[Page] | list[Page]) -> Iterator[Path]:
    return (link.target for page in pages for link in page.links if not link.target.is_relative_to(DOCS))
