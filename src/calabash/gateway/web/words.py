"""How figures read on a page: sizes, times, shares. The same words as the command line prints, where it prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from zlib import crc32

from calabash.model.units import format_duration, format_mib

HUES = 8


def number(value: float | None) -> str:
    """``4``, ``2.5``; a dash for what there is none of."""
    if value is None:
        return "-"
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def percent(value: float | None) -> str:
    """``62 %``; a dash where it is not known."""
    return "-" if value is None else f"{value:.0f} %"


def share(part: float, whole: float) -> float:
    """``part`` of ``whole`` in percent, 0 to 100, to a tenth; 0 where the whole is nothing."""
    return round(min(100.0, max(0.0, 100.0 * part / whole)), 1) if whole > 0 else 0.0


def memory(mib: float) -> str:
    """``39.4GiB``; nothing is 0."""
    return format_mib(int(mib)) if mib >= 1 else "0"


def moment(at_s: float | None) -> str:
    """``22 Nov 16:50:32`` in UTC."""
    return "-" if not at_s else datetime.fromtimestamp(at_s, UTC).strftime("%d %b %H:%M:%S")


def iso(at_s: float | None) -> str:
    """``2026-11-22T16:50:32Z`` for machines."""
    return "" if not at_s else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(at_s: float | None, now_s: float) -> str:
    """``3m10s``: how long since then."""
    return "-" if not at_s else format_duration(max(0.0, now_s - at_s))


def command(words: Sequence[str], *, characters: int = 80) -> str:
    """A command line, cut where it would fill the page."""
    line = " ".join(words) or "-"
    return line if len(line) <= characters else line[: characters - 1] + "…"


def bounds(most: Mapping[str, int]) -> str:
    """``eip=8 vpc=4``, as they are typed."""
    return " ".join(f"{kind}={count}" for kind, count in sorted(most.items()))


def hue(name: str) -> int:
    """The colour of a name, 1 to 8: the same on every page and every day."""
    return crc32(name.encode()) % HUES + 1


def plural(count: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
