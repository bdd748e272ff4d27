"""Parser of Kubernetes quantities: exact, with bounds.

Grammar: an optional sign, digits with at most one point among them, then nothing, a decimal suffix (``n u m k M G T P
E``), a binary one (``Ki Mi Gi Ti Pi Ei``) or an exponent (``e3``, ``E-2``). The API server writes strings; files also
contain numbers.
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
    """Return the exact amount.

    Raises:
        CalabashError: the text is not a quantity; the message names ``what``.
    """
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
    """Return the amount as a count.

    Raises:
        CalabashError: the amount is negative or not whole; extended resources cannot be divided.
    """
    if amount.denominator != 1 or amount < 0:
        raise CalabashError(f"{what} {shown(amount)} is not a whole number", hint="write a whole number, 0 or more")
    return int(amount)


def mib_of(amount: Fraction, *, what: str) -> int:
    """Return bytes as MiB, rounded up.

    Raises:
        CalabashError: the amount is below one MiB, which usually means a missing unit.
    """
    if amount < MIB:
        raise CalabashError(
            f"{what} {shown(amount)} is {shown(amount)} bytes, less than 1Mi",
            hint=f"add the unit: {shown(amount)}Mi or {shown(amount)}Gi",
        )
    return -(-amount.numerator // (amount.denominator * MIB))


def shown(amount: Fraction) -> str:
    """Return the amount as text for messages."""
    return str(amount.numerator) if amount.denominator == 1 else f"{float(amount):g}"
