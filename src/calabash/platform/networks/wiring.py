"""Create the services of tenant networks for a pool."""

from __future__ import annotations

from collections.abc import Callable

from calabash.adapters.clock import Clock
from calabash.adapters.store.networks import NetworkTables
from calabash.platform.access.permission import Permission
from calabash.platform.networks.certificates import CertificateStore
from calabash.platform.networks.rights import NetworkRights
from calabash.platform.networks.store import NetworkStore
from calabash.platform.tenancy.directory import TenancyDirectory


def networking(
    tables: NetworkTables, *, permission: Permission, people: Callable[[], TenancyDirectory], clock: Clock
) -> tuple[NetworkStore, CertificateStore]:
    """Return the stores of networks and certificates."""
    network_store = NetworkStore(tables, NetworkRights(permission, people))
    return network_store, CertificateStore(tables, network_store, clock)
