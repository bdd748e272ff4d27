"""API views of tenants, projects, users, tokens and quota, restricted to what a principal may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from calabash.api import tenancy as shapes
from calabash.api.replies import QueueView
from calabash.model import access
from calabash.model.access import Action
from calabash.model.money import Money
from calabash.model.tenancy import Member, Principal, Project, Role, Tenant, TokenRecord, User, project_of
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.store import missing


def tenants(people: TenancyDirectory, who: Principal) -> list[Tenant]:
    """Return the tenants that the principal may see, by name."""
    seen = access.visible_tenants(who)
    return [t for name, t in sorted(people.tenants.items()) if seen is None or name in seen]


def tenant(people: TenancyDirectory, who: Principal, name: str) -> Tenant:
    """Return a tenant. Raises NOT_FOUND if there is none or the principal may not see it."""
    found = people.tenants.get(name)
    if found is None or not access.is_allowed(who, Action.SEE, tenant=name):
        raise missing("tenant", name)
    return found


def shown_tenant(people: TenancyDirectory, found: Tenant) -> shapes.TenantView:
    plain = (m.user for m in people.of_tenant(found.name) if m.role is Role.MEMBER and not m.project)
    return shapes.TenantView(
        name=found.name,
        guarantee=found.guarantee,
        limit=found.limit,
        weight=found.weight,
        budget=str(found.budget or ""),
        priority_min=found.priorities[0],
        priority_max=found.priorities[1],
        modes=list(found.modes),
        models=list(found.models),
        slices_per_user=found.slices_per_user,
        run_s_max=found.run_s_max,
        users=sorted(plain),
        groups=list(found.groups),
        networks=dict(found.networks),
    )


def shown_project(found: Project) -> shapes.ProjectView:
    return shapes.ProjectView(
        tenant=found.tenant,
        name=found.name,
        queue=found.queue,
        guarantee=found.guarantee,
        limit=found.limit,
        weight=found.weight,
    )


def users(people: TenancyDirectory, who: Principal) -> list[shapes.UserView]:
    """Return the users that the principal may see.

    A principal who may see the platform sees all users. Other principals see themselves and the members of their
    tenants.
    """
    names = sorted({*people.users, *people.members, who.user} - {""})
    found = (user(people, who, name) for name in names)
    return [one for one in found if one is not None]


def user(people: TenancyDirectory, who: Principal, name: str) -> shapes.UserView | None:
    """Return a user; None if there is none or the principal may not see it.

    Only the name and the roles are returned, unless the user is the principal itself or the principal may see the
    platform.
    """
    known = people.users.get(name)
    seen = access.visible_tenants(who)
    mine = name == who.user
    roles = [
        m for m in (who.roles if mine else people.members.get(name, ())) if mine or seen is None or m.tenant in seen
    ]
    if not (roles or mine or (seen is None and known is not None)):
        return None
    if known is None or not (mine or seen is None):
        known = User(name=name)
    return shapes.UserView(
        name=name, login=known.login, subject=known.subject, email=known.email, roles=shown_members(roles)
    )


def shown_members(found: Iterable[Member]) -> list[shapes.MemberView]:
    return [shapes.MemberView(user=m.user, role=m.role, tenant=m.tenant, project=m.project) for m in found]


def shown_token(record: TokenRecord, now_s: float) -> shapes.TokenView:
    return shapes.TokenView(
        id=record.id,
        user=record.user,
        kind=record.kind,
        scopes=[str(scope) for scope in record.scopes],
        note=record.note,
        state="revoked" if record.revoked_at else "valid" if record.valid(now_s) else "expired",
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at or None,
    )


def quota(
    people: TenancyDirectory, who: Principal, queues: Iterable[QueueView], spent: Callable[[str], Money | None]
) -> list[shapes.QuotaView]:
    """Return the quota of each visible tenant, followed by the quotas of the tenant's projects.

    Args:
        spent: returns the cost of a tenant's usage in this month; None if it is unknown.
    """
    found = {q.name: q for q in queues}
    shown = []
    for one in tenants(people, who):
        whole = found.get(one.name)
        if whole is None:
            continue
        billed = one.budget is not None and access.is_allowed(who, Action.SEE_BILLS, tenant=one.name)
        shown.append(_quota(one, "", whole, spent=str((billed and spent(one.name)) or "")))
        parts = [q for q in found.values() if q.parent == one.name and project_of(one.name, q.name)]
        shown += [_quota(one, project_of(one.name, q.name), q) for q in parts]
    return shown


def _quota(tenant: Tenant, project: str, queue: QueueView, *, spent: str = "") -> shapes.QuotaView:
    return shapes.QuotaView(
        tenant=tenant.name,
        project=project,
        queue=queue.name,
        guarantee=queue.guarantee,
        limit=queue.limit,
        allocated=queue.allocated,
        borrowed=max(0.0, queue.allocated - queue.guarantee),
        pending=queue.pending,
        budget="" if project else str(tenant.budget or ""),
        spent=spent,
    )


def me(who: Principal) -> shapes.Me:
    """Return the principal's view of itself."""
    return shapes.Me(
        user=who.user,
        uid=who.uid,
        token=who.token,
        kind=who.kind or "",
        scopes=[str(scope) for scope in who.scopes],
        own=who.own,
        roles=shown_members(who.roles),
        may=[str(action) for action in access.allowed_actions(who)],
        tenants=list(access.requestable_tenants(who)),
    )
