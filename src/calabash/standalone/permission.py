"""Who may do what. Who asks is what the kernel says about the other end of the socket, never what the request says.

Administrators are root and the pool's owner. Everybody else may use the queue ``default``, the tenant of that login
name, and the queues and tenants whose access list has the user or one of the user's groups, as the host's name service
knows them. A pool that cannot tell whose a process is (no control groups) serves its own user only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, DEFAULT_TENANT
from calabash.seams.host.processes import Peer, user_name
from calabash.seams.host.users import user_groups

GROUPS_KEPT_S = 30.0


class Permission:
    """The rules of one pool.

    Args:
        owner_uid: whom the pool's process belongs to.
        everybody: whether others than administrators are served.
    """

    def __init__(
        self,
        owner_uid: int,
        *,
        everybody: bool,
        groups_of: Callable[[int], frozenset[str]] = user_groups,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner_uid = owner_uid
        self._everybody = everybody
        self._groups_of = groups_of
        self._clock = clock
        self._groups: dict[int, tuple[float, frozenset[str]]] = {}

    def serves(self) -> str:
        """Whom, for people."""
        return "every user" if self._everybody else f"user {user_name(self._owner_uid)} only"

    def administrator(self, peer: Peer) -> bool:
        return peer.uid in {0, self._owner_uid}

    def require_served(self, peer: Peer) -> None:
        """Raises NOT_PERMITTED for others where the pool serves its own user only."""
        if not self._everybody and not self.administrator(peer):
            raise CalabashError(
                f"this pool serves {self.serves()}, you are {user_name(peer.uid)}",
                reason=Reason.NOT_PERMITTED,
                hint="run a pool of your own, or ask root for one that serves every user",
            )

    def require_administrator(self, peer: Peer, what: str) -> None:
        """Raises NOT_PERMITTED for everybody but root and the pool's owner."""
        if not self.administrator(peer):
            owner = user_name(self._owner_uid)
            raise CalabashError(
                f"user {user_name(peer.uid)} may not {what}",
                reason=Reason.NOT_PERMITTED,
                hint=f"ask {owner}, who owns the pool" + ("" if self._owner_uid == 0 else ", or root"),
            )

    def require_owner(self, peer: Peer, uid: int, allocation: str) -> None:
        """Raises NOT_PERMITTED for whoever does not own the allocation of ``uid``."""
        if peer.uid != uid:
            self.require_administrator(peer, f"touch {allocation}, which belongs to {user_name(uid)}")

    def require_queue(self, peer: Peer, queue: str, users: Sequence[str], groups: Sequence[str]) -> None:
        """Raises NOT_PERMITTED when the user is not on the queue's access list."""
        if queue != DEFAULT_QUEUE and not self._listed(peer, users, groups):
            name = user_name(peer.uid)
            raise CalabashError(
                f"user {name} may not use queue {queue}",
                reason=Reason.NOT_PERMITTED,
                hint=f"use queue {DEFAULT_QUEUE}, or ask an administrator for: calabash queue set {queue} --users {name}",
            )

    def tenant(self, peer: Peer, wanted: str, users: Sequence[str], groups: Sequence[str]) -> str:
        """The tenant that a request is accounted to. Raises NOT_PERMITTED for a tenant of others."""
        own = user_name(peer.uid)
        if wanted in {"", DEFAULT_TENANT, own}:
            return own
        if not self._listed(peer, users, groups):
            raise CalabashError(
                f"user {own} may not ask on the account of tenant {wanted}",
                reason=Reason.NOT_PERMITTED,
                hint=f"leave the tenant out, which means {own}, or ask an administrator to be listed for {wanted}",
            )
        return wanted

    def _listed(self, peer: Peer, users: Sequence[str], groups: Sequence[str]) -> bool:
        if self.administrator(peer) or user_name(peer.uid) in users:
            return True
        return bool(groups) and not self._groups_now(peer.uid).isdisjoint(groups)

    def _groups_now(self, uid: int) -> frozenset[str]:
        now_s = self._clock()
        known = self._groups.get(uid)
        if known is None or now_s - known[0] > GROUPS_KEPT_S:
            known = self._groups[uid] = (now_s, self._groups_of(uid))
        return known[1]
