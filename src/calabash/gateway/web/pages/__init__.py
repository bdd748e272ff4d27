"""The pages of the console, a module each: what a page asks of the pool, and what of the answers it shows.

What lives here: pure functions from the API's replies to what a template shows, and the pages as data. What never lives
here: rights (the pool has them), HTML, sessions.
"""

from calabash.gateway.web.acting import ACTIONS
from calabash.gateway.web.pages.audit import AUDIT_PAGES
from calabash.gateway.web.pages.billing import BILLING_PAGES
from calabash.gateway.web.pages.devices import DEVICE_PAGES
from calabash.gateway.web.pages.jobs import JOB_PAGES
from calabash.gateway.web.pages.networks import NETWORK_PAGES
from calabash.gateway.web.pages.notifications import NOTIFICATION_PAGES
from calabash.gateway.web.pages.overview import OVERVIEW_PAGES
from calabash.gateway.web.pages.page import ConsolePage
from calabash.gateway.web.pages.queues import QUEUE_PAGES
from calabash.gateway.web.pages.simulator import SIMULATOR_PAGES
from calabash.gateway.web.pages.tenants import TENANT_PAGES
from calabash.gateway.web.pages.tokens import TOKEN_PAGES
from calabash.gateway.web.pages.workloads import WORKLOAD_PAGES

__all__ = ["ACTIONS", "PAGES"]

PAGES: tuple[ConsolePage, ...] = (
    *OVERVIEW_PAGES,
    *DEVICE_PAGES,
    *WORKLOAD_PAGES,
    *JOB_PAGES,
    *QUEUE_PAGES,
    *NETWORK_PAGES,
    *TENANT_PAGES,
    *BILLING_PAGES,
    *AUDIT_PAGES,
    *NOTIFICATION_PAGES,
    *TOKEN_PAGES,
    *SIMULATOR_PAGES,
)
