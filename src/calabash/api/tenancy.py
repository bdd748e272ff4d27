"""Message types of tenants, projects, users, members, tokens, sessions and quota."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from calabash.api.replies import Reply
from calabash.api.requests import Amount, Login, Logins, Name, New, OptionalName, with_pattern
from calabash.model.network import NetworkKind
from calabash.model.tenancy import PRIORITY_LEAST, PRIORITY_MOST, Role, TokenScope

RUN_S_MAX = 366 * 86_400.0
_PART_HINT = "1 to 63 letters, digits and ._-, a letter or digit first"
Part = Annotated[str, with_pattern(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", _PART_HINT)]
OptionalPart = Annotated[str, with_pattern(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?\Z", _PART_HINT)]
Names = Annotated[list[Name], Meta(max_length=64)]
Models = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)]
Priority = Annotated[int, Meta(ge=PRIORITY_LEAST, le=PRIORITY_MOST)]


class TenantSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of a tenant to create or change. A setting that is left out keeps its value, or gets its default."""

    new: New | UnsetType = UNSET
    guarantee: Annotated[Amount, Meta(description="guaranteed devices")] | UnsetType = UNSET
    limit: Annotated[Amount, Meta(description="most devices; null: no limit")] | UnsetType | None = UNSET
    weight: Annotated[Amount, Meta(description="share of the devices that are not guaranteed")] | UnsetType = UNSET
    budget: (
        Annotated[str, Meta(max_length=32, description="money that it may spend, like `5000EUR`; empty: no budget")]
        | UnsetType
    ) = UNSET
    priority_min: Annotated[Priority, Meta(description="least priority of its requests")] | UnsetType = UNSET
    priority_max: Annotated[Priority, Meta(description="greatest priority of its requests")] | UnsetType = UNSET
    modes: Annotated[Names, Meta(description="sharing modes that it may use; empty: all")] | UnsetType = UNSET
    models: Annotated[Models, Meta(description="device models that it may use; empty: all")] | UnsetType = UNSET
    slices_per_user: (
        Annotated[
            int,
            Meta(ge=0, le=1_000_000, description="most slices that one user holds or waits for; 0: no limit"),
        ]
        | UnsetType
    ) = UNSET
    run_s_max: (
        Annotated[float, Meta(ge=0, le=RUN_S_MAX, description="longest run time in seconds; 0: no limit")] | UnsetType
    ) = UNSET
    users: Annotated[Logins, Meta(description="members with role `member`; replaces the list")] | UnsetType = UNSET
    groups: Annotated[
        Logins, Meta(description="groups of the pool's machine whose members are members; replaces the list")
    ] | (UnsetType) = UNSET
    add_users: Annotated[Logins, Meta(description="members with role `member` to add")] = []
    remove_users: Annotated[Logins, Meta(description="members with role `member` to remove")] = []
    add_groups: Annotated[Logins, Meta(description="groups to add")] = []
    remove_groups: Annotated[Logins, Meta(description="groups to remove")] = []
    networks: (
        Annotated[
            dict[NetworkKind, Annotated[int, Meta(ge=0, le=1_000_000)]],
            Meta(description="most network objects by kind, like `{vpc: 4}`; kinds that are left out have no limit"),
        ]
        | UnsetType
    ) = UNSET


class TenantView(Reply, kw_only=True, frozen=True):
    """Tenant. Amounts are devices; ``limit`` null: no limit. ``users`` are its members with role ``member``."""

    name: str
    guarantee: float
    limit: float | None
    weight: float
    budget: str
    priority_min: int
    priority_max: int
    modes: list[str]
    models: list[str]
    slices_per_user: int
    run_s_max: float
    users: list[str]
    groups: list[str]
    networks: dict[NetworkKind, int]


class TenantList(Reply, kw_only=True, frozen=True):
    items: list[TenantView]


class ProjectSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of a project to create or change. A setting that is left out keeps its value, or gets its default."""

    new: New | UnsetType = UNSET
    guarantee: Annotated[Amount, Meta(description="guaranteed devices of the tenant's guarantee")] | UnsetType = UNSET
    limit: Annotated[Amount, Meta(description="most devices; null: the limit of the tenant")] | UnsetType | None = UNSET
    weight: (
        Annotated[Amount, Meta(description="share of the tenant's devices that are not guaranteed to a project")]
        | UnsetType
    ) = UNSET


class ProjectView(Reply, kw_only=True, frozen=True):
    """Project of a tenant, with its queue. Amounts are devices."""

    tenant: str
    name: str
    queue: str
    guarantee: float
    limit: float | None
    weight: float


class ProjectList(Reply, kw_only=True, frozen=True):
    items: list[ProjectView]


class UserSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings of a user to create or change. A setting that is left out keeps its value, or gets its default."""

    new: New | UnsetType = UNSET
    login: Annotated[
        str,
        with_pattern(
            r"^([A-Za-z0-9_][A-Za-z0-9._@-]{0,126}[$]?)?\Z",
            "the name of an account of the pool's machine",
            description="account of the user on the pool's machine; empty: none",
        ),
    ] | (UnsetType) = UNSET
    subject: (
        Annotated[str, Meta(max_length=512, description="`issuer|sub` of the user's OIDC identity; empty: none")]
        | UnsetType
    ) = UNSET
    email: Annotated[str, Meta(max_length=256, description="mail address for notices; empty: none")] | UnsetType = UNSET


