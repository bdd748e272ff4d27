"""Authorization: the table of roles and actions, and the decision whether a principal may perform an action (pure).

Theory of operation. A principal has roles for the whole platform, for a tenant or for a project. An action on an object of a
tenant is allowed if one of the principal's roles for that tenant or project allows it, if the object belongs to the principal,
or if the tenant is the principal's personal tenant. The scopes of a token restrict these rights and never extend them. Each
action belongs to one scope.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from calabash.model.tenancy import Member, Principal, Role, TokenKind, TokenScope


class Action(StrEnum):
    """Actions that are authorized. The first group concerns a tenant and its objects, the second the platform."""

    SEE = "see"  # read allocations, queues, quota and use of the tenant
    RUN = "run"  # request slices on the account of the tenant
    STOP = "stop"  # end allocations of other users of the tenant
    MANAGE_MEMBERS = "manage-members"
    MANAGE_PROJECTS = "manage-projects"
    SEE_BILLS = "see-bills"
    SEE_AUDIT = "see-audit"
    MANAGE_NOTICES = "manage-notices"
    MANAGE_NETWORKS = "manage-networks"  # VPCs of the tenant and their objects

    SEE_PLATFORM = "see-platform"  # read the objects of all tenants
    OPERATE = "operate"  # devices, queues, reservations
    MANAGE_TENANTS = "manage-tenants"  # guarantees and limits of tenants
    MANAGE_USERS = "manage-users"  # users, roles for the platform, tokens of other users
    MANAGE_BILLS = "manage-bills"
    MANAGE_UPLINKS = (
        "manage-uplinks"  # shared network objects: uplinks, VLANs of lines, state of the network controller
    )
    SHUT_DOWN = "shut-down"


_TENANT_ACTIONS = frozenset(
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
_READ_ACTIONS = frozenset({Action.SEE, Action.SEE_BILLS, Action.SEE_AUDIT, Action.SEE_PLATFORM})
_PLATFORM_ROLES: dict[Role, frozenset[Action]] = {
    Role.ADMIN: frozenset(Action),
    Role.OPERATOR: _READ_ACTIONS | {Action.OPERATE, Action.STOP},
    Role.VIEWER: _READ_ACTIONS,
}
_TENANT_ROLES: dict[Role, frozenset[Action]] = {
    Role.TENANT_ADMIN: _TENANT_ACTIONS,
    Role.MEMBER: frozenset({Action.SEE, Action.RUN, Action.MANAGE_NETWORKS}),
    Role.VIEWER: frozenset({Action.SEE}),
}
_OWNER_ACTIONS = frozenset({Action.SEE, Action.RUN, Action.STOP})
_PERSONAL_TENANT_ACTIONS = _OWNER_ACTIONS | {Action.MANAGE_NETWORKS}
_SCOPE: dict[Action, TokenScope] = {
    action: TokenScope.READ
    if action in _READ_ACTIONS
    else TokenScope.RUN
    if action in _OWNER_ACTIONS
    else TokenScope.MANAGE
    for action in Action
}


def is_allowed(principal: Principal, action: Action, *, tenant: str = "", project: str = "", owner: str = "") -> bool:
    """Return True if the principal may perform the action.

    Args:
        tenant, project: the tenant and project of the object; "" for an object of the platform.
        owner: the ``key`` of the user to whom the object belongs; "" if it belongs to no user.
    """
    if not principal.user or not in_scope(principal, action):
        return False
    if owner and owner == principal.key and action in _OWNER_ACTIONS - {Action.RUN}:
        return True
    if tenant and tenant == principal.own and action in _PERSONAL_TENANT_ACTIONS:
        return True
    return any(action in _allowed(role, tenant, project) for role in principal.roles)


def in_scope(principal: Principal, action: Action) -> bool:
    """Return True if the scopes of the principal's token allow the action, or if the principal uses no token.

    Login codes and gateway tokens allow no action.
    """
    if principal.kind in {TokenKind.LOGIN, TokenKind.GATEWAY}:
        return False
    return not principal.scopes or _SCOPE[action] in principal.scopes


def visible_tenants(principal: Principal) -> frozenset[str] | None:
    """Return the tenants whose objects the principal may read, in addition to its own objects; None: all tenants."""
    if is_allowed(principal, Action.SEE_PLATFORM):
        return None
    if not in_scope(principal, Action.SEE):
        return frozenset()
    return frozenset({role.tenant for role in principal.roles if role.tenant} | ({principal.own} - {""}))


def allowed_actions(principal: Principal, *, tenant: str = "", project: str = "") -> tuple[Action, ...]:
    """Return all actions that the principal may perform in a tenant or project, or on the platform if both are empty."""
    return tuple(action for action in Action if is_allowed(principal, action, tenant=tenant, project=project))


def requestable_tenants(principal: Principal) -> tuple[str, ...]:
    """Return the names of the tenants on whose account the principal may request slices, sorted."""
    found = {role.tenant for role in principal.roles if role.tenant and role.role in {Role.MEMBER, Role.TENANT_ADMIN}}
    return tuple(sorted(found))


def _allowed(member: Member, tenant: str, project: str) -> Iterable[Action]:
    if not member.tenant:
        return _PLATFORM_ROLES.get(member.role, frozenset())
    if member.tenant != tenant or (member.project and member.project != project):
        return frozenset()
    return _TENANT_ROLES.get(member.role, frozenset())
