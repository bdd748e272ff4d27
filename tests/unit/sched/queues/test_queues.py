"""Tests of queues and shares: shares add up, guarantees and limits hold, and past use lowers only the surplus."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.errors import CalabashError, Reason
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Request
from calabash.sched.queues.fairshare import FairShareInput, corrected_weights, divide, water_fill
from calabash.sched.queues.hierarchy import queue_levels
from calabash.sched.queues.spec import QUEUE_DEPTH_MAX, QueueSpec
from calabash.sched.queues.tree import QueueTree
from calabash.sched.scheduler import Scheduler

amounts = st.integers(0, 64)


@given(st.integers(0, 200), st.lists(st.tuples(amounts, st.sampled_from([0.0, 0.5, 1.0, 3.0])), min_size=1, max_size=8))
def test_water_filling_distributes_exactly_what_can_be_taken(available: int, glasses: list[tuple[int, float]]) -> None:
    caps, weights = [float(c) for c, _ in glasses], [w for _, w in glasses]
    given_out = water_fill(available, caps, weights)
    can_take = sum(c for c, w in glasses if w > 0)
    assert math.isclose(sum(given_out), min(available, can_take), abs_tol=1e-6)
    for amount, cap, weight in zip(given_out, caps, weights, strict=True):
        assert -1e-9 <= amount <= cap + 1e-9
        assert weight > 0 or amount == 0
    # Max-min fairness: a share below its cap is at least as large, per weight, as all other shares.
    levels = [a / w for a, c, w in zip(given_out, caps, weights, strict=True) if w > 0 and a < c - 1e-6]
    tops = [a / w for a, w in zip(given_out, weights, strict=True) if w > 0 and a > 1e-6]
    assert not levels or max(tops, default=0.0) <= min(levels) + 1e-6


@st.composite
def trees(draw: st.DrawFn) -> tuple[FairShareInput, list[float]]:
    count = draw(st.integers(2, 8))
    parents = [0, *(draw(st.integers(0, i)) for i in range(1, count))]
    children: list[list[int]] = [[] for _ in range(count + 1)]
    for i, parent in enumerate(parents, 1):
        children[parent].append(i)
    demand = [[0.0] * 3 for _ in range(count + 1)]
    for i in range(count, 0, -1):
        for r in range(3):
            below = children[i]
            demand[i][r] = sum(demand[c][r] for c in below) if below else float(draw(amounts))
    deserved = [[float(draw(amounts)) for _ in range(3)] for _ in range(count + 1)]
    weights = [draw(st.sampled_from([0.0, 1.0, 2.0])) for _ in range(count + 1)]
    past = [draw(st.floats(0, 1e6)) for _ in range(count + 1)]
    tree = FairShareInput(children=children, deserved=deserved, demand=demand, weights=weights, past=past)
    return tree, [float(draw(st.integers(0, 300))) for _ in range(3)]


@given(trees())
def test_shares_add_up_and_stay_within_demand_and_capacity(case: tuple[FairShareInput, list[float]]) -> None:
    tree, capacity = case
    division = divide(tree, capacity)
    for parent, kids in enumerate(tree.children):
        for r in range(3):
            assert sum(division.fair[k][r] for k in kids) <= division.fair[parent][r] + 1e-6
            assert sum(division.guaranteed[k][r] for k in kids) <= division.guaranteed[parent][r] + 1e-6
            for k in kids:
                assert division.guaranteed[k][r] <= division.fair[k][r] + 1e-6
                assert division.fair[k][r] <= tree.demand[k][r] + 1e-6


@given(trees())
def test_demanded_deserved_amounts_are_guaranteed_if_the_capacity_suffices(
    case: tuple[FairShareInput, list[float]],
) -> None:
    tree, capacity = case
    division = divide(tree, capacity)
    top = tree.children[0]
    for r in range(3):
        claims = {k: min(tree.deserved[k][r], tree.demand[k][r]) for k in top}
        if sum(claims.values()) <= capacity[r]:
            for k, pool in claims.items():
                assert division.guaranteed[k][r] == pytest.approx(pool, abs=1e-6)


@given(trees())
def test_no_surplus_is_left_while_a_weighted_queue_has_unmet_demand(case: tuple[FairShareInput, list[float]]) -> None:
    tree, capacity = case
    division = divide(tree, capacity)
    for parent, kids in enumerate(tree.children):
        for r in range(3):
            left = division.fair[parent][r] - sum(division.fair[k][r] for k in kids)
            hungry = [k for k in kids if tree.weights[k] > 0 and division.fair[k][r] < tree.demand[k][r] - 1e-6]
            assert left <= 1e-6 or not hungry


def test_past_use_lowers_a_share_but_never_to_zero() -> None:
    weights = corrected_weights([1.0, 1.0], [1000.0, 0.0], [True, True])
    assert weights[1] > weights[0] > 0
    assert corrected_weights([1.0, 3.0], [0.0, 0.0], [True, True]) == [1.0, 3.0]


def tree_of(*specs: QueueSpec, gpus: int = 8, half_life_s: float = 0.0) -> QueueTree:
    tree = QueueTree(specs, half_life_s=half_life_s)
    tree.set_capacity(Amount(gpus * 1000, 0, 0))
    return tree


def run(tree: QueueTree, name: str, amount: Amount) -> None:
    """Start a request of an amount in a queue."""
    tree.use.add_waiting(name, amount)
    tree.use.start(name, amount)


def test_use_is_counted_in_all_ancestors_and_subtracted_exactly() -> None:
    tree = tree_of(QueueSpec(name="org"), QueueSpec(name="a", parent="org"), QueueSpec(name="b", parent="org"))
    tree.use.add_waiting("a", Amount(3000, 5, 7))
    tree.use.start("a", Amount(3000, 5, 7))
    run(tree, "b", Amount(1000, 1, 1))
    assert tree.used("org") == Amount(4000, 6, 8)
    tree.use.stop("a", Amount(3000, 5, 7))
    assert (tree.used("org"), tree.waiting("org")) == (Amount(1000, 1, 1), Amount(3000, 5, 7))
    tree.use.remove_waiting("a", Amount(3000, 5, 7))
    tree.use.end("b", Amount(1000, 1, 1))
    assert tree.used("org") == tree.waiting("org") == Amount()


def test_past_use_halves_in_a_half_life() -> None:
    tree = tree_of(QueueSpec(name="a"), half_life_s=100.0)
    run(tree, "a", Amount(8000))
    tree.advance(100.0)
    once = dict(tree.past())["a"]
    tree.use.end("a", Amount(8000))
    tree.advance(200.0)
    assert dict(tree.past())["a"] == pytest.approx(once / 2)


def test_past_use_is_equal_after_one_or_many_steps_of_time() -> None:
    one, many = (tree_of(QueueSpec(name="a"), half_life_s=50.0) for _ in range(2))
    for tree in (one, many):
        run(tree, "a", Amount(4000))
    one.advance(120.0)
    for i in range(1, 13):
        many.advance(10.0 * i)
    assert dict(one.past())["a"] == pytest.approx(dict(many.past())["a"])


def test_borrowing_queue_comes_after_a_queue_in_quota() -> None:
    tree = tree_of(QueueSpec(name="a", deserved=Amount(4000)), QueueSpec(name="b", deserved=Amount(4000)))
    for name in ("a", "b"):
        tree.use.add_waiting(name, Amount(8000))
    tree.use.start("a", Amount(4000))
    tree.use.start("b", Amount(3000))
    assert tree.pressure("b", Amount(1000)) < tree.pressure("a", Amount(1000))


@pytest.mark.parametrize(
    ("specs", "what"),
    [
        ([QueueSpec(name="a"), QueueSpec(name="a")], "twice"),
        ([QueueSpec(name="a", parent="none")], "does not exist"),
        ([QueueSpec(name="a", parent="b"), QueueSpec(name="b", parent="a")], "cycle"),
    ],
)
def test_invalid_queue_tree_is_refused(specs: list[QueueSpec], what: str) -> None:
    with pytest.raises(CalabashError, match=what):
        QueueTree(specs)


def chain(depth: int) -> list[QueueSpec]:
    """Return queues c1, c2, ..., each the parent of the next."""
    return [QueueSpec(name=f"c{i}", parent=f"c{i - 1}" if i > 1 else "") for i in range(1, depth + 1)]


def test_queue_at_the_last_level_starts_requests_and_one_level_more_is_refused() -> None:
    node = NodeSpec(name="n", cpu_milli=1000, memory_mib=1024, gpus=(GpuSpec(model="A100", memory_mib=40960),))
    scheduler = Scheduler([node], chain(QUEUE_DEPTH_MAX))
    scheduler.submit(Request(id="w", queue=f"c{QUEUE_DEPTH_MAX}", shape=Shape(gpu_count=1, gpu_milli=1000)))
    assert [type(decision) for decision in scheduler.cycle(1.0)] == [Bind]
    with pytest.raises(CalabashError, match="queue c33 is at level 33 of the queue tree, the limit is 32") as caught:
        scheduler.set_queues(chain(QUEUE_DEPTH_MAX + 1))
    assert caught.value.hint == "set a parent that is nearer to the root"
    assert scheduler.tree.used("c1").gpu_milli == 1000, "the tree stays as it was"


@pytest.mark.parametrize("order", [1, -1])
def test_chain_of_thousands_of_queues_is_refused_in_any_order_without_a_recursion_error(order: int) -> None:
    with pytest.raises(CalabashError, match="the limit is 32 levels"):
        Scheduler([], chain(5000)[::order])


def test_cycle_of_thousands_of_queues_is_refused_without_a_recursion_error() -> None:
    first, *others = chain(5000)
    with pytest.raises(CalabashError, match="cycle"):
        Scheduler([], [QueueSpec(name=first.name, parent="c5000"), *others])


def test_levels_count_from_the_top_and_are_zero_in_and_below_a_cycle() -> None:
    parents = {"d": "c", "a": "", "c": "b", "b": "a", "lost": "nowhere", "x": "y", "y": "x", "z": "x"}
    assert queue_levels(parents) == {"a": 1, "b": 2, "c": 3, "d": 4, "lost": 1, "x": 0, "y": 0, "z": 0}


def test_limit_of_each_queue_on_the_path_is_kept_and_the_nearest_one_is_named() -> None:
    most = Amount(2000, 1 << 60, 1 << 60)
    tree = tree_of(
        QueueSpec(name="org", limit=most),
        QueueSpec(name="lab", parent="org"),
        QueueSpec(name="a", parent="lab", limit=most),
    )
    found = [tree.over_limit(name, Amount(3000)) for name in ("a", "lab", "org")]
    assert [over.queue if over else "" for over in found] == ["a", "org", "org"]
    assert tree.over_limit("a", Amount(2000)) is None


def test_invalid_amounts_of_a_queue_are_refused() -> None:
    with pytest.raises(CalabashError, match="the guarantee of 2 GPUs exceeds the limit of 1"):
        QueueSpec(name="a", deserved=Amount(2000), limit=Amount(1000, 0, 0))
    with pytest.raises(CalabashError, match="negative"):
        QueueSpec(name="a", deserved=Amount(-1))
    with pytest.raises(CalabashError, match="weight"):
        QueueSpec(name="a", over_quota_weight=-1)


def test_queue_with_jobs_cannot_be_removed_and_a_replaced_tree_keeps_its_use() -> None:
    tree = tree_of(QueueSpec(name="a"), QueueSpec(name="b"))
    run(tree, "a", Amount(1000))
    with pytest.raises(CalabashError) as caught:
        tree.replace([QueueSpec(name="b")])
    assert caught.value.reason is Reason.CONFLICT
    assert tree.used("a") == Amount(1000)
    tree.replace([QueueSpec(name="org"), QueueSpec(name="a", parent="org", limit=Amount(1500, 0, 0))])
    assert tree.used("org") == tree.used("a") == Amount(1000)
    over = tree.over_limit("a", Amount(1000))
    assert over is not None
    assert (over.queue, over.used, over.asked, over.limit) == ("a", 1000, 1000, 1500)


def test_jobs_go_to_leaves_only() -> None:
    tree = tree_of(QueueSpec(name="org"), QueueSpec(name="a", parent="org"))
    with pytest.raises(CalabashError, match="is a parent queue"):
        tree.form.require_leaf("org")
    with pytest.raises(CalabashError, match="does not exist"):
        tree.form.require_leaf("z")
    tree.form.require_leaf("a")


@given(st.lists(st.tuples(st.sampled_from("cdef"), st.integers(1, 3), st.booleans()), min_size=1, max_size=20))
def test_cached_pressure_equals_that_of_a_new_tree_after_random_changes(
    changes: list[tuple[str, int, bool]],
) -> None:
    specs = [QueueSpec(name=name, deserved=Amount(2000)) for name in "ab"]
    specs += [QueueSpec(name=name, parent=parent) for name, parent in ("ca", "da", "eb", "fb")]
    asked = QueueTree(specs)
    done: list[tuple[str, int, bool]] = []
    for change in changes:
        done.append(change)
        fresh = QueueTree(specs)
        for tree, news in ((asked, done[-1:]), (fresh, done)):
            tree.set_capacity(Amount(9000))
            for name, count, starts in news:
                tree.use.add_waiting(name, Amount(1000 * count))
                if starts:
                    tree.use.start(name, Amount(1000 * count))
        for amount in (Amount(1000), Amount(2000)):
            expected = [fresh.pressure(name, amount) for name in "cdef"]
            assert [asked.pressure(name, amount) for name in "cdef"] == expected
        asked.use.start("c", Amount(500))  # changes the use but not the shares
        asked.pressure("d", Amount(1000))
        asked.use.stop("c", Amount(500))
