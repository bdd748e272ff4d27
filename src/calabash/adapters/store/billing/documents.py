"""Invoices, drafts and credit notes as the store hands them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.store.billing.seals import seal_of

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceRecord:
    """Invoice, credit note or reversal; or a draft, if ``number`` is "". Amounts of money are decimal numbers as text.

    Args:
        month: ``YYYY-MM``.
        document: fields of the head as JSON values.
        lines: lines as JSON values; () where only heads are read.
        reverses: number of the invoice that this one reverses; "" for none.
        reversed_by: number of the reversal of this invoice; "" for none.
        net, total: amounts without and with tax.
        at: time of the issue, or of the rating of a draft, in seconds since the epoch.
        by: name of the user who issued it.
        items: blocks of the itemised usage. They are written with a draft only; ``BillingTables.items`` reads them.
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
        """Seal of an issued invoice, computed from its current columns, document and lines."""
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
class InvoiceFilter:
    """Filter and page of a query for invoices.

    Args:
        tenant: tenant of the invoices; "" for any.
        month: month of the invoices, ``YYYY-MM``; "" for any.
        after: number of an invoice; only later ones are returned. "" for the first page.
        limit: greatest number of invoices.
        tenants: tenants whose invoices may be returned; None for all.
    """

    tenant: str = ""
    month: str = ""
    after: str = ""
    limit: int = 1000
    tenants: frozenset[str] | None = field(default=None)
