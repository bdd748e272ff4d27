"""Months, days and time windows in a time zone, as times in microseconds since 1970.

Days with clock changes have 23 or 25 hours: a window from 22:00 to 06:00 has seven hours in the night in which clocks are set
forward. A time of day that a clock change skips is interpreted with the offset before the change. Of a time of day that occurs
twice, the first is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from calabash.model.errors import CalabashError

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_MINUTES = 24 * 60
_MONTH = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])")
_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Period from one time to another, excluding the end."""

    from_us: int
    to_us: int

    @property
    def length_us(self) -> int:
        return self.to_us - self.from_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """Time window on days of the week, for example nights or weekends.

    Args:
        days: days of the week on which the window begins; 0 is Monday.
        from_minute, to_minute: minutes since midnight. A window whose end is not after its begin ends on the next day.
    """

    name: str
    days: frozenset[int] = frozenset(range(7))
    from_minute: int = 0
    to_minute: int = DAY_MINUTES

    def __post_init__(self) -> None:
        if not self.days or not self.days <= frozenset(range(7)):
            raise CalabashError(
                f"window {self.name} has invalid days {sorted(self.days)}", hint="name days from mon to sun"
            )
        if not 0 <= self.from_minute < DAY_MINUTES or not 0 <= self.to_minute <= DAY_MINUTES:
            raise CalabashError(f"window {self.name} is not within a day", hint='write times from "00:00" to "24:00"')
        if self.from_minute == self.to_minute:
            raise CalabashError(
                f"window {self.name} begins and ends at the same time", hint='write a whole day as "00:00" to "24:00"'
            )


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone with an IANA name. Raises CalabashError if this machine does not have it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CalabashError(
            f"time zone {name[:64]!r} is not known on this machine", hint="write a name like Europe/Berlin or UTC"
        ) from None


def minute_of_day(text: str) -> int:
    """Parse a time of day and return minutes since midnight: ``22:30`` gives 1350, ``24:00`` gives 1440.

    Raises CalabashError if the text is not a time of day.
    """
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise CalabashError(f"time of day {text[:32]!r} is not valid", hint='write it like "22:30", in quotes')
    return DAY_MINUTES if match[1] is None else int(match[1]) * 60 + int(match[2])


def month_period(month: str, zone: ZoneInfo) -> Period:
    """Return the period of a month like ``2026-11`` in a time zone. Raises CalabashError if the text is not a month."""
    match = _MONTH.fullmatch(month)
    if match is None:
        raise CalabashError(f"month {month[:32]!r} is not a month", hint="write year and month, like 2026-11")
    year, number = int(match[1]), int(match[2])
    after = date(year + number // 12, number % 12 + 1, 1)
    return Period(from_us=midnight_us(date(year, number, 1), zone), to_us=midnight_us(after, zone))


def month_at(instant_us: int, zone: ZoneInfo) -> str:
    """Return the month that contains a time, like ``2026-11``."""
    return f"{datetime.fromtimestamp(instant_us / SECOND_US, zone):%Y-%m}"


def midnight_us(day: date, zone: ZoneInfo) -> int:
    """Return the time at which a day begins in a time zone."""
    return _instant_us(day, 0, zone)


def window_edges(period: Period, windows: Sequence[TimeWindow], zone: ZoneInfo) -> list[tuple[int, frozenset[str]]]:
    """Return the times within a period at which a time window opens or closes.

    Each time comes with the names of the windows that are open from then on. The first time is the begin of the period.
    """
    changes: dict[int, dict[str, int]] = {period.from_us: {}}
    first = datetime.fromtimestamp(period.from_us / SECOND_US, zone).date() - timedelta(days=2)
    last = datetime.fromtimestamp(period.to_us / SECOND_US, zone).date()
    for window in windows:
        day = first
        while day <= last:
            if day.weekday() in window.days:
                next_day = window.to_minute <= window.from_minute
                begin = _instant_us(day, window.from_minute, zone)
                end = _instant_us(day + timedelta(days=next_day), window.to_minute, zone)
                for at, step in ((begin, 1), (max(begin, end), -1)):
                    within = changes.setdefault(max(at, period.from_us), {})
                    within[window.name] = within.get(window.name, 0) + step
            day += timedelta(days=1)
    edges: list[tuple[int, frozenset[str]]] = []
    depth: dict[str, int] = {}
    for at in sorted(at for at in changes if at < period.to_us):
        for name, step in changes[at].items():
            depth[name] = depth.get(name, 0) + step
        now_open = frozenset(name for name, count in depth.items() if count > 0)
        if not edges or now_open != edges[-1][1]:
            edges.append((at, now_open))
    return edges


def _instant_us(day: date, minute: int, zone: ZoneInfo) -> int:
    if minute == DAY_MINUTES:
        day, minute = day + timedelta(days=1), 0
    return round(datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone).timestamp()) * SECOND_US
