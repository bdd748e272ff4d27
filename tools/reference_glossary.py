"""Page docs/reference/glossary.md, from the table of words that `make lint` checks."""

from __future__ import annotations

import tomllib
from typing import Any

from tools.language_rules import GLOSSARY

_HEAD = """\
# Glossary

Each term is used with its meaning here, in code, messages and pages. `make lint` checks docstrings, comments, messages and
names: words of the third column are refused for this meaning; words in parentheses have other meanings too, so that only
readers can refuse them.

| term | meaning | not |
|---|---|---|
"""
_VAGUE = """
## Other words that are refused

| words | instead |
|---|---|
"""
_OPENINGS = """
## First lines of docstrings

The first line of a docstring is an imperative ("Return the devices that are out of service.") or a noun phrase of the field.
It does not begin with one of these words:

| words | instead |
|---|---|
"""
_NAMES = """
## Names

These names cannot be searched for, and are refused for public functions and for modules:

| names of | refused |
|---|---|
"""
_ALLOWED = """
Identifiers that keep a refused word:

| identifier | reason |
|---|---|
"""


def glossary_page() -> str:
    """Return the page: one table each of terms, refused words, first words of docstrings and names."""
    table = tomllib.loads(GLOSSARY.read_text())
    terms = [f"| {t['term']} | {t['meaning']} | {_other_words(t)} |\n" for t in table["term"]]
    vague = [f"| {', '.join(v['words'])} | {v['write']} |\n" for v in table["vague"]]
    openings = [f"| {_opening_words(opening)} | {opening['write']} |\n" for opening in table["opening"]]
    generic = [f"| {kind} | {', '.join(f'`{name}`' for name in names)} |\n" for kind, names in table["generic"].items()]
    allowed = [f"| {', '.join(f'`{n}`' for n in a['names'])} | {a['reason']} |\n" for a in table["allowed"]]
    return "".join([_HEAD, *terms, _VAGUE, *vague, _OPENINGS, *openings, _NAMES, *generic, _ALLOWED, *allowed])


def _other_words(term: dict[str, list[str]]) -> str:
    refused = [*term.get("refused", []), *term.get("refused-in-names", [])]
    return ", ".join([*refused, *(f"({word})" for word in term.get("not-for-this", []))])


def _opening_words(opening: dict[str, Any]) -> str:
    words = ", ".join(opening["words"])
    return f"of {opening['only']}: {words}" if "only" in opening else words
