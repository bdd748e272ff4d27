"""Invoices, drafts and credit notes as the store hands them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.store.billing.seals import seal_of

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceRecord:
    """Invoice or, with an empty ``number``, draft; amounts of money are text.

    Args:
        reversed_by: number of the reversal.
        items: parts of its itemised use; only written with a draft, and read by ``BillingTables.items``.
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
    """Filter of invoices; "" is any."""

    tenant: str = ""
    month: str = ""
    after: str = ""
    limit: int = 1000
    tenants: frozenset[str] | None = field(default=None)
