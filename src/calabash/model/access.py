"""Who may do what: a table of roles and actions. Pure.

Theory of operation. A principal has roles: of the whole platform, of a tenant, or of a project. An action on something
that belongs to a tenant is allowed when one of the roles that reach there allows it, when the thing is the principal's own,
or on the principal's own tenant. A token narrows this by its scopes and never widens it: each action is in one scope.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from calabash.model.tenancy import Member, Principal, Role, TokenKind, TokenScope


class Action(StrEnum):
    """What can be done. The first group concerns a tenant and what is in it, the second the platform."""

    SEE = "see"  # its allocations, queues, quota and use
    RUN = "run"  # ask for slices on its account
    STOP = "stop"  # take back slices of others in it
    MANAGE_MEMBERS = "manage-members"
    MANAGE_PROJECTS = "manage-projects"
    SEE_BILLS = "see-bills"
    SEE_AUDIT = "see-audit"
    MANAGE_NOTICES = "manage-notices"
    MANAGE_NETWORKS = "manage-networks"  # its VPCs and what is in them

    SEE_PLATFORM = "see-platform"  # everybody's
    OPERATE = "operate"  # devices, queues, reservations
    MANAGE_TENANTS = "manage-tenants"  # what they are guaranteed and may
    MANAGE_USERS = "manage-users"  # and roles for the platform, and tokens of others
    MANAGE_BILLS = "manage-bills"
    MANAGE_UPLINKS = "manage-uplinks"  # what networks share: uplinks, VLANs of lines, and what their controller does
    SHUT_DOWN = "shut-down"


_OF_TENANTS = frozenset(
    {
        Action.SEE,
        Action.RUN,
        Action.STOP,
        Action.MANAGE_MEMBERS,
        Action.MANAGE_PROJECTS,
        Action.SEE_BILLS,
        Action.SEE_AUDIT,
        Action.MANAGE_NOTICES,
        Action.MANAGE_NETWORKS,
    }
)
_LOOKS = frozenset({Action.SEE, Action.SEE_BILLS, Action.SEE_AUDIT, Action.SEE_PLATFORM})
_PLATFORM: dict[Role, frozenset[Action]] = {
    Role.ADMIN: frozenset(Action),
    Role.OPERATOR: _LOOKS | {Action.OPERATE, Action.STOP},
    Role.VIEWER: _LOOKS,
}
_TENANT: dict[Role, frozenset[Action]] = {
    Role.TENANT_ADMIN: _OF_TENANTS,
    Role.MEMBER: frozenset({Action.SEE, Action.RUN, Action.MANAGE_NETWORKS}),
    Role.VIEWER: frozenset({Action.SEE}),
}
_OWN = frozenset({Action.SEE, Action.RUN, Action.STOP})
_OWN_TENANT = _OWN | {Action.MANAGE_NETWORKS}
_SCOPE: dict[Action, TokenScope] = {
    action: TokenScope.READ if action in _LOOKS else TokenScope.RUN if action in _OWN else TokenScope.MANAGE
    for action in Action
}


def may(principal: Principal, action: Action, *, tenant: str = "", project: str = "", owner: str = "") -> bool:
    """Whether the principal may do that.

    Args:
        tenant, project: whose thing it is; "" is the platform's.
        owner: the ``key`` of whoever it belongs to; "" for what is nobody's own.
    """
    if not principal.user or not in_scope(principal, action):
        return False
    if owner and owner == principal.key and action in _OWN - {Action.RUN}:
        return True
    if tenant and tenant == principal.own and action in _OWN_TENANT:
        return True
    return any(action in _allowed(role, tenant, project) for role in principal.roles)


def in_scope(principal: Principal, action: Action) -> bool:
    """Whether its token, if it came with one, is for such actions. A login code and a gateway's token are for none."""
    if principal.kind in {TokenKind.LOGIN, TokenKind.GATEWAY}:
        return False
    return not principal.scopes or _SCOPE[action] in principal.scopes


def tenants_seen(principal: Principal) -> frozenset[str] | None:
    """The tenants of which it sees more than its own; None: all."""
    if may(principal, Action.SEE_PLATFORM):
        return None
    if not in_scope(principal, Action.SEE):
        return frozenset()
    return frozenset({role.tenant for role in principal.roles if role.tenant} | ({principal.own} - {""}))


def actions(principal: Principal, *, tenant: str = "", project: str = "") -> tuple[Action, ...]:
    """All that it may there."""
    return tuple(action for action in Action if may(principal, action, tenant=tenant, project=project))


def memberships(principal: Principal) -> tuple[str, ...]:
    """The tenants that it may ask on the account of, by name."""
    found = {role.tenant for role in principal.roles if role.tenant and role.role in {Role.MEMBER, Role.TENANT_ADMIN}}
    return tuple(sorted(found))


def _allowed(member: Member, tenant: str, project: str) -> Iterable[Action]:
    if not member.tenant:
        return _PLATFORM.get(member.role, frozenset())
    if member.tenant != tenant or (member.project and member.project != project):
        return frozenset()
    return _TENANT.get(member.role, frozenset())
