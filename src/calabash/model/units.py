"""Parsers and formatters of memory sizes, percentages and durations: ``8GiB``, ``30%``, ``60s``.

Inside the product memory is an int in MiB and time a float in seconds. All conversions between the notation of users and of
Kubernetes and these units are in this module.
"""

from __future__ import annotations

import re

from calabash.model.errors import CalabashError

MIB = 1 << 20
_MEMORY = re.compile(r"\s*([0-9]{1,18})(?:\.([0-9]{1,18}))?\s*([KMGT]I?B?|B)?\s*", re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_MEMORY_MIB = 1 << 40
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def parse_memory_mib(text: str) -> int:
    """Parse a memory size and return it in MiB, rounded up: ``8GiB`` is 8192, ``8GB`` is 7630.

    ``KiB MiB GiB TiB`` (also ``Ki`` ...) are powers of 1024, ``KB MB GB TB`` (also ``K`` ...) are powers of 1000, ``B`` is
    bytes; case does not matter.

    Raises:
        CalabashError(BAD_REQUEST): the text is not a size, has no unit, is zero or is above 2^40 MiB.
    """
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise CalabashError(
            f"memory {text!r} is not a memory size", hint="write a number with a unit, like 8GiB or 512MiB"
        )
    whole, fraction, unit = match[1], match[2] or "", (match[3] or "").upper()
    if not unit:
        number = text.strip()
        raise CalabashError(
            f"memory {text!r} has no unit", hint=f"write {number}MiB or {number}GiB, whichever is meant"
        )
    base = 1024 if "I" in unit else 1000
    scale: int = base ** _POWERS.get(unit[0], 0)
    divisor = int("1" + "0" * len(fraction)) * MIB  # MIB, scaled by the power of ten that makes the number an integer
    mib = -(-int(whole + fraction) * scale // divisor)
    if not 0 < mib <= _MAX_MEMORY_MIB:
        raise CalabashError(f"memory {text!r} is {mib} MiB: out of range", hint="ask for at least 1MiB")
    return mib


def parse_percent(text: str, *, what: str = "cores") -> int:
    """Parse ``30`` or ``30%`` and return 30. Raises CalabashError if the number is not in 1..100.

    Args:
        what: name of the amount, for the error message.
    """
    number = text.strip().removesuffix("%")
    if re.fullmatch(r"[+-]?[0-9]{1,9}", number) is None:
        raise CalabashError(f"{what} {text!r} is not a percentage", hint="write a whole number, 1 to 100")
    value = int(number)
    if not 1 <= value <= 100:
        raise CalabashError(f"{what} {value} is out of range", hint="1 to 100 percent of one device")
    return value


def parse_duration_s(text: str) -> float:
    """Parse a duration like ``60s``, ``1h30m`` or ``250ms`` and return seconds. ``0`` needs no unit. Raises CalabashError."""
    text = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        if float(text) == 0:
            return 0.0
        raise CalabashError(
            f"duration {text[:32]!r} has no unit",
            hint=f"write {text[:32]}s, {text[:32]}m or {text[:32]}h, whichever is meant",
        )
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise CalabashError(f"duration {text!r} is not a duration", hint="write 30s, 10m, 1h30m or 2d")
    return sum(float(n) * _SECONDS[u] for n, u in parts)


def format_mib(mib: int) -> str:
    """Return a memory size for people: ``512MiB``, ``8GiB``, ``39.4GiB``, rounded to one decimal."""
    if mib < 1024:
        return f"{mib}MiB"
    gib = mib / 1024
    return f"{gib:.0f}GiB" if gib == int(gib) else f"{gib:.1f}GiB"


def parse_seconds(text: str) -> float:
    """Parse a duration and return seconds, for files that programs may have written.

    It accepts all that :func:`parse_duration_s` accepts, and also a number of seconds without a unit.
    """
    plain = re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", text) is not None
    return float(text) if plain else parse_duration_s(text)


def exact_duration(seconds: float) -> str:
    """Return the exact duration as text for :func:`parse_duration_s`: ``12h``, ``1h30m``, ``0.25s``; ``0`` for zero."""
    rest, words = seconds, []
    for unit in ("d", "h", "m"):
        whole, rest = divmod(rest, _SECONDS[unit])
        words += [f"{whole:.0f}{unit}"] if whole else []
    return "".join(words) + (f"{rest:.15g}s" if rest else "") or "0"


def format_duration(seconds: float) -> str:
    """Return a duration for people, as its two largest units: ``12s``, ``3m10s``, ``2h5m``, ``4d3h``."""
    total = int(seconds)
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    if minutes:
        return f"{minutes}m{secs}s"
    return f"{secs}s"
