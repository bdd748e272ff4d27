"""Quantities into commitments and tiers, and their exact amounts into coins.

The first hours of a price are those that were committed to; then its tiers are filled in order. When several projects
share a price, each part goes to them in proportion to what they used, in whole units that add up.

Commitments and tiers are of a month. When several versions of a tariff are in force in it, prices with the same tier basis
share one count: the use under a version begins in the tiers where the use under the versions before it ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from calabash.ledger.calendar import Period
from calabash.ledger.intervals import LineKey
from calabash.ledger.money import apportioned
from calabash.ledger.rated import GPU, Measure, RatedLine, per_hour, unit_of
from calabash.ledger.tariffs import Commitment, Price, Tariff
from calabash.model.errors import CalabashError, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """All that has one price; ``tariff`` is an index, -1 for none, ``price`` None where the tariff has none for it."""

    tariff: int
    price: Price | None
    measure: Measure
    quantities: dict[LineKey, int]


_Basis = tuple[str, str, Measure]  # the names of tariff and price, and the measure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """So much of the first that is left, at that price."""

    quantity: int
    price: Decimal
    tier: int = 0
    committed: bool = False


def filled(
    buckets: Sequence[Bucket],
    *,
    tenant: str,
    tariffs: Sequence[Tariff],
    in_force_us: dict[int, int],
    period: Period,
) -> tuple[list[RatedLine], list[int]]:
    """The lines, in the order of tariffs and of their prices, and the index of each line's tariff, -1 for none.

    Raises CalabashError for more than one currency.
    """
    lines: list[RatedLine] = []
    of_tariff: list[int] = []
    order = sorted(in_force_us, key=lambda i: tariffs[i].valid_from_us)
    lengths = {index: Fraction(in_force_us[index], period.length_us) for index in order}
    commitments = _commitments([(index, tariffs[index]) for index in order], lengths)
    committed: dict[_Basis, int] = defaultdict(int)
    for (_, basis), quantity in commitments.items():
        committed[basis] += quantity
    used: dict[_Basis, int] = defaultdict(int)  # under the versions before the present one
    for index in order:
        tariff = tariffs[index]
        terms = {c.of_price: c for c in tariff.commitments}
        own = {(b.price.name, b.measure): b for b in buckets if b.tariff == index and b.price}
        for price in tariff.prices:
            basis = _basis(tariff, price)
            if price.name in terms:
                lines.append(_committed(tenant, tariff, price, terms[price.name], commitments[index, basis]))
            bucket = own.get((price.name, price.measure))
            if bucket is not None:
                lines += _lines(tenant, tariff, bucket, begin=used[basis], committed=committed[basis])
                used[basis] += sum(bucket.quantities.values())
        lines += _unpriced(tenant, [b for b in buckets if b.tariff == index], tariff)
        of_tariff += [index] * (len(lines) - len(of_tariff))
    lines += _unpriced(tenant, [b for b in buckets if b.tariff < 0], None)
    of_tariff += [-1] * (len(lines) - len(of_tariff))
    return _in_coins(lines, tenant), of_tariff


def _basis(tariff: Tariff, price: Price) -> _Basis:
    """The tier basis of a price: prices of which it is equal share one count of hours in a month."""
    return tariff.name, price.name, price.measure


def _commitments(
    versions: Sequence[tuple[int, Tariff]], lengths: Mapping[int, Fraction]
) -> dict[tuple[int, _Basis], int]:
    """The committed quantity by version and tier basis, each for the part of the month in which the version is in force.

    Fractions of a unit are carried from version to version, so that equal versions commit to what one of them would.
    """
    found: dict[tuple[int, _Basis], int] = {}
    exact: dict[_Basis, Fraction] = defaultdict(Fraction)
    for index, tariff in versions:
        measures = {price.name: price for price in tariff.prices}
        for commitment in tariff.commitments:
            price = measures[commitment.of_price]
            basis = _basis(tariff, price)
            before = int(exact[basis])
            exact[basis] += Fraction(commitment.hours) * per_hour(price.measure) * lengths[index]
            found[index, basis] = int(exact[basis]) - before
    return found


def _lines(tenant: str, tariff: Tariff, bucket: Bucket, *, begin: int, committed: int) -> list[RatedLine]:
    """The lines of a bucket; ``begin`` is the use of the month with the same tier basis before it."""
    price = bucket.price
    assert price is not None
    left = dict(sorted(bucket.quantities.items()))
    found = []
    for part in _parts(price, begin, begin + sum(left.values()), committed):
        taken = _shared(left, part.quantity)
        for key, quantity in taken.items():
            left[key] -= quantity
            if quantity:
                line = _line(tenant, tariff, price.measure, quantity, key)
                discount = tariff.preemptible_discount_percent if key.preemptible and not part.committed else Decimal(0)
                found.append(
                    replace(
                        line,
                        price=price.name,
                        window=price.window,
                        tier=part.tier,
                        committed=part.committed,
                        unit_price=part.price,
                        discount_percent=discount,
                    )
                )
    return found


def _parts(price: Price, begin: int, end: int, committed: int) -> list[_Part]:
    """Divide the month's use from ``begin`` to ``end`` of a tier basis: the commitment first, then tier by tier."""
    found = [_Part(quantity=max(0, min(committed, end) - begin), price=Decimal(0), committed=True)]
    above = [0, *(int(Fraction(tier.above_hours) * per_hour(price.measure)) for tier in price.tiers)]
    prices = [price.price, *(tier.price for tier in price.tiers)]
    for tier, (lowest, amount) in enumerate(zip(above, prices, strict=True)):
        highest = above[tier + 1] if tier + 1 < len(above) else end
        quantity = min(highest, end) - max(lowest, committed, begin)
        found.append(_Part(quantity=max(0, quantity), price=amount, tier=tier))
    return found


