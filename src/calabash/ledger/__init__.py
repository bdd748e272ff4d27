"""Billing calculations: usage intervals are rated to lines, and lines make invoices (pure functions).

Modules:

* ``intervals``: usage intervals of a tenant as columns of integers;
* ``calendar``: months and times of day in a time zone, including daylight saving time;
* ``guarantees``: division of use into guaranteed and borrowed use;
* ``tariffs``: prices with validity, time windows, tiers, commitments, discounts and tax;
* ``rating``: quantities of usage by price; ``pricing``: commitments, tiers and amounts of the lines;
* ``invoices``: invoices and reversals;
* ``credits``: credit notes, and the invoices that are paid with them;
* ``money``: decimal amounts and their rounding.

Quantities are integers in fine units (one percent of a device for a microsecond). Amounts are exact fractions and are rounded
once. Therefore the order of the intervals, and the points at which they are split, do not change any amount.

The package uses no clock, file, socket, log or database, and no floating-point numbers for money.
"""

from calabash.ledger.calendar import Period, TimeWindow, month_period
from calabash.ledger.credits import OpenCredit, credit_note, settle_with_credits
from calabash.ledger.guarantees import GuaranteeChange
from calabash.ledger.intervals import Usage, UsageInterval
from calabash.ledger.invoices import Invoice, InvoiceKind, Settlement, TaxLine, invoice, reverse
from calabash.ledger.rated import Measure, RatedLine
from calabash.ledger.rating import ItemLine, rate, rate_itemised
from calabash.ledger.tariffs import Commitment, Price, Tariff, Tax, Tier

__all__ = [
    "Commitment",
    "GuaranteeChange",
    "Invoice",
    "InvoiceKind",
    "ItemLine",
    "Measure",
    "OpenCredit",
    "Period",
    "Price",
    "RatedLine",
    "Settlement",
    "Tariff",
    "Tax",
    "TaxLine",
    "Tier",
    "TimeWindow",
    "Usage",
    "UsageInterval",
    "credit_note",
    "invoice",
    "month_period",
    "rate",
    "rate_itemised",
    "reverse",
    "settle_with_credits",
]
