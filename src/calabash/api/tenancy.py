"""What the API is asked and answers about tenants, projects, users, members, tokens and quota."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from calabash.api.replies import Reply
from calabash.api.requests import Amount, Login, Logins, Name, New, OptionalName, written
from calabash.model.network import NetworkKind
from calabash.model.tenancy import PRIORITY_LEAST, PRIORITY_MOST, Role, TokenScope

RUN_S_MAX = 366 * 86_400.0
_PART_HINT = "1 to 63 letters, digits and ._-, a letter or digit first"
Part = Annotated[str, written(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", _PART_HINT)]
OptionalPart = Annotated[str, written(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?\Z", _PART_HINT)]
Names = Annotated[list[Name], Meta(max_length=64)]
Models = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)]
Priority = Annotated[int, Meta(ge=PRIORITY_LEAST, le=PRIORITY_MOST)]


class TenantSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A tenant as an administrator wants it; what is left out stays as it is."""

    new: New | UnsetType = UNSET
    guarantee: Annotated[Amount, Meta(description="devices guaranteed")] | UnsetType = UNSET
    limit: Annotated[Amount, Meta(description="devices at most; null: no limit")] | UnsetType | None = UNSET
    weight: Annotated[Amount, Meta(description="share of what nobody claims")] | UnsetType = UNSET
    budget: (
        Annotated[str, Meta(max_length=32, description="what it may spend, like `5000EUR`; empty: not watched")]
        | UnsetType
    ) = UNSET
    priority_min: Annotated[Priority, Meta(description="least priority of its requests")] | UnsetType = UNSET
    priority_max: Annotated[Priority, Meta(description="most")] | UnsetType = UNSET
    modes: Annotated[Names, Meta(description="sharing modes that it may ask for; none: any")] | UnsetType = UNSET
    models: Annotated[Models, Meta(description="device models that it may use; none: any")] | UnsetType = UNSET
    slices_per_user: (
        Annotated[
            int, Meta(ge=0, le=1_000_000, description="slices that one user holds and waits for at most; 0: no bound")
        ]
        | UnsetType
    ) = UNSET
    run_s_max: (
        Annotated[float, Meta(ge=0, le=RUN_S_MAX, description="longest run time in seconds; 0: no bound")] | UnsetType
    ) = UNSET
    users: Annotated[Logins, Meta(description="its members with role `member`")] | UnsetType = UNSET
    groups: Annotated[Logins, Meta(description="groups of the pool's machine whose members are its members")] | (
        UnsetType
    ) = UNSET
    add_users: Annotated[Logins, Meta(description="more members with role `member`")] = []
    remove_users: Annotated[Logins, Meta(description="members with role `member` that are to be members no more")] = []
    add_groups: Annotated[Logins, Meta(description="more groups whose members are its members")] = []
    remove_groups: Annotated[Logins, Meta(description="groups whose members are to be its members no more")] = []
    networks: (
        Annotated[
            dict[NetworkKind, Annotated[int, Meta(ge=0, le=1_000_000)]],
            Meta(description="most objects of a kind that its networks have, like `{vpc: 4}`; left out: no bound"),
        ]
        | UnsetType
    ) = UNSET


class TenantView(Reply, kw_only=True, frozen=True):
    """A tenant. Amounts in devices, ``limit`` null is none; ``users`` are its members with role ``member``."""

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
    """A project as an administrator of its tenant wants it; what is left out stays as it is."""

    new: New | UnsetType = UNSET
    guarantee: Annotated[Amount, Meta(description="devices of the tenant's guarantee")] | UnsetType = UNSET
    limit: Annotated[Amount, Meta(description="devices at most; null: the tenant's")] | UnsetType | None = UNSET
    weight: Annotated[Amount, Meta(description="share of what the tenant's other projects leave")] | UnsetType = UNSET


class ProjectView(Reply, kw_only=True, frozen=True):
    """A part of a tenant and its queue."""

    tenant: str
    name: str
    queue: str
    guarantee: float
    limit: float | None
    weight: float


