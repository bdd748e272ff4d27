"""Leases of a server as allocations of its pool: journalled, restored after a restart, and ended when they are over.

A lease is journalled before its client gets it. A broker that starts again restores the leases whose allocations still
exist in the pool. An allocation of this server that belongs to no lease and to no request in progress is lost, and is
released. This happens if a broker was killed between the pool's grant and the journal, or if the pool did not answer a
request to release the allocation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.pool.asynchronous import AsyncPoolClient
from calabash.api import endpoints
from calabash.broker.messages import LeaseEnd, LeaseView, LeaseViews, SessionView
from calabash.broker.server.audit import AuditLog
from calabash.broker.server.authentication import TokenVerifier
from calabash.broker.server.journal import LeaseJournal
from calabash.broker.server.lease_lifecycle import LeaseEvent
from calabash.broker.server.lease_table import HeldLease, LeaseTable
from calabash.broker.server.metrics import LeaseCounters
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason

ANSWER_S = 30.0
SESSIONS_SHOWN = 16
COMMAND = "calabash-server-lease"  # first word of the command of allocations that are leases


@dataclass(slots=True)
class _Observed:
    """Observed activity of a lease.

    Args:
        sessions: peer address and start (seconds since the epoch) of each session, by session ID.
        processes: number of processes that serve the lease.
    """

    sessions: dict[str, tuple[str, float]] = field(default_factory=dict)
    processes: int = 0


class LeaseAllocations:
    """Leases of a server. All methods run in one event loop.

    Args:
        pool: client of the pool.
        verifier: tells which tokens were revoked or have expired.
        journal: stores the leases.
        audit: audit log for grants, sessions and ends of leases.
        counters: counts the ends of leases by reason.
        keep_s: seconds after which the pool ends an allocation that no server renews, in case this server never
            returns.
        clock: returns monotonic seconds, for deadlines.
        now: returns seconds since the epoch.
    """

    def __init__(
        self,
        *,
        pool: AsyncPoolClient,
        verifier: TokenVerifier,
        journal: LeaseJournal,
        audit: AuditLog,
        counters: LeaseCounters,
        keep_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.pool = pool
        self.audit = audit
        self.counters = counters
        self.keep_s = keep_s
        self.clock = clock
        self.now = now
        self.table = LeaseTable()
        self.draining = False
        self._verifier = verifier
        self._journal = journal
        self._observed: dict[str, _Observed] = {}
        self._renewed_s: dict[str, float] = {}  # time of the last renewal in the pool, by lease

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self.table)

    async def restore(self) -> None:
        """Restore journalled leases whose allocations still exist. Raises CalabashError if the pool does not answer."""
        kept = self._journal.read()
        self.draining = kept.draining
        there = await self._allocations()
        self.table = LeaseTable([lease for lease in kept.leases if lease.allocation in there], now=self.clock())
        await self._release_lost(there)
        await self.save()
        for lease in self.table:
            self.audit.write("lease taken up", lease=lease.id, token=lease.name, allocation=lease.allocation)

    async def sweep(self, *, cut: bool) -> None:
        """Check all leases once and end those that are over.

        A lease is over if it was not renewed, if its token has ended (with ``cut``), or if its allocation has ended.
        Also releases lost allocations (see the module's description), and renews the allocations of leases in the pool.
        If the pool does not answer, no lease is ended because of its allocation.

        Args:
            cut: also end leases whose token was revoked or has expired.
        """
        for lease in self.table.overdue(self.clock()):
            await self.end(lease, why="idle" if lease.reserved else "not renewed")
        for lease in self.table if cut else ():
            why = self._verifier.end_reason(lease.token, lease.expires)
            if why:
                await self.end(lease, why=why)
        releasing = self.table.releasing
        if not len(self.table) and not releasing:
            return
        held = {lease.id for lease in self.table}  # leases granted during the request may be missing in its reply
        try:
            there = await self._allocations()
        except CalabashError:
            return  # the pool is down: its allocations stay
        await self._release_lost(there)
        for lease_id, allocation in releasing.items():
            if allocation not in there:
                self.table.released(lease_id)
        for lease in self.table:
            if self.table.get(lease.id) is None:
                continue  # it has ended since the loop began
            if lease.allocation in there:
                self._observation(lease.id).processes = len(there[lease.allocation]["pids"])
                await self._renew_in_pool(lease)
            elif lease.id in held:
                await self._remove(lease, LeaseEvent.TAKEN_BACK, why="taken back by the pool")

    def require_lease(self, claims: TokenClaims | None, lease_id: str) -> HeldLease:
        """Return the lease with that ID if the requester may manage it.

        The holder of a token may manage the leases of the token's name, the owner of the server (``claims`` None) all
        leases.

        Raises:
            CalabashError: NOT_FOUND if there is no such lease or it belongs to another token.
        """
        lease = self.table.get(lease_id)
        if lease is None or (claims is not None and lease.name != claims.name):
            raise CalabashError(
                f"no lease {lease_id[:40]!r}",
                reason=Reason.NOT_FOUND,
                hint="it has ended, or belongs to another token; see `calabash remote sessions`",
            )
        return lease

    def renew(self, lease: HeldLease) -> LeaseEnd:
        """Renew the lease: move its deadline, and return the seconds until then."""
        return LeaseEnd(id=lease.id, ends_in_s=max(0.0, self.table.renew(lease.id, self.clock()) - self.clock()))

    async def end(self, lease: HeldLease, *, why: str, peer: str = "") -> LeaseEnd:
        """End the lease and release its allocation, which ends its processes. Does nothing if it has ended already.

        Args:
            lease: the lease.
            why: reason of the end, for the audit log and the metrics.
            peer: address of the client that ends the lease; "" if the server does.
        """
        if self.table.get(lease.id) is not None:
            try:
                await self._remove(lease, LeaseEvent.OVER, why=why, peer=peer)
            finally:  # even if the disk is full: a lease without an allocation is not restored
                await self._release(lease.id, lease.allocation)
        return LeaseEnd(id=lease.id, ends_in_s=0.0)

    async def release(self, lease: HeldLease, *, cut: bool, peer: str) -> LeaseEnd:
        """End the lease at the request of its holder.

        Args:
            lease: the lease.
            cut: True if the server ends leases whose token has ended. If the token has ended, this is then recorded as
                the reason; otherwise the reason is that the lease was given back.
            peer: address of the client, for the audit log.
        """
        ended = self._verifier.end_reason(lease.token, lease.expires) if cut else ""
        return await self.end(lease, why=ended or "given back", peer=peer)

    def session_target(self, lease_id: str, session: str, peer: str) -> tuple[str, str] | None:
        """Record a session of a lease, renew the lease, and return what is needed to pass on the session's connection.

        Args:
            lease_id: ID of the lease.
            session: ID of the session.
            peer: address of the program.

        Returns:
            The path of the Unix socket of the lease's workers and the key of the lease; None if there is no such lease.
        """
        lease = self.table.get(lease_id)
        if lease is None:
            return None
        self.table.renew(lease.id, self.clock())
        sessions = self._observation(lease.id).sessions
        if session not in sessions:
            self.audit.write("session", lease=lease.id, token=lease.name, peer=peer, session=session[:8])
            sessions[session] = (peer, self.now())
            if len(sessions) > SESSIONS_SHOWN:
                sessions.pop(next(iter(sessions)))
        return lease.socket, lease.key

    def views(self, claims: TokenClaims | None) -> LeaseViews:
        """Return the leases of the token's name, or all leases for the owner of the server (``claims`` None)."""
        return LeaseViews(
            items=[self.view(lease) for lease in self.table if claims is None or claims.name == lease.name]
        )

    def view(self, lease: HeldLease) -> LeaseView:
        """Return the lease as the API shows it."""
        observed = self._observed.get(lease.id, _Observed())
        return LeaseView(
            id=lease.id,
            token=lease.name,
            allocation=lease.allocation,
            gpus=lease.gpus,
            memory_mib=lease.memory_mib,
            cores=lease.cores,
            devices=lease.devices,
            command=lease.command,
            made_at=lease.made_at,
            ends_in_s=max(0.0, self.table.deadline(lease.id) - self.clock()),
            reserved=lease.reserved,
            processes=observed.processes,
            sessions=[SessionView(id=s[:8], peer=peer, begun=at) for s, (peer, at) in observed.sessions.items()],
        )

    def processes(self) -> int:
        """Return the number of processes that serve leases, as last reported by the pool."""
        return sum(observed.processes for observed in self._observed.values())

    async def drain(self, draining: bool) -> None:
        """Refuse new leases, or accept them again. The setting survives a restart."""
        self.draining = draining
        await self.save()

    async def save(self) -> None:
        """Store the present leases durably in the journal."""
        await self._journal.write(list(self.table), draining=self.draining)

    async def abandon(self, lease_id: str, allocation: str) -> None:
        """Release an allocation that the pool has granted for a requested lease which no client gets."""
        self.table.abandon(lease_id, allocation)
        await self._release(lease_id, allocation)

    async def _release(self, lease_id: str, allocation: str) -> None:
        """Release the allocation of an ended lease; if that fails, the next :meth:`sweep` tries again."""
        try:
            await self.pool.send(endpoints.RELEASE, allocation, query={"force": 1}, timeout_s=ANSWER_S)
        except CalabashError as error:
            if error.reason is not Reason.NOT_FOUND:
                self.audit.write("not given back", allocation=allocation, why=error.message)
                return
        self.table.released(lease_id)

    async def release_remaining(self) -> None:
        """Try once more to release allocations that could not be released before; called at shutdown."""
        if self.table.releasing:
            await self.sweep(cut=False)

    async def _renew_in_pool(self, lease: HeldLease) -> None:
        if self.clock() - self._renewed_s.get(lease.id, -self.keep_s) < self.keep_s / 4:
            return
        try:
            await self.pool.send(endpoints.RENEW_ALLOCATION, lease.allocation, timeout_s=ANSWER_S)
        except CalabashError:
            return  # the next sweep tries again, or the allocation has ended
        self._renewed_s = {**{k: v for k, v in self._renewed_s.items() if self.table.get(k)}, lease.id: self.clock()}

    async def _allocations(self) -> dict[str, dict[str, Any]]:
        return {a["id"]: a for a in await self.pool.items(endpoints.LIST_ALLOCATIONS)}

    async def _release_lost(self, there: Mapping[str, Mapping[str, Any]]) -> None:
        known = {lease.allocation for lease in self.table}
        asked = {lease_id[:8] for lease_id in self.table.requested}
        for allocation in there.values():
            command = allocation["command"]
            ours = command[:1] == [COMMAND] and allocation["uid"] == os.geteuid() and allocation["state"] != "ending"
            if ours and allocation["id"] not in known and not asked.intersection(command[1:2]):
                await self._release(self.table.abandon_unknown(allocation["id"]), allocation["id"])

    def _observation(self, lease_id: str) -> _Observed:
        return self._observed.setdefault(lease_id, _Observed())

    async def _remove(self, lease: HeldLease, event: LeaseEvent, *, why: str, peer: str = "") -> None:
        self.table.end(lease.id, event)
        self._observed.pop(lease.id, None)
        self.counters.count("lease_ends_total", why)
        self.audit.write("lease ended", lease=lease.id, token=lease.name, why=why, peer=peer)
        await self.save()
