"""Leases on several servers: as few servers as possible, and all leases or none."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.adapters.pool.client import ApiClient
from calabash.broker.client.multi_server import MultiServerRequest, release_all
from calabash.broker.client.server_choice import divide
from calabash.broker.messages import LeaseOrder, RemoteCard, ServerView
from calabash.model.errors import CalabashError, Reason

GIB = 1024
NO_ROOM = frozenset({Reason.NO_CAPACITY, Reason.TOO_LARGE, Reason.QUEUE_OVER_LIMIT})


def card(number: int, *, free_gib: int = 40, model: str = "A100") -> RemoteCard:
    return RemoteCard(
        uuid=f"GPU-{number}",
        index=number,
        model=model,
        memory_mib=40 * GIB,
        memory_free_mib=free_gib * GIB,
        memory_used_mib=0,
        cores_free_percent=100 if free_gib == 40 else 0,
        utilization_percent=0,
        compute_capability="8.0",
        health="healthy",
        leases=[],
    )


def view(name: str, cards: Sequence[RemoteCard], *, draining: bool = False) -> ServerView:
    return ServerView(
        name=name, version="1", pid=1, driver="580", draining=draining, grace_s=60, leases=0, cards=list(cards)
    )


def free(name: str, count: int) -> ServerView:
    return view(name, [card(number) for number in range(count)])


@dataclass
class MemoryServer(ApiClient):
    """Server that grants whole devices while it has some; ``fails`` are raised first, in order."""

    name: str
    cards: int
    fails: Iterator[Reason | None] = field(default_factory=lambda: iter(()))
    held: dict[str, int] = field(default_factory=dict)
    waited: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: int = 0

    @property
    def certificate(self) -> str:
        return self.name

    def view(self) -> ServerView:
        with self.lock:
            left = self.cards - sum(self.held.values())
            return view(self.name, [card(n, free_gib=40 if n < left else 0) for n in range(self.cards)])

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        with self.lock:
            if method == "DELETE":
                del self.held[path.rpartition("/")[2]]
                return {}
            self.waited.append(body["wait_s"])
            failure = next(self.fails, None)
            if failure or sum(self.held.values()) + body["gpus"] > self.cards:
                raise CalabashError(f"{self.name} has no room", reason=failure or Reason.NO_CAPACITY)
            self.made += 1
            name = f"{self.name}-{self.made}"
            self.held[name] = body["gpus"]
            return {"id": name}


@dataclass
class Waits:
    """Waits in virtual time; ``refusals`` are the reasons for which the request waited."""

    advances: bool = True
    at_s: float = 0.0
    refusals: list[Reason] = field(default_factory=list)

    def now_s(self) -> float:
        return self.at_s

    def wait(self, refusal: CalabashError, seconds: float) -> None:
        self.refusals.append(refusal.reason)
        self.at_s += seconds if self.advances else 0.0


def seeker(
    servers: Sequence[MemoryServer], waits: Waits | None = None, chance: random.Random | None = None
) -> MultiServerRequest:
    return MultiServerRequest(
        read_servers=lambda: [(server, server.view()) for server in servers],
        retryable=NO_ROOM,
        waits=waits or Waits(),
        chance=chance or random.Random(1),
    )


def test_one_sufficient_server_with_the_tightest_fit_is_used() -> None:
    assert divide([free("a", 8), free("b", 2), free("c", 4)], LeaseOrder(gpus=2)) == [(1, 2)]


def test_request_too_large_for_one_server_uses_fewest_servers() -> None:
    assert divide([free("a", 2), free("b", 3), free("c", 1)], LeaseOrder(gpus=4)) == [(1, 3), (2, 1)]


def test_filter_applies_to_devices_of_all_servers() -> None:
    mixed = [view("a", [card(0), card(1, model="T4")]), view("b", [card(0), card(1, model="T4")])]
    assert divide(mixed, LeaseOrder(gpus=2, filters=["model~a100,memory>=30GiB"])) == [(0, 1), (1, 1)]
    with pytest.raises(CalabashError, match="together have 2 matching devices, 3 requested") as refused:
        divide(mixed, LeaseOrder(gpus=3, filters=["model~a100"]))
    assert refused.value.reason is Reason.SELECTOR_MISMATCH


def test_held_devices_and_drained_servers_are_not_free() -> None:
    servers = [view("a", [card(0), card(1, free_gib=0)]), view("b", [card(0)]), view("c", [card(0)], draining=True)]
    assert divide(servers, LeaseOrder(gpus=2)) == [(0, 1), (1, 1)]
    with pytest.raises(CalabashError, match="2 of 3 matching devices of 3 servers are free, 3 requested") as refused:
        divide(servers, LeaseOrder(gpus=3))
    assert refused.value.reason is Reason.NO_CAPACITY


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 12))
def test_division_is_exact_and_uses_fewest_servers(sizes: list[int], wanted: int) -> None:
    views = [free(str(number), size) for number, size in enumerate(sizes)]
    if sum(sizes) < wanted:
        with pytest.raises(CalabashError):
            divide(views, LeaseOrder(gpus=wanted))
        return
    parts = divide(views, LeaseOrder(gpus=wanted))
    assert sum(gpus for _, gpus in parts) == wanted
    assert len({number for number, _ in parts}) == len(parts)
    assert all(0 < gpus <= sizes[number] for number, gpus in parts)
    largest = sorted(sizes, reverse=True)
    assert sum(largest[: len(parts) - 1]) < wanted


REFUSALS = st.lists(st.sampled_from([None, *sorted(NO_ROOM), Reason.POOL_DOWN, Reason.NOT_PERMITTED]), max_size=4)


@given(
    st.lists(st.tuples(st.integers(0, 4), REFUSALS), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from([0, 30]),
)
def test_all_devices_are_held_or_none_for_any_replies(
    said: list[tuple[int, list[Reason | None]]], gpus: int, wait_s: float
) -> None:
    servers = [MemoryServer(str(n), cards, iter(refusals)) for n, (cards, refusals) in enumerate(said)]
    try:
        granted = seeker(servers).acquire(LeaseOrder(gpus=gpus, wait_s=wait_s))
    except CalabashError:
        assert [server.held for server in servers] == [{} for _ in servers]
        return
    finally:
        assert not any(wait for server in servers for wait in server.waited)  # nobody waits while it holds
    assert sum(sum(server.held.values()) for server in servers) == gpus
    assert sorted(grant["id"] for _, grant in granted) == sorted(name for server in servers for name in server.held)
    release_all(granted)
    assert [server.held for server in servers] == [{} for _ in servers]


def test_interrupt_between_two_leases_releases_the_first() -> None:
    class Interrupted(MemoryServer):
        def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
            raise KeyboardInterrupt

    first, second = MemoryServer("a", 1), Interrupted("b", 1)
    with pytest.raises(KeyboardInterrupt):
        seeker([first, second]).acquire(LeaseOrder(gpus=2))
    assert first.held == {}
    assert first.made == 1


def test_server_granting_less_than_it_reports_is_asked_for_less() -> None:
    small, large = MemoryServer("a", 3, iter([Reason.TOO_LARGE])), MemoryServer("b", 2)
    granted = seeker([small, large]).acquire(LeaseOrder(gpus=3))
    assert sum(small.held.values()) + sum(large.held.values()) == 3
    assert len(granted) == 2


def test_competing_requests_for_the_same_devices_all_succeed() -> None:
    servers = [MemoryServer(name, 2) for name in "abc"]
    had: list[int] = []

    def client(number: int) -> None:
        request = seeker(servers, Waits(advances=False), random.Random(number))
        granted = request.acquire(LeaseOrder(gpus=5, wait_s=60))
        had.append(number)
        release_all(granted)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(had) == list(range(6))
    assert [server.held for server in servers] == [{}, {}, {}]


def test_request_waits_after_each_refusal_only_if_it_may_wait() -> None:
    server = MemoryServer("a", 1, iter([Reason.NO_CAPACITY, Reason.NO_CAPACITY]))
    waits = Waits()
    (granted,) = seeker([server], waits).acquire(LeaseOrder(gpus=1, wait_s=60))
    assert waits.refusals == [Reason.NO_CAPACITY, Reason.NO_CAPACITY]
    release_all([granted])
    server.fails = iter([Reason.NO_CAPACITY])
    with pytest.raises(CalabashError):
        seeker([server], waits).acquire(LeaseOrder(gpus=1))
    assert len(waits.refusals) == 2, "a request that may not wait is refused at once"
