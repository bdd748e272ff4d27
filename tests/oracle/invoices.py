"""Reference computation of invoices from docs/concepts/invoices.md and docs/how-to/send-invoices.md, without ledger code.

Theory of operation. Time is divided at every moment at which anything changes: a usage record, a guarantee, a tariff, a price
window, the month. Within one interval nothing changes, so each record is charged on its own, in exact fractions. The amounts
are summed by version of the tariff, price and attributes of a line, and then divided into commitments and tiers. Only the
amounts that the documentation says are rounded are rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

HOUR = 3_600_000_000
COINS = {"EUR": 100, "USD": 100, "JPY": 1, "KWD": 1000}
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A usage record; times in microseconds since 1970, busy and idle time in microseconds."""

    project: str
    model: str
    mode: str
    preemptible: bool
    begin: int
    end: int
    share: int
    memory: int
    busy: int
    idle: int

    @property
    def line_attributes(self) -> tuple[str, str, str, bool]:
        """Return the attributes by which lines of an invoice differ."""
        return self.project, self.model, self.mode, self.preemptible


@dataclass(slots=True, kw_only=True)
class Line:
    """Hours and their exact cost."""

    hours: Fraction = Fraction(0)
    cost: Fraction = Fraction(0)


# Tariff, price, measure, tier, within the commitment, project, model, mode, preemptible, name of the tax, its percentage.
LineName = tuple[str, str, str, int, bool, str, str, str, bool, str, Fraction]


@dataclass(slots=True, kw_only=True)
class Month:
    """Expected lines of the invoice of a month. A month with several ``currencies`` must be refused."""

    currencies: set[str] = field(default_factory=set)
    lines: dict[LineName, Line] = field(default_factory=lambda: defaultdict(Line))

    @property
    def net(self) -> Fraction:
        return sum((line.cost for line in self.lines.values()), Fraction(0))

    @property
    def empty(self) -> bool:
        return not any(line.hours for line in self.lines.values())


def instant(day: date, zone: ZoneInfo, minute: int = 0) -> int:
    """Return a time of day as microseconds since 1970."""
    day, minute = day + timedelta(days=minute // 1440), minute % 1440
    local = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone)
    return int(local.astimezone(UTC).timestamp()) * 1_000_000


def month_of(month: str, zone: ZoneInfo) -> tuple[int, int]:
    """Return the begin and the end of a month like 2026-11, in microseconds since 1970."""
    year, number = int(month[:4]), int(month[5:])
    after = date(year + 1, 1, 1) if number == 12 else date(year, number + 1, 1)
    return instant(date(year, number, 1), zone), instant(after, zone)


def minutes(text: str) -> int:
    """Return a time of day like 22:30 in minutes: 1350."""
    return int(text[:2]) * 60 + int(text[3:])


def in_force(tariffs: Sequence[Plain], tenant: str, at: int) -> int:
    """Return the index of the tariff in force at a time; -1 if there is none.

    A tariff that names the tenant precedes one for all tenants, and a later one precedes an earlier one.
    """
    best, rank = -1, (False, -1)
    for index, tariff in enumerate(tariffs):
        zone = ZoneInfo(tariff["time_zone"])
        begin = instant(date.fromisoformat(tariff["valid_from"]), zone)
        until = tariff.get("valid_to")
        if at < begin or (until and at >= instant(date.fromisoformat(until), zone)):
            continue
        if tariff["tenants"] and tenant not in tariff["tenants"]:
            continue
        if (bool(tariff["tenants"]), begin) > rank:
            best, rank = index, (bool(tariff["tenants"]), begin)
    return best


def has_equal_terms(one: Plain, other: Plain) -> bool:
    """Return True if two versions of a tariff differ in their validity only."""
    validity = {"valid_from", "valid_to"}
    return {k: v for k, v in one.items() if k not in validity} == {k: v for k, v in other.items() if k not in validity}


