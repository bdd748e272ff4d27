"""Grant leases: check a request against its token, allocate devices of the pool, and record the lease.

A lease is one brokered allocation of the pool, which lasts until it is released. The pool chooses its devices and
starts a process that serves the programs of the lease. The broker creates the secret key of the lease;
:mod:`calabash.broker.server.lease_allocations` stores the lease and ends it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass
from typing import Any, Literal

import calabash
from calabash.api import endpoints
from calabash.broker.devices import UUIDS_MAX, acceptable, card_of, memory_bound_mib
from calabash.broker.filters import parse_filters
from calabash.broker.messages import MODE, LeaseGrant, LeaseOrder, RemoteCard, ServerView
from calabash.broker.server.lease_allocations import ANSWER_S, COMMAND, LeaseAllocations
from calabash.broker.server.lease_table import HeldLease
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy

HOLD_GRACES = 1.5  # an outage of one grace period may begin just before a renewal; four renewals are sent in one
KEEP_GRACES = 10  # grace periods after which the pool ends allocations that no broker renews


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Args:
        name: name of the server.
        grace_s: seconds for which the lease of a program lasts without a renewal.
        on_revoke: treatment of leases whose token was revoked or has expired: ``cut`` ends them at once, ``finish``
            lets them continue until they are released.
    """

    name: str
    grace_s: float = 60.0
    on_revoke: Literal["cut", "finish"] = "cut"


class Broker:
    """Grants the leases of one server and describes its state.

    Args:
        settings: settings of the server.
        leases: the leases that are held, with the client of the pool.
    """

    def __init__(self, settings: ServerSettings, leases: LeaseAllocations) -> None:
        self.settings = settings
        self.leases = leases
        self._driver = ""

    async def begin(self) -> None:
        """Restore the leases that are still allocated. Raises CalabashError if the pool does not answer."""
        self._driver = (await self.leases.pool.send(endpoints.SHOW_STATUS))["driver"]
        await self.leases.restore()

    async def sweep(self) -> None:
        """End leases that are overdue, or whose token or allocation has ended."""
        await self.leases.sweep(cut=self.settings.on_revoke == "cut")

    async def lease(self, claims: TokenClaims, order: LeaseOrder, peer: str) -> LeaseGrant:
        """Allocate devices of the pool and return them as a lease. If the task is cancelled, the request is withdrawn.

        Args:
            claims: claims of the requesting token.
            order: the request.
            peer: address of the client, for the audit log.

        Raises:
            CalabashError: DRAINED if the server accepts no leases, SELECTOR_MISMATCH if it has too few matching
                devices, TOO_LARGE or QUEUE_OVER_LIMIT if the token does not allow the amounts, or the pool's refusal if
                no devices were free within ``order.wait_s`` seconds.
        """
        leases = self.leases
        if leases.draining:
            raise CalabashError(
                f"server {self.settings.name} is being drained and grants no new leases",
                reason=Reason.DRAINED,
                hint="use another server; leases that are held may finish",
            )
        wanted = parse_filters(order.filters)
        chosen = acceptable(await self.cards(), order, wanted, server=self.settings.name, driver=self._driver)
        lease_id, memory_mib = secrets.token_hex(16), memory_bound_mib(chosen, order)
        leases.table.request(lease_id, claims, gpus=order.gpus, memory_mib=memory_mib, cores=order.request.core_percent)
        granted: dict[str, Any] | None = None
        try:
            uuids = [c.uuid for c in chosen] if wanted.terms else []
            body = pool_request(claims, order, lease_id, uuids, keep_s=leases.keep_s)
            granted = await leases.pool.send(endpoints.ALLOCATE, body=body, timeout_s=order.wait_s + ANSWER_S)
            held = _lease(claims, order, lease_id, granted, now=leases.now(), grace_s=self.settings.grace_s)
        except BaseException:
            if granted is None:
                leases.table.refuse(lease_id)
            else:
                await asyncio.shield(leases.abandon(lease_id, granted["id"]))
            raise
        leases.table.grant(held, leases.clock())
        await asyncio.shield(leases.save())
        leases.counters.count("leases_total")
        self._write_audit_record(held, peer)
        return LeaseGrant(
            id=held.id,
            key=held.key,
            grace_s=self.settings.grace_s,
            lease=leases.view(held),
            warnings=granted.get("warnings", []),
        )

    async def drain(self, draining: bool) -> None:
        """Refuse new leases, or accept them again. The setting survives a restart."""
        await self.leases.drain(draining)
        self.leases.audit.write("drained" if draining else "undrained")

    async def cards(self, claims: TokenClaims | None = None) -> list[RemoteCard]:
        """Return the devices, each with the IDs of those leases on it that the requester may see.

        The holder of a token may see the leases of the token's name; the owner of the server (``claims`` None) sees all
        leases.
        """
        shown = (lease for lease in self.leases if claims is None or claims.name == lease.name)
        leases = {lease.allocation: lease.id for lease in shown}
        return [card_of(device, leases) for device in await self.leases.pool.items(endpoints.LIST_DEVICES)]

    async def view(self, claims: TokenClaims | None = None) -> ServerView:
        """Return the state of the server as the token's holder, or the owner (None), may see it."""
        return ServerView(
            name=self.settings.name,
            version=calabash.__version__,
            pid=os.getpid(),
            driver=self._driver,
            draining=self.leases.draining,
            grace_s=self.settings.grace_s,
            leases=len(self.leases.table),
            cards=await self.cards(claims),
        )

    def metrics(self, claims: TokenClaims | None = None) -> str:
        """Return the metrics as Prometheus text.

        For a token (``claims``), the number of leases is given for its own name only; for the owner (None), for all
        names.
        """
        leases = self.leases
        by_name: dict[str, float] = {}
        for lease in leases:
            if claims is None or claims.name == lease.name:
                by_name[lease.name] = by_name.get(lease.name, 0) + 1
        gauges = {
            "leases": ("token", by_name),
            "reservations": ("", {"": float(sum(lease.reserved for lease in leases))}),
            "processes": ("", {"": float(leases.processes())}),
            "draining": ("", {"": float(leases.draining)}),
            "audit_lines_lost": ("", {"": float(leases.audit.lost)}),
        }
        return leases.counters.text(gauges)

    def _write_audit_record(self, held: HeldLease, peer: str) -> None:
        self.leases.audit.write(
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
    """Return the body of the request to the pool for the allocation of a lease.

    Args:
        claims: claims of the requesting token.
        order: the request of the client.
        lease_id: ID of the new lease.
        uuids: devices that the request accepts; empty for any device.
        keep_s: seconds after which the pool ends the allocation if no server renews it.
    """
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
    """Return the lease for an allocation that the pool has granted.

    Raises:
        CalabashError: UNSUPPORTED if the pool does not name the socket of the allocation's workers.
    """
    socket = granted.get("worker_socket", "")
    if not socket:
        raise CalabashError(
            "the pool does not support brokered slices", reason=Reason.UNSUPPORTED, hint="start a pool of this version"
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
    """Return the compute share of each device in percent.

    A best-effort lease has no guaranteed share. For such a lease the result is the share that the pool charges for it.
    """
    request = order.request
    if request.policy is ComputePolicy.BEST_EFFORT:
        return int(granted["slices"][0]["core_percent"])
    return request.core_percent
