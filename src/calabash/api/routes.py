"""All routes of the API. Tests compare the server with them, and the reference page is generated from them."""

from __future__ import annotations

from typing import Any

from calabash.api.audit_routes import AUDIT
from calabash.api.billing_routes import BILLING
from calabash.api.changes import CHANGES
from calabash.api.counters import COUNTERS
from calabash.api.fabric import FABRIC
from calabash.api.jobs_routes import JOBS
from calabash.api.network_routes import NETWORKS
from calabash.api.notification_routes import NOTIFICATIONS
from calabash.api.overview_routes import OVERVIEW
from calabash.api.places import PLACES
from calabash.api.pool_routes import POOL
from calabash.api.route import Route
from calabash.api.simulator_routes import SIMULATOR
from calabash.api.tenancy_routes import TENANCY

ROUTES: tuple[Route[Any], ...] = (
    *POOL,
    *COUNTERS,
    *AUDIT,
    *OVERVIEW,
    *TENANCY,
    *SIMULATOR,
    *BILLING,
    *CHANGES,
    *JOBS,
    *NOTIFICATIONS,
    *NETWORKS,
    *PLACES,
    *FABRIC,
)
