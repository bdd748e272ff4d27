"""What a server holds for others: leases as allocations of its pool, kept over a restart, ended when they are over.

What is held is journalled before it is told. A broker that starts again takes its leases up where the pool still has them.
An allocation of ours that is no lease and is not just being asked for is given back: its broker died between the grant and
the journal, or the pool did not answer when it was to be given back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.pool.asynchronous import PoolDoor, items
from calabash.broker.messages import LeaseEnd, LeaseView, LeaseViews, SessionView
from calabash.broker.server.audit import AuditLog
from calabash.broker.server.authentication import Gatekeeper
from calabash.broker.server.journal import LeaseJournal
from calabash.broker.server.lease_table import HeldLease, LeaseBook
from calabash.broker.server.metrics import Tallies
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason

ANSWER_S = 30.0
SESSIONS_SHOWN = 16
COMMAND = "calabash-server-lease"  # the first word of the allocations that are leases


@dataclass(slots=True)
class _Met:
    """What was seen of a lease: programs that connected, and how many processes serve it."""

    sessions: dict[str, tuple[str, float]] = field(default_factory=dict)
    processes: int = 0


class Holdings:
    """All leases of a server. Everything runs in one event loop.

    Args:
        keep_s: how long the pool keeps a lease of which it hears nothing: when a server is gone for good, its cards come back.
        clock: for deadlines; ``now`` is the time of day.
    """

    def __init__(
        self,
        *,
        pool: PoolDoor,
        gatekeeper: Gatekeeper,
        journal: LeaseJournal,
        audit: AuditLog,
        tallies: Tallies,
        keep_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.pool = pool
        self.audit = audit
        self.tallies = tallies
        self.keep_s = keep_s
        self.clock = clock
        self.now = now
        self.book = LeaseBook()
        self.draining = False
        self.asking: set[str] = set()  # leases whose allocations are being asked for
        self._gatekeeper = gatekeeper
        self._journal = journal
        self._met: dict[str, _Met] = {}
        self._owing = False  # something could not be given back yet
        self._kept_s: dict[str, float] = {}  # when the pool was told last, by allocation

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self.book)

    async def take_up(self) -> None:
        """Those that are still held. Raises CalabashError when the pool does not answer."""
        kept = self._journal.read()
        self.draining = kept.draining
        there = await self._allocations()
        self.book = LeaseBook([lease for lease in kept.leases if lease.allocation in there], now=self.clock())
        await self._give_back_lost(there)
        await self.keep()
        for lease in self.book:
            self.audit.write("lease taken up", lease=lease.id, token=lease.name, allocation=lease.allocation)

    async def sweep(self, *, cut: bool) -> None:
        """One look at everything: what is over is ended. ``cut``: also what belongs to tokens that have ended."""
        for lease in self.book.overdue(self.clock()):
            await self.end(lease, why="idle" if lease.reserved else "not renewed")
        for lease in self.book if cut else ():
            why = self._gatekeeper.ended(lease.token, lease.expires)
            if why:
                await self.end(lease, why=why)
        if not len(self.book) and not self._owing:
            return
        held = {lease.id for lease in self.book}  # what is granted while the pool answers may not be in its answer
        try:
            there = await self._allocations()
        except CalabashError:
            return  # a pool that is away keeps what runs
        self._owing = False
        await self._give_back_lost(there)
        for lease in self.book:
            if lease.allocation in there:
                self._seen(lease.id).processes = len(there[lease.allocation]["pids"])
                await self._keep_in_pool(lease)
            elif lease.id in held:
                await self._forget(lease, why="taken back by the pool")

    def held(self, claims: TokenClaims | None, lease_id: str) -> HeldLease:
        """A lease of the token's name; any for None, who is the server's owner. Raises NOT_FOUND."""
        lease = self.book.get(lease_id)
        if lease is None or (claims is not None and lease.name != claims.name):
            raise CalabashError(
                f"there is no lease {lease_id[:40]!r}",
                reason=Reason.NOT_FOUND,
                hint="it has ended, or is another's; see `calabash remote sessions`",
            )
        return lease

    def renew(self, lease: HeldLease) -> LeaseEnd:
        """Its holder is there."""
        return LeaseEnd(id=lease.id, ends_in_s=max(0.0, self.book.renew(lease.id, self.clock()) - self.clock()))

    async def end(self, lease: HeldLease, *, why: str, peer: str = "") -> LeaseEnd:
        """Give the allocation back; what runs in it is ended."""
        if self.book.get(lease.id) is not None:
            try:
                await self._forget(lease, why=why, peer=peer)
            finally:  # a disk that is full keeps no cards: a lease without an allocation is not taken up
                await self.give_back(lease.allocation)
        return LeaseEnd(id=lease.id, ends_in_s=0.0)

    async def release(self, lease: HeldLease, *, cut: bool, peer: str) -> LeaseEnd:
        """Its holder lets it go. ``cut``: leases end with their token, so one whose token has ended ends for that reason,
        whoever is first."""
        ended = self._gatekeeper.ended(lease.token, lease.expires) if cut else ""
        return await self.end(lease, why=ended or "given back", peer=peer)

    def entrance(self, lease_id: str, session: str, peer: str) -> tuple[str, str] | None:
        """Where a session of a lease is handed to, and with which key; None when there is no such lease."""
        lease = self.book.get(lease_id)
        if lease is None:
            return None
        self.book.renew(lease.id, self.clock())
        sessions = self._seen(lease.id).sessions
        if session not in sessions:
            self.audit.write("session", lease=lease.id, token=lease.name, peer=peer, session=session[:8])
            sessions[session] = (peer, self.now())
            if len(sessions) > SESSIONS_SHOWN:
                sessions.pop(next(iter(sessions)))
        return lease.socket, lease.key

    def views(self, claims: TokenClaims | None) -> LeaseViews:
        """Those of the token's name; all for the server's owner."""
        return LeaseViews(
            items=[self.view(lease) for lease in self.book if claims is None or claims.name == lease.name]
        )

    def view(self, lease: HeldLease) -> LeaseView:
        met = self._met.get(lease.id, _Met())
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
            ends_in_s=max(0.0, self.book.deadline(lease.id) - self.clock()),
            reserved=lease.reserved,
            processes=met.processes,
            sessions=[SessionView(id=s[:8], peer=peer, begun=at) for s, (peer, at) in met.sessions.items()],
        )

    def processes(self) -> int:
        """How many serve leases, as seen last."""
        return sum(met.processes for met in self._met.values())

    async def keep(self) -> None:
        """What is held now is on disk when it returns."""
        await self._journal.write(list(self.book), draining=self.draining)

    async def give_back(self, allocation: str) -> None:
        """What cannot be given back now is tried again by the next look."""
        try:
            await self.pool.call("DELETE", f"/v1/allocations/{allocation}?force=1", timeout_s=ANSWER_S)
        except CalabashError as error:
            if error.reason is not Reason.NOT_FOUND:
                self.audit.write("not given back", allocation=allocation, why=error.message)
                self._owing = True

    async def settle(self) -> None:
        """Before the end: what could not be given back so far is tried once more."""
        if self._owing:
            await self.sweep(cut=False)

    async def _keep_in_pool(self, lease: HeldLease) -> None:
        if self.clock() - self._kept_s.get(lease.id, -self.keep_s) < self.keep_s / 4:
            return
        try:
            await self.pool.call("POST", f"/v1/allocations/{lease.allocation}/keep", {}, timeout_s=ANSWER_S)
        except CalabashError:
            return  # it is told by the next look, or has ended
        self._kept_s = {**{k: v for k, v in self._kept_s.items() if self.book.get(k)}, lease.id: self.clock()}

    async def _allocations(self) -> dict[str, dict[str, Any]]:
        return {a["id"]: a for a in await items(self.pool, "/v1/allocations")}

    async def _give_back_lost(self, there: Mapping[str, Mapping[str, Any]]) -> None:
        known = {lease.allocation for lease in self.book}
        asked = {lease_id[:8] for lease_id in self.asking}
        for allocation in there.values():
            command = allocation["command"]
            ours = command[:1] == [COMMAND] and allocation["uid"] == os.geteuid() and allocation["state"] != "ending"
            if ours and allocation["id"] not in known and not asked.intersection(command[1:2]):
                await self.give_back(allocation["id"])

    def _seen(self, lease_id: str) -> _Met:
        return self._met.setdefault(lease_id, _Met())

    async def _forget(self, lease: HeldLease, *, why: str, peer: str = "") -> None:
        self.book.end(lease.id)
        self._met.pop(lease.id, None)
        self.tallies.count("lease_ends_total", why)
        self.audit.write("lease ended", lease=lease.id, token=lease.name, why=why, peer=peer)
        await self.keep()
