"""Decide which actions a page offers to its visitor, by the same table of roles that the pool uses.

This only keeps buttons off the page that would not work for the visitor. The pool checks the permission of each
request.
"""

from __future__ import annotations

from calabash.api.tenancy import Me
from calabash.model.access import Action, allowed_actions
from calabash.model.tenancy import Member, Principal, Role, TokenScope


def visitor(me: Me) -> Principal:
    """Return the visitor as a principal, for which the table of roles gives the allowed actions."""
    return Principal(
        user=me.user,
        uid=me.uid,
        roles=tuple(Member(user=r.user, role=Role(r.role), tenant=r.tenant, project=r.project) for r in me.roles),
        token=me.token,
        scopes=tuple(TokenScope(scope) for scope in me.scopes),
        own=me.own,
    )


def offered(me: Me | None) -> frozenset[str]:
    """Return all actions that the visitor may perform on the platform or in one of the visitor's tenants."""
    if me is None:
        return frozenset()
    principal = visitor(me)
    found = {str(action) for action in me.may}
    for tenant, project in {(r.tenant, r.project) for r in me.roles} | {(me.own, "")}:
        found |= {str(action) for action in allowed_actions(principal, tenant=tenant, project=project)}
    return frozenset(found)


def may(me: Me | None, action: str, tenant: str = "") -> bool:
    """Return True if the visitor may perform the action on the platform, or in the tenant if one is given."""
    if me is None:
        return False
    return action in me.may or (bool(tenant) and Action(action) in allowed_actions(visitor(me), tenant=tenant))


def named(me: Me | None) -> str:
    """Return the visitor's name with its first roles: ``ann, tenant-admin of vision``."""
    if me is None:
        return ""
    roles = [f"{r.role} of {r.tenant}" if r.tenant else r.role for r in me.roles[:2]]
    return ", ".join([me.user, *roles, *(["…"] if len(me.roles) > len(roles) else [])])
