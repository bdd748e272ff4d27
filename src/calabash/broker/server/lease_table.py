"""Table of leases with their deadlines, and of the amounts that each token holds. No I/O: time is an argument.

A lease ends at its deadline unless it is renewed. A renewal moves the deadline to ``hold_s`` seconds from now. This
time is somewhat longer than the grace period for the lease of a program, so that a short network outage does not end
the lease. For a reservation it is the time for which the reservation may be unused. A token limits the amounts that its
holder may have at a time. Requests in progress count as held, so that concurrent requests cannot exceed the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

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


class LeaseClaim(msgspec.Struct, kw_only=True, frozen=True, eq=False):
    """Amounts of a request in progress, which count as held by its token (memory is summed over the devices)."""

    token: str
    gpus: int
    memory_mib: int


class LeaseTable:
    """Leases of a server by ID, and requests in progress."""

    def __init__(self, leases: Iterable[HeldLease] = (), *, now: float = 0.0) -> None:
        self._leases = {lease.id: lease for lease in leases}
        self._deadlines = {lease.id: now + lease.hold_s for lease in self._leases.values()}
        self._claims: set[LeaseClaim] = set()

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(list(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease: str) -> HeldLease | None:
        """Return the lease with that ID, or None."""
        return self._leases.get(lease)

    def deadline(self, lease: str) -> float:
        """Return the time at which the lease ends unless it is renewed, in monotonic seconds."""
        return self._deadlines[lease]

    def held(self, token: str) -> tuple[int, int]:
        """Return the number of devices and the memory in MiB that the token holds, including requests in progress."""
        mine: list[HeldLease | LeaseClaim] = [lease for lease in self._leases.values() if lease.token == token]
        mine += [claim for claim in self._claims if claim.token == token]
        return sum(m.gpus for m in mine), sum(m.memory_mib for m in mine)

    def claim(self, claims: TokenClaims, *, gpus: int, memory_mib: int, cores: int) -> LeaseClaim:
        """Check a request against the limits of its token, and count it as held until :meth:`settle` is called.

        Args:
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
        claim = LeaseClaim(token=claims.id, gpus=gpus, memory_mib=memory_mib)
        self._claims.add(claim)
        return claim

    def settle(self, claim: LeaseClaim, lease: HeldLease | None, now: float) -> None:
        """Remove a request in progress, and add the lease that was granted for it; None if it was not granted."""
        self._claims.discard(claim)
        if lease is not None:
            self._leases[lease.id] = lease
            self._deadlines[lease.id] = now + lease.hold_s

    def renew(self, lease: str, now: float) -> float:
        """Move the deadline of the lease to ``hold_s`` seconds from now, never to an earlier time, and return it."""
        self._deadlines[lease] = max(self._deadlines[lease], now + self._leases[lease].hold_s)
        return self._deadlines[lease]

    def end(self, lease: str) -> HeldLease | None:
        """Remove the lease and return it; None if there is no such lease."""
        self._deadlines.pop(lease, None)
        return self._leases.pop(lease, None)

    def overdue(self, now: float) -> list[HeldLease]:
        """Return the leases whose deadline has passed."""
        return [lease for lease in self._leases.values() if self._deadlines[lease.id] <= now]


def _never(claims: TokenClaims, what: str, *, hint: str) -> CalabashError:
    return CalabashError(f"token {claims.name} allows {what}", reason=Reason.TOO_LARGE, hint=hint)
