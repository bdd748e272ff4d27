"""Stored form of invoices, drafts and credit notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.store.billing.seals import seal_of

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BillRecord:
    """Invoice, credit note or reversal; with an empty ``number``, a draft. Amounts of money are text.

    Args:
        tenant: tenant that pays.
        month: the month, ``YYYY-MM``.
        document: all fields that have no column of their own.
        lines: lines of the invoice; () where they were not read.
        number: invoice number; "" for a draft.
        kind: ``invoice``, ``credit`` or ``reversal``.
        reverses: number of the invoice that this one reverses; "" for none.
        reversed_by: number of the reversal of this invoice; "" for none.
        currency: currency code.
        net: amount without tax.
        total: amount with tax.
        at: time of issue in seconds since the epoch.
        by: user who issued it.
        items: itemised usage, divided into blocks of items. Only used to write a draft; ``BillingTables.items`` reads
            them.
    """

    tenant: str
    month: str
    document: Document
    lines: Sequence[Document] = ()
    number: str = ""
    kind: str = "invoice"
    reverses: str = ""
    reversed_by: str = ""
    currency: str = ""
    net: str = "0"
    total: str = "0"
    at: float = 0.0
    by: str = ""
    items: Sequence[Sequence[Document]] = ()

    @property
    def seal(self) -> str:
        """Seal of an issued invoice, computed from its present content.

        It equals the stored seal if nothing was changed.
        """
        head = {
            "number": self.number,
            "tenant": self.tenant,
            "month": self.month,
            "kind": self.kind,
            "reverses": self.reverses,
            "currency": self.currency,
            "net": self.net,
            "total": self.total,
            "issued_at": self.at,
            "issued_by": self.by,
        }
        return seal_of(head, self.document, self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillFilter:
    """Filter of invoices.

    Args:
        tenant: tenant; "" for any.
        month: month, ``YYYY-MM``; "" for any.
        after: invoice number after which to begin; "" for the first.
        limit: greatest number of invoices.
        tenants: tenants whose invoices may be returned; None for all.
    """

    tenant: str = ""
    month: str = ""
    after: str = ""
    limit: int = 1000
    tenants: frozenset[str] | None = field(default=None)
