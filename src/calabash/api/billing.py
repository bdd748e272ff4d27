"""Message types of usage, tariffs and invoices. Amounts of money are exact decimal numbers as text."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.requests import Name, OptionalName, Page, with_pattern

DAY_PATTERN = r"^2[0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])\Z"
_MONTH_HINT = "a month, like 2026-11"
Month = Annotated[str, with_pattern(r"^2[0-9]{3}-(0[1-9]|1[0-2])\Z", _MONTH_HINT)]
Day = Annotated[str, with_pattern(DAY_PATTERN, "a day, like 2026-11-30")]
Label = Annotated[
    str,
    with_pattern(
        r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}\Z", "1 to 63 letters, digits, blanks and ._-, a letter or digit first"
    ),
]
Texts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)]
Weekday = Annotated[str, with_pattern(r"^(mon|tue|wed|thu|fri|sat|sun)\Z", "one of: mon, tue, wed, thu, fri, sat, sun")]
TimeOfDay = Annotated[str, Meta(max_length=5)]
Measured = Annotated[str, Meta(pattern=r"^(guaranteed|borrowed|memory|busy|idle)\Z")]


class WindowSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Time window of a tariff: a time of day on days of the week."""

    name: Annotated[Label, Meta(description="name, to which prices refer")]
    days: Annotated[list[Weekday], Meta(max_length=7, description="days on which it begins; empty: every day")] = []
    begin: Annotated[TimeOfDay, Meta(description='begin, like `"22:00"`')] = "00:00"
    end: Annotated[
        TimeOfDay, Meta(description='end, like `"06:00"`; if it is not after the begin, on the next day')
    ] = "24:00"


class TierSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Tier: another price from a number of hours in the month on."""

    above: Annotated[Decimal, Meta(description="hours in the month from which the tier applies")]
    price: Annotated[Decimal, Meta(description="price of an hour")]


class PriceSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Price of an hour. The first matching price is used."""

    name: Annotated[Label, Meta(description="name on the lines of invoices")]
    measure: Annotated[
        Measured,
        Meta(description="`guaranteed`, `borrowed`, `busy` or `idle` hours of a whole device, `memory` GiB-hours"),
    ]
    price: Annotated[Decimal, Meta(description="price of an hour")]
    models: Annotated[Texts, Meta(description="substrings of device model names; empty: all")] = []
    modes: Annotated[Texts, Meta(description="sharing modes; empty: all")] = []
    window: Annotated[str, Meta(max_length=64, description="name of a time window; empty: always")] = ""
    tiers: Annotated[list[TierSettings], Meta(max_length=32, description="prices beyond numbers of hours")] = []


class CommitmentSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Commitment: hours per month that are paid in any case."""

    of: Annotated[Label, Meta(description="name of the price whose first hours the commitment covers")]
    hours: Annotated[Decimal, Meta(description="hours per month")]
    price: Annotated[Decimal, Meta(description="price of a committed hour")]


class TaxSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Tax on the net amount."""

    name: Annotated[str, Meta(max_length=32, description="name, like `VAT`")] = ""
    percent: Annotated[Decimal, Meta(description="0 to 100")] = Decimal(0)


class TariffSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Tariff. A tariff with the same name and a later begin is the next version of it."""

    name: Annotated[Label, Meta(description="name of the tariff")]
    currency: Annotated[str, Meta(max_length=3, description="three capital letters")]
    valid_from: Annotated[Day, Meta(description="first day, in the time zone of the tariff")]
    time_zone: Annotated[str, Meta(max_length=64, description="time zone of days, months and time windows")] = "UTC"
    valid_to: Annotated[Day, Meta(description="first day on which the tariff is not in force")] | None = None
    tenants: Annotated[list[Name], Meta(max_length=1000, description="tenants of the tariff; empty: all tenants")] = []
    windows: Annotated[list[WindowSettings], Meta(max_length=32)] = []
    prices: Annotated[list[PriceSettings], Meta(max_length=200)] = []
    commitments: Annotated[list[CommitmentSettings], Meta(max_length=64)] = []
    preemptible_discount_percent: Annotated[
        Decimal, Meta(description="discount for preemptible use, with a priority below 0")
    ] = Decimal(0)
    tax: TaxSettings = TaxSettings()
    seller: Annotated[Texts, Meta(description="lines of the invoice's head that name the sender")] = []


class InvoiceOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to rate a month and create drafts."""

    month: Annotated[Month, Meta(description="month, like `2026-11`")]
    tenant: Annotated[OptionalName, Meta(description="tenant; empty: all tenants")] = ""


class CreditOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request for a credit note for an issued invoice."""

    amount: Annotated[
        Decimal, Meta(description="net amount, above 0; all credit notes together at most the invoice's net amount")
    ]
    reason: Annotated[
        str, Meta(min_length=1, max_length=200, description="reason, shown on the credit note and in the audit log")
    ]


class InvoicePage(Page, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select invoices."""

    tenant: Annotated[OptionalName, Meta(description="tenant; empty: all that the requesting user may see")] = ""
    month: Annotated[
        str, with_pattern(r"^\Z|^2[0-9]{3}-(0[1-9]|1[0-2])\Z", _MONTH_HINT, description="month; empty: all")
    ] = ""


class UsageQuestion(
    msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, rename={"from_s": "from", "to_s": "to"}
):
    """Query parameters of a usage summary."""

    by: Annotated[
        str,
        Meta(
            max_length=64,
            description="grouping: any of `tenant`, `project`, `user`, `device`, `model`, `mode`, separated by commas",
        ),
    ] = "tenant"
    from_s: Annotated[float, Meta(ge=0, le=1e11, description="begin, in seconds since 1970")]
    to_s: Annotated[float, Meta(ge=0, le=1e11, description="end, in seconds since 1970")]


