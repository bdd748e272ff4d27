"""Reader of the CEL selectors of device classes and requests, for the amounts and kinds of devices that they require.

Theory of operation. The allocator of Kubernetes evaluates selectors in full and decides about every device. This module
reads only what the planner needs to count a request. An expression is split at ``&&`` outside of brackets and strings.
Parts that are one of a few known comparisons with a constant are read. All other parts are ignored and left to the
allocator. The planner may therefore know fewer conditions than a selector contains, but never a condition that it does
not contain.
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
    """Conditions on devices that were read from selectors.

    Args:
        driver: required name of the driver; "" if the selectors name none.
        attributes: required values of device attributes, by the domain and the name of the attribute.
        nominal_mib_min: least nominal size of each device's memory in MiB (80 GiB for an "80 GB" card); 0 for any.
        reported_mib_min: least memory of each device in MiB, as the driver reports it; 0 for any.
    """

    driver: str = ""
    attributes: dict[tuple[str, str], str] = field(default_factory=dict)
    nominal_mib_min: int = 0
    reported_mib_min: int = 0

    def text(self, *names: tuple[str, str]) -> str:
        """Return the required value of the first attribute in ``names`` for which a value is required; "" if none is.

        Args:
            names: domain and name of each attribute.
        """
        return next((self.attributes[name] for name in names if name in self.attributes), "")


def demands_of(expressions: Iterable[str]) -> Demands:
    """Return the conditions that devices meet if all expressions are true for them."""
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
    """Yield the parts of an expression that must all be true.

    Yields nothing for an expression that is not a conjunction. Parts in more than ``depth`` nested brackets are
    skipped.
    """
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
    """Split an expression at each ``&&`` outside of brackets and strings.

    Returns None if the expression contains an alternative (``||`` or ``?:``) outside of brackets, or unbalanced
    brackets.
    """
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
