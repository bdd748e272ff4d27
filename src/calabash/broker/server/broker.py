"""The broker: what tokens allow, asked of the pool, and handed out as leases.

A lease is one brokered allocation that stands until it is given back. The pool decides which cards it is of, and has a process
listen that serves whoever is handed to it; the broker makes the lease's key,
and :mod:`calabash.broker.server.lease_allocations` keeps it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass
from typing import Any, Literal

import calabash
from calabash.adapters.pool.asynchronous import items
from calabash.broker.devices import UUIDS_MAX, acceptable, card_of, memory_bound_mib
from calabash.broker.filters import parse_filters
from calabash.broker.messages import MODE, LeaseGrant, LeaseOrder, RemoteCard, ServerView
from calabash.broker.server.lease_allocations import ANSWER_S, COMMAND, Holdings
from calabash.broker.server.lease_table import HeldLease
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy

HOLD_GRACES = 1.5  # a break of one may begin just before a renewal, of which there are four in one
KEEP_GRACES = 10  # so many grace periods the pool keeps what no broker speaks of


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """``grace_s``: how long a program's lease is kept without being renewed. ``on_revoke``: what becomes of leases whose token
    was revoked or has expired."""

    name: str
    grace_s: float = 60.0
    on_revoke: Literal["cut", "finish"] = "cut"


class Broker:
    """One server's broker."""

    def __init__(self, settings: ServerSettings, holdings: Holdings) -> None:
        self.settings = settings
        self.holdings = holdings
        self._driver = ""

    async def begin(self) -> None:
        """Take up what is held. Raises CalabashError when the pool does not answer."""
        self._driver = (await self.holdings.pool.call("GET", "/v1/status"))["driver"]
        await self.holdings.take_up()

    async def sweep(self) -> None:
        """End what is over."""
        await self.holdings.sweep(cut=self.settings.on_revoke == "cut")

    async def lease(self, claims: TokenClaims, order: LeaseOrder, peer: str) -> LeaseGrant:
        """Ask the pool, wait as long as the order says, and keep what is granted. Cancelling it withdraws the request."""
        holdings = self.holdings
        if holdings.draining:
            raise CalabashError(
                f"server {self.settings.name} takes no new leases: it is being drained",
                reason=Reason.DRAINED,
                hint="use another server; what runs there may finish",
            )
        wanted = parse_filters(order.filters)
        chosen = acceptable(await self.cards(), order, wanted, server=self.settings.name, driver=self._driver)
        claim = holdings.book.claim(
            claims, gpus=order.gpus, memory_mib=memory_bound_mib(chosen, order), cores=order.request.core_percent
        )
        lease_id = secrets.token_hex(16)
        holdings.asking.add(lease_id)
        held: HeldLease | None = None
        granted: dict[str, Any] | None = None
        try:
            uuids = [c.uuid for c in chosen] if wanted.terms else []
            body = pool_request(claims, order, lease_id, uuids, keep_s=holdings.keep_s)
            granted = await holdings.pool.call("POST", "/v1/allocations", body, timeout_s=order.wait_s + ANSWER_S)
            held = _lease(claims, order, lease_id, granted, now=holdings.now(), grace_s=self.settings.grace_s)
        except BaseException:
            if granted is not None:
                await asyncio.shield(holdings.give_back(granted["id"]))
            raise
        finally:
            holdings.book.settle(claim, held, holdings.clock())
            holdings.asking.discard(lease_id)
        await asyncio.shield(holdings.keep())
        holdings.tallies.count("leases_total")
        self._write_down(held, peer)
        return LeaseGrant(
            id=held.id,
            key=held.key,
            grace_s=self.settings.grace_s,
            lease=holdings.view(held),
            warnings=granted.get("warnings", []),
        )

    async def drain(self, draining: bool) -> None:
        """Whether new leases are refused, also after a restart."""
        self.holdings.draining = draining
        await self.holdings.keep()
        self.holdings.audit.write("drained" if draining else "undrained")

    async def cards(self, claims: TokenClaims | None = None) -> list[RemoteCard]:
        """Return the cards, with the leases of the token's name; with all for the server's owner."""
        shown = (lease for lease in self.holdings if claims is None or claims.name == lease.name)
        leases = {lease.allocation: lease.id for lease in shown}
        return [card_of(device, leases) for device in await items(self.holdings.pool, "/v1/devices")]

    async def view(self, claims: TokenClaims | None = None) -> ServerView:
        return ServerView(
            name=self.settings.name,
            version=calabash.__version__,
            pid=os.getpid(),
            driver=self._driver,
            draining=self.holdings.draining,
            grace_s=self.settings.grace_s,
            leases=len(self.holdings.book),
            cards=await self.cards(claims),
        )

    def metrics(self, claims: TokenClaims | None = None) -> str:
        """Return the metrics; names of other tokens are left out for a token."""
        holdings = self.holdings
        by_name: dict[str, float] = {}
        for lease in holdings:
            if claims is None or claims.name == lease.name:
                by_name[lease.name] = by_name.get(lease.name, 0) + 1
        gauges = {
            "leases": ("token", by_name),
            "reservations": ("", {"": float(sum(lease.reserved for lease in holdings))}),
            "processes": ("", {"": float(holdings.processes())}),
            "draining": ("", {"": float(holdings.draining)}),
            "audit_lines_lost": ("", {"": float(holdings.audit.lost)}),
        }
        return holdings.tallies.text(gauges)

    def _write_down(self, held: HeldLease, peer: str) -> None:
        self.holdings.audit.write(
            "lease granted",
            lease=held.id,
            token=held.name,
            token_id=held.token,
            peer=peer,
            allocation=held.allocation,
            gpus=held.gpus,
            memory_mib=held.memory_mib,
            cores=held.cores,
            reserved=held.reserved,
            command=" ".join(held.command),
        )


