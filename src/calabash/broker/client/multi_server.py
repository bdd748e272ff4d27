"""Obtain leases on several servers for one run: all of them, or none.

Two clients that want the same devices of two servers could deadlock: each holds the devices of one server and waits for
those of the other. Two rules prevent this. First, a client never waits at a server while it holds a lease of another.
If a request is refused, the client releases the leases that it has already and tries again later. Second, all clients
request their leases in the same order, by the fingerprint of the server's certificate. The client that gets the first
lease therefore also gets the others, and the other client holds nothing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from calabash.api import lease_endpoints
from calabash.api.endpoints import Endpoint
from calabash.broker.client.server_choice import divide
from calabash.broker.messages import LeaseOrder, ServerView
from calabash.model.errors import CalabashError, Reason

SERVERS_MAX = 16  # for each run; the limit of the client library
_ASK_S, _RELEASE_S, _RELEASE_ATTEMPTS = 30.0, 10.0, 3
_PAUSE_LEAST_S, _PAUSE_MOST_S = 0.5, 5.0
_PLANS_MAX = 32  # divisions that are tried with one view of the servers


class LeaseServer(Protocol):
    """Methods of the client of one server that this module uses."""

    @property
    def certificate(self) -> str:
        """Return the fingerprint of the server's certificate."""

    def send(self, endpoint: Endpoint, *values: str, body: Any = None, timeout_s: float = 30.0) -> Any:
        """Send a request and return the decoded reply."""


class LeaseWaits(Protocol):
    """Waits between the attempts of a request."""

    def now_s(self) -> float:
        """Return monotonic seconds."""
        ...

    def wait(self, refusal: CalabashError, seconds: float) -> None:
        """Wait for some seconds after a refusal, before the next attempt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiServerRequest:
    """Obtains the leases of a run that uses devices of several servers.

    Args:
        read_servers: returns the servers that answer, with their devices.
        retryable: reasons of refusals after which another division or a later attempt may succeed.
        waits: waits between the attempts.
        chance: random source of the retry jitter.
    """

    read_servers: Callable[[], Sequence[tuple[Any, ServerView]]]
    retryable: frozenset[Reason]
    waits: LeaseWaits
    chance: random.Random = field(default_factory=random.Random)

    def acquire(self, order: LeaseOrder) -> list[tuple[Any, dict[str, Any]]]:
        """Return pairs of a server and the lease that it granted, which together have all devices of the request.

        Waits at most ``order.wait_s`` seconds for free devices.

        Raises:
            CalabashError: the last refusal, if the devices were not free in time or the request can never be satisfied.
        """
        deadline_s = self.waits.now_s() + order.wait_s
        pause_s = _PAUSE_LEAST_S
        while True:
            try:
                return self._try_once(order)
            except CalabashError as error:
                left_s = deadline_s - self.waits.now_s()
                if error.reason not in self.retryable or error.reason is Reason.SELECTOR_MISMATCH or left_s <= 0:
                    raise
                jittered_s = pause_s * self.chance.uniform(0.5, 1.5)  # jitter separates clients that collide
                self.waits.wait(error, min(left_s, jittered_s))
            pause_s = min(_PAUSE_MOST_S, 2 * pause_s)

    def _try_once(self, order: LeaseOrder) -> list[tuple[Any, dict[str, Any]]]:
        """Read the servers' state once, and try divisions of the request until all leases of a division are granted.

        If a server refuses a number of devices, later divisions request fewer devices of this server.
        """
        found = self.read_servers()
        views = [view for _, view in found]
        most: dict[int, int] = {}
        refusal: CalabashError | None = None
        for _ in range(_PLANS_MAX):
            try:
                plan = divide(views, order, most=most)
            except CalabashError as error:
                raise refusal or error from None
            if len(plan) > SERVERS_MAX:
                raise CalabashError(
                    f"{order.gpus} devices need {len(plan)} servers, more than the {SERVERS_MAX} that a run can use",
                    reason=Reason.TOO_LARGE,
                    hint="request fewer devices",
                )
            held: list[tuple[Any, dict[str, Any]]] = []
            number = gpus = 0
            try:
                for number, gpus in sorted(plan, key=lambda part: found[part[0]][0].certificate):
                    server = found[number][0]
                    held.append((server, _asked(server, order, gpus)))
            except BaseException as error:
                release_all(held)
                if not isinstance(error, CalabashError) or error.reason not in self.retryable | {Reason.POOL_DOWN}:
                    raise
                refusal = error
                most[number] = 0 if error.reason is Reason.POOL_DOWN else gpus - 1
                continue
            return held
        assert refusal is not None
        raise refusal


def release_all(held: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Release all leases, given as pairs of a server and its grant.

    If a server cannot be reached, it ends its lease after the grace period, because no client renews the lease.
    """
    for server, granted in held:
        for _ in range(_RELEASE_ATTEMPTS):
            with contextlib.suppress(CalabashError):
                server.send(lease_endpoints.END_LEASE, granted["id"], timeout_s=_RELEASE_S)
                break


def _asked(server: LeaseServer, order: LeaseOrder, gpus: int) -> dict[str, Any]:
    part = msgspec.structs.replace(order, gpus=gpus, wait_s=0.0)
    named = {name: value for name, value in msgspec.to_builtins(part).items() if value is not None}
    granted: dict[str, Any] = server.send(lease_endpoints.REQUEST_LEASE, body=named, timeout_s=_ASK_S)
    return granted
