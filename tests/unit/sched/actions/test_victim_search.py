"""Tests of the search for victims: few, exact, and compared with brute force in small worlds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.actions import victim_search
from calabash.sched.actions.freeable_devices import FreeableDevices
from calabash.sched.actions.packing import place_together
from calabash.sched.actions.quota import mark_in_quota
from calabash.sched.actions.unit_pool import UnitPool
from calabash.sched.actions.victim_search import find_victims
from calabash.sched.actions.victims import EvictionRight, VictimRules
from calabash.sched.amounts import Amount
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.cluster.transaction import Placer, Transaction
from calabash.sched.decisions import Bind, Defer, Evict, Request, Running
from calabash.sched.policies.registry import policy_named
from calabash.sched.queues.gang import Gang, Unit, units_of
from calabash.sched.queues.registry import GangRegistry
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.queues.unit_table import UnitTable
from calabash.sched.scheduler import Scheduler

SHAPES = [
    *[Shape(gpu_count=n, gpu_milli=1000) for n in (1, 1, 2, 2, 4)],
    *[Shape(gpu_count=1, gpu_milli=m) for m in (250, 300, 500, 800)],
]


def transaction_of(*devices: int) -> Transaction:
    nodes = [
        NodeSpec(name=f"n{i}", cpu_milli=1000, memory_mib=1000, gpus=(GpuSpec(),) * count)
        for i, count in enumerate(devices)
    ]
    cluster = Cluster(nodes, order_seed=None)
    return Transaction(ClusterPlacer(cluster, Engine(cluster, policy_named("bestfit"))))


def cluster_of(transaction: Transaction) -> Cluster:
    assert isinstance(transaction.placer, ClusterPlacer)
    return transaction.placer.cluster


def run_gang(
    transaction: Transaction, name: str, shapes: Sequence[Shape], *, started_at_s: float, min_member: int = 0
) -> Gang:
    """Place the members of a gang that fit; a gang whose core does not fit has no running members."""
    gang = Gang(key=("", "q", name), queue="q", min_member=min_member or len(shapes))
    requests = [Request(id=f"{name}.{i}", shape=shape, queue="q", gang=name) for i, shape in enumerate(shapes)]
    placed = place_together(transaction, requests)
    for i, (request, placement) in enumerate(placed or ()):
        gang.running[request.id] = Running(
            request=request, placement=placement, node="", started_at_s=started_at_s, sequence=int(started_at_s) * 100 + i,
            charge=Amount(request.shape.gpu_total_milli),
        )  # fmt: skip
    return gang


def pool_of(transaction: Transaction, gangs: Iterable[Gang]) -> UnitPool:
    """Return the pool of all units of some gangs."""
    registry = GangRegistry()
    registry.running_in["q"] = {gang.key: gang for gang in gangs if gang.running}
    table = UnitTable()
    table.sync(registry)
    pool = UnitPool(table, cluster_of(transaction).node_count, cluster_of(transaction).width, table.unit)
    assert pool.select(np.ones(table.size, np.bool_), np.zeros(table.size, np.bool_))
    return pool


def state_of(transaction: Transaction) -> list[list[int]]:
    free: list[list[int]] = cluster_of(transaction).gpu_free_milli.tolist()
    return free


def brute_force(transaction: Transaction, units: Sequence[Unit], requests: Sequence[Request]) -> float | None:
    """Return the device milli of the cheapest set of units whose eviction lets the requests fit."""
    best: float | None = None
    for size in range(len(units) + 1):
        for chosen in itertools.combinations(units, size):
            gangs = {u.gang for u in chosen if u.core}
            if any(u.gang in gangs and u not in chosen for u in units):
                continue  # a core is evicted with its surplus
            cost = sum(u.amount.gpu_milli for u in chosen)
            if best is not None and cost >= best:
                continue
            mark = transaction.mark()
            for member in (m for u in chosen for m in u.members):
                transaction.release(member.request.shape, member.placement)
            if place_together(transaction, requests) is not None:
                best = cost
            transaction.rollback(mark)
    return best


def check_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    transaction = transaction_of(*(rng.choice((1, 2, 4)) for _ in range(rng.randint(1, 3))))
    units: list[Unit] = []
    gangs: list[Gang] = []
    for i in range(rng.randint(1, 6)):
        shapes = [rng.choice(SHAPES) for _ in range(rng.choice((1, 1, 1, 2)))]
        gang = run_gang(transaction, f"g{i}", shapes, started_at_s=float(i), min_member=rng.randint(1, len(shapes)))
        units.extend(units_of(gang))
        gangs.append(gang)
    members = rng.choice((1, 1, 1, 2))
    shape = rng.choice(SHAPES)
    requests = [Request(id=f"new{m}", shape=shape, queue="q") for m in range(members)]
    asked = Amount(members * shape.gpu_total_milli)
    before = state_of(transaction)
    optimum = brute_force(transaction, units, requests)
    assert state_of(transaction) == before
    plan = find_victims(transaction, requests, pool_of(transaction, gangs), budgets={}, asked=asked)
    assert (plan is None) == (optimum is None), f"seed {seed}: {plan} but the optimum is {optimum}"
    if plan is None or optimum is None:
        assert state_of(transaction) == before
        return
    evicted = sum(u.amount.gpu_milli for u in plan.evicted)
    assert evicted <= 1.2 * max(asked.gpu_milli, optimum), f"seed {seed}: evicts {evicted}, {optimum} would do"
    gone = {m.request.id for u in plan.evicted for m in u.members}
    free = cluster_of(transaction).gpu_free_milli
    assert (free >= 0).all()
    taken = sum(m.request.shape.gpu_total_milli for u in units for m in u.members if m.request.id not in gone)
    assert int(free.sum()) == 1000 * cluster_of(transaction).gpu_total - taken - asked.gpu_milli
    for unit in plan.evicted:
        kept = [u for u in units if u.gang == unit.gang and not {m.request.id for m in u.members} & gone]
        assert not (unit.core and kept), f"seed {seed}: surplus outlives its core"


def test_evicted_amount_is_at_most_a_fifth_above_the_minimum() -> None:
    for seed in range(examples(1200)):
        check_against_brute_force(seed)


@given(st.integers(min_value=0, max_value=10**9))
@settings(max_examples=examples(150), deadline=None)
def test_search_holds_in_generated_clusters(seed: int) -> None:
    check_against_brute_force(seed)


def whole(count: int) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000)


def test_youngest_of_equal_units_is_evicted() -> None:
    transaction = transaction_of(4)
    pool = pool_of(transaction, [run_gang(transaction, f"g{i}", [whole(1)], started_at_s=10.0 * i) for i in range(4)])
    plan = find_victims(transaction, [Request(id="a", shape=whole(1), queue="q")], pool, budgets={}, asked=Amount(1000))
    assert plan is not None
    assert [m.request.id for u in plan.evicted for m in u.members] == ["g3.0"]


def test_queue_never_loses_more_than_its_budget() -> None:
    transaction = transaction_of(4)
    pool = pool_of(transaction, [run_gang(transaction, f"g{i}", [whole(1)], started_at_s=10.0 * i) for i in range(4)])
    request = Request(id="a", shape=whole(2), queue="q")
    before = state_of(transaction)
    assert find_victims(transaction, [request], pool, budgets={"q": 1500.0}, asked=Amount(2000)) is None
    assert state_of(transaction) == before
    assert find_victims(transaction, [request], pool, budgets={"q": 2000.0}, asked=Amount(2000)) is not None


def test_plan_above_the_eviction_ratio_is_refused() -> None:
    transaction = transaction_of(8)
    pool = pool_of(transaction, [run_gang(transaction, "g", [whole(8)], started_at_s=0.0)])
    request = Request(id="a", shape=whole(2), queue="q")
    before = state_of(transaction)
    assert find_victims(transaction, [request], pool, budgets={}, asked=Amount(2000), ratio_max=1.2) is None
    assert state_of(transaction) == before


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(0, 100)), max_size=8),
    st.integers(0, 24),
)
def test_units_marked_in_quota_never_exceed_the_guaranteed_amount(
    runs: list[tuple[int, int, int]], guaranteed: int
) -> None:
    units = []
    for i, (gpus, priority, started_at_s) in enumerate(runs):
        request = Request(id=f"r{i}", shape=whole(gpus), queue="q", priority=priority)
        gang = Gang(key=("", "q", f"r{i}"), queue="q", priority=priority)
        running = Running(
            request=request, placement=None, node="", started_at_s=started_at_s, sequence=i, charge=Amount(gpus * 1000)  # type: ignore[arg-type]
        )  # fmt: skip
        gang.running[request.id] = running
        units.extend(units_of(gang))
    marked = mark_in_quota(units, (guaranteed * 1000.0, 0.0, 0.0), (True, False, False))
    held = sum(u.amount.gpu_milli for u in marked if u.in_quota)
    assert held <= guaranteed * 1000
    assert sorted(u.members[0].request.id for u in marked) == sorted(u.members[0].request.id for u in units)
    unmanaged = mark_in_quota(units, (guaranteed * 1000.0, 0.0, 0.0), (False, False, False))
    assert not any(u.in_quota for u in unmanaged)


def test_rollback_restores_the_arrays_exactly() -> None:
    transaction = transaction_of(4, 2)
    cluster = cluster_of(transaction)
    run_gang(transaction, "g", [Shape(gpu_count=1, gpu_milli=300), whole(2)], started_at_s=0.0)
    before = {name: getattr(cluster, name).copy() for name, *_ in (*cluster._VECTORS, *cluster._MATRICES)}
    mark = transaction.mark()
    assert place_together(transaction, [Request(id=f"x{i}", shape=whole(1), queue="q") for i in range(3)])
    transaction.rollback(mark)
    assert place_together(transaction, [Request(id=f"y{i}", shape=whole(1), queue="q") for i in range(9)]) is None
    for name, value in before.items():
        assert np.array_equal(getattr(cluster, name), value), name


def test_missing_victims_are_searched_once_per_queue_and_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = (GpuSpec(model="A100", memory_mib=40960),) * 2
    scheduler = Scheduler([NodeSpec(name="n", cpu_milli=64_000, memory_mib=1024, gpus=gpus)], [QueueSpec(name="q")])
    for number, priority in enumerate((0, 1)):
        request = Request(id=f"r{number}", queue="q", shape=Shape(gpu_count=1, gpu_milli=1000), priority=priority)
        scheduler.adopt(request, node="n", started_at_s=0.0)
    asked: list[int] = []
    original = VictimRules.eligible

    def counted(
        self: VictimRules, right: EvictionRight, requester: Gang, *, guarded: bool = False
    ) -> tuple[Bools, Hashable]:
        asked.append(right.priority)
        return original(self, right, requester, guarded=guarded)

    monkeypatch.setattr(VictimRules, "eligible", counted)
    for number in range(50):
        shape = Shape(gpu_count=1, gpu_milli=1000, cpu_milli=number)
        scheduler.submit(Request(id=f"w{number}", queue="q", shape=shape))
    assert [type(decision) for decision in scheduler.cycle(1.0)] == [Defer] * 50
    assert asked == [0]
    scheduler.submit(Request(id="z", queue="q", shape=Shape(gpu_count=1, gpu_milli=1000), priority=1))
    decided = scheduler.cycle(2.0)
    assert [d.id for d in decided if isinstance(d, Evict)] == ["r0"]
    assert [d.id for d in decided if isinstance(d, Bind)] == ["z"]


def test_shapes_that_differ_in_host_resources_share_the_devices_to_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Shape] = []

    class Counted(FreeableDevices):
        def __init__(self, placer: Placer, shape: Shape, pool: UnitPool) -> None:
            made.append(shape)
            super().__init__(placer, shape, pool)

    monkeypatch.setattr(victim_search, "FreeableDevices", Counted)
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=1000, memory_mib=1000, gpus=(GpuSpec(),) * 2) for i in range(9)]
    queues = [QueueSpec(name="own", deserved=Amount(18_000)), QueueSpec(name="q")]
    scheduler = Scheduler(nodes, queues)
    for node in range(9):
        request = Request(id=f"r{node}", queue="q", shape=Shape(gpu_count=2, gpu_milli=1000))
        scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    scheduler.cycle(0.0)
    for number in range(8):
        shape = Shape(gpu_count=2 - number % 2, gpu_milli=1000, cpu_milli=number)
        scheduler.submit(Request(id=f"w{number}", queue="own", shape=shape))
    started = [decision.id for decision in scheduler.cycle(1.0) if isinstance(decision, Bind)]
    assert started == [f"w{number}" for number in range(8)]
    assert [shape.gpu_count for shape in made] == [2, 1]
