"""Words of a scenario file: ranges of names, numbers, devices; and where the reader stands, for its errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigGeometry
from calabash.scenario.statements import (
    ScenarioError,
    Statement,
)
from calabash.sched.decisions import Options
from calabash.sched.scheduler import DEFAULT_POLICY

_RANGE = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<items>[0-9,\-]+)\](?P<tail>[^\[\]]*)$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")
EXPANSION_MAX = 100_000


@dataclass(slots=True)
class ScenarioReader:
    path: str
    number: int = 0
    fresh: bool = True
    rule: str = ""
    policy: str = DEFAULT_POLICY
    options: Options = field(default_factory=Options)
    statements: list[tuple[int, Statement]] = field(default_factory=list)
    geometries: dict[str, MigGeometry] = field(default_factory=dict)

    def fail(self, what: str, hint: str = "") -> ScenarioError:
        return ScenarioError(f"{self.path}:{self.number}: {what}", reason=Reason.BAD_FILE, hint=hint)

    def add(self, statement: Statement) -> None:
        self.statements.append((self.number, statement))


def expand(text: str) -> tuple[str, ...]:
    """``gpu-[1-2]`` -> gpu-1, gpu-2; ``a[0,3-4]`` -> a0, a3, a4. Raises CalabashError."""
    match = _RANGE.match(text)
    if match is None:
        if "[" in text or "]" in text:
            raise CalabashError(f"range in {text!r} is not understood", hint="write name[0-3] or name[0,2]")
        return (text,)
    numbers: list[int] = []
    for item in match["items"].split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise CalabashError(f"range in {text!r} is not understood", hint="write name[0-3] or name[0,2]")
        first, last = int(low), int(high or low)
        if last < first or last - first >= EXPANSION_MAX:
            raise CalabashError(f"range {first}-{last} in {text!r} is empty or too long", hint="count upwards")
        numbers.extend(range(first, last + 1))
    return tuple(f"{match['head']}{n}{match['tail']}" for n in numbers)


def strings(fields: dict[str, object], key: str) -> tuple[str, ...]:
    value = fields.get(key, ())
    return tuple(value) if isinstance(value, tuple | frozenset) else ()


def number_of(reader: ScenarioReader, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise reader.fail(f"{text!r} is not a number") from None
    if not 0 <= value <= 1e9:
        raise reader.fail(f"{text} is out of range", hint="0 to 1000000000")
    return value


def milli_of(reader: ScenarioReader, text: str) -> int:
    return round(number_of(reader, text) * 1000)


def devices_of(reader: ScenarioReader, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part.partition("@")[0]) for part in text.split("+"))
    except ValueError:
        raise reader.fail(f"devices {text!r} are not understood", hint="write node:0+1") from None


def check_names(reader: ScenarioReader, names: tuple[str, ...]) -> None:
    for name in names:
        if not _NAME.match(name):
            raise reader.fail(f"name {name!r} is not usable", hint="letters, digits, dot, dash, underscore")
