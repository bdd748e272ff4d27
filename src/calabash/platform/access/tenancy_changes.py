"""Create, change and delete tenants, projects, users, members and tokens, after a permission check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from calabash.api import tenancy as shapes
from calabash.model import access
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.money import parse_money
from calabash.model.tenancy import (
    DEFAULT_PROJECT,
    Member,
    Principal,
    Project,
    Role,
    Tenant,
    TokenKind,
    TokenScope,
    User,
)
from calabash.platform.access.identities import Identities, VouchedIdentity
from calabash.platform.access.permission import Permission
from calabash.platform.access.tokens import IssuedSecret, Tokens
from calabash.platform.settings_changes import changed_names, require_presence
from calabash.platform.tenancy.store import TenancyStore, missing
from calabash.sharing.registry import mode_named

TENANT_CHARACTERS_MAX = 63


class TenancyChanges:
    """Changes of tenancy, each with its permission check.

    Of the parameters, ``who`` is the requesting principal and ``wanted`` the body of the request. Every method raises
    CalabashError if the principal may not make the change or the change is invalid; it then changes nothing.

    Args:
        identities: users for the identities of an OpenID Connect provider.
        require_no_networks: raises CalabashError if the tenant with this name has networks.
    """

    def __init__(
        self,
        *,
        tenancy: TenancyStore,
        tokens: Tokens,
        permission: Permission,
        identities: Identities,
        require_no_networks: Callable[[str], None],
    ) -> None:
        self._tenancy = tenancy
        self._tokens = tokens
        self._permission = permission
        self._identities = identities
        self._require_no_networks = require_no_networks

    # -- tenants and projects ----------------------------------------------------------------------------------

    def put_tenant(self, who: Principal, name: str, wanted: shapes.TenantSettings) -> None:
        """Create a tenant or change the settings that are given. Raises CalabashError."""
        self._permission.require(who, Action.MANAGE_TENANTS, "change tenants")
        people = self._tenancy.people()
        known = people.tenants.get(name)
        require_presence("tenant", name, exists=known is not None, new=wanted.new)
        if known is None and (len(name) > TENANT_CHARACTERS_MAX or "/" in name):
            raise CalabashError(
                f"tenant name {name[:80]!r} is not usable",
                hint=f"at most {TENANT_CHARACTERS_MAX} characters, without /",
            )
        before = known or Tenant(name=name)
        said = _said(wanted)
        users = None
        if wanted.users is not msgspec.UNSET or wanted.add_users or wanted.remove_users:
            members = sorted(m.user for m in people.of_tenant(name) if m.role is Role.MEMBER and not m.project)
            users = [
                *changed_names(
                    f"the members of tenant {name}", members, wanted.users, wanted.add_users, wanted.remove_users
                )
            ]
        said["groups"] = changed_names(
            f"the groups of tenant {name}", before.groups, wanted.groups, wanted.add_groups, wanted.remove_groups
        )
        least = said.pop("priority_min", before.priorities[0])
        most = said.pop("priority_max", before.priorities[1])
        if "budget" in said:
            said["budget"] = parse_money(said["budget"]) if said["budget"] else None
        for mode in said.get("modes", ()):
            mode_named(mode)
        said |= {key: tuple(said[key]) for key in ("modes", "models") if key in said}
        if "networks" in said:
            said["networks"] = tuple(sorted(said["networks"].items()))
        tenant = _changed(before, said | {"priorities": (least, most)})
        self._tenancy.put_tenant(tenant, members=users)

    def delete_tenant(self, who: Principal, name: str) -> None:
        """Delete a tenant that has neither requests nor networks."""
        self._permission.require(who, Action.MANAGE_TENANTS, "change tenants")
        self._require_no_networks(name)
        self._tenancy.delete_tenant(name)

    def put_project(self, who: Principal, tenant: str, name: str, wanted: shapes.ProjectSettings) -> None:
        """Create a project or change the settings that are given."""
        self._require_tenant(who, Action.MANAGE_PROJECTS, tenant, "change its projects")
        known = self._tenancy.people().projects.get((tenant, name))
        require_presence(
            "project", name, tenant=tenant, exists=known is not None, new=wanted.new, command="tenant project"
        )
        self._tenancy.put_project(_changed(known or Project(tenant=tenant, name=name), _said(wanted)))

    def delete_project(self, who: Principal, tenant: str, name: str) -> None:
        """Delete a project without requests. Raises CONFLICT for the implicit default project."""
        self._require_tenant(who, Action.MANAGE_PROJECTS, tenant, "change its projects")
        if name == DEFAULT_PROJECT and (tenant, name) not in self._tenancy.people().projects:
            raise CalabashError(
                f"project {DEFAULT_PROJECT} of tenant {tenant} cannot be deleted",
                reason=Reason.CONFLICT,
                hint="requests that name no project go to it",
            )
        self._tenancy.delete_project(tenant, name)

    # -- people ------------------------------------------------------------------------------------------------

    def put_user(self, who: Principal, name: str, wanted: shapes.UserSettings) -> None:
        """Create a user or change the settings that are given.

        A user has a name in the pool and optionally a login, an account of this machine. Raises CONFLICT if the name is
        that of an account other than the login, and CalabashError if the login does not exist.
        """
        self._permission.require(who, Action.MANAGE_USERS, "change users")
        known = self._tenancy.people().users.get(name)
        require_presence("user", name, exists=known is not None, new=wanted.new)
        user = _changed(known or User(name=name), _said(wanted))
        uid = self._permission.account_of(user.login)
        if user.login and uid < 0:
            raise CalabashError(f"there is no account {user.login} on this machine", hint="see `getent passwd`")
        if name != user.login and self._permission.account_of(name) >= 0:
            raise CalabashError(
                f"user {name} has the name of an account of this machine, and another login",
                reason=Reason.CONFLICT,
                hint=f"say --login {name}, or choose another name",
            )
        self._tenancy.put_user(user)

    def delete_user(self, who: Principal, name: str) -> None:
        """Delete a user, its roles and its tokens."""
        self._permission.require(who, Action.MANAGE_USERS, "change users")
        self._tenancy.delete_user(name)
        self._tokens.forget_user(name)

    def put_member(self, who: Principal, wanted: shapes.MemberOrder) -> None:
        """Give a user a role in a tenant or project, or in the whole platform if the order names no tenant."""
        self._require_place(who, wanted.tenant)
        self._require_user(wanted.user)
        member = Member(user=wanted.user, role=wanted.role, tenant=wanted.tenant, project=wanted.project)
        self._tenancy.put_member(member)

    def delete_member(self, who: Principal, where: shapes.MemberPlace) -> None:
        """Delete the role of a user in a tenant or project."""
        self._require_place(who, where.tenant)
        self._tenancy.delete_member(user=where.user, tenant=where.tenant, project=where.project)

    # -- tokens ------------------------------------------------------------------------------------------------

    def issue(self, who: Principal, wanted: shapes.TokenOrder) -> IssuedSecret:
        """Issue a token whose scopes are within those of the requesting principal's token.

        Raises NOT_PERMITTED for other scopes, and for the token of another user unless the principal manages users.
        """
        user = wanted.user or who.user
        scopes = tuple(dict.fromkeys(wanted.scopes))
        life_s = wanted.life_s
        if user != who.user:
            self._permission.require(who, Action.MANAGE_USERS, "make tokens of others")
            self._require_user(user)
        elif not access.in_scope(who, Action.MANAGE_USERS):
            raise CalabashError(
                f"a token with scopes {', '.join(who.scopes) or 'none'} may not make tokens",
                reason=Reason.NOT_PERMITTED,
                hint=f"use one with scope {TokenScope.MANAGE}",
            )
        if who.scopes and not set(scopes or tuple(TokenScope)) <= set(who.scopes):
            raise CalabashError(
                f"a token with scopes {', '.join(who.scopes)} may not make one for more",
                reason=Reason.NOT_PERMITTED,
                hint="name scopes that it has",
            )
        if wanted.login and (who.scopes or scopes):
            raise CalabashError("a login code has no scopes", hint="leave them out, and use a token without any")
        kind = TokenKind.LOGIN if wanted.login else TokenKind.API
        return self._tokens.issue(user=user, kind=kind, life_s=life_s, scopes=scopes, note=wanted.note)

    def revoke(self, who: Principal, token: str) -> None:
        """Revoke a token.

        Raises NOT_FOUND if the token does not exist, or if it belongs to another user whose tokens the principal may
        not manage.
        Raises CONFLICT if it was revoked before.
        """
        record = self._tokens.find(token)
        mine = record is not None and record.user == who.user
        if record is None or not (mine or access.is_allowed(who, Action.MANAGE_USERS)):
            raise missing("token", token[:40])
        if not self._tokens.revoke(token):
            raise CalabashError(
                f"token {token} was revoked before", reason=Reason.CONFLICT, hint="see `calabash user token list`"
            )

    def session(self, who: Principal, wanted: shapes.SessionOrder) -> IssuedSecret:
        """Begin a session for the user of a login code or for a subject of the identity provider. Raises CalabashError.

        Only the gateway may name a subject, which it has verified, and only the gateway may request a session of the
        console (``wanted.console``), which has no secret. Other clients get a session token for a login code.
        """
        if bool(wanted.code) == bool(wanted.subject):
            raise CalabashError(
                "a session needs a login code or a subject, exactly one of them", hint="leave one of them out"
            )
        if wanted.console and who.kind is not TokenKind.GATEWAY:
            raise CalabashError(
                "only the gateway may begin a session of the console",
                reason=Reason.NOT_PERMITTED,
                hint="leave out `console`",
            )
        if wanted.code:
            user = self._tokens.use_up(wanted.code).user
        else:
            if who.kind is not TokenKind.GATEWAY:
                raise CalabashError(
                    "only the gateway may vouch for others", reason=Reason.NOT_PERMITTED, hint="use a login code"
                )
            user = self._identities.user(
                VouchedIdentity(
                    subject=wanted.subject, name=wanted.name, email=wanted.email, groups=tuple(wanted.groups)
                )
            )
        if wanted.console:
            return self._tokens.begin_session(user)
        return self._tokens.issue(user=user, kind=TokenKind.SESSION)

    def _require_user(self, name: str) -> None:
        """Raise NOT_FOUND if neither the pool has a user of that name nor this machine an account."""
        if name not in self._tenancy.people().users and self._permission.account_of(name) < 0:
            raise missing("user", name)

    def _require_place(self, who: Principal, tenant: str) -> None:
        if tenant:
            self._require_tenant(who, Action.MANAGE_MEMBERS, tenant, "change its members")
        else:
            self._permission.require(who, Action.MANAGE_USERS, "change roles for the platform")

    def _require_tenant(self, who: Principal, action: Action, tenant: str, what: str) -> None:
        """Check that the principal may perform an action in a tenant.

        Raises NOT_FOUND if the tenant does not exist or the principal may not see it, NOT_PERMITTED if the principal
        may not perform the action. ``what`` is the action in words, for the message.
        """
        if tenant not in self._tenancy.people().tenants or not access.is_allowed(who, Action.SEE, tenant=tenant):
            raise missing("tenant", tenant)
        self._permission.require(who, action, what, tenant=tenant)


_NOT_SETTINGS = frozenset({"new", "users", "groups", "add_users", "remove_users", "add_groups", "remove_groups"})


def _said(wanted: msgspec.Struct) -> dict[str, Any]:
    """Return the settings that a request sets, with their values.

    Fields that are no settings are left out: those that add and remove members, and ``new``.
    """
    settings = msgspec.structs.asdict(wanted)
    return {k: v for k, v in settings.items() if v is not msgspec.UNSET and k not in _NOT_SETTINGS}


def _changed(before: Any, said: dict[str, Any]) -> Any:
    return replace(before, **said)
