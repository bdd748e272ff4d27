"""Tariffs: prices with time windows, tiers, commitments, a discount, tax and a validity period.

The first matching price of a measure is used. Several versions of a tariff may be in force one after the other. A tariff that
names tenants precedes a tariff for all tenants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from decimal import Decimal

from calabash.ledger.calendar import TimeWindow, zone_of
from calabash.ledger.intervals import LineKey
from calabash.ledger.money import check_currency
from calabash.ledger.rated import HELD, Measure
from calabash.model.errors import CalabashError

PRICE_MAX = Decimal(10) ** 9
_DECIMALS_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Tier of a price: another price for the hours of a month beyond ``above_hours``."""

    above_hours: Decimal
    price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of an hour of one measure.

    Args:
        models: substrings of the names of the device models to which it applies, without regard to case; empty: all
            models.
        modes: sharing modes to which it applies; empty: all modes.
        window: name of the time window in which the price applies; "": always.
        tiers: prices beyond numbers of hours, in ascending order.
    """

    name: str
    measure: Measure
    price: Decimal
    models: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    window: str = ""
    tiers: tuple[Tier, ...] = ()

    def __post_init__(self) -> None:
        require_amount(self.price, f"price {self.name}")
        above = [tier.above_hours for tier in self.tiers]
        for tier in self.tiers:
            require_amount(tier.price, f"a tier of price {self.name}")
            require_amount(tier.above_hours, f"a tier of price {self.name}")
        if above != sorted(set(above)) or (above and above[0] <= 0):
            raise CalabashError(
                f"tiers of price {self.name} begin above {', '.join(map(str, above))} hours",
                hint="each tier begins above more hours than the one before, the first above more than 0",
            )
        if self.window and self.measure not in HELD:
            raise CalabashError(
                f"price {self.name} is for {self.measure} time and has a window",
                hint="only guaranteed, borrowed and memory prices can have a window",
            )

    def matches(self, key: LineKey, measure: Measure, windows: frozenset[str]) -> bool:
        """Return True if the price applies to a measure of this use while these time windows are open."""
        if measure is not self.measure or (self.window and self.window not in windows):
            return False
        if self.modes and key.mode not in self.modes:
            return False
        return not self.models or any(model.casefold() in key.model.casefold() for model in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """Commitment: a number of hours per month that is paid in any case, and that covers use of the named price.

    If the tariff is in force for a part of the month only, the hours are reduced in proportion.

    Args:
        of_price: name of the price whose use is covered.
        hours: committed hours per month.
        price: price of a committed hour.
    """

    of_price: str
    hours: Decimal
    price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tax:
    """Tax as a percentage of the net amount."""

    name: str = ""
    percent: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """One version of a tariff.

    Args:
        valid_from_us, valid_to_us: validity period, excluding the end; ``valid_to_us`` None: without end.
        tenants: tenants for which it is in force; empty: all.
        windows: time windows that its prices name.
        preemptible_discount_percent: discount for use by requests with a priority below 0.
    """

    name: str
    currency: str
    time_zone: str
    valid_from_us: int
    valid_to_us: int | None = None
    tenants: tuple[str, ...] = ()
    windows: tuple[TimeWindow, ...] = ()
    prices: tuple[Price, ...] = ()
    commitments: tuple[Commitment, ...] = ()
    preemptible_discount_percent: Decimal = Decimal(0)
    tax: Tax = field(default_factory=Tax)

    def __post_init__(self) -> None:
        check_currency(self.currency)
        zone_of(self.time_zone)
        if self.valid_to_us is not None and self.valid_to_us <= self.valid_from_us:
            raise CalabashError(
                f"tariff {self.name} ends before it begins", hint="leave valid_to out, or set a later day"
            )
        _require_unique("window", (window.name for window in self.windows))
        _require_unique("price", (price.name for price in self.prices))
        known = {window.name for window in self.windows}
        for price in self.prices:
            if price.window and price.window not in known:
                raise CalabashError(
                    f"price {price.name} names window {price.window}, which the tariff does not have",
                    hint=f"windows of the tariff: {', '.join(sorted(known)) or 'none'}",
                )
        _require_unique("commitment for price", (c.of_price for c in self.commitments))
        for commitment in self.commitments:
            self._check_commitment(commitment)
        for what, percent in (("tax", self.tax.percent), ("discount", self.preemptible_discount_percent)):
            require_amount(percent, what)
            if percent > 100:
                raise CalabashError(f"{what} of {percent} percent is out of range", hint="0 to 100 percent")

    def _check_commitment(self, commitment: Commitment) -> None:
        require_amount(commitment.hours, "a commitment")
        require_amount(commitment.price, "a commitment")
        if commitment.of_price not in {price.name for price in self.prices}:
            raise CalabashError(
                f"a commitment names price {commitment.of_price}, which the tariff does not have",
                hint=f"prices of the tariff: {', '.join(price.name for price in self.prices) or 'none'}",
            )

    def price_of(self, key: LineKey, measure: Measure, windows: frozenset[str]) -> Price | None:
        """Return the first price that applies to a measure of this use; None if there is none."""
        return next((price for price in self.prices if price.matches(key, measure, windows)), None)


def same_terms(one: Tariff, other: Tariff) -> bool:
    """Return True if two versions of a tariff rate all use of a tenant alike; they may differ in validity and in tenants."""
    return all(
        getattr(one, f.name) == getattr(other, f.name)
        for f in fields(Tariff)
        if f.name not in {"valid_from_us", "valid_to_us", "tenants"}
    )


def tariff_in_force(tariffs: Iterable[Tariff], *, tenant: str, at_us: int) -> Tariff | None:
    """Return the tariff of a tenant that is in force at a time; None if there is none.

    A tariff that names the tenant precedes one for all tenants. Of several such tariffs the one with the latest begin
    is used.
    """
    valid = [
        tariff
        for tariff in tariffs
        if tariff.valid_from_us <= at_us
        and (tariff.valid_to_us is None or at_us < tariff.valid_to_us)
        and (not tariff.tenants or tenant in tariff.tenants)
    ]
    return max(valid, key=lambda t: (bool(t.tenants), t.valid_from_us, t.name), default=None)


def require_amount(value: Decimal, what: str) -> None:
    """Raise CalabashError if the value is not a number from 0 to PRICE_MAX with at most 9 decimals.

    Args:
        what: name of the amount, for the error message.
    """
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not 0 <= value <= PRICE_MAX or exponent < -_DECIMALS_MAX:
        raise CalabashError(
            f"{what} has the invalid amount {str(value)[:40]}",
            hint=f"write a number from 0 to {PRICE_MAX:f} with at most {_DECIMALS_MAX} decimals",
        )


def _require_unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CalabashError(f"{what} {name} is defined twice", hint="give each a different name")
        seen.add(name)
