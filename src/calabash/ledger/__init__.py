"""From what was used to what it costs: usage intervals -> rated lines -> invoices, as functions of their arguments.

What lives here, each a module:

* ``intervals``: what was held and measured, as columns of integers;
* ``calendar``: months and times of day in a time zone, daylight saving included;
* ``guarantees``: which part of what a tenant held was guaranteed, and which was borrowed;
* ``tariffs``: prices with their validity, times of day, tiers, commitments, discounts and tax;
* ``rating`` and ``filling``: quantities to lines, prices and tiers to amounts;
* ``invoices``: lines to an invoice, and its reversal;
* ``credits``: credit notes, and the invoices that are paid with them;
* ``money``: decimals and their rounding.

Quantities are integers of fine units (a percent of a device for a microsecond), amounts are exact fractions until they are
rounded once, so that neither the order of the intervals nor where they were cut apart can change a cent.

What never lives here: clocks, files, sockets, logging, databases, floating-point money.
"""

from calabash.ledger.calendar import Period, TimeWindow, month_period
from calabash.ledger.credits import OpenCredit, credit_note, settle
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
    "settle",
]
