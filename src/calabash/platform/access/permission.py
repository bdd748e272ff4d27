"""Authenticate principals and check their permissions.

A process of this machine is authenticated by the uid that the kernel reports for its connection, and every other
request by its token.

Root and the owner of the pool's process are administrators. A member of tenants may use these tenants. A user who is a
member of no tenant has a tenant of the same name as the user, and the queue ``default``. Other queues may be used by
the users and groups on their access lists. A pool without control groups cannot attribute processes to users, and
serves only its own user.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from calabash.adapters.host.failures import require_descriptor
from calabash.adapters.host.processes import Peer, user_name
from calabash.adapters.host.users import user_groups
from calabash.model import access
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, DEFAULT_TENANT
from calabash.model.tenancy import Member, Principal, Role, TokenKind, TokenRecord
from calabash.platform.tenancy.directory import TenancyDirectory

GROUPS_KEPT_S = 30.0


class Accounts(Protocol):
    """Accounts of the users whom a pool serves."""

    def uid_of(self, login: str) -> int:
        """Return the uid of a login name; -1 if there is no such account."""
        ...

    def groups_of(self, uid: int) -> frozenset[str]:
        """Return the names of the groups of a uid."""
        ...


class HostAccounts:
    """Accounts of this machine."""

    def uid_of(self, login: str) -> int:
        return account(login)

    def groups_of(self, uid: int) -> frozenset[str]:
        return user_groups(uid)


class Permission:
    """Authentication and permission checks of one pool.

    Args:
        owner_uid: uid of the pool's process.
        everybody: True to serve all users of the machine, False to serve only root and the owner of the process.
        people: returns the present directory of tenants, users and roles.
        accounts: accounts of the users; the groups of a uid are cached for GROUPS_KEPT_S seconds.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        owner_uid: int,
        *,
        everybody: bool,
        people: Callable[[], TenancyDirectory] = TenancyDirectory,
        accounts: Accounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner_uid = owner_uid
        self._everybody = everybody
        self._people = people
        self._accounts: Accounts = accounts or HostAccounts()
        self._clock = clock
        self._groups: dict[int, tuple[float, frozenset[str]]] = {}

    def serves(self) -> str:
        """Return a text that names the users whom the pool serves."""
        return "every user" if self._everybody else f"user {user_name(self._owner_uid)} only"

    def account_of(self, login: str) -> int:
        """Return the uid of a login name; -1 if there is no such account."""
        return self._accounts.uid_of(login)

    # -- authentication ----------------------------------------------------------------------------------------------

    def of_peer(self, peer: Peer) -> Principal:
        """Return the principal of a process at the other end of a Unix socket."""
        return self._principal(self._people().named(user_name(peer.uid)), peer.uid)

    def of_token(self, token: TokenRecord) -> Principal:
        """Return the principal of a valid token. Raises NOT_AUTHENTICATED if its user does not exist any more."""
        if token.kind is TokenKind.GATEWAY:
            return Principal(user=token.user, token=token.id, kind=token.kind)
        user = self._people().users.get(token.user)
        uid = self.account_of(user.login if user else token.user)
        if user is None and uid < 0:
            raise CalabashError(
                f"user {token.user} of the token is not known any more",
                reason=Reason.NOT_AUTHENTICATED,
                hint="ask an administrator",
            )
        return self._principal(token.user, uid, token)

    def _principal(self, name: str, uid: int, token: TokenRecord | None = None) -> Principal:
        roles = self._people().roles(name, lambda: self._groups_now(uid))
        administrator = uid in {0, self._owner_uid}
        if administrator:
            roles = (Member(user=name, role=Role.ADMIN), *roles)
        member = any(role.tenant and role.role is not Role.VIEWER for role in roles)
        own = name if administrator or not (member or name in self._people().tenants) else ""
        if token is None:
            return Principal(user=name, uid=uid, roles=roles, own=own)
        return Principal(user=name, uid=uid, roles=roles, own=own, token=token.id, kind=token.kind, scopes=token.scopes)

    # -- permissions --------------------------------------------------------------------------------------------

    def administrator(self, who: Principal) -> bool:
        """Return True if the principal is an administrator of the pool, to whom request limits do not apply."""
        return access.is_allowed(who, Action.MANAGE_TENANTS)

    def require_served(self, who: Principal) -> None:
        """Raise NOT_PERMITTED if the pool serves its own user only and the principal is another local user."""
        if who.local and not self._everybody and who.uid not in {0, self._owner_uid}:
            raise CalabashError(
                f"this pool serves {self.serves()}, you are {who.user}",
                reason=Reason.NOT_PERMITTED,
                hint="run a pool of your own, or ask root for one that serves every user",
            )

    def require(self, who: Principal, action: Action, what: str, *, tenant: str = "", project: str = "") -> None:
        """Raise NOT_PERMITTED unless the principal may perform the action in that tenant and project.

        Args:
            who: the principal.
            action: the action.
            what: the action in words; follows "may not" in the message.
            tenant: the tenant; "" for the whole platform.
            project: the project; "" for the whole tenant.
        """
        if access.is_allowed(who, action, tenant=tenant, project=project):
            return
        if not access.in_scope(who, action):
            raise CalabashError(
                f"the token of user {who.user} may not {what}: its scopes are {', '.join(who.scopes) or 'none'}",
                reason=Reason.NOT_PERMITTED,
                hint="use a token with more scopes",
            )
        owner = user_name(self._owner_uid)
        hint = f"ask {owner}, who owns the pool" + ("" if self._owner_uid == 0 else ", or root")
        if tenant:
            hint = f"ask an administrator of tenant {tenant}, or of the pool"
        raise CalabashError(f"user {who.user} may not {what}", reason=Reason.NOT_PERMITTED, hint=hint)

    def require_process(self, who: Principal, what: str) -> None:
        """Raise NOT_PERMITTED for a principal with a token: the operation is for processes of this machine."""
        if not who.local:
            raise CalabashError(
                f"a token may not {what}: this is for processes of the pool's machine",
                reason=Reason.NOT_PERMITTED,
                hint="use `calabash run` there",
            )

    def owns(self, who: Principal, *, uid: int, user: str) -> bool:
        """Return True if the principal is the user who requested an object.

        Args:
            who: the principal.
            uid: uid of the requesting user; negative if the request came with a token of a user without an account.
            user: name of the requesting user, which is compared if ``uid`` is negative.
        """
        return who.uid == uid if uid >= 0 else who.user == user

    def require_owner(self, who: Principal, allocation: str, *, uid: int, user: str, tenant: str, queue: str) -> None:
        """Raise NOT_PERMITTED unless the principal owns the allocation or may stop allocations of its tenant and project.

        Raises NOT_FOUND if the principal may not see the allocation.
        """
        owner = who.key if self.owns(who, uid=uid, user=user) else ""
        if access.is_allowed(who, Action.STOP, tenant=tenant, project=queue.removeprefix(f"{tenant}/"), owner=owner):
            return
        if not owner and not access.is_allowed(who, Action.SEE, tenant=tenant):
            raise not_found(allocation)
        self.require(who, Action.STOP, f"touch {allocation}, which belongs to {user}", tenant=tenant)

    def require_queue(self, who: Principal, queue: str, users: Sequence[str], groups: Sequence[str]) -> None:
        """Raise NOT_PERMITTED if neither the user nor one of its groups is on the queue's access list.

        Operators may use every queue, and every user may use the queue ``default``, which has no access list.
        """
        if queue != DEFAULT_QUEUE and not self.listed(who, users, groups):
            raise CalabashError(
                f"user {who.user} may not use queue {queue}",
                reason=Reason.NOT_PERMITTED,
                hint=f"use queue {DEFAULT_QUEUE}, or ask an administrator for:"
                f" calabash queue set {queue} --add-user {who.user}",
            )

    def tenant(self, who: Principal, wanted: str, project: str = "") -> str:
        """Return the tenant that pays for a request.

        Args:
            who: the requesting principal.
            wanted: the tenant that the request names; "" or ``default`` for the user's only tenant.
            project: the project that the request names; "" for none.

        Raises NOT_PERMITTED if the user may not request for that tenant, or has several and the request names none.
        """
        there = access.requestable_tenants(who)
        if wanted in {"", DEFAULT_TENANT}:
            if who.own or len(there) == 1:
                return who.own or there[0]
            raise CalabashError(
                f"user {who.user} is a member of {len(there)} tenants" + (f": {', '.join(there)}" if there else ""),
                reason=Reason.NOT_PERMITTED,
                hint="name the one that pays with --tenant" if there else "ask an administrator to be made a member",
            )
        if not access.is_allowed(who, Action.RUN, tenant=wanted, project=project):
            mine = ", ".join(there) or who.own
            raise CalabashError(
                f"user {who.user} may not ask on the account of tenant {wanted}",
                reason=Reason.NOT_PERMITTED,
                hint=f"leave the tenant out, which means {mine}, or ask an administrator to be made a member of {wanted}"
                if mine
                else f"ask an administrator to be made a member of {wanted}",
            )
        return wanted

    def listed(self, who: Principal, users: Sequence[str], groups: Sequence[str]) -> bool:
        """Return True if an access list has the user or one of its groups; operators are on every list."""
        if (
            access.is_allowed(who, Action.OPERATE)
            or who.user in users
            or (who.uid >= 0 and user_name(who.uid) in users)
        ):
            return True
        return bool(groups) and not self._groups_now(who.uid).isdisjoint(groups)

    def _groups_now(self, uid: int) -> frozenset[str]:
        if uid < 0:
            return frozenset()
        now_s = self._clock()
        known = self._groups.get(uid)
        if known is None or now_s - known[0] > GROUPS_KEPT_S:
            known = self._groups[uid] = (now_s, self._accounts.groups_of(uid))
        return known[1]


def account(login: str) -> int:
    """Return the uid of an account of this machine; -1 if there is none."""
    if login.isdigit():
        return int(login)
    try:
        return pwd.getpwnam(login).pw_uid if login else -1
    except KeyError:
        require_descriptor()
        return -1


def not_found(allocation: str) -> CalabashError:
    """Build the error for an allocation that does not exist or that the principal may not see."""
    return CalabashError(
        f"there is no allocation {allocation!r} held or waiting", reason=Reason.NOT_FOUND, hint="see `calabash ps`"
    )
