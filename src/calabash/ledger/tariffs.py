"""What things cost: a tariff with its prices, times of day, tiers, commitments, discount, tax and validity.

Of the prices for one measure the first that matches counts. Several tariffs may be in force one after the other, and a tariff
that names tenants goes before one for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from decimal import Decimal

from calabash.ledger.calendar import TimeWindow, zone_of
from calabash.ledger.intervals import LineKey
from calabash.ledger.money import checked_currency
from calabash.ledger.rated import HELD, Measure
from calabash.model.errors import CalabashError

PRICE_MAX = Decimal(10) ** 9
_DECIMALS_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Beyond so many hours of the month, another price."""

    above_hours: Decimal
    price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of an hour of one measure; empty fields accept all. Models match as a part and without regard to case."""

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
                hint="what is measured has no time of day; windows go with guaranteed, borrowed and memory",
            )

    def matches(self, key: LineKey, measure: Measure, windows: frozenset[str]) -> bool:
        """Whether it is the price of that, while these windows are open."""
        if measure is not self.measure or (self.window and self.window not in windows):
            return False
        if self.modes and key.mode not in self.modes:
            return False
        return not self.models or any(model.casefold() in key.model.casefold() for model in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """So many hours a month are paid for whether they are used or not, and those of the named price cost no more.

    Where the tariff is in force for a part of the month, the commitment is for that part.
    """

    of_price: str
    hours: Decimal
    price: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tax:
    """A percentage on the net amount."""

    name: str = ""
    percent: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Prices that are in force from an instant up to another (None: for ever). ``tenants`` empty: for all."""

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
        checked_currency(self.currency)
        zone_of(self.time_zone)
        if self.valid_to_us is not None and self.valid_to_us <= self.valid_from_us:
            raise CalabashError(
                f"tariff {self.name} ends before it begins", hint="leave valid_to out, or take a later day"
            )
        _require_once("window", (window.name for window in self.windows))
        _require_once("price", (price.name for price in self.prices))
        known = {window.name for window in self.windows}
        for price in self.prices:
            if price.window and price.window not in known:
                raise CalabashError(
                    f"price {price.name} names window {price.window}, which the tariff does not have",
                    hint=f"windows of it: {', '.join(sorted(known)) or 'none'}",
                )
        _require_once("commitment for price", (c.of_price for c in self.commitments))
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
                hint=f"prices of it: {', '.join(price.name for price in self.prices) or 'none'}",
            )

    def price_of(self, key: LineKey, measure: Measure, windows: frozenset[str]) -> Price | None:
        """The first that matches."""
        return next((price for price in self.prices if price.matches(key, measure, windows)), None)


def same_terms(one: Tariff, other: Tariff) -> bool:
    """Return True if two versions of a tariff rate all use of a tenant alike; they may differ in validity and in tenants."""
    return all(
        getattr(one, f.name) == getattr(other, f.name)
        for f in fields(Tariff)
        if f.name not in {"valid_from_us", "valid_to_us", "tenants"}
    )


def in_force(tariffs: Iterable[Tariff], *, tenant: str, at_us: int) -> Tariff | None:
    """The tariff of a tenant at a moment: one that names it before one for all, of those the youngest."""
    valid = [
        tariff
        for tariff in tariffs
        if tariff.valid_from_us <= at_us
        and (tariff.valid_to_us is None or at_us < tariff.valid_to_us)
        and (not tariff.tenants or tenant in tariff.tenants)
    ]
    return max(valid, key=lambda t: (bool(t.tenants), t.valid_from_us, t.name), default=None)


def require_amount(value: Decimal, what: str) -> None:
    """Raises CalabashError unless it is a number from 0 on that money is counted in."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not 0 <= value <= PRICE_MAX or exponent < -_DECIMALS_MAX:
        raise CalabashError(
            f"{what} has the amount {str(value)[:40]}",
            hint=f"a number from 0 to {PRICE_MAX:f} with at most {_DECIMALS_MAX} decimals",
        )


def _require_once(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CalabashError(f"{what} {name} is there twice", hint="give each a name of its own")
        seen.add(name)
