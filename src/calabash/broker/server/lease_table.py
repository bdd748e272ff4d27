"""Table of leases with their deadlines, and of the amounts that each token holds. No I/O: time is an argument.

A lease ends at its deadline unless it is renewed. A renewal moves the deadline to ``hold_s`` seconds from now. This
time is somewhat longer than the grace period for the lease of a program, so that a short network outage does not end
the lease. For a reservation it is the time for which the reservation may be unused. A token limits the amounts that its
holder may have at a time. Requests in progress count as held, so that concurrent requests cannot exceed the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from calabash.broker.server.lease_lifecycle import LEASE_LIFECYCLE, LeaseEvent, LeaseStage
from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_mib


class HeldLease(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Held lease.

    Args:
        id: ID of the lease.
        key: secret with which a program proves that it may use the lease.
        token: ID of the token that holds the lease.
        name: name of the token.
        allocation: ID of the allocation in the pool.
        socket: path of the Unix socket of the lease's workers.
        gpus: number of devices.
        memory_mib: memory, summed over the devices.
        cores: compute share of each device in percent.
        devices: UUIDs of the devices.
        command: the program and its arguments.
        made_at: time of the grant in seconds since the epoch.
        hold_s: seconds for which the lease lasts after a renewal.
        expires: end of the token in seconds since the epoch.
        reserved: True for a reservation.
    """

    id: str
    key: str
    token: str
    name: str
    allocation: str
    socket: str
    gpus: int
    memory_mib: int
    cores: int
    devices: list[str]
    command: list[str]
    made_at: float
    hold_s: float
    expires: float
    reserved: bool = False

    def __repr__(self) -> str:
        return f"HeldLease(id={self.id!r}, name={self.name!r}, allocation={self.allocation!r})"


@dataclass(slots=True, kw_only=True)
class LeaseEntry:
    """A lease from its request to the release of its allocation. Only ``LeaseTable`` changes it.

    Attributes:
        id: ID of the lease; for an allocation of an unknown lease, the ID of the allocation.
        token: ID of the token that holds the lease, or has requested it.
        gpus, memory_mib: requested or granted amounts (memory is summed over the devices).
        allocation: ID of the allocation in the pool; "" while it is requested.
        lease: the lease that was granted, if any.
        deadline: time at which a held lease ends unless it is renewed, in monotonic seconds.
    """

    id: str
    token: str = ""
    gpus: int = 0
    memory_mib: int = 0
    allocation: str = ""
    lease: HeldLease | None = None
    deadline: float = 0.0
    stage: LeaseStage = LEASE_LIFECYCLE.initial


