"""Units and their shorthand: ``8GiB``, ``30%``, ``60s``. Inside the product memory is int MiB, time is seconds.

Every conversion between what people type, what Kubernetes writes and what the core uses is here and nowhere else.
"""

from __future__ import annotations

import re

from calabash.model.errors import CalabashError

MIB = 1 << 20
_MEMORY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*$", re.IGNORECASE)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_MEMORY_MIB = 1 << 40


def parse_memory_mib(text: str) -> int:
    """``8GiB``, ``8G``, ``8192MiB``, ``8192`` (MiB) -> int MiB, rounded up.

    ``G`` and ``GB`` mean GiB, as every GPU tool prints them; ``B`` alone is bytes.
    Raises CalabashError when the text is not a size or is zero.
    """
    match = _MEMORY.match(text)
    if match is None:
        raise CalabashError(f"memory {text!r} is not a size", hint="write a number with a unit, like 8GiB or 512MiB")
    number, unit = float(match[1]), match[2].upper()
    scale = {"": MIB, "B": 1, "K": 1 << 10, "M": MIB, "G": 1 << 30, "T": 1 << 40}[unit.rstrip("B").rstrip("I") or unit]
    mib = -(-int(number * scale) // MIB)
    if not 0 < mib <= _MAX_MEMORY_MIB:
        raise CalabashError(f"memory {text!r} is {mib} MiB: out of range", hint="ask for at least 1MiB")
    return mib


def parse_percent(text: str, *, what: str = "cores") -> int:
    """``30`` or ``30%`` -> 30; 1..100."""
    try:
        value = int(text.strip().removesuffix("%"))
    except ValueError:
        raise CalabashError(f"{what} {text!r} is not a percentage", hint="write a whole number, 1 to 100") from None
    if not 1 <= value <= 100:
        raise CalabashError(f"{what} {value} is out of range", hint="1 to 100 percent of one device")
    return value


def parse_duration_s(text: str) -> float:
    """``60s``, ``1h30m``, ``250ms``, ``45`` (seconds) -> seconds."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
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
