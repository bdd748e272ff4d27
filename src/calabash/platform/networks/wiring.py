"""Create the services of tenant networks for a pool."""

from __future__ import annotations

from calabash.adapters.clock import Clock
from calabash.adapters.store.networks import NetworkTables
from calabash.platform.access.permission import Permission
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.networks.certificates import CertificateStore
from calabash.platform.networks.rights import NetworkRights
from calabash.platform.networks.store import NetworkStore
from calabash.platform.tenancy.store import TenancyStore


def networking(
    tables: NetworkTables, *, permission: Permission, tenancy: TenancyStore, changes: TenancyChanges, clock: Clock
) -> tuple[NetworkStore, CertificateStore]:
    """Create the stores of networks and certificates, and make ``changes`` refuse to delete a tenant that has networks."""
    network_store = NetworkStore(tables, NetworkRights(permission, tenancy.people))
    changes.tenant_leaves = network_store.require_none_of
    return network_store, CertificateStore(tables, network_store, clock)