def versions(tariffs: Sequence[Plain], tenant: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, index of the tariff in force) for a period.

    A version that follows another one with equal terms counts as the same version.
    """
    marks = {begin, end}
    for tariff in tariffs:
        zone = ZoneInfo(tariff["time_zone"])
        for name in ("valid_from", "valid_to"):
            if tariff.get(name):
                marks.add(instant(date.fromisoformat(tariff[name]), zone))
    found: list[tuple[int, int, int]] = []
    for since, until in pairwise(sorted(mark for mark in marks if begin <= mark <= end)):
        index = in_force(tariffs, tenant, since)
        if found and index >= 0 and found[-1][2] >= 0 and has_equal_terms(tariffs[found[-1][2]], tariffs[index]):
            index = found[-1][2]
        found.append((since, until, index))
    return found


def is_open(window: Plain, at: int, zone: ZoneInfo) -> bool:
    """Return True if a window is open at a time. A window whose end is not after its begin ends on the next day."""
    local = datetime.fromtimestamp(at // 1_000_000, UTC).astimezone(zone)
    now, days = local.hour * 60 + local.minute, window["days"] or DAYS
    today, yesterday = DAYS[local.weekday()], DAYS[local.weekday() - 1]
    begin, end = minutes(window["begin"]), minutes(window["end"])
    if end > begin:
        return today in days and begin <= now < end
    return (today in days and now >= begin) or (yesterday in days and now < end)


def window_marks(tariff: Plain, begin: int, end: int) -> Iterable[int]:
    """Yield the times at which a window of the tariff begins or ends."""
    zone = ZoneInfo(tariff["time_zone"])
    day = datetime.fromtimestamp(begin // 1_000_000, zone).date() - timedelta(days=1)
    while instant(day, zone) <= end:
        for window in tariff["windows"]:
            yield instant(day, zone, minutes(window["begin"]))
            yield instant(day, zone, minutes(window["end"]))
        day += timedelta(days=1)


def price_of(tariff: Plain, use: Use, measure: str, opened: set[str]) -> Plain | None:
    """Return the first price of the measure that matches model, mode and open windows; None if none matches."""
    for price in tariff["prices"]:
        models, modes = price.get("models", []), price.get("modes", [])
        if price["measure"] != measure or (modes and use.mode not in modes):
            continue
        if models and not any(model.lower() in use.model.lower() for model in models):
            continue
        if not price.get("window") or price["window"] in opened:
            return dict(price)
    return None


def expected(
    uses: Sequence[Use],
    tariffs: Sequence[Plain],
    guarantees: Sequence[tuple[int, int]],
    *,
    tenant: str,
    begin: int,
    end: int,
) -> Month:
    """Return the expected lines of the invoice of a month.

    Args:
        guarantees: (time, thousandths of a device that the tenant is guaranteed from then on).
    """
    phases = versions(tariffs, tenant, begin, end)
    charged: dict[tuple[int, str, str, tuple[str, str, str, bool]], Fraction] = defaultdict(Fraction)
    marks = {begin, end, *(at for at, _ in guarantees), *(since for since, _, _ in phases)}
    for use in uses:
        marks |= {use.begin, use.end}
    for since, until, index in phases:
        if index >= 0 and uses:
            marks |= set(window_marks(tariffs[index], since, until))
    for since, until in pairwise(sorted(mark for mark in marks if begin <= mark <= end)):
        active = [use for use in uses if use.begin <= since and until <= use.end]
        if not active:
            continue
        index = next(which for at, to, which in phases if at <= since < to)
        held = sum(use.share for use in active) * 10
        sure = max(((at, milli) for at, milli in guarantees if at <= since), default=(0, 0))[1]
        lent = Fraction(max(0, held - sure), held)
        opened: set[str] = set()
        if index >= 0:
            zone = ZoneInfo(tariffs[index]["time_zone"])
            opened = {window["name"] for window in tariffs[index]["windows"] if is_open(window, since, zone)}
        for use in active:
            length = until - since
            device = Fraction(use.share * length, 100 * HOUR)
            amounts = {
                "guaranteed": device * (1 - lent),
                "borrowed": device * lent,
                "memory": Fraction(use.memory * length, 1024 * HOUR),
                "busy": Fraction(use.busy * length, (use.end - use.begin) * HOUR),
                "idle": device * Fraction(use.idle, use.end - use.begin),
            }
            for measure, hours in amounts.items():
                price = price_of(tariffs[index], use, measure, opened) if index >= 0 else None
                if hours and (price is not None or measure in ("guaranteed", "borrowed")):
                    charged[index, price["name"] if price else "", measure, use.line_attributes] += hours
    return divided(charged, tariffs, phases, begin, end)


def divided(
    charged: Mapping[tuple[int, str, str, tuple[str, str, str, bool]], Fraction],
    tariffs: Sequence[Plain],
    phases: Sequence[tuple[int, int, int]],
    begin: int,
    end: int,
) -> Month:
    """Return the hours divided into commitments and tiers, which count over all versions of a tariff, price and measure."""
    month = Month()
    lasted: dict[int, int] = defaultdict(int)
    for since, until, index in phases:
        lasted[index] += until - since
    lasted.pop(-1, None)
    order = sorted(lasted, key=lambda i: tariffs[i]["valid_from"])
    committed: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
    for index in order:
        tariff = tariffs[index]
        for commitment in tariff["commitments"]:
            measure = next(p["measure"] for p in tariff["prices"] if p["name"] == commitment["of"])
            hours = Fraction(commitment["hours"]) * Fraction(lasted[index], end - begin)
            committed[tariff["name"], commitment["of"], measure] += hours
            name = _name(tariff, commitment["of"], "commitment", 0, committed=False, apart=("", "", "", False))
            month.lines[name].hours += hours
            month.lines[name].cost += hours * Fraction(commitment["price"])
            month.currencies.add(tariff["currency"])
    used: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
    for index in (*order, -1):
        for price_name, measure in dict.fromkeys((p, m) for i, p, m, _ in charged if i == index):
            mine = {a: h for (i, p, m, a), h in charged.items() if (i, p, m) == (index, price_name, measure)}
            own = tariffs[index] if index >= 0 else None
            if own is not None:
                month.currencies.add(own["currency"])
            if own is None or not price_name:
                for apart, hours in mine.items():
                    month.lines[_name(own, "", measure, 0, committed=False, apart=apart)].hours += hours
                continue
            basis, total = (own["name"], price_name, measure), sum(mine.values(), Fraction(0))
            price = next(p for p in own["prices"] if p["name"] == price_name)
            for tier, within, part, each in tiers(price, used[basis], used[basis] + total, committed[basis]):
                for apart, hours in mine.items():
                    line = month.lines[_name(own, price_name, measure, tier, committed=within, apart=apart)]
                    mine_of_it = part * hours / total
                    off = Fraction(own["preemptible_discount_percent"]) if apart[3] and not within else Fraction(0)
                    line.hours += mine_of_it
                    line.cost += mine_of_it * each * (100 - off) / 100
            used[basis] += total
    return month


def tiers(
    price: Plain, since: Fraction, until: Fraction, committed: Fraction
) -> Iterable[tuple[int, bool, Fraction, Fraction]]:
    """Yield (tier, within the commitment, hours, price per hour) of the hours counted from ``since`` to ``until``."""
    edges = [Fraction(0), *(Fraction(tier["above"]) for tier in price.get("tiers", [])), max(until, Fraction(10**12))]
    prices = [Fraction(price["price"]), *(Fraction(tier["price"]) for tier in price.get("tiers", []))]
    if since < committed:
        yield 0, True, min(until, committed) - since, Fraction(0)
    for tier, (lowest, highest) in enumerate(pairwise(edges)):
        first, last = max(lowest, since, committed), min(highest, until)
        if first < last:
            yield tier, False, last - first, prices[tier]


def _name(
    tariff: Plain | None, price: str, measure: str, tier: int, *, committed: bool, apart: tuple[str, str, str, bool]
) -> LineName:
    tax = (tariff["tax"]["name"], Fraction(tariff["tax"]["percent"])) if tariff else ("", Fraction(0))
    return (tariff["name"] if tariff else "", price, measure, tier, committed, *apart, *tax)


def half_even(amount: Fraction, currency: str) -> Fraction:
    """Return an amount rounded to the smallest coin, half to even."""
    coins = COINS[currency]
    return Fraction(round(amount * coins), coins)


@dataclass(slots=True, kw_only=True)
class Account:
    """Invoices and credit notes of a tenant, settled as the documentation describes."""

    invoices: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def open(self, number: str) -> Fraction:
        """Return the amount of a credit note that no valid invoice has used."""
        note = self.notes[number]
        used = sum((i["used"].get(number, Fraction(0)) for i in self.invoices.values() if i["stands"]), Fraction(0))
        return Fraction(note["total"]) - used

    def issue(
        self, number: str, *, net: Fraction, total: Fraction, currency: str
    ) -> tuple[dict[str, Fraction], Fraction]:
        """Add an invoice. Returns the amounts that it uses of credit notes, and its amount due."""
        left, used = total, {}
        for name, note in self.notes.items():
            if note["stands"] and note["currency"] == currency:
                part = min(left, self.open(name))
                if part > 0:
                    used[name] = part
                    left -= part
        self.invoices[number] = {"net": net, "total": total, "currency": currency, "used": used, "stands": True}
        return used, left

    def limit(self, number: str) -> Fraction:
        """Return the largest net amount of another credit note for an invoice; 0 if the invoice was reversed."""
        invoice = self.invoices[number]
        given = sum((n["net"] for n in self.notes.values() if n["of"] == number and n["stands"]), Fraction(0))
        return Fraction(invoice["net"] - given) if invoice["stands"] else Fraction(0)

    def may_void(self, number: str) -> bool:
        """Return True if a valid invoice or credit note can be reversed, because no later document depends on it."""
        if number in self.notes:
            is_used = any(number in invoice["used"] for invoice in self.invoices.values() if invoice["stands"])
            return bool(self.notes[number]["stands"]) and not is_used
        noted = any(note["of"] == number and note["stands"] for note in self.notes.values())
        return bool(self.invoices[number]["stands"]) and not noted
