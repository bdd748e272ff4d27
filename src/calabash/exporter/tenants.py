"""Metrics of tenants: guarantees, held amounts, waiting requests and spending.

A tenant's own users may create any number of projects. Only the first PROJECTS_MAX projects of each tenant have series,
so that the memory of Prometheus does not depend on the users.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from calabash.adapters.exposition import Family
from calabash.api.counters import GpuTimeView
from calabash.api.tenancy import QuotaView
from calabash.exporter import catalogue as c
from calabash.exporter.families import Row, family
from calabash.exporter.reading import PoolReading
from calabash.model.errors import CalabashError
from calabash.model.money import Money, parse_money

PROJECTS_MAX = 50  # of one tenant, by name
_NONE = GpuTimeView(tenant="", project="", allocated_s=0.0, used_s=0.0, idle_s=0.0)


def tenant_families(reading: PoolReading) -> Iterator[Family]:
    """Yield all metrics of tenants."""
    node = reading.status.node
    wholes = [one for one in reading.quota if not one.project]
    projects: dict[str, list[QuotaView]] = defaultdict(list)
    for one in reading.quota:
        if one.project:
            projects[one.tenant].append(one)
    whole_rows = [((node, one.tenant), one) for one in wholes]
    yield family(c.TENANT_GUARANTEE, [(key, one.guarantee) for key, one in whole_rows])
    yield family(c.TENANT_LIMIT, [(key, math.inf if one.limit is None else one.limit) for key, one in whole_rows])
    yield family(c.TENANT_ALLOCATED, [(key, one.allocated) for key, one in whole_rows])
    yield family(c.TENANT_BORROWED, [(key, one.borrowed) for key, one in whole_rows])
    yield family(c.TENANT_PENDING, [(key, one.pending) for key, one in whole_rows])
    times = {one.tenant: one for one in reading.counters.tenants}
    names = sorted({*times, *(one.tenant for one in wholes)}) if reading.counters.wait_bounds_s else []
    tenant_times = [((node, name), times.get(name, _NONE)) for name in names]
    yield family(c.TENANT_GPU_SECONDS, [(key, one.allocated_s) for key, one in tenant_times])
    yield family(c.TENANT_GPU_USED, [(key, one.used_s) for key, one in tenant_times])
    yield family(c.TENANT_GPU_IDLE, [(key, one.idle_s) for key, one in tenant_times])
    yield family(c.TENANT_PROJECTS, [((node, one.tenant), len(projects[one.tenant])) for one in wholes])
    yield family(c.TENANT_BUDGET, [row for one in wholes for row in _money(node, one.tenant, one.budget)])
    yield family(c.TENANT_SPENT, [row for one in wholes for row in _money(node, one.tenant, one.spent)])
    shown = [one for found in projects.values() for one in sorted(found, key=lambda one: one.project)[:PROJECTS_MAX]]
    rows = [((node, one.tenant, one.project), one) for one in shown]
    yield family(c.PROJECT_GUARANTEE, [(key, one.guarantee) for key, one in rows])
    yield family(c.PROJECT_LIMIT, [(key, math.inf if one.limit is None else one.limit) for key, one in rows])
    yield family(c.PROJECT_ALLOCATED, [(key, one.allocated) for key, one in rows])
    yield family(c.PROJECT_BORROWED, [(key, one.borrowed) for key, one in rows])
    yield family(c.PROJECT_PENDING, [(key, one.pending) for key, one in rows])
    parts = {(one.tenant, one.project): one for one in reading.counters.projects}
    counted = rows if reading.counters.wait_bounds_s else []
    project_times = [(key, parts.get((one.tenant, one.project), _NONE)) for key, one in counted]
    yield family(c.PROJECT_GPU_SECONDS, [(key, one.allocated_s) for key, one in project_times])
    yield family(c.PROJECT_GPU_USED, [(key, one.used_s) for key, one in project_times])
    yield family(c.PROJECT_GPU_IDLE, [(key, one.idle_s) for key, one in project_times])


def _money(node: str, tenant: str, text: str) -> Iterator[Row]:
    """Yield one row with the amount of money in the text, for example ``12.50 EUR``; no row if the text is empty."""
    try:
        money: Money = parse_money(text)
    except CalabashError:
        return
    yield (node, tenant, money.currency), float(money.amount)
