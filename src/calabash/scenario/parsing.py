"""State of the scenario parser, and parsers of name ranges, numbers and device lists."""

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
    """State of the parser of one scenario file.

    Args:
        path: name of the file, for error messages.
        number: number of the current line.
        opens_statement: the current line begins with a keyword; False for a continuation line.
        rule: text of the ``rule`` statement; "" before it.
        statements: statements parsed so far, with their line numbers.
        geometries: MIG geometries defined so far, by name.
        levels: names of the levels of the network, outermost first.
    """

    path: str
    number: int = 0
    opens_statement: bool = True
    rule: str = ""
    policy: str = DEFAULT_POLICY
    options: Options = field(default_factory=Options)
    statements: list[tuple[int, Statement]] = field(default_factory=list)
    geometries: dict[str, MigGeometry] = field(default_factory=dict)
    levels: tuple[str, ...] = ()

    def fail(self, what: str, hint: str = "") -> ScenarioError:
        """Return an error about the current line of the file.

        Args:
            what: the message. hint: what to write instead; "" for none.
        """
        return ScenarioError(f"{self.path}:{self.number}: {what}", reason=Reason.BAD_FILE, hint=hint)

    def add(self, statement: Statement) -> None:
        """Append a statement with the current line number."""
        self.statements.append((self.number, statement))


def expand(text: str) -> tuple[str, ...]:
    """Expand a range of names: ``gpu-[1-2]`` gives gpu-1 and gpu-2, ``a[0,3-4]`` gives a0, a3 and a4. Raises CalabashError."""
    match = _RANGE.match(text)
    if match is None:
        if "[" in text or "]" in text:
            raise CalabashError(f"range in {text!r} is not valid", hint="write name[0-3] or name[0,2]")
        return (text,)
    numbers: list[int] = []
    for item in match["items"].split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise CalabashError(f"range in {text!r} is not valid", hint="write name[0-3] or name[0,2]")
        first, last = int(low), int(high or low)
        if last < first or last - first >= EXPANSION_MAX:
            raise CalabashError(
                f"range {first}-{last} in {text!r} is empty or too long",
                hint=f"write the lower number first; at most {EXPANSION_MAX} names",
            )
        numbers.extend(range(first, last + 1))
    return tuple(f"{match['head']}{n}{match['tail']}" for n in numbers)


def strings(fields: dict[str, object], key: str) -> tuple[str, ...]:
    """Return the strings that are stored in ``fields`` under a key as a tuple or set; () if there are none."""
    value = fields.get(key, ())
    return tuple(value) if isinstance(value, tuple | frozenset) else ()


def number_of(reader: ScenarioReader, text: str) -> float:
    """Parse a number from 0 to 1e9. Raises ScenarioError."""
    try:
        value = float(text)
    except ValueError:
        raise reader.fail(f"{text!r} is not a number") from None
    if not 0 <= value <= 1e9:
        raise reader.fail(f"{text} is out of range", hint="0 to 1000000000")
    return value


def milli_of(reader: ScenarioReader, text: str) -> int:
    """Parse a number and return it in thousandths. Raises ScenarioError."""
    return round(number_of(reader, text) * 1000)


def devices_of(reader: ScenarioReader, text: str) -> tuple[int, ...]:
    """Parse device numbers like ``0+1``; a MIG position after ``@`` is ignored. Raises ScenarioError."""
    try:
        return tuple(int(part.partition("@")[0]) for part in text.split("+"))
    except ValueError:
        raise reader.fail(f"devices {text!r} are not device numbers", hint="write node:0+1") from None


def check_names(reader: ScenarioReader, names: tuple[str, ...]) -> None:
    """Raise ScenarioError if one of the names is not valid."""
    for name in names:
        if not _NAME.match(name):
            raise reader.fail(f"name {name!r} is not valid", hint="use letters, digits, dots, dashes and underscores")
