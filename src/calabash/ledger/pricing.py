"""Pricing of quantities: commitments, tiers, discounts, and the rounded amounts of rated lines.

The first hours of a price are covered by its commitment; then its tiers are used in order. If several projects use a price,
each tier is divided among them in proportion to their use, in whole units that add up.

Commitments and tiers are per month. Several versions of a tariff may be in force in a month one after the other. Prices
with the same tier basis (names of tariff and price, and measure) then share one count of hours: the use under a version
begins in the tier in which the use under the earlier versions ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from calabash.ledger.calendar import Period
from calabash.ledger.intervals import LineKey
from calabash.ledger.money import apportion
from calabash.ledger.rated import GPU, Measure, RatedLine, per_hour, unit_of
from calabash.ledger.tariffs import Commitment, Price, Tariff
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, TenantName


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Quantities of one measure at one price, by the key of the invoice line.

    Args:
        tariff: index of the tariff in the list of tariffs; -1 if none is in force.
        price: the price; None if the tariff has none for the measure.
        quantities: quantity by key, in fine units of the measure.
    """

    tariff: int
    price: Price | None
    measure: Measure
    quantities: dict[LineKey, int]


_Basis = tuple[str, str, Measure]  # the names of tariff and price, and the measure


@dataclass(frozen=True, slots=True, kw_only=True)
class _PricedQuantity:
    """Quantity of a price in one tier, or covered by the commitment."""

    quantity: int
    price: Decimal
    tier: int = 0
    committed: bool = False


def price_buckets(
    buckets: Sequence[Bucket],
    *,
    tenant: str,
    tariffs: Sequence[Tariff],
    in_force_us: dict[int, int],
    period: Period,
) -> tuple[list[RatedLine], list[int]]:
    """Return the rated lines of a tenant, in the order of tariffs and their prices, and the index of each line's tariff.

    The index is -1 for lines without a tariff.

    Args:
        in_force_us: time within the period in which each tariff is in force, by its index.

    Raises:
        CalabashError(CONFLICT): the tariffs have more than one currency.
    """
    lines: list[RatedLine] = []
    of_tariff: list[int] = []
    order = sorted(in_force_us, key=lambda i: tariffs[i].valid_from_us)
    lengths = {index: Fraction(in_force_us[index], period.length_us) for index in order}
    commitments = _commitments([(index, tariffs[index]) for index in order], lengths)
    committed: dict[_Basis, int] = defaultdict(int)
    for (_, basis), quantity in commitments.items():
        committed[basis] += quantity
    used: dict[_Basis, int] = defaultdict(int)  # use under the earlier versions
    for index in order:
        tariff = tariffs[index]
        terms = {c.of_price: c for c in tariff.commitments}
        own = {(b.price.name, b.measure): b for b in buckets if b.tariff == index and b.price}
        for price in tariff.prices:
            basis = _basis(tariff, price)
            if price.name in terms:
                lines.append(_commitment_line(tenant, tariff, price, terms[price.name], commitments[index, basis]))
            bucket = own.get((price.name, price.measure))
            if bucket is not None:
                lines += _lines(tenant, tariff, bucket, begin=used[basis], committed=committed[basis])
                used[basis] += sum(bucket.quantities.values())
        lines += _unpriced(tenant, [b for b in buckets if b.tariff == index], tariff)
        of_tariff += [index] * (len(lines) - len(of_tariff))
    lines += _unpriced(tenant, [b for b in buckets if b.tariff < 0], None)
    of_tariff += [-1] * (len(lines) - len(of_tariff))
    return _with_amounts(lines, tenant), of_tariff


def _basis(tariff: Tariff, price: Price) -> _Basis:
    """Return the tier basis of a price. Prices with the same tier basis share one count of hours in a month."""
    return tariff.name, price.name, price.measure


def _commitments(
    versions: Sequence[tuple[int, Tariff]], lengths: Mapping[int, Fraction]
) -> dict[tuple[int, _Basis], int]:
    """Return the committed quantities by index of the tariff version and tier basis.

    A tariff version adds its committed hours in proportion to the time in which it is in force. Fractions of a unit are
    carried from version to version, so that several equal versions give the same sum as one version.

    Args:
        versions: index and tariff of each version, in the order in which they are in force.
        lengths: part of the month in which each version is in force, by its index.
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
    """Return the lines of a bucket.

    Args:
        begin: quantity that was used earlier in the month at prices with the same tier basis, in fine units.
        committed: quantity that commitments of the month cover, in fine units.
    """
    price = bucket.price
    assert price is not None
    left = dict(sorted(bucket.quantities.items()))
    found = []
    for part in _divide_into_tiers(price, begin, begin + sum(left.values()), committed):
        taken = _divide_by_key(left, part.quantity)
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


def _divide_into_tiers(price: Price, begin: int, end: int, committed: int) -> list[_PricedQuantity]:
    """Divide use into the quantity that a commitment covers and the quantities of the tiers.

    Args:
        begin, end: quantities used in the month before and after the use that is divided, in fine units.
        committed: quantity of the month that the commitment covers, in fine units.
    """
    found = [_PricedQuantity(quantity=max(0, min(committed, end) - begin), price=Decimal(0), committed=True)]
    above = [0, *(int(Fraction(tier.above_hours) * per_hour(price.measure)) for tier in price.tiers)]
    prices = [price.price, *(tier.price for tier in price.tiers)]
    for tier, (lowest, amount) in enumerate(zip(above, prices, strict=True)):
        highest = above[tier + 1] if tier + 1 < len(above) else end
        quantity = min(highest, end) - max(lowest, committed, begin)
        found.append(_PricedQuantity(quantity=max(0, quantity), price=amount, tier=tier))
    return found


def _divide_by_key(left: dict[LineKey, int], quantity: int) -> dict[LineKey, int]:
    """Divide a quantity among keys in proportion to their quantities, in whole units that add up.

    Args:
        left: quantity of each key that is not divided into tiers yet.
    """
    total, so_far, given = sum(left.values()), 0, 0
    found = {}
    for key, amount in left.items():
        so_far += amount
        upto = so_far * quantity // total if total else 0
        found[key], given = upto - given, upto
    return found


def _unpriced(tenant: str, buckets: Sequence[Bucket], tariff: Tariff | None) -> list[RatedLine]:
    """Return lines without a price, which cost nothing."""
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


def _commitment_line(tenant: str, tariff: Tariff, price: Price, commitment: Commitment, quantity: int) -> RatedLine:
    line = _line(tenant, tariff, price.measure, quantity)
    return replace(line, measure=Measure.COMMITMENT, price=price.name, window=price.window, unit_price=commitment.price)


def _with_amounts(lines: Sequence[RatedLine], tenant: str) -> list[RatedLine]:
    currencies = sorted({line.currency for line in lines if line.currency})
    if len(currencies) > 1:
        raise CalabashError(
            Message(
                "tenant {tenant} has tariffs in {currencies} in one month, the limit is one currency",
                tenant=TenantName(tenant),
                currencies=" and ".join(currencies),
            ),
            reason=Reason.CONFLICT,
            hint="give the tenant tariffs of one currency, or let the tariff in the new currency begin with a month",
        )
    exact = [
        Fraction(line.unit_price) * line.quantity / line.per_hour * (100 - Fraction(line.discount_percent)) / 100
        for line in lines
    ]
    amounts = apportion(exact, currencies[0] if currencies else "")
    return [replace(line, amount=amount) for line, amount in zip(lines, amounts, strict=True)]
