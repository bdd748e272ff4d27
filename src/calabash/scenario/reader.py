"""Parser of scenario files: text to statements, with errors of the form ``file:line: message``.

A statement begins with a keyword in the first column; indented lines continue it; ``#`` begins a comment. The format is
described in ``docs/reference/scenario-format.md``. Every unknown word is an error with a hint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from calabash.model.errors import CalabashError
from calabash.model.units import parse_seconds
from calabash.scenario.clusters import read_nodes, read_options, read_queues
from calabash.scenario.expectations import read_shares, read_then, read_why
from calabash.scenario.mig import read_geometry, read_stands
from calabash.scenario.parsing import (
    ScenarioReader,
    expand,
)
from calabash.scenario.requests import read_asks, read_has
from calabash.scenario.statements import (
    AfterLine,
    Scenario,
    ScenarioError,
    SharesLine,
    ThenLine,
    VerbLine,
    WhyLine,
)
from calabash.scenario.topology import read_levels


def parse_scenario(text: str, *, path: str = "scenario") -> Scenario:
    """Parse the text of a scenario file. Raises ScenarioError.

    Args:
        path: name of the file, for error messages.
    """
    reader = ScenarioReader(path=path)
    keyword = ""
    for number, raw in enumerate(text.splitlines(), 1):
        reader.number = number
        line = _uncommented(raw)
        if not line.strip():
            continue
        if not line[0].isspace():
            keyword, _, rest = line.partition(" ")
            if keyword not in _READERS:
                raise reader.fail(f"{keyword!r} is not a keyword", hint=f"use one of: {', '.join(_READERS)}")
            reader.opens_statement = True
        else:
            if not keyword:
                raise reader.fail("the first line is indented", hint="begin with a keyword: rule ...")
            rest, reader.opens_statement = line, False
        try:
            _READERS[keyword](reader, rest.strip())
        except ScenarioError:
            raise
        except CalabashError as error:
            raise reader.fail(error.message, hint=error.hint) from None
    if not reader.rule:
        raise reader.fail("the file has no rule", hint="state in one line the rule that the file tests: rule ...")
    if not any(isinstance(s, ThenLine | WhyLine | SharesLine) for _, s in reader.statements):
        raise reader.fail("the file has no expectation", hint="add a then, why or shares line")
    return Scenario(
        rule=reader.rule,
        options=reader.options,
        policy=reader.policy,
        levels=reader.levels,
        statements=tuple(reader.statements),
    )


def _uncommented(line: str) -> str:
    """Return the line without its comment and trailing blanks. A ``#`` in quotes begins no comment."""
    quoted = False
    for i, c in enumerate(line):
        if c == '"':
            quoted = not quoted
        elif c == "#" and not quoted:
            return line[:i].rstrip()
    return line.rstrip()


def _read_rule(reader: ScenarioReader, rest: str) -> None:
    if reader.opens_statement and reader.rule:
        raise reader.fail("the file has a second rule", hint="write one rule per file")
    if not rest:
        raise reader.fail("the rule is empty", hint="state the rule that the file tests")
    reader.rule = f"{reader.rule} {rest}".strip()


def _read_after(reader: ScenarioReader, rest: str) -> None:
    reader.add(AfterLine(seconds=parse_seconds(rest)))


def _verb(verb: str) -> Callable[[ScenarioReader, str], None]:
    """Return a parser of the statements that consist of this verb and a list of names, such as ``cordon gpu-[1-2]``."""

    def read(reader: ScenarioReader, rest: str) -> None:
        names = tuple(itertools.chain.from_iterable(expand(word) for word in rest.replace(",", " ").split()))
        if not names:
            raise reader.fail(f"{verb} has no name", hint=f"write {verb} NAME")
        reader.add(VerbLine(verb=verb, names=names))

    return read


_READERS = {
    "rule": _read_rule,
    "options": read_options,
    "geometry": read_geometry,
    "levels": read_levels,
    "nodes": read_nodes,
    "stands": read_stands,
    "queues": read_queues,
    "has": read_has,
    "asks": read_asks,
    "after": _read_after,
    "ends": _verb("ends"),
    "cancel": _verb("cancel"),
    "cordon": _verb("cordon"),
    "uncordon": _verb("uncordon"),
    "remove": _verb("remove"),
    "then": read_then,
    "why": read_why,
    "shares": read_shares,
}
