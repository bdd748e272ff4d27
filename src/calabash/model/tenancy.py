"""Tenants, projects, users, memberships, tokens and principals.

A tenant is a team with the queue ``NAME``, which has a guarantee and a limit. A project belongs to a tenant and has the queue
``NAME/PROJECT``. Requests that name no project use the project ``default``, which every tenant has. Users are members of a
project, of a tenant, or of the whole platform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from calabash.model.errors import CalabashError
from calabash.model.money import Money
from calabash.model.network import NetworkKind

DEFAULT_PROJECT = "default"
PRIORITY_LEAST, PRIORITY_MOST = -1000, 1000


class Role(StrEnum):
    """Roles of members. ADMIN and OPERATOR exist for the whole platform only, TENANT_ADMIN for a tenant only."""

    ADMIN = "admin"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant-admin"
    MEMBER = "member"
    VIEWER = "viewer"


class TokenKind(StrEnum):
    """Purposes of tokens.

    API: requests of users and programs. SESSION: a session of the web console. LOGIN: a code that is exchanged once for a
    session. GATEWAY: the gateway process, which serves the network and requests sessions for users.
    """

    API = "api"
    SESSION = "session"
    LOGIN = "login"
    GATEWAY = "gateway"


class TokenScope(StrEnum):
    """Restrictions of tokens. READ: read objects. RUN: request slices and give them back. MANAGE: change all other objects."""

    READ = "read"
    RUN = "run"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Settings of a tenant. Amounts are devices; 0 or empty means no limit, unless stated otherwise.

    Args:
        guarantee: devices that the tenant can reclaim at any time.
        limit: most devices that the tenant may hold; None: no limit.
        weight: share of the devices that are not guaranteed to a tenant, relative to the weights of other tenants.
        budget: money that the tenant may spend; None: no budget.
        priorities: least and greatest priority of its requests.
        modes: sharing modes that its requests may use; empty: any.
        models: substrings of device model names that its requests may use; empty: any.
        slices_per_user: most slices that one user of the tenant may hold or wait for at a time.
        run_s_max: most seconds that an allocation may run before it is ended.
        groups: groups of this machine whose members are members of the tenant.
        networks: most network objects of each kind; a kind that is not listed has no limit.
    """

    name: str
    guarantee: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    budget: Money | None = None
    priorities: tuple[int, int] = (PRIORITY_LEAST, PRIORITY_MOST)
    modes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    slices_per_user: int = 0
    run_s_max: float = 0.0
    groups: tuple[str, ...] = ()
    networks: tuple[tuple[NetworkKind, int], ...] = ()

    def __post_init__(self) -> None:
        _check_amounts(f"tenant {self.name}", self.guarantee, self.limit, self.weight)
        least, most = self.priorities
        if not PRIORITY_LEAST <= least <= most <= PRIORITY_MOST:
            raise CalabashError(
                f"tenant {self.name}: priorities {least} to {most} are out of range",
                hint=f"{PRIORITY_LEAST} to {PRIORITY_MOST}, the least first",
            )
        if any(kind is NetworkKind.UPLINK or most < 0 for kind, most in self.networks):
            raise CalabashError(
                f"tenant {self.name}: {', '.join(f'{k}={n}' for k, n in self.networks)} are not limits of network objects",
                hint="write limits of zero or more, like vpc=4,port=200,eip=8; uplinks belong to the platform",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Settings of a project of a tenant. Amounts are devices, as for a tenant."""

    tenant: str
    name: str
    guarantee: float = 0.0
    limit: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_amounts(f"project {self.tenant}/{self.name}", self.guarantee, self.limit, self.weight)

    @property
    def queue(self) -> str:
        return project_queue(self.tenant, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """User: a person or a program.

    Args:
        login: account on this machine; unique, or "" for none.
        subject: subject claim of the OIDC provider; unique, or "" for none.
    """

    name: str
    login: str = ""
    subject: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Membership: the role of a user on the platform (``tenant`` is ""), in a tenant (``project`` is ""), or in a project."""

    user: str
    role: Role
    tenant: str = ""
    project: str = ""

    def __post_init__(self) -> None:
        whole = {Role.ADMIN, Role.OPERATOR, Role.VIEWER}
        if not self.tenant and (self.role not in whole or self.project):
            raise CalabashError(
                f"role {self.role} needs a tenant", hint="name the tenant, or give admin, operator or viewer"
            )
        if self.tenant and self.role in {Role.ADMIN, Role.OPERATOR}:
            raise CalabashError(
                f"role {self.role} exists for the whole platform only",
                hint="leave the tenant out, or give tenant-admin, member or viewer",
            )
        if self.project and self.role is Role.TENANT_ADMIN:
            raise CalabashError(f"role {self.role} exists for a whole tenant only", hint="leave the project out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """Stored API token. Times are seconds since 1970.

    Args:
        digest: SHA-256 of the secret; the secret is not stored.
        scopes: restrictions of the token; empty: all rights of its user.
        revoked_at: 0.0 while it is not revoked.
    """

    id: str
    user: str
    kind: TokenKind
    digest: str
    created_at: float
    expires_at: float
    scopes: tuple[TokenScope, ...] = ()
    revoked_at: float = 0.0
    note: str = ""

    def valid(self, now_s: float) -> bool:
        """Return True if the token is neither revoked nor expired."""
        return not self.revoked_at and now_s < self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Authenticated requester and its rights.

    Args:
        user: name of the user; "" if the requester is not authenticated.
        uid: user ID of the account on this machine; -1 for none.
        roles: all memberships, including those through groups of this machine.
        token: ID of the token of the request; "" for a local process that is identified by its socket credentials.
        kind: purpose of the token; None without a token.
        scopes: restrictions of the token; empty: none.
        own: name of the user's personal tenant; "" for a user who is a member of a tenant and has no personal one.
    """

    user: str
    uid: int = -1
    roles: tuple[Member, ...] = ()
    token: str = ""
    kind: TokenKind | None = None
    scopes: tuple[TokenScope, ...] = ()
    own: str = ""

    @property
    def local(self) -> bool:
        """True for a local process that is identified by its socket credentials, without a token."""
        return bool(self.user) and not self.token

    @property
    def key(self) -> str:
        """Key for limits per user. A local account and the tokens of its user have the same key."""
        return str(self.uid) if self.uid >= 0 else f"user {self.user}"


NOBODY = Principal(user="")


def project_queue(tenant: str, project: str = "") -> str:
    """Return the queue of a project of a tenant; of the default project if ``project`` is empty."""
    return f"{tenant}/{project or DEFAULT_PROJECT}"


def project_of(tenant: str, queue: str) -> str:
    """Return the project of a tenant to which a queue belongs; "" if the queue belongs to no project of the tenant."""
    return queue[len(tenant) + 1 :] if tenant and queue.startswith(f"{tenant}/") else ""


def parse_network_bounds(text: str) -> dict[NetworkKind, int]:
    """Parse limits of network objects like ``vpc=4,eip=8``, separated by commas or blanks. Raises CalabashError."""
    found = {}
    for word in text.replace(",", " ").split():
        kind, _, most = word.partition("=")
        if kind not in set(NetworkKind) or not (most.isascii() and most.isdigit() and len(most) <= 9):
            raise CalabashError(
                f"{word[:80]!r} is not a limit of network objects, written KIND=NUMBER",
                hint=f"for example vpc=4,eip=8; kinds: {', '.join(NetworkKind)}",
            )
        found[NetworkKind(kind)] = int(most)
    return found


def _check_amounts(what: str, guarantee: float, limit: float | None, weight: float) -> None:
    for name, value in (("guarantee", guarantee), ("limit", limit), ("weight", weight)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise CalabashError(f"{what}: {name} {value:g} is out of range", hint="zero or more")
    if limit is not None and guarantee > limit:
        raise CalabashError(
            f"{what}: its guarantee of {guarantee:g} devices is above its limit of {limit:g}",
            hint="raise the limit or lower the guarantee",
        )
