"""Format numbers, sizes, times and shares for pages, in the same form as the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from zlib import crc32

from calabash.model.units import format_duration, format_mib

HUES = 8


def number(value: float | None) -> str:
    """Format a number as ``4`` or ``2.5``; None as a dash."""
    if value is None:
        return "-"
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def percent(value: float | None) -> str:
    """Format a percentage as ``62 %``; None as a dash."""
    return "-" if value is None else f"{value:.0f} %"


def share(part: float, whole: float) -> float:
    """Return ``part`` of ``whole`` in percent, 0 to 100, rounded to a tenth; 0 if ``whole`` is 0."""
    return round(min(100.0, max(0.0, 100.0 * part / whole)), 1) if whole > 0 else 0.0


def memory(mib: float) -> str:
    """Format a size in MiB as ``39.4GiB``; less than 1 MiB as 0."""
    return format_mib(int(mib)) if mib >= 1 else "0"


def moment(at_s: float | None) -> str:
    """Format a time (seconds since the epoch) as ``22 Nov 16:50:32`` in UTC."""
    return "-" if not at_s else datetime.fromtimestamp(at_s, UTC).strftime("%d %b %H:%M:%S")


def iso(at_s: float | None) -> str:
    """Format a time (seconds since the epoch) as ``2026-11-22T16:50:32Z``."""
    return "" if not at_s else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(at_s: float | None, now_s: float) -> str:
    """Format the time since ``at_s`` as ``3m10s``."""
    return "-" if not at_s else format_duration(max(0.0, now_s - at_s))


def command(words: Sequence[str], *, characters: int = 80) -> str:
    """Join the words of a command to one line, and cut it to at most ``characters`` characters."""
    line = " ".join(words) or "-"
    return line if len(line) <= characters else line[: characters - 1] + "…"


def bounds(most: Mapping[str, int]) -> str:
    """Format limits by kind in the form in which users enter them: ``eip=8 vpc=4``."""
    return " ".join(f"{kind}={count}" for kind, count in sorted(most.items()))


def hue(name: str) -> int:
    """Return the colour of a name, 1 to HUES; the same on all pages."""
    return crc32(name.encode()) % HUES + 1


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 device``, ``2 devices``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
