"""Order of owners within a queue, and decisions about one request that do not depend on the number of waiting ones."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched import (
    Bind,
    Decision,
    Defer,
    GpuSpec,
    NodeSpec,
    Options,
    QueueSpec,
    Request,
    Scheduler,
    Shape,
    charges,
)
from calabash.sched.amounts import Amount
from calabash.sched.cluster import engine, placer
from calabash.sched.cluster.shape import NodePlacement
from calabash.sched.explain import verdicts
from calabash.sched.queues.gang import Gang, start_groups_of
from calabash.sched.queues.owner_order import OwnerUse, QueueOrder

ONE = Shape(gpu_count=1, gpu_milli=1000)
MANY = 4000
NEVER_EVICT = Options(preempt=False, reclaim=False, reclaim_fair_share=False)


def scheduler_of(gpus: int, *, options: Options = NEVER_EVICT) -> Scheduler:
    node = NodeSpec(name="n", cpu_milli=1 << 30, memory_mib=1 << 30, gpus=(GpuSpec(),) * gpus)
    return Scheduler([node], [QueueSpec(name="q")], options=options, policy="bestfit")


def ask(name: str, owner: str, *, shape: Shape = ONE, at_s: float = 0.0) -> Request:
    return Request(id=name, queue="q", shape=shape, owner=owner, submitted_at_s=at_s)


def bound(decisions: tuple[Decision, ...]) -> list[str]:
    return [d.id for d in decisions if isinstance(d, Bind)]


class EngineCalls:
    """Counter of the placements that the engine was asked for."""

    def __init__(self, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        best = scheduler.placer.engine.best

        def counted(shape: Shape) -> NodePlacement | None:
            self.count += 1
            return best(shape)

        monkeypatch.setattr(scheduler.placer.engine, "best", counted)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 8))
@settings(max_examples=examples(60), deadline=None)
def test_owners_with_waiting_requests_hold_equal_amounts(counts: list[int], gpus: int) -> None:
    scheduler = scheduler_of(gpus)
    for owner, count in enumerate(counts):
        for i in range(count):
            scheduler.submit(ask(f"{owner}.{i}", f"o{owner}", at_s=float(owner)))
    held = Counter(name.partition(".")[0] for name in bound(scheduler.cycle(100.0)))
    waiting = [str(owner) for owner, count in enumerate(counts) if held[str(owner)] < count]
    if waiting:
        least = min(held[owner] for owner in waiting)
        assert max(held.values()) - least <= 1
        assert sum(held.values()) == gpus


def test_request_of_another_owner_is_decided_without_attempts_of_thousands_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = scheduler_of(3)
    for i in range(MANY):
        scheduler.submit(ask(f"a{i}", "ann", shape=Shape(gpu_count=2, gpu_milli=1000 - i % 7)))
    scheduler.cycle(1.0)
    calls = EngineCalls(scheduler, monkeypatch)
    scheduler.submit(ask("b", "bob", at_s=2.0, shape=Shape(gpu_count=1, gpu_milli=1000)))
    decisions = scheduler.decide("b", 2.0)
    assert {d.id for d in decisions} == {"b"}
    assert calls.count <= 2


def test_equal_shapes_are_refused_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = scheduler_of(1)
    scheduler.adopt(ask("r", "ann"), started_at_s=0.0)
    scheduler.cycle(1.0)
    calls = EngineCalls(scheduler, monkeypatch)
    for i in range(200):
        scheduler.submit(ask(f"w{i}", f"o{i % 3}", at_s=2.0))
        assert [type(d) for d in scheduler.decide(f"w{i}", 2.0)] == [Defer]
    assert calls.count < 10


def test_freed_devices_go_to_the_first_waiting_request_not_to_a_new_one() -> None:
    scheduler = scheduler_of(1)
    scheduler.submit(ask("first", "ann", at_s=0.0))
    scheduler.cycle(0.0)
    scheduler.submit(ask("second", "bob", at_s=1.0))
    assert bound(scheduler.decide("second", 1.0)) == []
    scheduler.finished("first")
    scheduler.submit(ask("third", "cid", at_s=2.0))
    assert bound(scheduler.decide("third", 2.0)) == ["second"]


def test_new_request_is_bound_by_the_reservation_of_an_earlier_one() -> None:
    scheduler = scheduler_of(4)
    scheduler.adopt(ask("old", "ann"), started_at_s=0.0)
    scheduler.submit(ask("all", "bob", shape=Shape(gpu_count=4, gpu_milli=1000), at_s=1.0))
    scheduler.cycle(1.0)
    scheduler.submit(ask("one", "cid", at_s=2.0))
    (told,) = scheduler.decide("one", 2.0)
    assert isinstance(told, Defer)
    assert told.explanation.blocked_by == ("all",)
    assert scheduler.state.reservations[0].request_ids == ("all",)
    assert scheduler.cycle(2.0) == ()
    assert scheduler.wake_at_s() == 1.0 + scheduler.state.options.reservation_hold_s
    assert bound(scheduler.cycle(scheduler.wake_at_s() or 0.0)) == ["one"]


def test_failed_bind_does_not_change_the_rank_of_its_owner() -> None:
    scheduler = scheduler_of(1)
    scheduler.submit(ask("a", "ann", at_s=0.0))
    scheduler.submit(ask("b", "bob", at_s=1.0))
    assert bound(scheduler.cycle(1.0)) == ["a"]
    scheduler.unbind("a")
    assert bound(scheduler.cycle(2.0)) == ["a"]


steps = st.lists(
    st.tuples(st.sampled_from(["submit", "submit", "submit", "end"]), st.integers(0, 3), st.integers(1, 3)), max_size=40
)


@given(steps)
@example(
    [
        *[("submit", 0, 1), ("submit", 0, 2), ("submit", 0, 2), ("end", 0, 1)],
        *[("submit", 2, 3), ("submit", 1, 2), ("submit", 2, 1), ("end", 0, 1), ("submit", 0, 1)],
    ]
)
@settings(max_examples=examples(80), deadline=None)
def test_deciding_one_by_one_with_the_cycles_that_are_due_starts_what_whole_cycles_start(
    history: list[tuple[str, int, int]],
) -> None:
    one, whole = scheduler_of(4), scheduler_of(4)
    running: list[str] = []
    for number, (step, owner, gpus) in enumerate(history):
        now_s = float(number)
        if step == "end" and running:
            name = running.pop(owner % len(running))
            for scheduler in (one, whole):
                scheduler.finished(name)
            by_one, by_whole = one.cycle(now_s), whole.cycle(now_s)
        else:
            request = ask(f"r{number}", f"o{owner}", shape=Shape(gpu_count=gpus, gpu_milli=1000), at_s=now_s)
            for scheduler in (one, whole):
                scheduler.submit(request)
            by_one, by_whole = one.decide(request.id, now_s), whole.cycle(now_s)
            if one.wake_at_s() == now_s:
                by_one += one.cycle(now_s)
        assert sorted(bound(by_one)) == sorted(bound(by_whole))
        running.extend(bound(by_one))


def test_caches_of_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_max = 20
    for module in (charges, engine, placer, verdicts):
        monkeypatch.setattr(module, "SHAPES_KEPT_MAX", kept_max)
    scheduler = scheduler_of(1)
    scheduler.adopt(ask("r", "ann"), started_at_s=0.0)
    scheduler.cycle(1.0)
    for i in range(3 * kept_max):
        scheduler.submit(ask("w", "bob", shape=Shape(gpu_count=1, gpu_milli=1000, memory_mib=i)))
        scheduler.decide("w", 2.0)
        scheduler.finished("w")
    assert scheduler.placer.engine.memory_bytes <= 100 * kept_max
    assert len(scheduler.verdicts) <= kept_max


@settings(max_examples=examples(100))
@given(seed=st.integers(0, 2**32))
def test_start_groups_follow_the_ranks_of_owners_over_random_starts_and_evictions(seed: int) -> None:
    chance, use = random.Random(seed), OwnerUse()
    owners = [f"o{number}" for number in range(chance.randrange(2, 6))]
    gangs = []
    for number in range(chance.randrange(5, 30)):
        request = replace(ask(f"r{number}", chance.choice(owners)), priority=chance.choice((0, 0, 1)))
        gang = Gang(key=(request.owner, "q", request.id), queue="q", owner=request.owner, waiting={request.id: request})
        gang.refresh()
        use.add_request("q", request.owner)
        gangs.append(gang)
    left = [start_group for gang in gangs for start_group in start_groups_of(gang)]
    order, amount = QueueOrder(left, use), Amount(gpu_milli=1000)
    running: list[str] = []
    while left:
        start_group = order.head()
        assert start_group is min(left, key=use.sort_key)
        order.pop()
        left.remove(start_group)
        if chance.random() < 0.5:
            use.start("q", start_group.gang.owner, amount)
            running.append(start_group.gang.owner)
        if running and chance.random() < 0.2:
            owner = running.pop(chance.randrange(len(running)))
            use.stop("q", owner, amount)
            order.renew(owner)
    assert not order
