"""Who asks and may do what. A process of this machine is who the kernel says, never who the request says; whoever comes
from elsewhere is who its token says.

Root and the pool's owner are administrators. Members of tenants may use these; who is a member of none has the tenant of
its own name, and the queue ``default``. A queue of its own is for its access list. A pool that cannot tell whose a process
is (no control groups) serves its own user's processes only.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence

from calabash.adapters.host.failures import require_descriptor
from calabash.adapters.host.processes import Peer, user_name
from calabash.adapters.host.users import user_groups
from calabash.model import access
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, DEFAULT_TENANT
from calabash.model.tenancy import Member, Principal, Role, TokenKind, TokenRecord
from calabash.platform.tenancy.directory import People

GROUPS_KEPT_S = 30.0


class Permission:
    """The rules of one pool.

    Args:
        owner_uid: whom the pool's process belongs to.
        everybody: whether others than administrators are served.
        people: who there is now.
        account_of: the uid of a login name; -1 when there is none.
    """

    def __init__(
        self,
        owner_uid: int,
        *,
        everybody: bool,
        people: Callable[[], People] = People,
        groups_of: Callable[[int], frozenset[str]] = user_groups,
        account_of: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.account_of = account_of or account
        self._owner_uid = owner_uid
        self._everybody = everybody
        self._people = people
        self._groups_of = groups_of
        self._clock = clock
        self._groups: dict[int, tuple[float, frozenset[str]]] = {}

    def serves(self) -> str:
        """Whom, for people."""
        return "every user" if self._everybody else f"user {user_name(self._owner_uid)} only"

    # -- who asks ----------------------------------------------------------------------------------------------

    def of_peer(self, peer: Peer) -> Principal:
        """The process at the other end of a Unix socket."""
        return self._principal(self._people().named(user_name(peer.uid)), peer.uid)

    def of_token(self, token: TokenRecord) -> Principal:
        """Whoever came with a valid token. Raises NOT_AUTHENTICATED when its user is gone."""
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

    # -- and may it --------------------------------------------------------------------------------------------

    def administrator(self, who: Principal) -> bool:
        """Whether no bound of fair use holds it back."""
        return access.is_allowed(who, Action.MANAGE_TENANTS)

    def require_served(self, who: Principal) -> None:
        """Raises NOT_PERMITTED for other local users where the pool serves its own user only."""
        if who.local and not self._everybody and who.uid not in {0, self._owner_uid}:
            raise CalabashError(
                f"this pool serves {self.serves()}, you are {who.user}",
                reason=Reason.NOT_PERMITTED,
                hint="run a pool of your own, or ask root for one that serves every user",
            )

    def require(self, who: Principal, action: Action, what: str, *, tenant: str = "", project: str = "") -> None:
        """Raises NOT_PERMITTED unless the principal may do that there; ``what`` follows "may not"."""
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
        """Raises NOT_PERMITTED for whoever came with a token: this concerns the very process that asks."""
        if not who.local:
            raise CalabashError(
                f"a token may not {what}: this is for processes of the pool's machine",
                reason=Reason.NOT_PERMITTED,
                hint="use `calabash run` there",
            )

    def owns(self, who: Principal, *, uid: int, user: str) -> bool:
        """Whether something that such a user asked for is the principal's own."""
        return who.uid == uid if uid >= 0 else who.user == user

    def require_owner(self, who: Principal, allocation: str, *, uid: int, user: str, tenant: str, queue: str) -> None:
        """Raises NOT_PERMITTED unless the allocation is the principal's own or in a tenant where it may take slices back.

        Raises NOT_FOUND where it may not even know of it.
        """
        owner = who.key if self.owns(who, uid=uid, user=user) else ""
        if access.is_allowed(who, Action.STOP, tenant=tenant, project=queue.removeprefix(f"{tenant}/"), owner=owner):
            return
        if not owner and not access.is_allowed(who, Action.SEE, tenant=tenant):
            raise not_found(allocation)
        self.require(who, Action.STOP, f"touch {allocation}, which belongs to {user}", tenant=tenant)

    def require_queue(self, who: Principal, queue: str, users: Sequence[str], groups: Sequence[str]) -> None:
        """Raises NOT_PERMITTED when the user is not on the queue's access list."""
        if queue != DEFAULT_QUEUE and not self.listed(who, users, groups):
            raise CalabashError(
                f"user {who.user} may not use queue {queue}",
                reason=Reason.NOT_PERMITTED,
                hint=f"use queue {DEFAULT_QUEUE}, or ask an administrator for:"
                f" calabash queue set {queue} --add-user {who.user}",
            )

    def tenant(self, who: Principal, wanted: str, project: str = "") -> str:
        """The tenant that a request is accounted to. Raises NOT_PERMITTED for a tenant of others."""
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
        """Whether an access list names it; operators are on every list."""
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
            known = self._groups[uid] = (now_s, self._groups_of(uid))
        return known[1]


def account(login: str) -> int:
    """The uid of an account of this machine; -1 when there is none."""
    if login.isdigit():
        return int(login)
    try:
        return pwd.getpwnam(login).pw_uid if login else -1
    except KeyError:
        require_descriptor()
        return -1


def not_found(allocation: str) -> CalabashError:
    """There is no such allocation now, as far as whoever asks may know."""
    return CalabashError(
        f"there is no allocation {allocation!r} held or waiting", reason=Reason.NOT_FOUND, hint="see `calabash ps`"
    )
