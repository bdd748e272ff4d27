"""Find circular dependencies between the C files of `native/`.

    python -m tools.ccircles [FOLDER ...]

A unit is a `.c` file together with the `.h` of the same name. Unit A depends on unit B when a file of A includes a
header of B, or names a function that B defines for others (not `static`). Units that depend on each other, directly
or by way of others, are a circle: they cannot be understood, tested or linked apart. Circles are searched in each folder
by itself. The exit code is 1 if there is a circle.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"

_COMMENT_OR_TEXT = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")  # not a member
_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\(([^{};]*)\)[^{};=]*$", re.DOTALL)
_LOCAL = re.compile(r"(?:[A-Za-z_]\w*[\s*]+)([A-Za-z_]\w*)\s*(?=[=;,)\[])")
_WORDS = frozenset({"if", "while", "for", "switch", "return", "sizeof", "else"})


@dataclass(slots=True)
class Unit:
    """A `.c` file with its `.h`: names that they include, define for others, define as `static`, and use."""

    name: str
    includes: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)


def _bare(text: str) -> str:
    """Return the text without comments, strings and preprocessor lines other than macro bodies."""
    return _COMMENT_OR_TEXT.sub(lambda m: " " if m.group().startswith("/") else '""', text)


def _top_level(code: str) -> Iterable[str]:
    """Yield the text before each outermost brace, which includes the heads of functions."""
    depth, begin = 0, 0
    for at, mark in enumerate(code):
        if mark == "{":
            if depth == 0:
                yield code[begin:at]
            depth += 1
        elif mark == "}":
            depth -= 1
            begin = at + 1
        elif mark == ";" and depth == 0:
            begin = at + 1


def read_unit(unit: Unit, text: str) -> None:
    """Add one file's text to its unit."""
    unit.includes.update(Path(name).with_suffix("").as_posix() for name in _INCLUDE.findall(text))
    code = _bare(text)
    unit.named.update(_NAME.findall(code))
    code = _DIRECTIVE.sub("", code)
    for head in _top_level(code):
        found = _HEAD.search(head)
        if found and found[1] not in _WORDS:
            (unit.private if re.search(r"\bstatic\b", head) else unit.functions).add(found[1])
    unit.private.update(_LOCAL.findall(code))


def read_units(folder: Path) -> dict[str, Unit]:
    """Return the units below a folder by their relative path without suffix."""
    units: dict[str, Unit] = {}
    for path in sorted((*folder.rglob("*.c"), *folder.rglob("*.h"))):
        name = path.relative_to(folder).with_suffix("").as_posix()
        read_unit(units.setdefault(name, Unit(name)), path.read_text())
    return units


def arrows(units: Mapping[str, Unit]) -> dict[str, dict[str, set[str]]]:
    """Return, for each unit, the units that it depends on, each with the headers and functions that cause the dependency."""
    found: dict[str, dict[str, set[str]]] = {name: {} for name in units}
    owners: dict[str, set[str]] = {}
    for unit in units.values():
        for function in unit.functions:
            owners.setdefault(function, set()).add(unit.name)
    for unit in units.values():
        for include in unit.includes & units.keys() - {unit.name}:
            found[unit.name].setdefault(include, set()).add(f"#include {include}.h")
        for name in unit.named - unit.private - unit.functions:
            owner = owners.get(name, set())
            if len(owner) == 1 and unit.name not in owner:
                found[unit.name].setdefault(next(iter(owner)), set()).add(name)
    return found


def circles(found: Mapping[str, Mapping[str, object]]) -> list[list[str]]:
    """Return groups of units that reach each other (strongly connected components of more than one unit, by Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in found[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                groups.append(sorted(group))

    for name in found:
        if name not in index:
            visit(name)
    return sorted(groups)


def report(folder: Path, within: Iterable[str] = ()) -> list[str]:
    """Return one line for each circle and each dependency in it; ``within`` keeps circles in these folders."""
    found = arrows(read_units(folder))
    wanted = tuple(f"{name.rstrip('/')}/" for name in within)
    lines = []
    for group in circles(found):
        if wanted and not any(name.startswith(wanted) for name in group):
            continue
        folders = sorted({name.rpartition("/")[0] for name in group})
        lines.append(f"circle in {' and '.join(folders) or '.'}: {', '.join(group)}")
        for name in group:
            ties = sorted((other, sorted(found[name][other])) for other in set(group) & found[name].keys())
            lines += [f"  {name} -> {other}: {', '.join(tie)}" for other, tie in ties]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="ccircles", description="list circles between the C files of native/")
    parser.add_argument("folder", nargs="*", help="only circles that touch this folder of native/")
    lines = report(NATIVE, parser.parse_args().folder)
    if lines:
        print("\n".join(lines))
        print("error: C files depend on each other in circles", file=sys.stderr)
        print("hint: let the lower one keep a table in which the upper registers what it calls", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