class LeaseTable:
    """Leases of a server by ID. ``iter`` and ``len`` give the leases that are held."""

    def __init__(self, leases: Iterable[HeldLease] = (), *, now: float = 0.0) -> None:
        self._entries: dict[str, LeaseEntry] = {}
        for lease in leases:
            self._entries[lease.id] = LeaseEntry(id=lease.id, token=lease.token)
            self.grant(lease, now)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter([entry.lease for entry in self._of(LeaseStage.HELD) if entry.lease is not None])

    def __len__(self) -> int:
        return len(self._of(LeaseStage.HELD))

    @property
    def requested(self) -> list[str]:
        """IDs of the leases whose allocations are being requested."""
        return [entry.id for entry in self._of(LeaseStage.REQUESTED)]

    @property
    def releasing(self) -> dict[str, str]:
        """Allocations of the leases whose release the pool has not confirmed, by the ID of the lease."""
        return {entry.id: entry.allocation for entry in self._of(LeaseStage.RELEASING)}

    def get(self, lease: str) -> HeldLease | None:
        """Return the held lease with that ID, or None."""
        entry = self._entries.get(lease)
        return entry.lease if entry is not None and entry.stage is LeaseStage.HELD else None

    def deadline(self, lease: str) -> float:
        """Return the time at which the lease ends unless it is renewed, in monotonic seconds."""
        return self._entries[lease].deadline

    def held(self, token: str) -> tuple[int, int]:
        """Return the number of devices and the memory in MiB that the token holds, including requests in progress."""
        mine = [entry for entry in self._of(LeaseStage.REQUESTED, LeaseStage.HELD) if entry.token == token]
        return sum(entry.gpus for entry in mine), sum(entry.memory_mib for entry in mine)

    def request(self, lease: str, claims: TokenClaims, *, gpus: int, memory_mib: int, cores: int) -> None:
        """Check a request against the limits of its token, and count it as held until ``grant``, ``refuse`` or ``abandon``.

        Args:
            lease: ID of the new lease.
            claims: claims of the token.
            gpus: number of devices.
            memory_mib: memory, summed over the devices.
            cores: compute share of each device in percent.

        Raises:
            CalabashError: TOO_LARGE if the amounts alone exceed the token's limits, QUEUE_OVER_LIMIT if they do
                together with the leases that the token holds now.
        """
        limit_mib = claims.memory_mib or (1 << 60)
        if cores > claims.cores:
            raise _never(claims, f"{claims.cores}% of a device, {cores}% requested", hint=f"--cores {claims.cores}")
        if gpus > claims.gpus:
            raise _never(claims, f"{claims.gpus} GPUs, {gpus} requested", hint="request fewer")
        if memory_mib > limit_mib:
            exceeded = f"{format_mib(limit_mib)} on all devices together, {format_mib(memory_mib)} requested"
            raise _never(claims, exceeded, hint=f"the most it allows is --memory {max(1, limit_mib // gpus)}MiB")
        held_gpus, held_mib = self.held(claims.id)
        over = []
        if held_gpus + gpus > claims.gpus:
            over.append(f"{claims.gpus} GPUs at a time, {held_gpus} are held and {gpus} more requested")
        if held_mib + memory_mib > limit_mib:
            over.append(
                f"{format_mib(limit_mib)} at a time, {format_mib(held_mib)} are held "
                f"and {format_mib(memory_mib)} more requested"
            )
        if over:
            raise CalabashError(
                f"token {claims.name} allows {'; '.join(over)}",
                reason=Reason.QUEUE_OVER_LIMIT,
                hint="list the leases with `calabash remote sessions`; release one with `calabash remote release`",
            )
        self._entries[lease] = LeaseEntry(id=lease, token=claims.id, gpus=gpus, memory_mib=memory_mib)

    def grant(self, lease: HeldLease, now: float) -> None:
        """Note that the pool has granted a requested lease."""
        entry = self._entries[lease.id]
        self._advance(entry, LeaseEvent.GRANTED)
        entry.gpus, entry.memory_mib, entry.allocation = lease.gpus, lease.memory_mib, lease.allocation
        entry.lease, entry.deadline = lease, now + lease.hold_s

    def refuse(self, lease: str) -> None:
        """Note that a requested lease was refused or withdrawn."""
        self._advance(self._entries[lease], LeaseEvent.REFUSED)

    def abandon(self, lease: str, allocation: str) -> None:
        """Note that the pool has granted an allocation for a requested lease that no client gets."""
        self._entries[lease].allocation = allocation
        self._advance(self._entries[lease], LeaseEvent.ABANDONED)

    def abandon_unknown(self, allocation: str) -> str:
        """Note an allocation that belongs to no known lease; return the ID under which it is released."""
        for entry in self._of(LeaseStage.RELEASING):
            if entry.allocation == allocation:
                return entry.id
        self._entries[allocation] = LeaseEntry(id=allocation)
        self.abandon(allocation, allocation)
        return allocation

    def renew(self, lease: str, now: float) -> float:
        """Move the deadline of a held lease to ``hold_s`` seconds from now, never to an earlier time, and return it."""
        entry = self._entries[lease]
        if entry.lease is not None:
            entry.deadline = max(entry.deadline, now + entry.lease.hold_s)
        return entry.deadline

    def end(self, lease: str, event: LeaseEvent = LeaseEvent.OVER) -> None:
        """End a held lease."""
        self._advance(self._entries[lease], event)

    def released(self, lease: str) -> None:
        """Note that the pool has released the allocation of an ended lease. Does nothing if that is known."""
        if lease in self._entries:
            self._advance(self._entries[lease], LeaseEvent.RELEASED)

    def overdue(self, now: float) -> list[HeldLease]:
        """Return the leases whose deadline has passed."""
        return [lease for lease in self if self._entries[lease.id].deadline <= now]

    def _of(self, *stages: LeaseStage) -> list[LeaseEntry]:
        return [entry for entry in self._entries.values() if entry.stage in stages]

    def _advance(self, entry: LeaseEntry, event: LeaseEvent) -> None:
        LEASE_LIFECYCLE.advance(entry, event, name=entry.id)
        if entry.stage is LeaseStage.ENDED:
            del self._entries[entry.id]


def _never(claims: TokenClaims, what: str, *, hint: str) -> CalabashError:
    return CalabashError(f"token {claims.name} allows {what}", reason=Reason.TOO_LARGE, hint=hint)
