"""Leases of several servers for one run: all of them, or none.

Nobody waits at one server while he holds cards of another. Leases are asked for without waiting, in an order that all
clients have in common; when one is refused, those that were had are given back before anything else is done. So two who want
the same cards cannot hold each other up: the one that has the first has the rest before it, and the other holds nothing.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from calabash.broker.client.server_choice import divide
from calabash.broker.messages import LeaseOrder, ServerView
from calabash.model.errors import CalabashError, Reason

SERVERS_MAX = 16  # of one run, as the client's library has it
_ASK_S, _GIVE_BACK_S, _GIVE_BACK_ATTEMPTS = 30.0, 10.0, 3
_PAUSE_LEAST_S, _PAUSE_MOST_S = 0.5, 5.0
_PLANS_MAX = 32  # that are tried before the servers are looked at again


class LeaseServer(Protocol):
    """What a server is asked here."""

    @property
    def certificate(self) -> str: ...
    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSeeker:
    """Looks for leases.

    Args:
        look: the servers that answer, with their cards.
        no_room: refusals that pass.
        waits: told of each refusal after which it waits and asks again.
    """

    look: Callable[[], Sequence[tuple[Any, ServerView]]]
    no_room: frozenset[Reason]
    waits: Callable[[CalabashError], None] = field(default=lambda _: None)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: random.Random = field(default_factory=random.Random)

    def seek(self, order: LeaseOrder) -> list[tuple[Any, dict[str, Any]]]:
        """Servers and grants for all cards, as soon as they are to be had, within ``order.wait_s``. Raises CalabashError."""
        deadline = self.clock() + order.wait_s
        pause_s = _PAUSE_LEAST_S
        while True:
            try:
                return self._once(order)
            except CalabashError as error:
                left_s = deadline - self.clock()
                if error.reason not in self.no_room or error.reason is Reason.SELECTOR_MISMATCH or left_s <= 0:
                    raise
                self.waits(error)
            self.sleep(min(left_s, pause_s * self.chance.uniform(0.5, 1.5)))  # two who meet do not meet for ever
            pause_s = min(_PAUSE_MOST_S, 2 * pause_s)

    def _once(self, order: LeaseOrder) -> list[tuple[Any, dict[str, Any]]]:
        """One look, and plans until one is had. What a server has refused is not asked of it again."""
        found = self.look()
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
                    f"{order.gpus} cards would be of {len(plan)} servers, and a run has at most {SERVERS_MAX}",
                    reason=Reason.TOO_LARGE,
                    hint="ask for fewer cards",
                )
            held: list[tuple[Any, dict[str, Any]]] = []
            number = gpus = 0
            try:
                for number, gpus in sorted(plan, key=lambda part: found[part[0]][0].certificate):
                    server = found[number][0]
                    held.append((server, _asked(server, order, gpus)))
            except BaseException as error:
                give_back(held)
                if not isinstance(error, CalabashError) or error.reason not in self.no_room | {Reason.POOL_DOWN}:
                    raise
                refusal = error
                most[number] = 0 if error.reason is Reason.POOL_DOWN else gpus - 1
                continue
            return held
        assert refusal is not None
        raise refusal


def give_back(held: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """All of them. A server that cannot be told ends its lease after the grace period, for nobody renews it."""
    for server, granted in held:
        for _ in range(_GIVE_BACK_ATTEMPTS):
            with contextlib.suppress(CalabashError):
                server.call("DELETE", f"/v1/leases/{granted['id']}", timeout_s=_GIVE_BACK_S)
                break


def _asked(server: LeaseServer, order: LeaseOrder, gpus: int) -> dict[str, Any]:
    part = msgspec.structs.replace(order, gpus=gpus, wait_s=0.0)
    named = {name: value for name, value in msgspec.to_builtins(part).items() if value is not None}
    granted: dict[str, Any] = server.call("POST", "/v1/leases", named, timeout_s=_ASK_S)
    return granted
