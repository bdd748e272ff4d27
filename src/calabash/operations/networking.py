"""The parts of tenant networks, put together for a pool of whatever kind."""

from __future__ import annotations

from calabash.operations.network_certificates import CertificateBook
from calabash.operations.network_rights import NetworkRights
from calabash.operations.networks import NetworkBook
from calabash.operations.permission import Permission
from calabash.operations.tenancy import TenancyBook
from calabash.operations.tenancy_changes import TenancyChanges
from calabash.seams.clock import Clock
from calabash.seams.store.networks import NetworkTables


def networking(
    tables: NetworkTables, *, permission: Permission, tenancy: TenancyBook, changes: TenancyChanges, clock: Clock
) -> tuple[NetworkBook, CertificateBook]:
    """The networks that are kept there; a tenant that has some is not deleted."""
    book = NetworkBook(tables, NetworkRights(permission, tenancy.people))
    changes.tenant_leaves = book.require_none_of
    return book, CertificateBook(tables, book, clock)
