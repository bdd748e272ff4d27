"""The routes of the pool of one machine, and what they stand on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from calabash.operations.auditing import AuditTrail
from calabash.operations.context import Operations
from calabash.operations.fairness import Fairness
from calabash.operations.handlers.application import OPERATING, served
from calabash.operations.network_certificates import CertificateBook
from calabash.operations.networks import NetworkBook
from calabash.operations.notices import NoticeBook
from calabash.operations.serving import Application
from calabash.standalone.handlers.administration import ADMINISTRATION
from calabash.standalone.handlers.allocations import ALLOCATIONS
from calabash.standalone.handlers.asked import Context
from calabash.standalone.handlers.counters import COUNTERS
from calabash.standalone.handlers.devices import DEVICES
from calabash.standalone.handlers.fabric import FABRIC
from calabash.standalone.handlers.jobs import JOBS
from calabash.standalone.handlers.machine import MACHINE
from calabash.standalone.handlers.mig import MIG
from calabash.standalone.handlers.overview import OVERVIEW
from calabash.standalone.handlers.places import PLACES
from calabash.standalone.handlers.simulator import SIMULATOR
from calabash.standalone.jobs import Jobs
from calabash.standalone.pool import Pool
from calabash.standalone.traces import traces

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


def application(
    pool: Pool,
    context: Context,
    *,
    audit: AuditTrail,
    fairness: Fairness,
    jobs: Jobs,
    notices: NoticeBook,
    networks: NetworkBook,
    certificates: CertificateBook,
    stop: Callable[[], None],
) -> Application:
    """The ASGI application."""
    operations = Operations(
        permission=pool.permission,
        tokens=pool.tokens,
        tenancy=pool.tenancy,
        changes=pool.changes,
        billing=pool.billing,
        store=pool.store,
        audit=audit,
        fairness=fairness,
        sight=pool.sight,
        queues=lambda sight: pool.queues.shown(pool.binder, sight.queue),
        devices=lambda: len(pool.agent.devices()),
        settle=pool.binder.schedule,
        traces=lambda: traces(pool),
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
