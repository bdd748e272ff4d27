"""Parsers of the expectations in scenario files: decisions (``then``), explanations (``why``) and shares (``shares``)."""

from __future__ import annotations

import re

from calabash.model.errors import Reason
from calabash.model.units import parse_seconds
from calabash.scenario.parsing import (
    ScenarioReader,
    devices_of,
    expand,
    number_of,
)
from calabash.scenario.statements import (
    Expected,
    SharesLine,
    ThenLine,
    WhyLine,
)

_QUOTED = re.compile(r'"([^"]*)"')


def read_then(reader: ScenarioReader, rest: str) -> None:
    expected = [] if rest == "nothing" else _expected(reader, rest)
    if not reader.opens_statement and reader.statements and isinstance(reader.statements[-1][1], ThenLine):
        number, last = reader.statements.pop()
        assert isinstance(last, ThenLine)
        reader.statements.append((number, ThenLine(expected=(*last.expected, *expected))))
        return
    reader.add(ThenLine(expected=tuple(expected)))


def _expected(reader: ScenarioReader, text: str) -> list[Expected]:
    words = text.split()
    match words:
        case ["bind" | "move" as verb, ids, "->", place]:
            node, _, devices = place.partition(":")
            wanted = devices_of(reader, devices) if devices else None
            return [Expected(verb=verb, id=i, node="" if node == "*" else node, devices=wanted) for i in expand(ids)]
        case ["evict" | "pending" as verb, ids, *settings]:
            reason, by = "", ""
            for word in settings:
                key, _, value = word.partition("=")
                if key == "reason" and value in {r.value for r in Reason}:
                    reason = value
                elif key == "for" and verb == "evict":
                    by = value
                else:
                    raise reader.fail(
                        f"word {word!r} is not known", hint="write reason=CODE with a known code, or for=ID"
                    )
            return [Expected(verb=verb, id=i, reason=reason, by=by) for i in expand(ids)]
    raise reader.fail(
        f"{text!r} is not a decision",
        hint="write bind ID -> NODE, evict ID reason=CODE, move ID -> NODE, pending ID reason=CODE, or nothing",
    )


def read_why(reader: ScenarioReader, rest: str) -> None:
    head, colon, body = rest.partition(":")
    words = _QUOTED.sub("", body).split()
    if not colon or not words or words[0] not in {r.value for r in Reason}:
        raise reader.fail(
            f"{rest!r} is not an explanation", hint='write it like why prod/a: no_capacity "1 nodes: largest free"'
        )
    start: float | None = None
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key != "start":
            raise reader.fail(f"word {word!r} is not known", hint="write start=30m, or words in quotes")
        start = parse_seconds(value)
    reader.add(WhyLine(id=head.strip(), reason=words[0], texts=tuple(_QUOTED.findall(body)), start_in_s=start))


def read_shares(reader: ScenarioReader, rest: str) -> None:
    words = rest.split()
    wanted = []
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in ("guaranteed", "fair", "used", "waiting"):
            raise reader.fail(
                f"share {word!r} is not known", hint="write it like shares QUEUE guaranteed=4 fair=6 used=3 waiting=1"
            )
        wanted.append((key, number_of(reader, value)))
    if not wanted:
        raise reader.fail("no share is given", hint="write it like shares QUEUE guaranteed=4 fair=6")
    reader.add(SharesLine(queue=words[0], wanted=tuple(wanted)))
