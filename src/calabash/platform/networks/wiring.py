"""Create the services of tenant networks for a pool."""

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
    """Return the stores of networks and certificates, and refuse to delete a tenant that has networks."""
    book = NetworkBook(tables, NetworkRights(permission, tenancy.people))
    changes.tenant_leaves = book.require_none_of
    return book, CertificateBook(tables, book, clock)
