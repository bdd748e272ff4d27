"""Parser of Kubernetes quantities. Amounts are exact fractions below 2^63.

Grammar: an optional sign, digits with at most one decimal point, then nothing, a decimal suffix (``n u m k M G T P
E``), a binary suffix (``Ki Mi Gi Ti Pi Ei``) or an exponent (``e3``, ``E-2``). The API server writes quantities as
strings; files that users write also contain numbers.
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
    """Return the amount that a quantity stands for.

    Args:
        written: the quantity.
        what: name of the amount, for error messages.

    Raises:
        CalabashError: the text is not a quantity, or the amount is 2^63 or more.
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
    """Return the amount as an integer.

    Raises:
        CalabashError: the amount is negative or not a whole number.
    """
    if amount.denominator != 1 or amount < 0:
        raise CalabashError(f"{what} {shown(amount)} is not a whole number", hint="write a whole number, 0 or more")
    return int(amount)


def mib_of(amount: Fraction, *, what: str) -> int:
    """Convert an amount in bytes to MiB, rounded up.

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
