"""Kubernetes' Quantity: an amount as it stands in a pod's resources, read exactly and with a bound.

Grammar: an optional sign, digits with at most one point among them, then nothing, a decimal suffix (``n u m k M G T P E``),
a binary one (``Ki Mi Gi Ti Pi Ei``) or an exponent (``e3``, ``E-2``). The API server writes strings; files hold numbers too.
"""

from __future__ import annotations

import re
from fractions import Fraction

from calabash.model.errors import CalabashError
from calabash.model.units import MIB

TEXT_MAX = 64
_FORM = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([a-zA-Z]*|[eE][+-]?[0-9]{1,2})", re.ASCII)
_EXPONENT_MAX = 30
_SUFFIXES = {
    **{
        suffix: Fraction(10) ** power
        for power, suffix in zip(range(-9, 19, 3), ("n", "u", "m", "", *"kMGTPE"), strict=True)
    },
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}

Written = str | int | float


def parse_quantity(written: Written, *, what: str) -> Fraction:
    """The amount, exactly. Raises CalabashError that names ``what``."""
    text = written if isinstance(written, str) else repr(written)
    match = _FORM.fullmatch(text) if len(text) <= TEXT_MAX else None
    scale = _scale(match[3]) if match is not None else None
    if match is None or scale is None:
        raise CalabashError(f"{what} {text[:TEXT_MAX]!r} is not an amount", hint="write it like 2, 8Gi or 500M")
    amount = Fraction(match[2]) * scale
    if amount >= 1 << 63:
        raise CalabashError(f"{what} {text!r} is out of range", hint="amounts are below 2^63")
    return -amount if match[1] == "-" else amount


def _scale(suffix: str) -> Fraction | None:
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    exponent = suffix[1:]
    if suffix[:1] not in ("e", "E") or exponent.lstrip("+-")[:1] in ("", *"abcdefghijklmnopqrstuvwxyz"):
        return None
    if not re.fullmatch(r"[+-]?[0-9]{1,2}", exponent) or abs(int(exponent)) > _EXPONENT_MAX:
        return None
    return Fraction(10) ** int(exponent)


def whole(amount: Fraction, *, what: str) -> int:
    """The amount as a count, zero or more. Raises CalabashError: extended resources cannot be divided."""
    if amount.denominator != 1 or amount < 0:
        raise CalabashError(f"{what} {shown(amount)} is not a whole number", hint="write a whole number, 0 or more")
    return int(amount)


def mib_of(amount: Fraction, *, what: str) -> int:
    """Bytes as MiB, rounded up. Raises CalabashError below one MiB, where somebody forgot the unit."""
    if amount < MIB:
        raise CalabashError(
            f"{what} {shown(amount)} is {shown(amount)} bytes, less than 1Mi",
            hint=f"write the unit: {shown(amount)}Mi or {shown(amount)}Gi, whichever is meant",
        )
    return -(-amount.numerator // (amount.denominator * MIB))


def shown(amount: Fraction) -> str:
    """For messages."""
    return str(amount.numerator) if amount.denominator == 1 else f"{float(amount):g}"