class MemberView(Reply, kw_only=True, frozen=True):
    """Membership. ``tenant`` empty: a role on the platform; ``project`` empty: a role in the whole tenant."""

    user: str
    role: str
    tenant: str
    project: str


class UserView(Reply, kw_only=True, frozen=True):
    """User and its roles, restricted to those that the requesting user may see."""

    name: str
    login: str
    subject: str
    email: str
    roles: list[MemberView]


class UserList(Reply, kw_only=True, frozen=True):
    items: list[UserView]


class MemberOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Role to give to a user. It replaces the role that the user had in the same tenant or project."""

    user: Login
    role: Role
    tenant: Annotated[OptionalName, Meta(description="tenant of the role; empty: the platform")] = ""
    project: Annotated[OptionalPart, Meta(description="project of the role; empty: the whole tenant")] = ""


class MemberPlace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select the role of a user to remove."""

    user: Login
    tenant: OptionalName = ""
    project: OptionalPart = ""


class TokenOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request for a token."""

    user: Annotated[str, Meta(max_length=128, description="user of the token; empty: the requesting user")] = ""
    login: Annotated[
        bool, Meta(description="create a login code, with which one session of the console can be started")
    ] = False
    life_s: Annotated[
        float, Meta(ge=0, le=RUN_S_MAX, description="seconds of validity; 0: 90 days, or 10 minutes for a login code")
    ] = 0.0
    scopes: Annotated[
        list[TokenScope], Meta(max_length=3, description="restrictions of the token; empty: all rights of its user")
    ] = []
    note: Annotated[str, Meta(max_length=200, description="purpose of the token, for people")] = ""


class TokenView(Reply, kw_only=True, frozen=True):
    """Token without its secret. ``state``: ``valid``, ``expired`` or ``revoked``."""

    id: str
    user: str
    kind: str
    scopes: list[str]
    note: str
    state: str
    created_at: float
    expires_at: float
    revoked_at: float | None


class TokenList(Reply, kw_only=True, frozen=True):
    items: list[TokenView]


class IssuedTokenReply(Reply, kw_only=True, frozen=True):
    """New token. Its ``secret`` is in this reply only."""

    id: str
    user: str
    kind: str
    scopes: list[str]
    expires_at: float
    secret: str


class SessionOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request for a session: with a login code, or by the gateway for a subject that an OIDC provider has authenticated."""

    code: Annotated[str, Meta(max_length=128, description="login code")] = ""
    subject: Annotated[str, Meta(max_length=512, description="`issuer|sub`; only with the gateway's credential")] = ""
    name: Annotated[str, Meta(max_length=256, description="name of the subject at the provider")] = ""
    email: Annotated[str, Meta(max_length=256, description="verified mail address of the subject")] = ""
    groups: Annotated[
        list[Annotated[str, Meta(max_length=256)]],
        Meta(max_length=1000, description="groups of the subject at the provider"),
    ] = []
    console: Annotated[
        bool, Meta(description="create a session of the console, without a secret; only with the gateway's credential")
    ] = False


class Me(Reply, kw_only=True, frozen=True):
    """Requesting user. ``token``: ID of the token of the request. ``own``: personal tenant; empty for members of tenants.

    ``may``: actions that the user may perform on the platform. ``tenants``: tenants on whose account the user may request
    slices.
    """

    user: str
    uid: int
    token: str
    kind: str
    scopes: list[str]
    own: str
    roles: list[MemberView]
    may: list[str]
    tenants: list[str]


class QuotaView(Reply, kw_only=True, frozen=True):
    """Guarantee and use of a tenant or a project, in devices.

    ``borrowed``: devices held beyond the guarantee. ``spent``: cost of the use in this month without tax, as of the last count;
    empty without a budget or without the right to see invoices.
    """

    tenant: str
    project: str
    queue: str
    guarantee: float
    limit: float | None
    allocated: float
    borrowed: float
    pending: float
    budget: str
    spent: str = ""


class QuotaList(Reply, kw_only=True, frozen=True):
    items: list[QuotaView]
