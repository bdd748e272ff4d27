"""Months and times of day in a time zone, as instants in microseconds since 1970.

A day of 23 or 25 hours is as long as it is: a window from 22:00 to 06:00 over the night in which clocks are set forward
has seven hours. A time of day that a clock change leaves out counts from the offset before it; of one that comes twice the
first counts.
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
    """From an instant up to, and without, another."""

    from_us: int
    to_us: int

    @property
    def length_us(self) -> int:
        return self.to_us - self.from_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A time of day on days of the week, 0 is Monday. ``to_minute`` not after ``from_minute`` ends on the next day; the day
    is the one it begins on."""

    name: str
    days: frozenset[int] = frozenset(range(7))
    from_minute: int = 0
    to_minute: int = DAY_MINUTES

    def __post_init__(self) -> None:
        if not self.days or not self.days <= frozenset(range(7)):
            raise CalabashError(f"window {self.name} has days {sorted(self.days)}", hint="name days from mon to sun")
        if not 0 <= self.from_minute < DAY_MINUTES or not 0 <= self.to_minute <= DAY_MINUTES:
            raise CalabashError(f"window {self.name} is not within a day", hint='times from "00:00" to "24:00"')
        if self.from_minute == self.to_minute:
            raise CalabashError(
                f"window {self.name} begins and ends at the same time", hint='a whole day is from "00:00" to "24:00"'
            )


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name. Raises CalabashError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CalabashError(
            f"time zone {name[:64]!r} is not known on this machine", hint="a name like Europe/Berlin or UTC"
        ) from None


def minute_of_day(text: str) -> int:
    """``22:30`` -> 1350; ``24:00`` is the end of the day. Raises CalabashError."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise CalabashError(f"time of day {text[:32]!r} is not understood", hint='write it like "22:30", in quotes')
    return DAY_MINUTES if match[1] is None else int(match[1]) * 60 + int(match[2])


def month_period(month: str, zone: ZoneInfo) -> Period:
    """``2026-11`` in that zone. Raises CalabashError."""
    match = _MONTH.fullmatch(month)
    if match is None:
        raise CalabashError(f"month {month[:32]!r} is not understood", hint="write year and month, like 2026-11")
    year, number = int(match[1]), int(match[2])
    after = date(year + number // 12, number % 12 + 1, 1)
    return Period(from_us=midnight_us(date(year, number, 1), zone), to_us=midnight_us(after, zone))


def month_at(instant_us: int, zone: ZoneInfo) -> str:
    """The month that an instant is in."""
    return f"{datetime.fromtimestamp(instant_us / SECOND_US, zone):%Y-%m}"


def midnight_us(day: date, zone: ZoneInfo) -> int:
    """When the day begins."""
    return _instant_us(day, 0, zone)


def window_edges(period: Period, windows: Sequence[TimeWindow], zone: ZoneInfo) -> list[tuple[int, frozenset[str]]]:
    """The instants within the period at which other windows are open than before, its begin first, and which are then."""
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
