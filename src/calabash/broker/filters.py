"""Device filters such as ``memory>=40GiB,model~A100``: parse them and match devices.

Terms are joined by commas, and a device must satisfy all of them. A term is a key, an operator and a value. Sizes carry
a unit. ``memory`` is the nominal size of the model. ``free_memory`` is the free part of the memory that the driver
reports. Versions (``compute_capability``, ``driver``, ``cuda``) are compared to the precision of the filter:
``driver=580`` accepts every 580.x, and ``driver>580`` accepts 581 and later. Texts are compared without case; ``~``
matches a substring. If a device does not report a property, no term on this property accepts the device.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from calabash.model.errors import CalabashError
from calabash.model.units import format_mib, parse_memory_mib

FILTER_CHARACTERS_MAX = 1024
_TERM = re.compile(r"(?P<before>\s*)(?P<key>[A-Za-z_]*)\s*(?P<operator>!=|>=|<=|=|>|<|~)?(?P<value>.*)", re.DOTALL)
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}")
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
SIZES = ("memory", "free_memory")
VERSIONS = ("compute_capability", "driver", "cuda")
TEXTS = ("model", "server", "uuid")
KEYS = (*SIZES, "model", *VERSIONS, "server", "uuid")
_OPERATORS = {**dict.fromkeys((*SIZES, *VERSIONS), tuple(_ORDER)), **dict.fromkeys(TEXTS, ("=", "!=", "~"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Properties of a device that filters compare.

    Sizes are in MiB, versions are text. 0 and "" mean that the property is unknown.
    """

    memory: int = 0
    free_memory: int = 0
    model: str = ""
    compute_capability: str = ""
    driver: str = ""
    cuda: str = ""
    server: str = ""
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTerm:
    """One comparison of a filter, for example ``memory>=40GiB``.

    Args:
        key: property of the device that is compared, one of KEYS.
        operator: the comparison: ``=``, ``!=``, ``>=``, ``<=``, ``>``, ``<``, or ``~`` for a substring.
        value: a size in MiB, the numbers of a version, or a text in lower case.
    """

    key: str
    operator: str
    value: int | tuple[int, ...] | str

    def satisfied(self, card: CardFacts) -> bool:
        """Return True if the device satisfies the term."""
        told: int | str = getattr(card, self.key)
        if isinstance(self.value, tuple):
            parts = version_of(str(told))
            return bool(parts) and _ORDER[self.operator](_as_far(parts, len(self.value)), self.value)
        if isinstance(self.value, int):
            return (self.key == "free_memory" or bool(told)) and _ORDER[self.operator](told, self.value)
        text = str(told).lower()
        return bool(text) and (self.value in text if self.operator == "~" else _ORDER[self.operator](text, self.value))

    def __str__(self) -> str:
        if isinstance(self.value, tuple):
            shown = ".".join(map(str, self.value))
        elif isinstance(self.value, int):
            exact = self.value % 1024 == 0 or self.value < 1024
            shown = format_mib(self.value) if exact else f"{self.value}MiB"
        else:
            shown = self.value
        return f"{self.key}{self.operator}{shown}"


@dataclass(frozen=True, slots=True)
class CardFilter:
    """Filter of devices: a device is accepted if it satisfies all terms.

    A filter without terms accepts every device.
    """

    terms: tuple[FilterTerm, ...] = ()

    def accepts(self, card: CardFacts) -> bool:
        """Return True if the device satisfies all terms."""
        return all(term.satisfied(card) for term in self.terms)

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


def parse_filters(texts: Iterable[str]) -> CardFilter:
    """Parse several filters into one filter with the terms of all.

    Raises:
        CalabashError: BAD_REQUEST with the position of the error, counted from 1.
    """
    return CardFilter(tuple(term for text in texts for term in parse_filter(text).terms))


def parse_filter(text: str) -> CardFilter:
    """Parse one filter.

    Raises:
        CalabashError: BAD_REQUEST with the position of the error, counted from 1.
    """
    if len(text) > FILTER_CHARACTERS_MAX:
        raise CalabashError(
            f"the filter has {len(text)} characters, more than {FILTER_CHARACTERS_MAX}", hint="use fewer terms"
        )
    terms = []
    at = 0
    for part in text.split(","):
        terms.append(_term(text, part, at))
        at += len(part) + 1
    return CardFilter(tuple(terms))


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of the version at the end of a text; () if there is none.

    ``nvidia 580.65.06`` gives (580, 65, 6).
    """
    words = text.split()
    found = _VERSION.match(words[-1]) if words else None
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _term(text: str, part: str, at: int) -> FilterTerm:
    match = _TERM.fullmatch(part)
    assert match is not None  # every group may be empty
    key, sign, value = match["key"].lower(), match["operator"] or "", match["value"].strip()
    start = at + len(match["before"])
    if not part.strip():
        raise _wrong(text, start, "a term is missing", hint="like memory>=40GiB,model~A100")
    if key not in KEYS:
        named = f"{key!r} is no key" if key else "a key is missing"
        raise _wrong(text, start, named, hint=f"one of: {', '.join(KEYS)}")
    after = at + match.end("key")
    if sign not in _OPERATORS[key]:
        named = f"{key} has no operator {sign}" if sign else f"an operator is missing behind {key}"
        raise _wrong(text, after, named, hint=f"one of: {' '.join(_OPERATORS[key])}")
    where = at + match.start("value")
    if not value:
        raise _wrong(text, where, f"{key} is compared with nothing", hint=f"like {_example(key)}")
    return FilterTerm(key=key, operator=sign, value=_value(text, where, key, value))


def _value(text: str, where: int, key: str, value: str) -> int | tuple[int, ...] | str:
    if key in SIZES:
        try:
            return parse_memory_mib(value)
        except CalabashError as error:
            raise _wrong(text, where, error.message, hint=error.hint) from None
    if key in VERSIONS:
        if _VERSION.fullmatch(value) is None:
            raise _wrong(text, where, f"{value!r} is no version", hint=f"like {_example(key)}")
        return tuple(int(part) for part in value.split("."))
    if any(sign in value for sign in "<>=~") or not value.isprintable():
        raise _wrong(text, where, f"{value[:80]!r} is no text to compare with", hint="join terms by commas")
    return value.lower()


def _wrong(text: str, at: int, what: str, *, hint: str) -> CalabashError:
    return CalabashError(f"filter {text[:120]!r}, position {at + 1}: {what}", hint=hint)


def _example(key: str) -> str:
    if key in SIZES:
        return f"{key}>=40GiB"
    if key in VERSIONS:
        return {"driver": "driver>=580", "cuda": "cuda>=13.0"}.get(key, f"{key}>=8.0")
    return f"{key}~A100"


def _as_far(parts: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (*parts[:count], *(0,) * (count - len(parts)))
