"""Pages of the console, one module each: requests to the pool, and the data that the template shows.

The modules contain pure functions from API replies to template data, and the declarations of pages. They contain no
permissions, HTML or sessions.
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
