"""Pages of workloads that hold slices, of waiting requests with their reasons, and of one workload."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from calabash.api import pool_routes, replies
from calabash.gateway.web.lists import ListPart, choices, matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.model.errors import CalabashError, Reason

WAITING = "pending"
EXPLAINED = 20  # waiting requests on one page that are explained

FACETS = {
    "tenant": lambda a: a.tenant,
    "user": lambda a: a.user,
    "queue": lambda a: a.queue,
    "state": lambda a: a.state,
    "reason": lambda a: a.reason,
    "mode": lambda a: a.mode,
    "id": lambda a: a.id,
    "device": lambda a: str(a.slices[0].device_index) if a.slices else "",
    "command": lambda a: " ".join(a.command),
}


def listed(allocations: Sequence[replies.AllocationView], query: Mapping[str, str]) -> Shown:
    """Return the data of the list: held allocations, or ended ones if the URL asks for them."""
    shown = [a for a in allocations if a.state != WAITING]
    found = matching(shown, {k: v for k, v in query.items() if k != "device"}, FACETS)
    if device := query.get("device", ""):
        found = [a for a in found if any(str(s.device_index) == device for s in a.slices)]
    return {
        "part": part_of(found, query, total=len(shown)),
        "waiting": len(allocations) - len(shown),
        "tenants": choices(shown, FACETS["tenant"]),
        "queues": choices(shown, FACETS["queue"]),
        "states": choices(shown, FACETS["state"]),
    }


def line(
    allocations: Sequence[replies.AllocationView],
    why: Mapping[str, replies.WhyReply],
    query: Mapping[str, str],
) -> Shown:
    """Return the data of the page of waiting requests, each with the reason why it waits and suggestions."""
    waiting = [a for a in allocations if a.state == WAITING]
    found = matching(waiting, query, FACETS)
    return {
        "part": part_of(found, query, total=len(waiting)),
        "why": why,
        "reasons": sorted(Counter(a.reason or "not looked at yet" for a in waiting).items(), key=lambda r: -r[1]),
        "queues": choices(waiting, FACETS["queue"]),
        "tenants": choices(waiting, FACETS["tenant"]),
    }


def queues_for(tenant: str, queues: Sequence[replies.QueueView]) -> list[str]:
    """Return the queues in which a request of the tenant can wait: leaf queues that are not of another tenant."""
    parents = {q.parent for q in queues}
    plain = [q.name for q in queues if q.name not in parents]
    return sorted(name for name in plain if "/" not in name or name.startswith(f"{tenant}/"))


def single(
    allocation: replies.AllocationView, why: replies.WhyReply, queues: Sequence[replies.QueueView] = ()
) -> Shown:
    """Return the data of one workload: its placement, explanation and use, and the queues to which it can move."""
    return {
        "allocation": allocation,
        "why": why,
        "queues": queues_for(allocation.tenant, queues),
        "waiting": allocation.state == WAITING,
        "over": allocation.ended_at is not None,
    }


async def _listed(visit: Visit) -> Shown:
    if visit.query.get("over"):
        page = await visit.pool.get(pool_routes.LIST_ALLOCATIONS, query={"ended": "1", "limit": "500"})
        return listed(page.items, visit.query)
    return listed(await visit.pool.pages(pool_routes.LIST_ALLOCATIONS), visit.query)


async def _line(visit: Visit) -> Shown:
    allocations = await visit.pool.pages(pool_routes.LIST_ALLOCATIONS)
    shown: ListPart = line(allocations, {}, visit.query)["part"]
    names = [a.id for a in shown.items[:EXPLAINED]]
    answers = await asyncio.gather(*(_why(visit, name) for name in names))
    return line(allocations, {a.id: a for a in answers if a is not None}, visit.query)


async def _why(visit: Visit, name: str) -> replies.WhyReply | None:
    try:
        return await visit.pool.get(pool_routes.EXPLAIN, name)
    except CalabashError:
        return None  # allocated or withdrawn in the meantime


async def _single(visit: Visit) -> Shown:
    name = visit.path["id"]
    allocations, why = await asyncio.gather(visit.pool.pages(pool_routes.LIST_ALLOCATIONS), _why(visit, name))
    found = next((a for a in allocations if a.id == name), None)
    if found is None:
        over = await visit.pool.get(pool_routes.LIST_ALLOCATIONS, query={"ended": "1"})
        found = next((a for a in over.items if a.id == name), None)
    if found is None or why is None:
        raise CalabashError(f"no workload {name[:80]!r}", reason=Reason.NOT_FOUND, hint="it may have ended long ago")
    queues = (await visit.pool.get(pool_routes.LIST_QUEUES)).items if found.state == WAITING else ()
    return single(found, why, queues)


WORKLOAD_PAGES = (
    ConsolePage(path="/workloads", title="Workloads", template="workloads.html", read=_listed, section="workloads"),
    ConsolePage(path="/workloads/{id}", title="Workload", template="workload.html", read=_single, section="workloads"),
    ConsolePage(path="/waiting", title="Waiting", template="waiting.html", read=_line, section="waiting"),
)
