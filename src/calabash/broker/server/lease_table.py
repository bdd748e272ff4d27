"""The leases of a server: who holds how much, what a token still allows, and when a lease is over. Pure: time is given.

A lease is kept until its deadline, which every renewal moves: a program's lease by the grace period, within which a break
of the network is only a delay; a reservation by the time that it may be idle. What is being asked for counts as held, so
that a token's limit holds whatever is asked at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from calabash.broker.tokens import TokenClaims
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_mib


class HeldLease(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A lease. ``memory_mib`` is the sum over its cards; ``hold_s`` is what a renewal adds; ``socket`` is where the host of its
    workers listens. ``expires`` is when its token does."""

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
    """What is being asked for with a token."""

    token: str
    gpus: int
    memory_mib: int


class LeaseBook:
    """All leases of a server, and what is being asked for."""

    def __init__(self, leases: Iterable[HeldLease] = (), *, now: float = 0.0) -> None:
        self._leases = {lease.id: lease for lease in leases}
        self._deadlines = {lease.id: now + lease.hold_s for lease in self._leases.values()}
        self._claims: set[LeaseClaim] = set()

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(list(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease: str) -> HeldLease | None:
        return self._leases.get(lease)

    def deadline(self, lease: str) -> float:
        """When it is over unless it is renewed."""
        return self._deadlines[lease]

    def held(self, token: str) -> tuple[int, int]:
        """Cards and MiB that are held or being asked for with a token."""
        mine: list[HeldLease | LeaseClaim] = [lease for lease in self._leases.values() if lease.token == token]
        mine += [claim for claim in self._claims if claim.token == token]
        return sum(m.gpus for m in mine), sum(m.memory_mib for m in mine)

    def claim(self, claims: TokenClaims, *, gpus: int, memory_mib: int, cores: int) -> LeaseClaim:
        """Take it from what the token allows, until :meth:`settle`.

        Raises TOO_LARGE for what it never allows, QUEUE_OVER_LIMIT while it holds too much already.
        """
        limit_mib = claims.memory_mib or (1 << 60)
        if cores > claims.cores:
            raise _never(claims, f"{claims.cores}% of a card, {cores}% asked", hint=f"--cores {claims.cores}")
        if gpus > claims.gpus:
            raise _never(claims, f"{claims.gpus} GPUs, {gpus} asked", hint="ask for fewer")
        if memory_mib > limit_mib:
            asked = f"{format_mib(limit_mib)} on all cards together, {format_mib(memory_mib)} asked"
            raise _never(claims, asked, hint=f"--memory {max(1, limit_mib // gpus)}MiB is as much as it allows")
        held_gpus, held_mib = self.held(claims.id)
        over = []
        if held_gpus + gpus > claims.gpus:
            over.append(f"{claims.gpus} GPUs at a time, {held_gpus} are held and {gpus} more asked")
        if held_mib + memory_mib > limit_mib:
            over.append(
                f"{format_mib(limit_mib)} at a time, {format_mib(held_mib)} are held and {format_mib(memory_mib)} more asked"
            )
        if over:
            raise CalabashError(
                f"token {claims.name} allows {'; '.join(over)}",
                reason=Reason.QUEUE_OVER_LIMIT,
                hint="see `calabash remote sessions` for what holds them; `calabash remote release` gives it back",
            )
        claim = LeaseClaim(token=claims.id, gpus=gpus, memory_mib=memory_mib)
        self._claims.add(claim)
        return claim

    def settle(self, claim: LeaseClaim, lease: HeldLease | None, now: float) -> None:
        """It has become a lease, or nothing."""
        self._claims.discard(claim)
        if lease is not None:
            self._leases[lease.id] = lease
            self._deadlines[lease.id] = now + lease.hold_s

    def renew(self, lease: str, now: float) -> float:
        """Somebody is there who uses it: its new deadline."""
        self._deadlines[lease] = max(self._deadlines[lease], now + self._leases[lease].hold_s)
        return self._deadlines[lease]

    def end(self, lease: str) -> HeldLease | None:
        """It is no more; None when it was not."""
        self._deadlines.pop(lease, None)
        return self._leases.pop(lease, None)

    def overdue(self, now: float) -> list[HeldLease]:
        return [lease for lease in self._leases.values() if self._deadlines[lease.id] <= now]


def _never(claims: TokenClaims, what: str, *, hint: str) -> CalabashError:
    return CalabashError(f"token {claims.name} allows {what}", reason=Reason.TOO_LARGE, hint=hint)
