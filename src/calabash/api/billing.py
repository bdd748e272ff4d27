"""What the API says of usage, tariffs and invoices. Amounts of money are text, exact to the last digit."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.requests import Name, OptionalName, Page, written

DAY_PATTERN = r"^2[0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])\Z"
_MONTH_HINT = "a month, like 2026-11"
Month = Annotated[str, written(r"^2[0-9]{3}-(0[1-9]|1[0-2])\Z", _MONTH_HINT)]
Day = Annotated[str, written(DAY_PATTERN, "a day, like 2026-11-30")]
Label = Annotated[
    str,
    written(r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}\Z", "1 to 63 letters, digits, blanks and ._-, a letter or digit first"),
]
Texts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)]
Weekday = Annotated[str, written(r"^(mon|tue|wed|thu|fri|sat|sun)\Z", "one of: mon, tue, wed, thu, fri, sat, sun")]
TimeOfDay = Annotated[str, Meta(max_length=5)]
Measured = Annotated[str, Meta(pattern=r"^(guaranteed|borrowed|memory|busy|idle)\Z")]


class WindowSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A time of day on days of the week."""

    name: Annotated[Label, Meta(description="what prices call it")]
    days: Annotated[list[Weekday], Meta(max_length=7, description="days that it begins on; none: every day")] = []
    begin: Annotated[TimeOfDay, Meta(description='as `"22:00"`')] = "00:00"
    end: Annotated[TimeOfDay, Meta(description='as `"06:00"`; not after the begin: on the next day')] = "24:00"


class TierSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Another price beyond so many hours of a month."""

    above: Annotated[Decimal, Meta(description="hours of the month from which it counts")]
    price: Annotated[Decimal, Meta(description="for an hour")]


class PriceSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The price of an hour; the first that matches counts."""

    name: Annotated[Label, Meta(description="what lines of invoices call it")]
    measure: Annotated[
        Measured,
        Meta(description="`guaranteed`, `borrowed`, `busy` or `idle` hours of a whole device, `memory` GiB-hours"),
    ]
    price: Annotated[Decimal, Meta(description="for an hour")]
    models: Annotated[Texts, Meta(description="parts of names of device models; none: all")] = []
    modes: Annotated[Texts, Meta(description="sharing modes; none: all")] = []
    window: Annotated[str, Meta(max_length=64, description="name of a window; empty: always")] = ""
    tiers: Annotated[list[TierSettings], Meta(max_length=32, description="lower prices for more")] = []


class CommitmentSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Hours that are paid every month, used or not."""

    of: Annotated[Label, Meta(description="name of the price whose first hours these are")]
    hours: Annotated[Decimal, Meta(description="hours a month")]
    price: Annotated[Decimal, Meta(description="for each of them")]


class TaxSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A tax on the net amount."""

    name: Annotated[str, Meta(max_length=32, description="as `VAT`")] = ""
    percent: Annotated[Decimal, Meta(description="0 to 100")] = Decimal(0)


class TariffSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A tariff as an administrator wants it; another of that name with a later begin follows it."""

    name: Annotated[Label, Meta(description="its name")]
    currency: Annotated[str, Meta(max_length=3, description="three capital letters")]
    valid_from: Annotated[Day, Meta(description="first day, in its time zone")]
    time_zone: Annotated[str, Meta(max_length=64, description="of its days, months and windows")] = "UTC"
    valid_to: Annotated[Day, Meta(description="first day on which it is not in force any more")] | None = None
    tenants: Annotated[list[Name], Meta(max_length=1000, description="none: all tenants")] = []
    windows: Annotated[list[WindowSettings], Meta(max_length=32)] = []
    prices: Annotated[list[PriceSettings], Meta(max_length=200)] = []
    commitments: Annotated[list[CommitmentSettings], Meta(max_length=64)] = []
    preemptible_discount_percent: Annotated[Decimal, Meta(description="off what may be taken back at any time")] = (
        Decimal(0)
    )
    tax: TaxSettings = TaxSettings()
    seller: Annotated[Texts, Meta(description="lines of the invoice's head: who sends it")] = []


class InvoiceOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A month is to be rated, for drafts that can be looked at."""

    month: Annotated[Month, Meta(description="as `2026-11`")]
    tenant: Annotated[OptionalName, Meta(description="empty: all tenants")] = ""


class CreditOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A credit note for an issued invoice."""

    amount: Annotated[
        Decimal, Meta(description="net, above 0; all credit notes together at most the invoice's net amount")
    ]
    reason: Annotated[
        str, Meta(min_length=1, max_length=200, description="stands on the credit note and in the audit log")
    ]


class InvoicePage(Page, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which invoices, in the query string."""

    tenant: Annotated[OptionalName, Meta(description="empty: all that may be seen")] = ""
    month: Annotated[str, written(r"^\Z|^2[0-9]{3}-(0[1-9]|1[0-2])\Z", _MONTH_HINT, description="empty: all")] = ""


class UsageQuestion(
    msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, rename={"from_s": "from", "to_s": "to"}
):
    """Which usage, in the query string."""

    by: Annotated[
        str,
        Meta(max_length=64, description="any of `tenant`, `project`, `user`, `device`, `model`, `mode`, with commas"),
    ] = "tenant"
    from_s: Annotated[float, Meta(ge=0, le=1e11, description="seconds since 1970")]
    to_s: Annotated[float, Meta(ge=0, le=1e11, description="seconds since 1970")]


class UsageSum(Reply, kw_only=True, frozen=True):
    """Hours of one combination; what it is not summed by is empty. GPU hours, busy hours and idle hours are of whole devices:
    idle hours are the part of the GPU hours in which no GPU time was measured.

    ``uncertain_hours`` is how much longer allocations with an estimated end may have held devices; it is in no other figure.
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
    """Usage between two moments; ``complete`` is false where there would be more rows than are given. ``counted_to_s`` is the
    moment up to which usage is counted, at most ``to_s``."""

    items: list[UsageSum]
    from_s: float
    to_s: float
    complete: bool
    counted_to_s: float


class TariffList(Reply, kw_only=True, frozen=True):
    """All tariffs by name and begin."""

    items: list[TariffSettings]


class InvoiceLine(Reply, kw_only=True, frozen=True):
    """A line: ``hours`` at ``unit_price`` each, less the discount."""

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
    """A tax of an invoice."""

    name: str
    percent: str
    net: str
    amount: str


class InvoiceSettlement(Reply, kw_only=True, frozen=True):
    """An amount of a credit note, with tax, that an invoice uses."""

    number: str
    reason: str
    amount: str


class InvoiceView(Reply, kw_only=True, frozen=True):
    """An invoice. ``state`` is ``draft``, ``issued`` or ``void``; ``kind`` is ``invoice``, ``credit`` or ``reversal``.

    ``reverses`` is the invoice that a reversal takes back, ``reversed_by`` what took this one back. A draft's ``number`` is
    its name. ``seal`` is the digest of an issued invoice. ``credits`` is the invoice that a credit note is for, with its
    ``reason``, and ``open`` what no invoice has used of it. ``settled`` are the credit notes that an invoice is paid with;
    ``due`` is the total without them. ``counted_to_s`` is the moment up to which usage is in it, at most the end of the month;
    0 where that is not known.
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
    """Which items, in the query string."""

    after: Annotated[str, Meta(pattern=r"^[0-9]{0,9}\Z", description="`next` of the page before")] = ""


class InvoiceItem(Reply, kw_only=True, frozen=True):
    """Use of one device by one allocation under one price; ``amount`` has four more decimals than the currency.

    A commitment has no allocation. The amounts of all items of an invoice add up to its net amount. ``uncertain_s`` is above 0
    where ``to_s`` is an estimated end: the allocation may have ended up to so many seconds later, which are not charged.
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
    """Items of an invoice; ``next`` goes into ``after`` of the next page."""

    items: list[InvoiceItem]
    next: str = ""


class InvoiceCheck(Reply, kw_only=True, frozen=True):
    """One check of an invoice. ``what`` is ``seal``, ``items`` or ``usage``; ``state`` is ``ok``, ``changed``, ``absent`` for
    an invoice of a version that sealed none, or ``not-kept`` where retention has removed or merged usage records."""

    number: str
    what: str
    state: str
    detail: str


class InvoiceVerdict(Reply, kw_only=True, frozen=True):
    """The checks of an invoice; ``sound`` is false if one of them found a change."""

    number: str
    sound: bool
    seal: str
    items: list[InvoiceCheck]


class DraftFailure(Reply, kw_only=True, frozen=True):
    """A tenant whose month could not be rated, and the error."""

    tenant: str
    message: str
    hint: str


class InvoiceList(Reply, kw_only=True, frozen=True):
    """Invoices, those of lists without their lines; ``next`` goes into ``after`` of the next page. ``failed``: the tenants
    that could not be drafted."""

    items: list[InvoiceView]
    next: str = ""
    failed: list[DraftFailure] = msgspec.field(default_factory=list)