def pool_request(
    claims: TokenClaims, order: LeaseOrder, lease_id: str, uuids: list[str], *, keep_s: float
) -> dict[str, Any]:
    """Return the body of the request that the pool is asked for a lease with."""
    return {
        "gpus": order.gpus,
        "memory_mib": order.memory_mib,
        "cores": order.cores,
        "mode": MODE,
        "standing": True,
        "keep_s": keep_s,
        "tenant": claims.name,
        "models": order.models,
        "uuids": uuids[:UUIDS_MAX],
        "run_time_s": order.run_time_s,
        "wait_s": order.wait_s,
        "command": [COMMAND, lease_id[:8], *order.command],
    }


def _lease(
    claims: TokenClaims, order: LeaseOrder, lease_id: str, granted: dict[str, Any], *, now: float, grace_s: float
) -> HeldLease:
    """Raises UNSUPPORTED when the pool does not say where the allocation's workers are."""
    socket = granted.get("worker_socket", "")
    if not socket:
        raise CalabashError(
            "the pool serves no brokered slices", reason=Reason.UNSUPPORTED, hint="start a pool of this version"
        )
    return HeldLease(
        id=lease_id,
        key=secrets.token_hex(32),
        token=claims.id,
        name=claims.name,
        allocation=granted["id"],
        socket=socket,
        gpus=order.gpus,
        memory_mib=sum(part["memory_mib"] for part in granted["slices"]),
        cores=_cores(order, granted),
        devices=[part["device"] for part in granted["slices"]],
        command=[word[:200] for word in order.command[:16]],
        made_at=now,
        hold_s=order.idle_s or HOLD_GRACES * grace_s,
        expires=float(claims.expires),
        reserved=order.idle_s > 0,
    )


def _cores(order: LeaseOrder, granted: dict[str, Any]) -> int:
    """Return the compute share of each card; of a best-effort lease the share that it is accounted with."""
    request = order.request
    if request.policy is ComputePolicy.BEST_EFFORT:
        return int(granted["slices"][0]["core_percent"])
    return request.core_percent
