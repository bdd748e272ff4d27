"""The ASGI application of the pool of one machine: all its routes and their services."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from calabash.api.replies import QueueView
from calabash.model.tenancy import Principal
from calabash.platform.access.visibility import Visibility
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.context import Operations
from calabash.platform.handlers.application import OPERATING, served
from calabash.platform.http.change_feed import Key, Trace
from calabash.platform.http.request_limits import UserRequestLimits
from calabash.platform.http.server import Application
from calabash.platform.networks.certificates import CertificateStore
from calabash.platform.networks.store import NetworkStore
from calabash.platform.notifications.rules import NotificationRules
from calabash.pool.handlers.administration import ADMINISTRATION
from calabash.pool.handlers.allocations import ALLOCATIONS
from calabash.pool.handlers.context import Context
from calabash.pool.handlers.counters import COUNTERS
from calabash.pool.handlers.devices import DEVICES
from calabash.pool.handlers.fabric import FABRIC
from calabash.pool.handlers.jobs import JOBS
from calabash.pool.handlers.machine import MACHINE
from calabash.pool.handlers.mig import MIG
from calabash.pool.handlers.overview import OVERVIEW
from calabash.pool.handlers.places import PLACES
from calabash.pool.handlers.simulator import SIMULATOR
from calabash.pool.jobs.service import Jobs
from calabash.pool.pool import Pool
from calabash.pool.views.change_traces import traces

HANDLERS = (
    *OPERATING,
    *MACHINE,
    *COUNTERS,
    *DEVICES,
    *ALLOCATIONS,
    *ADMINISTRATION,
    *MIG,
    *OVERVIEW,
    *SIMULATOR,
    *JOBS,
    *FABRIC,
    *PLACES,
)


class MachinePool:
    """The pool of one machine for the routes that a cluster has too; see ``ServedPool``."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def visibility(self, who: Principal) -> Visibility:
        return self._pool.visibility(who)

    def queues(self, visibility: Visibility) -> list[QueueView]:
        return self._pool.queues.shown(self._pool.binder, visibility.queue)

    def device_count(self) -> int:
        return len(self._pool.agent.devices())

    def settle(self) -> None:
        self._pool.binder.schedule()

    def traces(self) -> Mapping[Key, Trace]:
        return traces(self._pool)


def application(
    pool: Pool,
    context: Context,
    *,
    audit: AuditTrail,
    fairness: UserRequestLimits,
    jobs: Jobs,
    notices: NotificationRules,
    networks: NetworkStore,
    certificates: CertificateStore,
    stop: Callable[[], None],
) -> Application:
    """Return the ASGI application of a pool."""
    operations = Operations(
        permission=pool.permission,
        tokens=pool.tokens,
        tenancy=pool.tenancy,
        changes=pool.changes,
        billing=pool.billing,
        store=pool.store,
        audit=audit,
        fairness=fairness,
        pool=MachinePool(pool),
        notices=notices,
        networks=networks,
        certificates=certificates,
    )
    state = {
        "pool": pool,
        "context": context,
        "jobs": jobs,
        "stop": stop,
        "pid": os.getpid(),
        "started_at": time.time(),
        "membership": pool.agent.membership,
    }
    return served(operations, HANDLERS, state)
