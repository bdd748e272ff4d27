"""Plain recomputation of an invoice, to check the ledger: a sweep over all moments with exact fractions.

It shares only data types and the calendar with the ledger: it counts for how long each combination of held amounts and open
windows lasted, and charges each on its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

from calabash.ledger.calendar import Period, window_edges, zone_of
from calabash.ledger.guarantees import GuaranteeChange
from calabash.ledger.intervals import LineKey, UsageInterval
from calabash.ledger.rated import HELD, Measure
from calabash.ledger.tariffs import Price, Tariff

HOUR_US = 3_600_000_000
MIB_PER_GIB = 1024
State = tuple[frozenset[tuple[LineKey, int, int]], int, frozenset[str]]


def key_of(interval: UsageInterval) -> LineKey:
    return LineKey(interval.project, interval.model, interval.mode, interval.preemptible)


def states(
    intervals: Sequence[UsageInterval], tariff: Tariff, guarantees: Sequence[GuaranteeChange], period: Period
) -> Counter[State]:
    """Return the microseconds of each combination of held shares and memory by key, guarantee and open windows."""
    events: list[tuple[int, LineKey | None, int, int]] = []
    for interval in intervals:
        begin, end = max(interval.from_us, period.from_us), min(interval.to_us, period.to_us)
        if begin < end:
            events.append((begin, key_of(interval), interval.share_percent, interval.memory_mib))
            events.append((end, key_of(interval), -interval.share_percent, -interval.memory_mib))
    edges = window_edges(period, tariff.windows, zone_of(tariff.time_zone))
    marks = sorted({at for at, _ in edges} | {c.at_us for c in guarantees} | {period.to_us})
    events += [(at, None, 0, 0) for at in marks if period.from_us <= at <= period.to_us]
    events.sort(key=lambda event: event[0])
    windows, changes = dict(edges), sorted(guarantees, key=lambda c: c.at_us)
    held: dict[LineKey, tuple[int, int]] = {}
    lasted: Counter[State] = Counter()
    opened: frozenset[str] = frozenset()
    guarantee = max((c for c in changes if c.at_us <= period.from_us), key=lambda c: c.at_us, default=None)
    milli, last = guarantee.guarantee_milli if guarantee else 0, period.from_us
    changed = {c.at_us: c.guarantee_milli for c in changes}
    for at, key, share, memory in events:
        if at > last:
            lasted[frozenset((k, s, m) for k, (s, m) in held.items() if s or m), milli, opened] += at - last
            last = at
        opened, milli = windows.get(at, opened), changed.get(at, milli)
        if key is not None:
            before = held.get(key, (0, 0))
            held[key] = (before[0] + share, before[1] + memory)
    return lasted


def hours(
    intervals: Sequence[UsageInterval], tariff: Tariff, guarantees: Sequence[GuaranteeChange], period: Period
) -> dict[tuple[Price | None, LineKey, Measure], Fraction]:
    """Return the hours by price, key and measure."""
    found: dict[tuple[Price | None, LineKey, Measure], Fraction] = defaultdict(Fraction)

    def charge(key: LineKey, measure: Measure, opened: frozenset[str], amount: Fraction) -> None:
        found[tariff.price_of(key, measure, opened), key, measure] += amount

    for (held, milli, opened), length in states(intervals, tariff, guarantees, period).items():
        whole = sum(share for _, share, _ in held) * 10
        over = Fraction(max(0, whole - milli), whole) if whole else Fraction(0)
        for key, share, memory in held:
            device_hours = Fraction(share * length, 100 * HOUR_US)
            charge(key, Measure.BORROWED, opened, device_hours * over)
            charge(key, Measure.GUARANTEED, opened, device_hours * (1 - over))
            charge(key, Measure.MEMORY, opened, Fraction(memory * length, MIB_PER_GIB * HOUR_US))
    for interval in intervals:
        if period.from_us <= interval.from_us and interval.to_us <= period.to_us:
            idle = Fraction(interval.idle_us * interval.share_percent, 100 * HOUR_US)
            charge(key_of(interval), Measure.BUSY, frozenset(), Fraction(interval.busy_us, HOUR_US))
            charge(key_of(interval), Measure.IDLE, frozenset(), idle)
    return found


def net(
    intervals: Iterable[UsageInterval], *, tariff: Tariff, guarantees: Sequence[GuaranteeChange], period: Period
) -> Decimal:
    """Return the net amount in cents of a tariff that is in force for the whole period; usage must lie inside the period."""
    by_price: dict[Price, dict[LineKey, Fraction]] = defaultdict(dict)
    for (price, key, measure), amount in hours(list(intervals), tariff, guarantees, period).items():
        if price is not None and measure in {*HELD, Measure.BUSY, Measure.IDLE}:
            by_price[price][key] = by_price[price].get(key, Fraction(0)) + amount
    total = sum((Fraction(c.hours) * Fraction(c.price) for c in tariff.commitments), Fraction(0))
    committed = {c.of_price: Fraction(c.hours) for c in tariff.commitments}
    for price, amounts in by_price.items():
        used = sum(amounts.values(), Fraction(0))
        preemptible = sum((hours for key, hours in amounts.items() if key.preemptible), Fraction(0)) / (used or 1)
        discount = 1 - preemptible * Fraction(tariff.preemptible_discount_percent) / 100
        total += _tiers(price, used, committed.get(price.name, Fraction(0))) * discount
    cents = Decimal(round(total * 100))  # half to even
    return (cents / 100).quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN)


def _tiers(price: Price, used: Fraction, committed: Fraction) -> Fraction:
    total, begin, amount = Fraction(0), Fraction(0), price.price
    for above, following in [(Fraction(t.above_hours), t.price) for t in price.tiers] + [(used, Decimal(0))]:
        total += max(Fraction(0), min(above, used) - max(begin, committed)) * Fraction(amount)
        begin, amount = max(begin, above), following
    return total
