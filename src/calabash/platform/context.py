"""Services of a pool that the platform's API routes use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from calabash.adapters.store import Store
from calabash.api.replies import QueueView
from calabash.model.tenancy import Principal
from calabash.platform.access.permission import Permission
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.access.tokens import Tokens
from calabash.platform.access.visibility import Visibility
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.billing.service import Billing
from calabash.platform.http.change_feed import Key, Trace
from calabash.platform.http.request_limits import UserRequestLimits
from calabash.platform.networks.certificates import CertificateStore
from calabash.platform.networks.store import NetworkStore
from calabash.platform.notifications.rules import NotificationRules
from calabash.platform.tenancy.store import TenancyStore


class ServedPool(Protocol):
    """Operations that the pool of a machine and the pool of a cluster both have, for the API routes of both."""

    def visibility(self, who: Principal) -> Visibility:
        """Return the visibility of a principal."""
        ...

    def queues(self, visibility: Visibility) -> list[QueueView]:
        """Return the visible queues, with the amounts that are allocated and waiting."""
        ...

    def device_count(self) -> int:
        """Return the present number of devices."""
        ...

    def settle(self) -> None:
        """Release allocations whose programs have ended.

        It is called before a decision that depends on running allocations, such as the deletion of a tenant.
        """
        ...

    def traces(self) -> Mapping[Key, Trace]:
        """Return the present state of all objects, for the change feed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Services of one pool, of a machine or of a cluster.

    Args:
        pool: the pool that is served.
        notices: notification rules; None if the pool sends no notifications.
        networks: networks of tenants; None if the pool has none.
        certificates: certificates of load balancers; None if ``networks`` is None.
    """

    permission: Permission
    tokens: Tokens
    tenancy: TenancyStore
    changes: TenancyChanges
    billing: Billing
    store: Store
    audit: AuditTrail
    fairness: UserRequestLimits
    pool: ServedPool
    notices: NotificationRules | None = None
    networks: NetworkStore | None = None
    certificates: CertificateStore | None = None
