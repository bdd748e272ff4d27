"""Reader of CEL selectors of classes and requests: the comparisons that decide about amounts and kinds of devices.

Theory of operation. Kubernetes' allocator evaluates selectors and decides about every device. This reads only what the
planner needs. An expression is split at ``&&`` outside of brackets and strings. A part that is one of a few comparisons with
a constant counts; every other part is left to the allocator. So no condition is assumed that the selector does not contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from calabash.kubernetes.claims.device_names import NOMINAL_GIB
from calabash.kubernetes.objects.quantity import mib_of, parse_quantity
from calabash.model.errors import CalabashError

EXPRESSION_MAX = 10 * 1024
_DEPTH_MAX = 8
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_TEXT = r"""(?:"([^"\\]{0,256})"|'([^'\\]{0,256})')"""
_DOMAIN = r"""\[\s*["']([a-z0-9.-]{1,253})["']\s*\]"""
_DRIVER = re.compile(rf"device\.driver\s*==\s*{_TEXT}")
_OR_VALUE = r"""(?:\s*\.\s*orValue\(\s*(?:""|'')\s*\))?"""
_ATTRIBUTE = re.compile(
    rf"device\.attributes\s*{_DOMAIN}\s*\.\s*\??([A-Za-z_][A-Za-z0-9_]{{0,63}}){_OR_VALUE}\s*==\s*{_TEXT}"
)
_CAPACITY = re.compile(
    rf"device\.capacity\s*{_DOMAIN}\s*\.\s*memory\s*\.\s*compareTo\(\s*quantity\(\s*{_TEXT}\s*\)\s*\)\s*(>=|>)\s*0"
)
_NOMINAL = re.compile(rf"device\.attributes\s*{_DOMAIN}\s*\.\s*{NOMINAL_GIB}\s*(>=|==|>)\s*([0-9]{{1,6}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Conditions of selectors.

    Args:
        driver: name of the driver, "" if none is named.
        attributes: required values, by domain and name.
        nominal_mib_min, reported_mib_min: least memory of each device; 0: any.
    """

    driver: str = ""
    attributes: dict[tuple[str, str], str] = field(default_factory=dict)
    nominal_mib_min: int = 0
    reported_mib_min: int = 0

    def text(self, *names: tuple[str, str]) -> str:
        """Return the required value of the first of these attributes that has one, or ""."""
        return next((self.attributes[name] for name in names if name in self.attributes), "")


def demands_of(expressions: Iterable[str]) -> Demands:
    """Return the conditions of all expressions together."""
    driver, nominal_mib, reported_mib = "", 0, 0
    attributes: dict[tuple[str, str], str] = {}
    for expression in expressions:
        found = _demands(expression) if len(expression) <= EXPRESSION_MAX else Demands()
        driver = found.driver or driver
        attributes |= found.attributes
        nominal_mib, reported_mib = max(nominal_mib, found.nominal_mib_min), max(reported_mib, found.reported_mib_min)
    return Demands(driver=driver, attributes=attributes, nominal_mib_min=nominal_mib, reported_mib_min=reported_mib)


@lru_cache(maxsize=1024)  # selectors of one class are the same
def _demands(expression: str) -> Demands:
    driver, nominal_mib, reported_mib = "", 0, 0
    attributes: dict[tuple[str, str], str] = {}
    for part in _parts(expression):
        if (match := _DRIVER.fullmatch(part)) is not None:
            driver = match[1] or match[2] or ""
        elif (match := _ATTRIBUTE.fullmatch(part)) is not None:
            attributes[match[1], match[2]] = match[3] or match[4] or ""
        elif (match := _CAPACITY.fullmatch(part)) is not None:
            reported_mib = max(reported_mib, _mib(match[2] or match[3] or ""))
        elif (match := _NOMINAL.fullmatch(part)) is not None:
            nominal_mib = max(nominal_mib, 1024 * (int(match[3]) + (match[2] == ">")))
    return Demands(driver=driver, attributes=attributes, nominal_mib_min=nominal_mib, reported_mib_min=reported_mib)


def _parts(expression: str, depth: int = _DEPTH_MAX) -> Iterator[str]:
    """Yield the conditions that must all hold; nothing for another kind of expression, or one nested too deeply."""
    text = expression.strip()
    cut = _cut(text)
    if cut is None:
        return
    for part in cut:
        inner = part.strip()
        if inner.startswith("(") and inner.endswith(")"):
            if depth:
                yield from _parts(inner[1:-1], depth - 1)
        else:
            yield inner


def _cut(text: str) -> list[str] | None:
    """Split at each ``&&`` outside of brackets and strings. Return None for alternatives, or for unbalanced brackets."""
    parts: list[str] = []
    open_: list[str] = []
    quote, begin, at = "", 0, 0
    while at < len(text):
        one, two = text[at], text[at : at + 2]
        if quote:
            at += one == "\\"
            quote = "" if one == quote else quote
        elif one in "\"'":
            quote = one
        elif one in _CLOSES:
            open_.append(_CLOSES[one])
        elif open_ and one == open_[-1]:
            open_.pop()
        elif one in ")]}" or (not open_ and (two == "||" or (one == "?" and text[at - 1] != "."))):
            return None
        elif not open_ and two == "&&":
            parts.append(text[begin:at])
            at, begin = at + 1, at + 2
        at += 1
    return None if quote or open_ else [*parts, text[begin:]]


def _mib(quantity: str) -> int:
    try:
        return mib_of(parse_quantity(quantity, what="memory"), what="memory")
    except CalabashError:
        return 0
