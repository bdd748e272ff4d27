"""Pages of tenants with their quota, of one tenant with its projects and members, and of all users."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calabash.api import tenancy, tenancy_routes
from calabash.gateway.web.lists import matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.gateway.web.words import share
from calabash.model.errors import CalabashError
from calabash.model.money import parse_money


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """Quota of a tenant or project with its lane: a horizontal bar that shows its devices.

    Args:
        quota: the quota.
        own: devices allocated within the guarantee, in percent of the lane.
        borrowed: devices allocated above the guarantee, in percent of the lane.
        guarantee_at: position of the guarantee in percent of the lane.
        spent_percent: spent share of this month's budget.
    """

    quota: tenancy.QuotaView
    own: float
    borrowed: float
    guarantee_at: float
    spent_percent: float = 0.0


def quota_rows(quotas: Sequence[tenancy.QuotaView]) -> list[QuotaRow]:
    """Return the rows of all quotas. All lanes have the same scale, so that they can be compared."""
    scale = max(
        [1.0, *(q.allocated for q in quotas), *(q.guarantee for q in quotas), *(q.limit or 0.0 for q in quotas)]
    )
    return [
        QuotaRow(
            quota=q,
            own=share(q.allocated - q.borrowed, scale),
            borrowed=share(q.borrowed, scale),
            guarantee_at=share(q.guarantee, scale),
            spent_percent=spent_share(q),
        )
        for q in quotas
    ]


def spent_share(quota: tenancy.QuotaView) -> float:
    """Return the spent share of this month's budget in percent.

    Returns 0 if the budget or the spending is unknown, or if their currencies differ.
    """
    if not quota.budget or not quota.spent:
        return 0.0
    budget, spent = parse_money(quota.budget), parse_money(quota.spent)
    return share(float(spent.amount), float(budget.amount)) if spent.currency == budget.currency else 0.0


def listed(
    tenants: Sequence[tenancy.TenantView], quotas: Sequence[tenancy.QuotaView], query: Mapping[str, str]
) -> Shown:
    """Return the data of the list, each tenant with its quota."""
    found = matching(sorted(tenants, key=lambda t: t.name), query, {"name": lambda t: t.name})
    rows = {row.quota.tenant: row for row in quota_rows([q for q in quotas if not q.project])}
    return {"part": part_of(found, query, total=len(tenants)), "rows": rows}


def single(
    tenant: tenancy.TenantView,
    projects: Sequence[tenancy.ProjectView],
    users: Sequence[tenancy.UserView],
    quotas: Sequence[tenancy.QuotaView],
) -> Shown:
    """Return the data of one tenant: its quota, its projects with their quotas, and its members with their roles."""
    members = [(u, r) for u in users for r in u.roles if r.tenant == tenant.name]
    of = [q for q in quotas if q.tenant == tenant.name]
    return {
        "tenant": tenant,
        "projects": sorted(projects, key=lambda p: p.name),
        "members": sorted(members, key=lambda m: (m[1].project, m[0].name)),
        "users": sorted(u.name for u in users),
        "rows": {row.quota.project: row for row in quota_rows(of)},
    }


async def _quotas(visit: Visit) -> list[Any]:
    try:
        return list((await visit.pool.get(tenancy_routes.LIST_QUOTA)).items)
    except CalabashError:
        return []  # the page is shown without quotas


async def _users(visit: Visit) -> list[Any]:
    try:
        return await visit.pool.pages(tenancy_routes.LIST_USERS)
    except CalabashError:
        return []


async def _listed(visit: Visit) -> Shown:
    tenants, quotas = await asyncio.gather(visit.pool.pages(tenancy_routes.LIST_TENANTS), _quotas(visit))
    return listed(tenants, quotas, visit.query)


async def _single(visit: Visit) -> Shown:
    name = visit.path["name"]
    tenant, projects, users, quotas = await asyncio.gather(
        visit.pool.get(tenancy_routes.SHOW_TENANT, name),
        visit.pool.pages(tenancy_routes.LIST_PROJECTS, name),
        _users(visit),
        _quotas(visit),
    )
    return single(tenant, projects, users, quotas)


async def _all_users(visit: Visit) -> Shown:
    users = sorted(await visit.pool.pages(tenancy_routes.LIST_USERS), key=lambda u: u.name)
    facets = {"name": lambda u: u.name, "email": lambda u: u.email, "login": lambda u: u.login}
    return {"part": part_of(matching(users, visit.query, facets), visit.query, total=len(users))}


TENANT_PAGES = (
    ConsolePage(path="/tenants", title="Tenants", template="tenants.html", read=_listed, section="tenants"),
    ConsolePage(path="/tenants/{name}", title="Tenant", template="tenant.html", read=_single, section="tenants"),
    ConsolePage(path="/users", title="Users", template="users.html", read=_all_users, section="users"),
)
