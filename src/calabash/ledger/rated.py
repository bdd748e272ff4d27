"""Measures of usage that have prices, and rated lines of invoices."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from calabash.ledger.calendar import HOUR_US


class Measure(StrEnum):
    """Billed quantities, in hours.

    GUARANTEED, BORROWED: a whole device was held within or beyond the guarantee. MEMORY: a GiB of device memory was held. BUSY:
    measured GPU time. IDLE: a whole device was held by slices without GPU time. COMMITMENT: committed hours. CREDIT: the amount
    of a credit note, without hours.
    """

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
    """Line of an invoice: a quantity of one measure at one price.

    Args:
        quantity: the quantity in fine units of the measure.
        per_hour: number of fine units in an hour.
        unit: unit of ``hours`` for people, for example "GPU-h".
        tariff: name of the tariff; "" if none was in force.
        price: name of the price; "" if the tariff has none.
        tier: number of the tier, from 0.
        window: name of the time window of the price; "" if it always applies.
        committed: the quantity is covered by a commitment. It costs nothing here, because the commitment has a line of
            its own.
        unit_price: price of an hour before the discount.
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
        """Quantity in hours, rounded to 6 decimals."""
        return hours_of(self.quantity, self.per_hour)


def hours_of(quantity: int, per_hour: int) -> Decimal:
    """Return a quantity in hours, rounded to 6 decimals.

    Args:
        quantity: in fine units of a measure.
        per_hour: number of fine units in an hour.
    """
    sign = -1 if quantity < 0 else 1
    whole, rest = divmod(abs(quantity) * 1_000_000, per_hour)
    return Decimal(sign * (whole + (2 * rest >= per_hour))).scaleb(-6)


def per_hour(measure: Measure) -> int:
    """Return the number of fine units of a measure in an hour."""
    return _PER_HOUR[measure]


def unit_of(measure: Measure) -> str:
    """Return the unit of a measure's hours for people, for example "GPU-h"."""
    return _UNITS[measure]
