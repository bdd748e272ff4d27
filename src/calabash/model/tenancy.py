"""Tenants, their projects, people and what proves who they are: the nouns of a pool that serves many teams.

A tenant is a team, and its queue ``NAME`` with a guarantee and a limit; a project is a part of it, with the queue
``NAME/PROJECT``. Requests that name no project go to the part ``default``, which every tenant has. People are members: of
a project, of a tenant, or of the whole platform.
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
    """What a member is. ADMIN and OPERATOR exist for the whole platform only, TENANT_ADMIN for a tenant only."""

    ADMIN = "admin"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant-admin"
    MEMBER = "member"
    VIEWER = "viewer"


class TokenKind(StrEnum):
    """What a token is for: API by people and programs, SESSION of the console, LOGIN once for a session, GATEWAY for the
    process that serves the network and asks for the sessions of others."""

    API = "api"
    SESSION = "session"
    LOGIN = "login"
    GATEWAY = "gateway"


class TokenScope(StrEnum):
    """What a token may be used for at most: READ looks, RUN asks for slices and gives them back, MANAGE changes the rest."""

    READ = "read"
    RUN = "run"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A team as an administrator set it; amounts are devices, 0 or empty is no bound except where None is said.

    Args:
        guarantee: devices that it gets back whenever it wants them. limit: most it may hold, None: no limit.
        weight: its share of what nobody claims.
        budget: what it may spend, None: not watched.
        priorities: least and most that its requests may say.
        modes, models: sharing modes and parts of model names that it may ask for; empty: any.
        slices_per_user: most slices that one user of it holds and waits for at a time.
        run_s_max: a slice is taken back after so many seconds.
        groups: groups of this machine whose members are members of the tenant.
        networks: most objects of a kind that its networks have, by kind; a kind that is not said: no bound.
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
                f"tenant {self.name}: {', '.join(f'{k}={n}' for k, n in self.networks)} are no bounds of networks",
                hint="like vpc=4,port=200,eip=8; uplinks are the platform's",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A part of a tenant; amounts as there."""

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
    """A person or a program. ``login``: the account of this machine, ``subject``: what an OIDC provider calls it; both may
    be empty, and nobody else has the same."""

    name: str
    login: str = ""
    subject: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a user is where. ``tenant`` "" is the whole platform, ``project`` "" all of a tenant."""

    user: str
    role: Role
    tenant: str = ""
    project: str = ""

    def __post_init__(self) -> None:
        whole = {Role.ADMIN, Role.OPERATOR, Role.VIEWER}
        if not self.tenant and (self.role not in whole or self.project):
            raise CalabashError(
                f"{self.role} is a role within a tenant", hint="name the tenant, or give admin, operator or viewer"
            )
        if self.tenant and self.role in {Role.ADMIN, Role.OPERATOR}:
            raise CalabashError(
                f"{self.role} is a role for the whole platform",
                hint="leave the tenant out, or give tenant-admin, member or viewer",
            )
        if self.project and self.role is Role.TENANT_ADMIN:
            raise CalabashError(f"{self.role} is a role for a whole tenant", hint="leave the project out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token as it is kept: its secret is known to whoever was given it, here is only the SHA-256 ``digest``.

    ``scopes`` empty: whatever its user may. Times are seconds since 1970; ``revoked_at`` 0.0 is "not revoked".
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
        return not self.revoked_at and now_s < self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, and with which rights.

    Args:
        user: its name; "" is nobody.
        uid: its account on this machine, -1 for none.
        roles: all memberships, those by groups of this machine too.
        token: id of the token that it came with; "" for a process of this machine that the kernel vouches for.
        kind: of that token, None without one.
        scopes: of that token; empty: no bound.
        own: the tenant of that very user, which needs no administrator; "" for members of a tenant.
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
        """Whether it is the process at the other end of the socket."""
        return bool(self.user) and not self.token

    @property
    def key(self) -> str:
        """Who it is where things are counted by user: an account of this machine and a token of its user are the same."""
        return str(self.uid) if self.uid >= 0 else f"user {self.user}"


NOBODY = Principal(user="")


def project_queue(tenant: str, project: str = "") -> str:
    """The queue of a part of a tenant."""
    return f"{tenant}/{project or DEFAULT_PROJECT}"


def project_of(tenant: str, queue: str) -> str:
    """The project of a tenant that a queue is; "" when it is none of its parts."""
    return queue[len(tenant) + 1 :] if tenant and queue.startswith(f"{tenant}/") else ""


def parse_network_bounds(text: str) -> dict[NetworkKind, int]:
    """``vpc=4,eip=8``, with commas or blanks between them: most objects of each kind. Raises CalabashError."""
    found = {}
    for word in text.replace(",", " ").split():
        kind, _, most = word.partition("=")
        if kind not in set(NetworkKind) or not (most.isascii() and most.isdigit() and len(most) <= 9):
            raise CalabashError(
                f"{word[:80]!r} is no kind of networks with a number",
                hint=f"like vpc=4,eip=8; kinds: {', '.join(NetworkKind)}",
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
