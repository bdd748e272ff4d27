"""What the routes of operating need of the pool that they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calabash.adapters.store import Store
from calabash.api.replies import QueueView
from calabash.model.tenancy import Principal
from calabash.platform.access.permission import Permission
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.access.tokens import Tokens
from calabash.platform.access.visibility import Sight
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.billing.service import Billing
from calabash.platform.http.change_feed import Key, Trace
from calabash.platform.http.request_limits import Fairness
from calabash.platform.networks.certificates import CertificateBook
from calabash.platform.networks.store import NetworkBook
from calabash.platform.notifications.rules import NoticeBook
from calabash.platform.tenancy.store import TenancyBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """A pool, of whatever kind, as those who operate it ask it.

    Args:
        sight: what a principal is shown.
        queues: the queues that are seen, with what they hold and what waits in them.
        devices: how many devices there are now.
        settle: look once more at what has ended; called before something is judged by what runs.
        traces: all that there is now, to be compared with what was.
        notices: who is notified of what; None where nobody can be.
        networks: of its tenants; None where there are none.
        certificates: of their load balancers; there where networks are.
    """

    permission: Permission
    tokens: Tokens
    tenancy: TenancyBook
    changes: TenancyChanges
    billing: Billing
    store: Store
    audit: AuditTrail
    fairness: Fairness
    sight: Callable[[Principal], Sight]
    queues: Callable[[Sight], list[QueueView]]
    devices: Callable[[], int]
    settle: Callable[[], None]
    traces: Callable[[], Mapping[Key, Trace]]
    notices: NoticeBook | None = None
    networks: NetworkBook | None = None
    certificates: CertificateBook | None = None
