"""Rating: the rated lines of a tenant from its usage, tariffs and guarantees.

Theory of operation. The period is divided into phases at the times at which another tariff comes into force or a time window
opens or closes. In each phase one set of prices is valid. Intervals are split at the same times, and their quantities are
summed by the attributes that have separate lines. All sums are sums of integers, so the lines do not depend on the order of the
usage intervals and on the points at which they are split.

An invoice is itemised by the item numbers of the intervals: the same sums are computed by item, and each amount is divided
among the items that caused it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from calabash.ledger.calendar import Period, window_edges, zone_of
from calabash.ledger.guarantees import FRACTION_BITS, GuaranteeChange, borrowed_quantities
from calabash.ledger.intervals import Column, LineKey, Usage, exact_sums
from calabash.ledger.money import divide_by_weights, with_item_digits
from calabash.ledger.pricing import Bucket, price_buckets
from calabash.ledger.rated import GPU, Measure, RatedLine
from calabash.ledger.tariffs import Price, Tariff, same_terms, tariff_in_force

_Class = tuple[int, Price | None, Measure]  # use with the same price: index of the tariff (-1 for none), price, measure


@dataclass(frozen=True, slots=True)
class _Condition:
    """Tariff and open time windows of a phase of the period.

    ``tariff`` is the index of the tariff that is in force, or -1 if there is none. ``windows`` are the names of the
    open windows.
    """

    tariff: int
    windows: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLine:
    """Use of one item at one price, and the item's share of the amount of the invoice line.

    Args:
        item: number of the item; -1 for a commitment.
        quantity: the use in fine units of the measure.
        tariff, price, window: names; "" for none.
        amount: amount of money, with ITEM_DIGITS more decimals than the currency has.
    """

    item: int
    measure: Measure
    quantity: int
    tariff: str
    price: str
    window: str
    amount: Decimal


def rate(
    usage: Usage,
    *,
    tenant: str,
    tariffs: Sequence[Tariff],
    guarantees: Sequence[GuaranteeChange],
    period: Period,
) -> list[RatedLine]:
    """Return the rated lines of one tenant for a period, usually a month. Tiers and commitments are counted per period.

    The quantities of the lines add up to the usage: every hour of a device is in exactly one line, also without a price.

    Args:
        usage: all intervals of the tenant; use outside the period is ignored.
        guarantees: history of the tenant's guarantee, beginning before the period.

    Raises:
        CalabashError(CONFLICT): tariffs of different currencies are in force.
    """
    return _Rating(usage, tenant=tenant, tariffs=tariffs, guarantees=guarantees, period=period).lines


def rate_itemised(
    usage: Usage,
    *,
    tenant: str,
    tariffs: Sequence[Tariff],
    guarantees: Sequence[GuaranteeChange],
    period: Period,
) -> tuple[list[RatedLine], list[ItemLine]]:
    """Return the lines as :func:`rate` does, and the shares of the items in them.

    The quantities and amounts of the items add up exactly to those of the lines. An item has one line per price,
    whatever the tiers and commitments. Items with the same key and price divide the amount in proportion to their
    quantities.
    """
    rating = _Rating(usage, tenant=tenant, tariffs=tariffs, guarantees=guarantees, period=period)
    return rating.lines, rating.items()


class _Rating:
    """Rated lines of one tenant, and the intermediate results from which items are computed."""

    def __init__(
        self,
        usage: Usage,
        *,
        tenant: str,
        tariffs: Sequence[Tariff],
        guarantees: Sequence[GuaranteeChange],
        period: Period,
    ) -> None:
        phases = _phases(tenant, tariffs, period)
        edges = np.array([at for at, _ in phases], dtype=np.int64)
        self._tariffs = tariffs
        self._conditions = list(dict.fromkeys(condition for _, condition in phases))
        self._classes: dict[tuple[int, LineKey, Measure], _Class | None] = {}
        number = {condition: index for index, condition in enumerate(self._conditions)}
        of_phase = np.array([number[condition] for _, condition in phases], dtype=np.int64)
        self._pieces = pieces = usage.within(period).split(edges)
        self._condition = of_phase[np.searchsorted(edges, pieces.from_us, side="right") - 1]
        self._borrowed = borrowed_quantities(pieces, guarantees)
        buckets: dict[_Class, dict[LineKey, int]] = defaultdict(lambda: defaultdict(int))
        keys = len(pieces.keys)
        for (group, measure), quantity in self._sums(self._condition * keys + pieces.key, keys).items():
            key = pieces.keys[group % keys]
            found = self._class(group // keys, key, measure)
            if quantity and found is not None:
                buckets[found][key] += quantity
        self.lines, self._of_tariff = price_buckets(
            [
                Bucket(tariff=tariff, price=price, measure=measure, quantities=dict(found))
                for (tariff, price, measure), found in buckets.items()
            ],
            tenant=tenant,
            tariffs=tariffs,
            in_force_us=_in_force_us(phases, period),
            period=period,
        )

    def items(self) -> list[ItemLine]:
        """Return the item lines: the commitments first, then the items by number."""
        pieces = self._pieces
        numbers, item = np.unique(pieces.item, return_inverse=True)
        key_of = np.zeros(len(numbers), dtype=np.int64)
        key_of[item] = pieces.key
        shares: dict[tuple[_Class, LineKey], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for (group, measure), quantity in self._item_sums(item, key_of).items():
            index = group % len(numbers)
            key = pieces.keys[int(key_of[index])]
            found = self._class(group // len(numbers), key, measure)
            if quantity and found is not None:
                shares[found, key][int(numbers[index])] += quantity
        currency = next((line.currency for line in self.lines if line.currency), "")
        amounts: dict[tuple[int, str, Measure, LineKey], Decimal] = defaultdict(Decimal)
        made: list[ItemLine] = []
        for line, tariff in zip(self.lines, self._of_tariff, strict=True):
            if line.measure is Measure.COMMITMENT:
                made.append(_item_line(-1, line.quantity, line, with_item_digits(line.amount, currency)))
            else:
                key = LineKey(line.project, line.model, line.mode, line.preemptible)
                amounts[tariff, line.price, line.measure, key] += line.amount
        for ((index, price, measure), key), of_item in shares.items():
            amount = amounts[index, price.name if price else "", measure, key]
            parts = divide_by_weights(amount, list(of_item.values()), currency)
            named = RatedLine(
                tenant="",
                measure=measure,
                quantity=0,
                per_hour=1,
                unit="",
                tariff=self._tariffs[index].name if index >= 0 else "",
                price=price.name if price else "",
                window=price.window if price else "",
            )
            made += [_item_line(i, q, named, part) for (i, q), part in zip(of_item.items(), parts, strict=True)]
        return sorted(made, key=lambda one: one.item)

    def _class(self, condition: int, key: LineKey, measure: Measure) -> _Class | None:
        """Return the tariff, price and measure at which use is rated; None if no invoice line shows the use.

        Args:
            condition: index of the tariff and open windows under which the use happened.
            key: attributes of the use.
        """
        asked = condition, key, measure
        if asked not in self._classes:
            index, windows = self._conditions[condition].tariff, self._conditions[condition].windows
            price = self._tariffs[index].price_of(key, measure, windows) if index >= 0 else None
            self._classes[asked] = (index, price, measure) if price is not None or measure in GPU else None
        return self._classes[asked]

    def _sums(self, group: Column, width: int) -> dict[tuple[int, Measure], int]:
        """Return the sums of usage by group and measure, in fine units.

        Args:
            group: group number of each piece of usage, as in ``_totals``.
            width: as in ``_totals``.
        """
        found: dict[tuple[int, Measure], int] = {}
        for index, held, lent, rest in self._totals(group, width):
            over = lent >> FRACTION_BITS
            found[index, Measure.GUARANTEED] = held - over
            found[index, Measure.BORROWED] = over
            found |= {(index, measure): quantity for measure, quantity in rest.items()}
        return found

    def _item_sums(self, item: Column, key_of: Column) -> dict[tuple[int, Measure], int]:
        """Return the sums of usage by condition, item and measure, in fine units.

        Borrowed use is rounded so that the items of a key add up to the sum of the key.

        Args:
            item: index of the item of each piece of usage.
            key_of: index of the key of each item.
        """
        found: dict[tuple[int, Measure], int] = {}
        so_far: dict[tuple[int, int], int] = defaultdict(int)
        width = len(key_of)
        for index, held, lent, rest in self._totals(self._condition * width + item, width):
            key = index // width, int(key_of[index % width])
            before = so_far[key] >> FRACTION_BITS
            so_far[key] += lent
            over = (so_far[key] >> FRACTION_BITS) - before
            found[index, Measure.GUARANTEED] = held - over
            found[index, Measure.BORROWED] = over
            found |= {(index, measure): quantity for measure, quantity in rest.items()}
        return found

    def _totals(self, group: Column, width: int) -> Iterator[tuple[int, int, int, dict[Measure, int]]]:
        """Yield for each group with usage its number, held and borrowed quantity, and other quantities by measure.

        Quantities are in fine units of their measures, but the borrowed quantity is in 2^-40 of such a unit.

        Args:
            group: group number of each piece of usage: the index of its condition times ``width``, plus the index of
                its key or item.
            width: number of keys or items.
        """
        pieces = self._pieces
        if not len(pieces):
            return
        present, place = np.unique(group, return_inverse=True)
        count, length = len(present), pieces.length_us
        held = exact_sums(length * pieces.share_percent, place, count)
        memory = exact_sums(length * pieces.memory_mib, place, count)
        busy = exact_sums(pieces.busy_us, place, count)
        idle = exact_sums(pieces.idle_us * pieces.share_percent, place, count)
        lent = [0] * count
        for index, part in zip(place.tolist(), self._borrowed, strict=True):
            lent[index] += part
        for index, number in enumerate(present.tolist()):
            rest = {Measure.MEMORY: memory[index], Measure.BUSY: busy[index], Measure.IDLE: idle[index]}
            yield number, held[index], lent[index], rest


def _item_line(item: int, quantity: int, line: RatedLine, amount: Decimal) -> ItemLine:
    return ItemLine(
        item=item,
        measure=line.measure,
        quantity=quantity,
        tariff=line.tariff,
        price=line.price,
        window=line.window,
        amount=amount,
    )


def _phases(tenant: str, tariffs: Sequence[Tariff], period: Period) -> list[tuple[int, _Condition]]:
    """Return the begin and the condition of each phase of the period, in ascending order."""
    bounds = {at for t in tariffs for at in (t.valid_from_us, t.valid_to_us) if at is not None}
    starts = [period.from_us, *sorted(at for at in bounds if period.from_us < at < period.to_us)]
    found: list[tuple[int, _Condition]] = []
    index = -1
    for at, until in zip(starts, [*starts[1:], period.to_us], strict=True):
        tariff = tariff_in_force(tariffs, tenant=tenant, at_us=at)
        if tariff is None:
            index = -1
            found.append((at, _Condition(-1, frozenset())))
            continue
        if index < 0 or not same_terms(
            tariffs[index], tariff
        ):  # a new version with the same terms continues the version before it
            index = next(i for i, t in enumerate(tariffs) if t is tariff)
        part = Period(from_us=at, to_us=until)
        edges = window_edges(part, tariff.windows, zone_of(tariff.time_zone))
        found += [(edge, _Condition(index, windows)) for edge, windows in edges]
    return found


def _in_force_us(phases: Sequence[tuple[int, _Condition]], period: Period) -> dict[int, int]:
    """Return the time within the period in which each tariff is in force, by its index."""
    ends = [*(at for at, _ in phases[1:]), period.to_us]
    lengths: dict[int, int] = defaultdict(int)
    for (at, condition), end in zip(phases, ends, strict=True):
        lengths[condition.tariff] += end - at
    return {tariff: length for tariff, length in lengths.items() if tariff >= 0}
