"""Pages of all jobs, and of one job with its output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from calabash.api import jobs, jobs_routes, pool_routes
from calabash.gateway.web.lists import choices, matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit

FACETS = {
    "state": lambda j: str(j.state),
    "user": lambda j: j.user,
    "tenant": lambda j: j.tenant,
    "queue": lambda j: j.queue,
    "id": lambda j: j.id,
    "command": lambda j: " ".join(j.command),
}


def listed(found: Sequence[jobs.JobView], queues: Sequence[str], visit: Visit) -> Shown:
    """Return the data of the list, with the queues in which a new job can wait."""
    return {
        "part": part_of(matching(found, visit.query, FACETS), visit.query, total=len(found)),
        "states": choices(found, FACETS["state"]),
        "tenants": choices(found, FACETS["tenant"]),
        "queues": queues,
    }


def single(detail: jobs.JobDetail) -> Shown:
    """Return the data of one job; ``over`` is True if the job neither waits nor runs."""
    over = detail.job.state not in (jobs.JobState.WAITING, jobs.JobState.RUNNING)
    return {"detail": detail, "job": detail.job, "over": over}


async def _listed(visit: Visit) -> Shown:
    found, queues = await asyncio.gather(visit.pool.get(jobs_routes.LIST_JOBS), visit.pool.get(pool_routes.LIST_QUEUES))
    parents = {q.parent for q in queues.items}
    return listed(found.items, sorted(q.name for q in queues.items if q.name not in parents), visit)


async def _single(visit: Visit) -> Shown:
    return single(await visit.pool.get(jobs_routes.SHOW_JOB, visit.path["id"]))


JOB_PAGES = (
    ConsolePage(path="/jobs", title="Jobs", template="jobs.html", read=_listed, section="jobs"),
    ConsolePage(path="/jobs/{id}", title="Job", template="job.html", read=_single, section="jobs"),
)
