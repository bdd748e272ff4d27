"""Promises of docs/concepts/enforcement.md: for each there is a test whose name is derived from its sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/concepts/enforcement.md"
HOLDS = {"yes", "no", "own user"}


def slug(sentence: str) -> str:
    """Return the name of the test of a sentence, without its first article."""
    return without_article("test_" + re.sub(r"[^a-z0-9]+", "_", sentence.lower().replace("'", "").strip(" .`")))


def without_article(name: str) -> str:
    return re.sub(r"^test_(an?|the)_", "test_", name)


def promises() -> list[tuple[str, list[str]]]:
    """Return every row of a table whose first column is headed "promise": the sentence, and the users for whom it holds."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == "promise":
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            found.append((cells[0], cells[1:]))
    return found


def names_in(directory: str) -> set[str]:
    names = set()
    for file in (ROOT / directory).rglob("test_*.py"):
        names |= {n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef)}
    return {without_article(name) for name in names if name.startswith("test_")}


def test_every_promise_of_the_page_is_a_test_of_that_name() -> None:
    known = names_in("tests")
    missing = [sentence for sentence, _ in promises() if slug(sentence) not in known]
    assert promises()
    assert missing == []


def test_every_attack_of_the_suite_stands_on_the_page() -> None:
    told = {slug(sentence) for sentence, _ in promises()}
    own = {"test_every_promise_of_the_page_is_a_test_of_that_name", "test_every_attack_of_the_suite_stands_on_the_page"}
    own |= {"test_every_promise_says_for_whom_it_holds", "test_no_promise_is_made_twice"}
    assert names_in("tests/hostile") - told - own == set()


def test_every_promise_says_for_whom_it_holds() -> None:
    assert [(sentence, cells) for sentence, cells in promises() if len(cells) != 3 or not set(cells) <= HOLDS] == []


def test_no_promise_is_made_twice() -> None:
    sentences = [sentence for sentence, _ in promises()]
    assert len(sentences) == len(set(sentences))