class ProjectList(Reply, kw_only=True, frozen=True):
    items: list[ProjectView]


class UserSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A user as an administrator wants it; what is left out stays as it is."""

    new: New | UnsetType = UNSET
    login: Annotated[
        str,
        written(
            r"^([A-Za-z0-9_][A-Za-z0-9._@-]{0,126}[$]?)?\Z",
            "the name of an account of the pool's machine",
            description="its account of the pool's machine; empty: none",
        ),
    ] | (UnsetType) = UNSET
    subject: (
        Annotated[str, Meta(max_length=512, description="`issuer|sub` of its OIDC identity; empty: none")] | UnsetType
    ) = UNSET
    email: Annotated[str, Meta(max_length=256, description="where notices go; empty: nowhere")] | UnsetType = UNSET


class MemberView(Reply, kw_only=True, frozen=True):
    """What a user is where: ``tenant`` empty is the platform, ``project`` empty all of the tenant."""

    user: str
    role: str
    tenant: str
    project: str


class UserView(Reply, kw_only=True, frozen=True):
    """A user and its roles, as far as whoever asks may know them."""

    name: str
    login: str
    subject: str
    email: str
    roles: list[MemberView]


class UserList(Reply, kw_only=True, frozen=True):
    items: list[UserView]


class MemberOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A user is to have a role somewhere, instead of the one that it had there."""

    user: Login
    role: Role
    tenant: Annotated[OptionalName, Meta(description="empty: the whole platform")] = ""
    project: Annotated[OptionalPart, Meta(description="empty: all of the tenant")] = ""


class MemberPlace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where a user is to be a member no more, in the query string."""

    user: Login
    tenant: OptionalName = ""
    project: OptionalPart = ""


class TokenOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A token is asked for."""

    user: Annotated[str, Meta(max_length=128, description="whose; empty: of whoever asks")] = ""
    login: Annotated[bool, Meta(description="a code that starts one session of the console within ten minutes")] = False
    life_s: Annotated[
        float, Meta(ge=0, le=RUN_S_MAX, description="how long it is good for; 0: 90 days, a login code 10 minutes")
    ] = 0.0
    scopes: Annotated[
        list[TokenScope], Meta(max_length=3, description="what it is for at most; none: all that its user may")
    ] = []
    note: Annotated[str, Meta(max_length=200, description="what it is for, for people")] = ""


class TokenView(Reply, kw_only=True, frozen=True):
    """A token without its secret. ``state``: ``valid``, ``expired`` or ``revoked``."""

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
    """A new token; its ``secret`` is said this once."""

    id: str
    user: str
    kind: str
    scopes: list[str]
    expires_at: float
    secret: str


class SessionOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request for a session: with a login code, or by the gateway for the subject that an OIDC provider has vouched for."""

    code: Annotated[str, Meta(max_length=128, description="a login code")] = ""
    subject: Annotated[str, Meta(max_length=512, description="`issuer|sub`; with the gateway's credential only")] = ""
    name: Annotated[str, Meta(max_length=256, description="what the provider calls the subject")] = ""
    email: Annotated[str, Meta(max_length=256, description="its verified address")] = ""
    groups: Annotated[
        list[Annotated[str, Meta(max_length=256)]], Meta(max_length=1000, description="that the provider says it is in")
    ] = []
    console: Annotated[
        bool, Meta(description="a session of the console, without a secret; with the gateway's credential only")
    ] = False


class Me(Reply, kw_only=True, frozen=True):
    """Who asks. ``own``: the tenant of that very user, empty for members of tenants; ``may``: what on the platform;
    ``tenants``: on whose account it may ask. ``token``: the id of the token that it came with."""

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
    """What a tenant, or a part of it (``project``), is promised and has, in devices. ``borrowed`` is what it holds above
    its guarantee; ``spent`` what its use of this month costs without tax as of the last count, where there is a budget and
    the right to see bills."""

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
