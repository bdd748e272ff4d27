"""Units and their shorthand: ``8GiB``, ``30%``, ``60s``. Inside the product memory is int MiB, time is seconds.

Every conversion between what people type, what Kubernetes writes and what the core uses is here and nowhere else.
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
    """``8GiB`` -> 8192 MiB, ``8GB`` -> 7630 MiB: a number with a unit, rounded up to whole MiB.

    Units are what they are everywhere else: ``KiB MiB GiB TiB`` (also ``Ki`` ...) are powers of 1024, ``KB MB GB TB``
    (also ``K`` ...) are powers of 1000, ``B`` is bytes; case does not matter. Raises CalabashError when the text is not
    a size, has no unit, or is zero.
    """
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise CalabashError(f"memory {text!r} is not a size", hint="write a number with a unit, like 8GiB or 512MiB")
    whole, fraction, unit = match[1], match[2] or "", (match[3] or "").upper()
    if not unit:
        number = text.strip()
        raise CalabashError(
            f"memory {text!r} has no unit", hint=f"write {number}MiB or {number}GiB, whichever is meant"
        )
    base = 1024 if "I" in unit else 1000
    scale: int = base ** _POWERS.get(unit[0], 0)
    parts = int("1" + "0" * len(fraction)) * MIB  # of what is counted below, in one MiB
    mib = -(-int(whole + fraction) * scale // parts)
    if not 0 < mib <= _MAX_MEMORY_MIB:
        raise CalabashError(f"memory {text!r} is {mib} MiB: out of range", hint="ask for at least 1MiB")
    return mib


def parse_percent(text: str, *, what: str = "cores") -> int:
    """``30`` or ``30%`` -> 30; 1..100."""
    number = text.strip().removesuffix("%")
    if re.fullmatch(r"[+-]?[0-9]{1,9}", number) is None:
        raise CalabashError(f"{what} {text!r} is not a percentage", hint="write a whole number, 1 to 100")
    value = int(number)
    if not 1 <= value <= 100:
        raise CalabashError(f"{what} {value} is out of range", hint="1 to 100 percent of one device")
    return value


def parse_duration_s(text: str) -> float:
    """``60s``, ``1h30m``, ``250ms`` -> seconds. ``0`` needs no unit. Raises CalabashError."""
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
        raise CalabashError(f"duration {text!r} is not understood", hint="write 30s, 10m, 1h30m or 2d")
    return sum(float(n) * _SECONDS[u] for n, u in parts)


def format_mib(mib: int) -> str:
    """Humanised: ``512MiB``, ``8GiB``, ``39.4GiB``."""
    if mib < 1024:
        return f"{mib}MiB"
    gib = mib / 1024
    return f"{gib:.0f}GiB" if gib == int(gib) else f"{gib:.1f}GiB"


def parse_seconds(text: str) -> float:
    """A duration of a file that programs write as well: as :func:`parse_duration_s`, and a plain number is seconds."""
    plain = re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", text) is not None
    return float(text) if plain else parse_duration_s(text)


def exact_duration(seconds: float) -> str:
    """``12h``, ``1h30m``, ``0.25s``: the same duration as text that :func:`parse_duration_s` reads; ``0`` for none."""
    rest, words = seconds, []
    for unit in ("d", "h", "m"):
        whole, rest = divmod(rest, _SECONDS[unit])
        words += [f"{whole:.0f}{unit}"] if whole else []
    return "".join(words) + (f"{rest:.15g}s" if rest else "") or "0"


def format_duration(seconds: float) -> str:
    """Humanised: ``12s``, ``3m10s``, ``2h5m``, ``4d3h``."""
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
