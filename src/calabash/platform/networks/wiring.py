"""The parts of tenant networks, put together for a pool of whatever kind."""

from __future__ import annotations

from calabash.adapters.clock import Clock
from calabash.adapters.store.networks import NetworkTables
from calabash.platform.access.permission import Permission
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.networks.certificates import CertificateBook
from calabash.platform.networks.rights import NetworkRights
from calabash.platform.networks.store import NetworkBook
from calabash.platform.tenancy.store import TenancyBook


def networking(
    tables: NetworkTables, *, permission: Permission, tenancy: TenancyBook, changes: TenancyChanges, clock: Clock
) -> tuple[NetworkBook, CertificateBook]:
    """The networks that are kept there; a tenant that has some is not deleted."""
    book = NetworkBook(tables, NetworkRights(permission, tenancy.people))
    changes.tenant_leaves = book.require_none_of
    return book, CertificateBook(tables, book, clock)
