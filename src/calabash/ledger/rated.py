"""What is rated, and the lines that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from calabash.ledger.calendar import HOUR_US


class Measure(StrEnum):
    """Billed quantities, each in hours: of a whole device guaranteed or borrowed, of a GiB of its memory, of measured work on a
    device, of a whole device held by slices without any GPU time; and hours that were committed to. A credit has no hours."""

    GUARANTEED = "guaranteed"
    BORROWED = "borrowed"
    MEMORY = "memory"
    BUSY = "busy"
    IDLE = "idle"
    COMMITMENT = "commitment"
    CREDIT = "credit"


HELD = frozenset({Measure.GUARANTEED, Measure.BORROWED, Measure.MEMORY})
GPU = (Measure.GUARANTEED, Measure.BORROWED)
_PER_HOUR = {
    Measure.GUARANTEED: 100 * HOUR_US,  # percent of a device for a microsecond
    Measure.BORROWED: 100 * HOUR_US,
    Measure.MEMORY: 1024 * HOUR_US,  # MiB for a microsecond
    Measure.BUSY: HOUR_US,
    Measure.IDLE: 100 * HOUR_US,  # percent of a device for a microsecond
}
_UNITS = {
    Measure.GUARANTEED: "GPU-h",
    Measure.BORROWED: "GPU-h",
    Measure.MEMORY: "GiB-h",
    Measure.BUSY: "busy h",
    Measure.IDLE: "idle h",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedLine:
    """A quantity at a price.

    ``quantity`` is in the whole units of its measure, ``per_hour`` of which are an hour. ``unit_price`` is for an hour, before
    the discount. ``tier`` counts from 0; ``committed``: within a commitment, which has a line of its own. A line without a
    tariff was used when none was in force.
    """

    tenant: str
    measure: Measure
    quantity: int
    per_hour: int
    unit: str
    project: str = ""
    model: str = ""
    mode: str = ""
    preemptible: bool = False
    tariff: str = ""
    price: str = ""
    window: str = ""
    tier: int = 0
    committed: bool = False
    unit_price: Decimal = Decimal(0)
    discount_percent: Decimal = Decimal(0)
    currency: str = ""
    tax_name: str = ""
    tax_percent: Decimal = Decimal(0)
    amount: Decimal = Decimal(0)

    @property
    def hours(self) -> Decimal:
        """The quantity for people, to a millionth."""
        return hours_of(self.quantity, self.per_hour)


def hours_of(quantity: int, per_hour: int) -> Decimal:
    """A quantity in hours, to a millionth."""
    sign = -1 if quantity < 0 else 1
    whole, rest = divmod(abs(quantity) * 1_000_000, per_hour)
    return Decimal(sign * (whole + (2 * rest >= per_hour))).scaleb(-6)


def per_hour(measure: Measure) -> int:
    """How many of its units are an hour."""
    return _PER_HOUR[measure]


def unit_of(measure: Measure) -> str:
    """The unit of an hour of it, for people."""
    return _UNITS[measure]