def _shared(left: dict[LineKey, int], quantity: int) -> dict[LineKey, int]:
    """So much of what is left, of each in proportion: differences of floors, which add up."""
    total, so_far, given = sum(left.values()), 0, 0
    found = {}
    for key, amount in left.items():
        so_far += amount
        upto = so_far * quantity // total if total else 0
        found[key], given = upto - given, upto
    return found


def _unpriced(tenant: str, buckets: Sequence[Bucket], tariff: Tariff | None) -> list[RatedLine]:
    """Hours of devices that no price is for; they are shown and cost nothing."""
    return [
        _line(tenant, tariff, bucket.measure, quantity, key)
        for bucket in sorted(buckets, key=lambda b: GPU.index(b.measure) if b.measure in GPU else -1)
        if bucket.price is None
        for key, quantity in sorted(bucket.quantities.items())
    ]


def _line(tenant: str, tariff: Tariff | None, measure: Measure, quantity: int, key: LineKey | None = None) -> RatedLine:
    line = RatedLine(
        tenant=tenant, measure=measure, quantity=quantity, per_hour=per_hour(measure), unit=unit_of(measure)
    )
    if key is not None:
        line = replace(line, project=key.project, model=key.model, mode=key.mode, preemptible=key.preemptible)
    if tariff is not None:
        tax = tariff.tax
        line = replace(line, tariff=tariff.name, currency=tariff.currency, tax_name=tax.name, tax_percent=tax.percent)
    return line


def _committed(tenant: str, tariff: Tariff, price: Price, commitment: Commitment, quantity: int) -> RatedLine:
    line = _line(tenant, tariff, price.measure, quantity)
    return replace(line, measure=Measure.COMMITMENT, price=price.name, window=price.window, unit_price=commitment.price)


def _in_coins(lines: Sequence[RatedLine], tenant: str) -> list[RatedLine]:
    currencies = sorted({line.currency for line in lines if line.currency})
    if len(currencies) > 1:
        raise CalabashError(
            f"tenant {tenant} has tariffs in {' and '.join(currencies)} in one month, the limit is one currency",
            reason=Reason.CONFLICT,
            hint="give the tenant tariffs of one currency, or let the tariff in the new currency begin with a month",
        )
    exact = [
        Fraction(line.unit_price) * line.quantity / line.per_hour * (100 - Fraction(line.discount_percent)) / 100
        for line in lines
    ]
    amounts = apportioned(exact, currencies[0] if currencies else "")
    return [replace(line, amount=amount) for line, amount in zip(lines, amounts, strict=True)]
