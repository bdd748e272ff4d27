"""Services of a pool that the platform's API routes use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Services of one pool, of a machine or of a cluster.

    Args:
        visibility: returns the visibility of a principal.
        queues: returns the visible queues, with the amounts that are allocated and waiting.
        devices: returns the present number of devices.
        settle: releases allocations whose programs have ended. It is called before a decision that depends on
            running allocations, such as the deletion of a tenant.
        traces: returns the present state of all objects, for the change feed.
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
    visibility: Callable[[Principal], Visibility]
    queues: Callable[[Visibility], list[QueueView]]
    devices: Callable[[], int]
    settle: Callable[[], None]
    traces: Callable[[], Mapping[Key, Trace]]
    notices: NotificationRules | None = None
    networks: NetworkStore | None = None
    certificates: CertificateStore | None = None
