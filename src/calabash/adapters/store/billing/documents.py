"""Invoices, drafts and credit notes as the store hands them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.store.billing.seals import seal_of

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BillRecord:
    """An invoice or, with ``number`` empty, a draft; money is text. ``reversed_by`` is the number of what took it back.

    ``items`` are the parts of its itemised use; they are only written with a draft, and read by ``BillingTables.items``.
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
        """The seal of an issued invoice as its columns, document and lines are now."""
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
    """Which invoices; "" is any."""

    tenant: str = ""
    month: str = ""
    after: str = ""
    limit: int = 1000
    tenants: frozenset[str] | None = field(default=None)