class UsageSum(Reply, kw_only=True, frozen=True):
    """Usage of one group. Attributes by which usage is not grouped are empty.

    GPU hours, busy hours and idle hours are hours of whole devices. Idle hours are GPU hours without measured GPU time.
    ``uncertain_hours`` is the longest time for which allocations with an estimated end may have held devices beyond that end;
    it is not included in the other values.
    """

    gpu_hours: float
    memory_gib_hours: float
    busy_hours: float
    idle_hours: float
    uncertain_hours: float = 0.0
    tenant: str = ""
    project: str = ""
    user: str = ""
    device: str = ""
    model: str = ""
    mode: str = ""


class UsageSums(Reply, kw_only=True, frozen=True):
    """Usage between two times. ``complete`` is false if rows are left out. ``counted_to_s``: end of the counted usage."""

    items: list[UsageSum]
    from_s: float
    to_s: float
    complete: bool
    counted_to_s: float


class TariffList(Reply, kw_only=True, frozen=True):
    """Tariffs, sorted by name and begin."""

    items: list[TariffSettings]


class InvoiceLine(Reply, kw_only=True, frozen=True):
    """Line of an invoice: ``hours`` at ``unit_price`` each, minus the discount."""

    project: str
    measure: str
    model: str
    mode: str
    preemptible: bool
    tariff: str
    price: str
    window: str
    tier: int
    committed: bool
    hours: str
    unit: str
    unit_price: str
    discount_percent: str
    amount: str


class InvoiceTax(Reply, kw_only=True, frozen=True):
    """Tax of an invoice. ``net`` is the taxed amount."""

    name: str
    percent: str
    net: str
    amount: str


class InvoiceSettlement(Reply, kw_only=True, frozen=True):
    """Amount of a credit note, with tax, that pays an invoice."""

    number: str
    reason: str
    amount: str


class InvoiceView(Reply, kw_only=True, frozen=True):
    """Invoice. ``state`` is ``draft``, ``issued`` or ``void``; ``kind`` is ``invoice``, ``credit`` or ``reversal``.

    ``number``: number of the invoice, or name of the draft. ``reverses``: number of the invoice that a reversal reverses.
    ``reversed_by``: number of the reversal of this invoice. ``seal``: digest of an issued invoice. ``credits``: number of the
    invoice for which a credit note is, with its ``reason``; ``open``: its amount that no invoice has used. ``settled``: amounts
    of credit notes that pay the invoice; ``due``: the total without them. ``counted_to_s``: end of the usage in the invoice, at
    most the end of the month; 0 if unknown.
    """

    number: str
    state: str
    kind: str
    tenant: str
    month: str
    from_s: float
    to_s: float
    time_zone: str
    currency: str
    net: str
    total: str
    taxes: list[InvoiceTax]
    at: float
    by: str
    reverses: str
    reversed_by: str
    seller: list[str]
    lines: list[InvoiceLine]
    seal: str = ""
    credits: str = ""
    reason: str = ""
    settled: list[InvoiceSettlement] = msgspec.field(default_factory=list)
    due: str = ""
    open: str = ""
    counted_to_s: float = 0.0


class ItemPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select a page of items."""

    after: Annotated[str, Meta(pattern=r"^[0-9]{0,9}\Z", description="`next` of the previous page")] = ""


class InvoiceItem(Reply, kw_only=True, frozen=True):
    """Use of one device by one allocation at one price. ``amount`` has four more decimals than the currency.

    A commitment has no allocation. The amounts of all items of an invoice add up to its net amount. ``uncertain_s`` is above 0
    if ``to_s`` is an estimated end: the allocation may have ended at most so many seconds later, which are not charged.
    """

    allocation: str
    device: str
    user: str
    project: str
    model: str
    mode: str
    preemptible: bool
    share_percent: int
    memory_mib: int
    from_s: float
    to_s: float
    measure: str
    tariff: str
    price: str
    window: str
    hours: str
    unit: str
    amount: str
    uncertain_s: float = 0.0


class InvoiceItems(Reply, kw_only=True, frozen=True):
    """Page of items of an invoice. ``next`` is the value of ``after`` for the next page; empty on the last page."""

    items: list[InvoiceItem]
    next: str = ""


class InvoiceCheck(Reply, kw_only=True, frozen=True):
    """One check of an invoice. ``what`` is ``seal``, ``items`` or ``usage``.

    ``state`` is ``ok``, ``changed``, ``absent`` for an invoice of a version without seals, or ``not-kept`` if retention has
    deleted or merged usage records.
    """

    number: str
    what: str
    state: str
    detail: str


class InvoiceVerdict(Reply, kw_only=True, frozen=True):
    """Result of the verification of an invoice. ``sound`` is false if a check found a change."""

    number: str
    sound: bool
    seal: str
    items: list[InvoiceCheck]


class DraftFailure(Reply, kw_only=True, frozen=True):
    """Tenant whose month could not be rated, with the error."""

    tenant: str
    message: str
    hint: str


class InvoiceList(Reply, kw_only=True, frozen=True):
    """Page of invoices; lists have invoices without their lines. ``next`` is the value of ``after`` for the next page.

    ``failed``: tenants for which no draft could be created.
    """

    items: list[InvoiceView]
    next: str = ""
    failed: list[DraftFailure] = msgspec.field(default_factory=list)
