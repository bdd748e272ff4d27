"""Check the links of all Markdown files, and that the indexes of the documentation list every page.

    python -m tools.links

Three rules hold: a link to a file of the repository names an existing file, its anchor is a heading of that file, and each
page below ``docs`` is linked from the index of its folder (``README.md``). Anchors are those of GitHub; the site
(`make site`) makes the same. Exits with 1 if there is a finding.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bench", "charts", "docs", "examples", "native", "src", "tests", "tools")
INDEX = "README.md"
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//")
_HTML_ANCHOR = re.compile(r"""<a [^>]*?(?:id|name)=["']([^"']+)["']""")
_HTML_TARGET = re.compile(r"""<(?:a|img) [^>]*?(?:href|src)=["']([^"']+)["']""")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to a file of the repository.

    Attributes:
        text: text of the link.
        href: target as the page writes it.
        target: the file or folder, as an absolute path.
        anchor: the part behind ``#``; "" for none.
        section: heading of the second level above the link.
    """

    text: str
    href: str
    target: Path
    anchor: str
    section: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Links and anchors of one Markdown file."""

    title: str
    links: tuple[Link, ...]
    anchors: frozenset[str]


def read_pages(root: Path = ROOT) -> dict[Path, Page]:
    """Return the Markdown files of a repository by path, in order."""
    files = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.md"))]
    return {path: read_page(path) for path in sorted(files)}


def read_page(path: Path) -> Page:
    """Read the links and anchors of one file."""
    title = section = ""
    links: list[Link] = []
    anchors: dict[str, None] = {}
    heading = ""
    for token in _MARKDOWN.parse(path.read_text()):
        if token.type == "heading_open":
            heading = token.tag
        children = [token] if token.type == "html_block" else token.children or []
        if token.type == "inline" and heading:
            text = _text(children)
            title, section = title or text, text if heading == "h2" else section
            _add_anchor(anchors, text)
            heading = ""
        for index, child in enumerate(children):
            if child.type in {"html_inline", "html_block"}:
                anchors.update(dict.fromkeys(_HTML_ANCHOR.findall(child.content)))
                found = [(href, "") for href in _HTML_TARGET.findall(child.content)]
            elif child.type == "link_open":
                found = [(str(child.attrs["href"]), _text(children[index:]))]
            else:
                found = [(str(child.attrs["src"]), child.content)] if child.type == "image" else []
            links += [_link(path, href, text, section) for href, text in found if not _ELSEWHERE.match(href)]
    return Page(title=title, links=tuple(links), anchors=frozenset(anchors))


def findings(pages: Mapping[Path, Page], root: Path = ROOT) -> Iterator[str]:
    """Yield one line for each dead link, each dead anchor, and each page that the index of its folder does not list."""
    for path, page in pages.items():
        name = path.relative_to(root)
        for link in page.links:
            if not link.target.exists():
                yield f"{name}: link to {link.href}, which does not exist"
            elif link.anchor and link.target in pages and link.anchor not in pages[link.target].anchors:
                yield f"{name}: link to {link.href}, which has no such heading"
    for path in pages:
        index = path.parent / INDEX if path.name != INDEX else path.parent.parent / INDEX
        if (root / "docs") not in index.parents:
            continue
        if index not in pages or path not in {link.target for link in pages[index].links}:
            yield f"{path.relative_to(root)}: no entry in {index.relative_to(root)}"


def distances(pages: Mapping[Path, Page], start: Path) -> dict[Path, int]:
    """Return the pages that a reader reaches from ``start`` with the least number of clicks to each."""
    found = {start: 0}
    waiting = deque([start])
    while waiting:
        path = waiting.popleft()
        for link in pages[path].links:
            if link.target in pages and link.target not in found:
                found[link.target] = found[path] + 1
                waiting.append(link.target)
    return found


def _link(page: Path, href: str, text: str, section: str) -> Link:
    name, _, anchor = unquote(href).partition("#")
    target = (page.parent / name).resolve() if name else page
    return Link(text=text, href=href, target=target, anchor=anchor, section=section)


def _text(tokens: list[Token]) -> str:
    """Return the text of inline tokens, up to the end of the link if the first one opens a link."""
    parts: list[str] = []
    for token in tokens:
        if token.type == "link_close" and tokens[0].type == "link_open":
            break
        parts.append(
            " " if token.type == "softbreak" else token.content if token.type in {"text", "code_inline"} else ""
        )
    return "".join(parts)


def _add_anchor(anchors: dict[str, None], heading: str) -> None:
    """Add the anchor that GitHub gives a heading: equal headings are numbered."""
    base = anchor = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
    number = 0
    while anchor in anchors:
        number += 1
        anchor = f"{base}-{number}"
    anchors[anchor] = None


def main() -> int:
    """Print the findings; return the exit code."""
    pages = read_pages()
    found = list(findings(pages))
    for line in found:
        print(line)
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
