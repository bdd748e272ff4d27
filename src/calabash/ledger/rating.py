"""Usage to rated lines: which price each part of each interval has.

Theory of operation. The period is cut where another tariff comes into force or another time of day begins; in each part one
set of prices holds. Intervals are cut there too, and their quantities summed by what an invoice tells apart. All of that
is integers and sums, so the lines are a function of what was held when, and not of how it was written down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calabash.ledger.calendar import Period, window_edges, zone_of
from calabash.ledger.filling import Bucket, filled
from calabash.ledger.guarantees import FRACTION_BITS, GuaranteeChange, borrowed
from calabash.ledger.intervals import Column, LineKey, Usage, exact_sums
from calabash.ledger.rated import GPU, Measure, RatedLine
from calabash.ledger.tariffs import Price, Tariff, in_force, same_terms


@dataclass(frozen=True, slots=True)
class _Condition:
    """What holds in a part of the period; ``tariff`` is an index, -1 where none is in force."""

    tariff: int
    windows: frozenset[str]


def rate(
    usage: Usage,
    *,
    tenant: str,
    tariffs: Sequence[Tariff],
    guarantees: Sequence[GuaranteeChange],
    period: Period,
) -> list[RatedLine]:
    """The lines of one tenant for a period, usually a month: tiers and commitments are of that period.

    Args:
        usage: all intervals of the tenant; what lies outside the period is left out.
        guarantees: the history of what the tenant was guaranteed, from before the period on.

    Returns lines whose quantities add up to the usage: every hour of a device in one line, whether it has a price or not.
    Raises CalabashError when tariffs of different currencies are in force.
    """
    phases = _phases(tenant, tariffs, period)
    edges = np.array([at for at, _ in phases], dtype=np.int64)
    conditions = list(dict.fromkeys(condition for _, condition in phases))
    number = {condition: index for index, condition in enumerate(conditions)}
    of_phase = np.array([number[condition] for _, condition in phases], dtype=np.int64)
    pieces = usage.within(period).cut(edges)
    phase = np.searchsorted(edges, pieces.from_us, side="right") - 1
    quantities = _quantities(pieces, of_phase[phase], len(conditions), guarantees)
    in_force_us = _in_force_us(phases, period)
    buckets: dict[tuple[int, Price | None, Measure], dict[LineKey, int]] = defaultdict(lambda: defaultdict(int))
    for (index, key, measure), quantity in quantities.items():
        condition = conditions[index]
        tariff = tariffs[condition.tariff] if condition.tariff >= 0 else None
        price = tariff.price_of(key, measure, condition.windows) if tariff else None
        if quantity and (price is not None or measure in GPU):
            buckets[condition.tariff, price, measure][key] += quantity
    return filled(
        [
            Bucket(tariff=tariff, price=price, measure=measure, quantities=dict(found))
            for (tariff, price, measure), found in buckets.items()
        ],
        tenant=tenant,
        tariffs=tariffs,
        in_force_us=in_force_us,
        period=period,
    )


def _phases(tenant: str, tariffs: Sequence[Tariff], period: Period) -> list[tuple[int, _Condition]]:
    """When what begins to hold, the begin of the period first."""
    bounds = {at for t in tariffs for at in (t.valid_from_us, t.valid_to_us) if at is not None}
    starts = [period.from_us, *sorted(at for at in bounds if period.from_us < at < period.to_us)]
    found: list[tuple[int, _Condition]] = []
    index = -1
    for at, until in zip(starts, [*starts[1:], period.to_us], strict=True):
        tariff = in_force(tariffs, tenant=tenant, at_us=at)
        if tariff is None:
            index = -1
            found.append((at, _Condition(-1, frozenset())))
            continue
        if index < 0 or not same_terms(tariffs[index], tariff):  # a version without a change is the version before it
            index = next(i for i, t in enumerate(tariffs) if t is tariff)
        part = Period(from_us=at, to_us=until)
        edges = window_edges(part, tariff.windows, zone_of(tariff.time_zone))
        found += [(edge, _Condition(index, windows)) for edge, windows in edges]
    return found


def _in_force_us(phases: Sequence[tuple[int, _Condition]], period: Period) -> dict[int, int]:
    """How much of the period each tariff is in force."""
    ends = [*(at for at, _ in phases[1:]), period.to_us]
    lengths: dict[int, int] = defaultdict(int)
    for (at, condition), end in zip(phases, ends, strict=True):
        lengths[condition.tariff] += end - at
    return {tariff: length for tariff, length in lengths.items() if tariff >= 0}


def _quantities(
    pieces: Usage, condition: Column, count: int, guarantees: Sequence[GuaranteeChange]
) -> dict[tuple[int, LineKey, Measure], int]:
    """Sums by condition, key and measure, in each measure's units."""
    if not len(pieces):
        return {}
    keys = len(pieces.keys)
    group = condition * keys + pieces.key
    length = pieces.length_us
    held = exact_sums(length * pieces.share_percent, group, count * keys)
    memory = exact_sums(length * pieces.memory_mib, group, count * keys)
    busy = exact_sums(pieces.busy_us, group, count * keys)
    idle = exact_sums(pieces.idle_us, group, count * keys)
    lent = [0] * (count * keys)
    for index, part in zip(group.tolist(), borrowed(pieces, guarantees), strict=True):
        lent[index] += part
    found: dict[tuple[int, LineKey, Measure], int] = {}
    for index in np.unique(group).tolist():
        which, key = index // keys, pieces.keys[index % keys]
        over = lent[index] >> FRACTION_BITS
        found[which, key, Measure.GUARANTEED] = held[index] - over
        found[which, key, Measure.BORROWED] = over
        found[which, key, Measure.MEMORY] = memory[index]
        found[which, key, Measure.BUSY] = busy[index]
        found[which, key, Measure.IDLE] = idle[index]
    return found
