"""Property tests of evictions for gangs with a topology: the cheapest domain is cleared, or nobody is evicted."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Defer, Evict, Options, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.topology import GangTopology

LEVELS = ("block", "rack")
ONE = Shape(gpu_count=1, gpu_milli=1000)
RACK = GangTopology(required="rack")


def world(racks: list[list[int]], *, deserved: int = 99, **options: object) -> Scheduler:
    """Return a scheduler with two nodes per entry; queue a deserves devices, queue b may only borrow."""
    nodes = [
        NodeSpec(
            name=f"n{r}.{n}",
            cpu_milli=64_000,
            memory_mib=1 << 20,
            gpus=(GpuSpec(model="T4", memory_mib=16384),) * gpus,
            domains=(f"b{r // 2}", f"r{r}"),
        )
        for r, rack in enumerate(racks)
        for n, gpus in enumerate(rack)
    ]
    queues = [QueueSpec(name="a", deserved=Amount(deserved * 1000)), QueueSpec(name="b")]
    return Scheduler(nodes, queues, levels=LEVELS, options=Options(**options))  # type: ignore[arg-type]


def occupy(scheduler: Scheduler, node: str, devices: int, **fields: object) -> None:
    """Start requests for one device each in queue b on the first devices of a node."""
    for device in range(devices):
        request = Request(id=f"x{node}.{device}", queue="b", shape=ONE, **fields)  # type: ignore[arg-type]
        place = NodePlacement(node=scheduler.cluster.row(node), devices=(device,))
        scheduler.adopt(request, placement=place, started_at_s=-1000.0)


def gang(count: int, topology: GangTopology, *, queue: str = "a", name: str = "g") -> list[Request]:
    return [
        Request(id=f"{name}{i}", queue=queue, shape=ONE, gang=name, min_member=count, topology=topology, rank=i)
        for i in range(count)
    ]


def rack_of(node: str) -> str:
    return node.split(".", maxsplit=1)[0]


@settings(max_examples=examples(300))
@given(data=st.data())
def test_cheapest_rack_is_cleared_or_nothing_is_evicted(data: st.DataObject) -> None:
    racks = data.draw(st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=2), min_size=1, max_size=4))
    count = data.draw(st.integers(1, 9))
    scheduler = world(racks)
    fixed: dict[int, int] = {}
    free: dict[int, int] = {}
    for r, rack in enumerate(racks):
        for n, gpus in enumerate(rack):
            used = data.draw(st.integers(0, gpus))
            evictable = data.draw(st.booleans())
            occupy(scheduler, f"n{r}.{n}", used, evictable=evictable)
            fixed[r] = fixed.get(r, 0) + (0 if evictable else used)
            free[r] = free.get(r, 0) + gpus - used
    for request in gang(count, RACK):
        scheduler.submit(request)
    decisions = scheduler.cycle(1.0)
    bound = [d.node for d in decisions if isinstance(d, Bind) and d.id.startswith("g")]
    evicted = [d for d in decisions if isinstance(d, Evict)]
    costs = [max(0, count - free[r]) for r, rack in enumerate(racks) if sum(rack) - fixed[r] >= count]
    if not costs:
        assert not bound
        assert not evicted
        return
    assert len(bound) == count
    assert len({rack_of(node) for node in bound}) == 1
    assert len(evicted) == min(costs)


@settings(max_examples=examples(300))
@given(seed=st.integers(0, 10**6))
def test_nothing_is_evicted_unless_the_gang_starts_as_it_requires(seed: int) -> None:
    rng = random.Random(seed)
    racks = [[rng.randint(1, 4) for _ in range(2)] for _ in range(rng.randint(1, 4))]
    scheduler = world(racks, deserved=rng.randint(0, 12))
    for r, rack in enumerate(racks):
        for n, gpus in enumerate(rack):
            occupy(scheduler, f"n{r}.{n}", rng.randint(0, gpus), evictable=rng.random() < 0.8)
    nodes_of: dict[str, str] = {}
    for step in range(4):
        count = rng.choice((2, 3, 4, 6))
        topology = rng.choice(
            [
                RACK,
                GangTopology(required="block"),
                GangTopology(preferred="rack"),
                GangTopology(slice_level="rack", slice_size=count if count % 2 else 2),
                GangTopology(required="block", slice_level="rack", slice_size=2),
            ]
        )
        shape = rng.choice([ONE, Shape(gpu_count=1, gpu_milli=500), Shape(gpu_count=2, gpu_milli=1000)])
        requests = [replace(r, shape=shape) for r in gang(count, topology, queue=rng.choice("ab"), name=f"g{step}.")]
        for request in requests:
            scheduler.submit(request)
        decisions = scheduler.cycle(float(step + 1))
        started = {d.id: d.node for d in decisions if isinstance(d, Bind)}
        for d in decisions:
            assert not isinstance(d, Evict) or d.by in started
            if isinstance(d, Evict):
                nodes_of.pop(d.id, None)
        nodes_of |= started
        own = [nodes_of[r.id] for r in requests if r.id in nodes_of]
        assert len(own) in (0, count)
        if topology.required and own:
            racks_of_gang = {int(rack_of(node)[1:]) for node in own}
            assert len({rack // (2 if topology.required == "block" else 1) for rack in racks_of_gang}) == 1
        if topology.slice_level and own:
            size = topology.slice_size
            for first in range(0, count, size):
                assert len({rack_of(node) for node in own[first : first + size]}) == 1


def test_evictions_are_those_of_one_domain_although_others_have_cheaper_devices() -> None:
    scheduler = world([[2, 2], [2, 2]])
    occupy(scheduler, "n0.0", 2)
    occupy(scheduler, "n0.1", 2)
    occupy(scheduler, "n1.0", 1, priority=5)
    occupy(scheduler, "n1.1", 1, priority=5)
    for request in gang(4, RACK):
        scheduler.submit(request)
    evicted = {d.id for d in scheduler.cycle(1.0) if isinstance(d, Evict)}
    assert evicted == {"xn1.0.0", "xn1.1.0"}


def test_replacement_evicts_in_the_rack_of_its_gang_only() -> None:
    scheduler = world([[2, 2], [2, 2]])
    for request in gang(3, RACK):
        scheduler.submit(request)
    bound = {d.id: d.node for d in scheduler.cycle(1.0) if isinstance(d, Bind)}
    home = rack_of(bound["g0"])
    scheduler.finished("g1")
    for i in range(8):
        scheduler.submit(Request(id=f"b{i}", queue="b", shape=ONE))
    taken = {d.id: d.node for d in scheduler.cycle(2.0) if isinstance(d, Bind)}
    assert len(taken) == 6
    scheduler.submit(replace(gang(3, RACK)[1], id="g1.again"))
    decisions = scheduler.cycle(3.0)
    assert [rack_of(d.node) for d in decisions if isinstance(d, Bind)] == [home]
    assert [rack_of(taken[d.id]) for d in decisions if isinstance(d, Evict)] == [home]


def test_gang_with_a_required_rack_is_not_starved_by_small_requests() -> None:
    scheduler = world([[2, 2], [2, 2]], deserved=0, reclaim_fair_share=False)
    rng = random.Random(1)
    ends: list[tuple[float, str]] = []
    submitted, started_at_s = False, None
    for step in range(400):
        now_s = float(step)
        for at_s, name in [end for end in ends if end[0] <= now_s]:
            ends.remove((at_s, name))
            scheduler.finished(name)
        scheduler.submit(Request(id=f"s{step}", queue="b", shape=ONE, run_time_s=10.0, submitted_at_s=now_s))
        if step == 30 and not submitted:
            for request in gang(4, RACK, queue="b"):
                scheduler.submit(replace(request, run_time_s=20.0, submitted_at_s=now_s))
            submitted = True
        for d in scheduler.cycle(now_s):
            if isinstance(d, Bind):
                ends.append((now_s + (20.0 if d.id.startswith("g") else rng.uniform(1.0, 10.0)), d.id))
                if d.id == "g0":
                    started_at_s = now_s
            assert not isinstance(d, Evict)
    assert started_at_s is not None
    assert started_at_s < 120.0


def test_explanation_names_the_largest_racks() -> None:
    scheduler = world([[2, 2], [3, 2]], deserved=0)
    for request in gang(6, RACK):
        scheduler.submit(request)
    deferred = [d for d in scheduler.cycle(1.0) if isinstance(d, Defer)]
    assert str(deferred[0].explanation.summary).startswith("no rack holds 6 members; b0/r1 holds 5, b0/r0 holds 4")
    assert deferred[0].reason == "topology"
