"""Past use of queues: the sum, its decay, the periods in which shares follow it, and its effect on the order of queues."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.errors import CalabashError
from calabash.model.messages import in_full
from calabash.sched import Amount, Bind, GpuSpec, NodeSpec, Options, QueueSpec, Request, Scheduler, Shape
from calabash.sched.queues.fairshare import effective_weights
from calabash.sched.queues.past_use import parse_half_life_s
from calabash.sched.queues.tree import QueueTree

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def tree_of(*specs: QueueSpec, gpus: int = 8, half_life_s: float = DAY_S) -> QueueTree:
    tree = QueueTree(specs, half_life_s=half_life_s)
    tree.set_capacity(Amount(gpus * 1000, 64_000, 1 << 20))
    return tree


def use(tree: QueueTree, name: str, devices: float) -> None:
    amount = Amount(round(1000 * devices))
    tree.use.add_waiting(name, amount)
    tree.use.start(name, amount)


def release(tree: QueueTree, name: str, devices: float) -> None:
    tree.use.end(name, Amount(round(1000 * devices)))


def node(gpus: int) -> NodeSpec:
    return NodeSpec(name="n", cpu_milli=1 << 30, memory_mib=1 << 30, gpus=(GpuSpec(),) * gpus)


def ask(name: str, queue: str, gpus: int = 1) -> Request:
    return Request(id=name, queue=queue, shape=Shape(gpu_count=gpus, gpu_milli=1000))


# ---- the setting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "half_life_s"),
    [("0", 0.0), ("", 0.0), ("0s", 0.0), ("1m", 60.0), ("12h", 12 * HOUR_S), ("7d", 7 * DAY_S), ("366d", 366 * DAY_S)],
)
def test_half_life_is_a_duration(text: str, half_life_s: float) -> None:
    assert parse_half_life_s(text) == half_life_s


@pytest.mark.parametrize("text", ["59s", "367d", "7", "week", "-1h"])
def test_half_life_out_of_range_names_value_limits_and_a_hint(text: str) -> None:
    with pytest.raises(CalabashError) as caught:
        parse_half_life_s(text)
    assert "half_life" in caught.value.message
    assert text in caught.value.message
    assert "7d" in caught.value.hint
    if text in ("59s", "367d"):
        assert "1m to 366d" in caught.value.message


# ---- the sum and its decay ------------------------------------------------------------------------------------------


def test_past_use_is_counted_in_device_seconds_above_the_guarantee() -> None:
    tree = tree_of(QueueSpec(name="a", deserved=Amount(2000)), QueueSpec(name="b"), half_life_s=366 * DAY_S)
    use(tree, "a", 5.0)
    use(tree, "b", 0.5)
    tree.advance(100.0)
    assert tree.past_of("a") == pytest.approx(300.0, rel=1e-4)
    assert tree.past_of("b") == pytest.approx(50.0, rel=1e-4)


def test_more_devices_in_the_cluster_do_not_change_what_was_used() -> None:
    small, large = tree_of(QueueSpec(name="a"), gpus=8), tree_of(QueueSpec(name="a"), gpus=80)
    for tree in (small, large):
        use(tree, "a", 4.0)
        tree.advance(HOUR_S)
    assert small.past_of("a") == pytest.approx(large.past_of("a"))


def test_constant_use_approaches_its_limit() -> None:
    tree = tree_of(QueueSpec(name="a"), half_life_s=HOUR_S)
    use(tree, "a", 2.0)
    tree.advance(40 * HOUR_S)
    assert tree.past_of("a") == pytest.approx(2.0 * HOUR_S / math.log(2.0))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8), st.integers(1, 200_000)), min_size=1, max_size=12))
def test_without_use_the_total_halves_in_each_half_life(history: list[tuple[int, int, int]]) -> None:
    tree = tree_of(*(QueueSpec(name=name) for name in "abc"))
    now_s = 0.0
    for queue, devices, seconds in history:
        use(tree, "abc"[queue], devices)
        now_s += seconds
        tree.advance(now_s)
        release(tree, "abc"[queue], devices)
    total = sum(value for _, value in tree.past())
    for _ in range(3):
        now_s += DAY_S
        tree.advance(now_s)
        total /= 2
        assert sum(value for _, value in tree.past()) == pytest.approx(total)
    assert all(value >= 0 for _, value in tree.past())


def test_restored_past_use_continues_as_if_there_had_been_no_restart() -> None:
    specs = (QueueSpec(name="org"), QueueSpec(name="a", parent="org"), QueueSpec(name="b", parent="org"))
    one, again = tree_of(*specs), tree_of(*specs)
    use(one, "a", 3.0)
    one.advance(5 * HOUR_S)
    past = dict(one.past())
    one.advance(9 * HOUR_S)
    use(again, "a", 3.0)  # it ran on while the scheduler did not
    again.restore_past(past | {"removed": 5.0}, 1000.0)
    again.advance(1000.0 + 4 * HOUR_S)
    assert dict(again.past()) == pytest.approx(dict(one.past()))


def test_change_of_the_queues_keeps_the_past_use_of_a_parent_apart_from_its_childrens() -> None:
    org, a = QueueSpec(name="org", deserved=Amount(4000)), QueueSpec(name="a", parent="org")
    tree = tree_of(org, a, QueueSpec(name="b", parent="org", deserved=Amount(4000)))
    use(tree, "a", 4.0)
    tree.advance(HOUR_S)
    before = dict(tree.past())
    assert (before["org"], before["a"] > 0) == (0.0, True)
    tree.replace([org, a, QueueSpec(name="b", parent="org"), QueueSpec(name="new")])
    assert dict(tree.past()) == before | {"new": 0.0}
    tree.replace([org, QueueSpec(name="team", parent="org"), QueueSpec(name="a", parent="team")])
    assert tree.past_of("team") == before["a"]


# ---- shares ---------------------------------------------------------------------------------------------------------


def test_shares_follow_past_use_once_in_a_period() -> None:
    tree = tree_of(QueueSpec(name="a"), QueueSpec(name="b"), half_life_s=1024 * 10.0)
    for name in "ab":
        tree.use.add_waiting(name, Amount(8000))
    tree.use.start("a", Amount(8000))
    tree.advance(0.0)
    first = tree.shares()
    tree.advance(9.0)
    assert tree.shares() is first
    tree.advance(10.0)
    assert tree.fair("a")[0] < first.fair[1][0]
    assert tree.fair("b")[0] > first.fair[2][0]


def test_effective_weights_are_in_the_unit_of_the_weights() -> None:
    assert effective_weights([1.0, 3.0], [0.0, 0.0]) == [1.0, 3.0]
    assert effective_weights([1.0, 3.0], [10.0, 30.0]) == pytest.approx([1.0, 3.0])
    less, more = effective_weights([1.0, 1.0], [10.0, 0.0])
    assert less + more == pytest.approx(2.0)
    assert less == pytest.approx(2.0 * 0.025 / 1.025)


# ---- decisions ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(300, 1_000_000), st.integers(0, 1_000_000))
def test_queue_that_used_less_has_its_turn_first(devices: int, used_s: int, idle_s: int) -> None:
    scheduler = Scheduler(
        [node(8)], [QueueSpec(name="a"), QueueSpec(name="b")], options=Options(half_life_s=DAY_S, reservations=0)
    )
    for i in range(devices):
        scheduler.submit(ask(f"past{i}", "a"))
    scheduler.cycle(0.0)
    scheduler.advance(float(used_s))
    for i in range(devices):
        scheduler.finished(f"past{i}")
    now_s = float(used_s + idle_s)
    scheduler.advance(now_s)
    scheduler.submit(ask("of-a", "a", gpus=8))  # the older request
    scheduler.submit(ask("of-b", "b", gpus=8))
    assert [d.id for d in scheduler.cycle(now_s) if isinstance(d, Bind)] == ["of-b"]


@pytest.mark.parametrize("seed", range(4))
def test_no_queue_starves_and_long_run_shares_are_those_of_the_weights(seed: int) -> None:
    """Queue a had everything for ten half-lives. From then on all queues always ask for more than there is."""
    rng = random.Random(seed)
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    scheduler = Scheduler(
        [node(4)],
        [QueueSpec(name=name, over_quota_weight=weight) for name, weight in weights.items()],
        options=Options(half_life_s=HOUR_S, reservations=0, reclaim_fair_share=False),
    )
    scheduler.restore_past_use({"a": 4 * HOUR_S / math.log(2.0)}, 0.0)
    served, ends, number, waited = dict.fromkeys(weights, 0.0), {}, 0, dict.fromkeys(weights, 0.0)
    for name in weights:
        for _ in range(4):
            scheduler.submit(ask(f"{name}{(number := number + 1)}", name))
    now_s, last = 0.0, dict.fromkeys(weights, 0.0)
    while now_s < 30 * HOUR_S:
        for decision in scheduler.cycle(now_s):
            if isinstance(decision, Bind):
                name, run_s = decision.id[0], rng.uniform(100.0, 1000.0)
                ends[decision.id] = now_s + run_s
                served[name] += run_s
                waited[name] = max(waited[name], now_s - last[name])
                last[name] = now_s
                scheduler.submit(ask(f"{name}{(number := number + 1)}", name))
        ended = min(ends, key=lambda one: ends[one])
        now_s = ends.pop(ended)
        scheduler.advance(now_s)
        scheduler.finished(ended)
    total = sum(served.values())
    assert max(waited.values()) < 3 * HOUR_S
    assert {name: value / total for name, value in served.items()} == pytest.approx(
        {"a": 0.25, "b": 0.25, "c": 0.5}, abs=0.05
    )


def test_past_use_without_a_half_life_changes_nothing() -> None:
    found = []
    for past in ({}, {"a": 1e9, "b": 5.0}):
        scheduler = Scheduler([node(4)], [QueueSpec(name="a"), QueueSpec(name="b")], options=Options(reservations=1))
        scheduler.restore_past_use(past, 0.0)
        rng = random.Random(3)
        decisions = []
        for step in range(60):
            name = f"{'ab'[rng.randrange(2)]}{step}"
            scheduler.submit(ask(name, name[0], gpus=rng.randint(1, 3)))
            scheduler.count_use(step * 50.0)
            decisions += [repr(decision) for decision in scheduler.cycle(step * 50.0)]
            running = [r for gang in scheduler.registry.gangs.values() for r in gang.running]
            if running and rng.random() < 0.6:
                scheduler.finished(rng.choice(sorted(running)))
        found.append(decisions)
    assert found[0] == found[1]


def test_explanation_names_the_queue_that_used_less() -> None:
    scheduler = Scheduler(
        [node(2)], [QueueSpec(name="a"), QueueSpec(name="b")], options=Options(half_life_s=DAY_S, reservations=0)
    )
    scheduler.adopt(ask("held", "b"), started_at_s=0.0)
    scheduler.adopt(ask("also", "a"), started_at_s=0.0)
    scheduler.restore_past_use({"a": 36_000.0}, 0.0)
    scheduler.submit(ask("of-a", "a", gpus=2))
    assert scheduler.explain("of-a", 1.0).past_use == ""  # nothing waits in b
    scheduler.submit(ask("of-b", "b", gpus=2))
    told = in_full(scheduler.explain("of-a", 1.0).past_use)
    assert "queue a used 10 device-hours above its guarantee (half-life 1d)" in told
    assert "instead of 1: queue b, which used less, comes first" in told
    assert scheduler.explain("of-b", 1.0).past_use == ""
