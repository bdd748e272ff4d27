"""Reader of scenario files: a small text in, frozen statements out, and strict errors ``file:line: what``.

A line opens with a keyword in its first column; indented lines continue it; ``#`` starts a comment. The format is
described in ``docs/reference/scenario-format.md``. Nothing is guessed: a word that is not understood is an error with
a hint, and nothing is executed here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from calabash.model.errors import CalabashError
from calabash.model.units import parse_seconds
from calabash.scenario.clusters import read_nodes, read_options, read_queues
from calabash.scenario.expectations import read_shares, read_then, read_why
from calabash.scenario.mig import read_geometry, read_stands
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
from calabash.scenario.words import (
    ScenarioReader,
    expand,
)


def parse_scenario(text: str, *, path: str = "scenario") -> Scenario:
    """Read a whole file. Raises ScenarioError."""
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
                raise reader.fail(f"{keyword!r} is no keyword", hint=f"one of: {', '.join(_READERS)}")
            reader.fresh = True
        else:
            if not keyword:
                raise reader.fail("the first line is indented", hint="open with a keyword: rule ...")
            rest, reader.fresh = line, False
        try:
            _READERS[keyword](reader, rest.strip())
        except ScenarioError:
            raise
        except CalabashError as error:
            raise reader.fail(error.message, hint=error.hint) from None
    if not reader.rule:
        raise reader.fail("no rule", hint="say in one line what the file proves: rule ...")
    if not any(isinstance(s, ThenLine | WhyLine | SharesLine) for _, s in reader.statements):
        raise reader.fail("nothing is expected", hint="add a then, why or shares line")
    return Scenario(rule=reader.rule, options=reader.options, policy=reader.policy, statements=tuple(reader.statements))


def _uncommented(line: str) -> str:
    quoted = False
    for i, c in enumerate(line):
        if c == '"':
            quoted = not quoted
        elif c == "#" and not quoted:
            return line[:i].rstrip()
    return line.rstrip()


def _read_rule(reader: ScenarioReader, rest: str) -> None:
    if reader.fresh and reader.rule:
        raise reader.fail("a second rule", hint="one file proves one rule")
    if not rest:
        raise reader.fail("an empty rule", hint="say what the file proves")
    reader.rule = f"{reader.rule} {rest}".strip()


def _read_after(reader: ScenarioReader, rest: str) -> None:
    reader.add(AfterLine(seconds=parse_seconds(rest)))


def _verb(verb: str) -> Callable[[ScenarioReader, str], None]:
    def read(reader: ScenarioReader, rest: str) -> None:
        names = tuple(itertools.chain.from_iterable(expand(word) for word in rest.replace(",", " ").split()))
        if not names:
            raise reader.fail(f"{verb} what?", hint=f"{verb} NAME")
        reader.add(VerbLine(verb=verb, names=names))

    return read


_READERS = {
    "rule": _read_rule,
    "options": read_options,
    "geometry": read_geometry,
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
