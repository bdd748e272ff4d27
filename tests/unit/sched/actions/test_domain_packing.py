"""Tests of gangs with a topology: domains are kept, found whenever there is one, and as few as possible."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import CalabashError
from calabash.sched.cluster.domains import domains_of
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Options, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.topology import GangTopology

LEVELS = ("block", "rack")
ONE = Shape(gpu_count=1, gpu_milli=1000)
QUEUE = [QueueSpec(name="q")]


def node(name: str, gpus: int, *path: str, mig: bool = False) -> NodeSpec:
    card = GpuSpec(model="A100-40GB", memory_mib=40960, mode="mig") if mig else GpuSpec(model="T4", memory_mib=16384)
    return NodeSpec(name=name, cpu_milli=64_000, memory_mib=1 << 20, gpus=(card,) * gpus, domains=path)


def gang(
    count: int, topology: GangTopology | None, *, shape: Shape = ONE, name: str = "g", run_s: float | None = None
) -> list[Request]:
    return [
        Request(
            id=f"{name}{i}",
            shape=shape,
            queue="q",
            gang=name,
            min_member=count,
            topology=topology,
            rank=i,
            run_time_s=run_s,
        )
        for i in range(count)
    ]


def started(scheduler: Scheduler, requests: Sequence[Request], now_s: float = 1.0) -> dict[str, str]:
    """Submit requests, run a cycle, and return the node of each request that was started."""
    for request in requests:
        scheduler.submit(request)
    return {d.id: d.node for d in scheduler.cycle(now_s) if isinstance(d, Bind)}


def cluster_of(free: Sequence[Sequence[Sequence[int]]], **options: object) -> Scheduler:
    """Return a scheduler whose nodes have these numbers of devices, by block, rack and node."""
    nodes = [
        node(f"n{b}.{r}.{n}", gpus, f"b{b}", f"r{b}.{r}")
        for b, racks in enumerate(free)
        for r, rack in enumerate(racks)
        for n, gpus in enumerate(rack)
    ]
    return Scheduler(nodes, QUEUE, levels=LEVELS, options=Options(**options))  # type: ignore[arg-type]


def domains(level: str, nodes: Sequence[str]) -> set[str]:
    """Return the blocks, racks or nodes of some nodes of ``cluster_of``."""
    return {".".join(name.split(".")[: {"block": 1, "rack": 2, "node": 3}[level]]) for name in nodes}


FREE = st.lists(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3
)


@settings(max_examples=examples(400))
@given(free=FREE, count=st.integers(1, 14), required=st.sampled_from(["", "block", "rack", "node"]))
def test_gang_starts_in_one_required_domain_if_and_only_if_one_holds_it(
    free: list[list[list[int]]], count: int, required: str
) -> None:
    scheduler = cluster_of(free)
    topology = GangTopology(required=required, preferred="" if required else "rack")
    placed = started(scheduler, gang(count, topology))
    blocks = [sum(map(sum, racks)) for racks in free]
    racks = [sum(rack) for block in free for rack in block]
    nodes = [gpus for block in free for rack in block for gpus in rack]
    sizes = {"": [sum(blocks)], "block": blocks, "rack": racks, "node": nodes}[required]
    assert len(placed) == (count if max(sizes) >= count else 0)
    if placed and required:
        assert len(domains(required, list(placed.values()))) == 1


@settings(max_examples=examples(400))
@given(free=FREE, count=st.integers(1, 14))
def test_gang_is_in_the_innermost_domain_that_holds_it_and_in_as_few_as_possible_below(
    free: list[list[list[int]]], count: int
) -> None:
    scheduler = cluster_of(free)
    placed = list(started(scheduler, gang(count, GangTopology(preferred="node"))).values())
    if not placed:
        return
    racks = {f"n{b}.{r}": sum(rack) for b, block in enumerate(free) for r, rack in enumerate(block)}
    if max(gpus for block in free for rack in block for gpus in rack) >= count:
        assert len(domains("node", placed)) == 1
    elif max(racks.values()) >= count:
        sufficient = [size for size in racks.values() if size >= count]
        used = domains("rack", placed)
        assert len(used) == 1
        fewest = min(_fewest(rack, count) for block in free for rack in block if sum(rack) >= count)
        assert len(domains("node", placed)) == fewest
        full = [size for size in sufficient if size == racks[next(iter(used))]]
        assert full
    elif any(sum(map(sum, block)) >= count for block in free):
        assert len(domains("block", placed)) == 1
        fewest = min(_fewest([sum(r) for r in block], count) for block in free if sum(map(sum, block)) >= count)
        assert len(domains("rack", placed)) == fewest


def _fewest(sizes: Sequence[int], count: int) -> int:
    """Return the smallest number of domains that hold ``count`` members, trying all sets of domains."""
    return next(
        number
        for number in range(1, len(sizes) + 1)
        if any(sum(chosen) >= count for chosen in itertools.combinations(sizes, number))
    )


@settings(max_examples=examples(200))
@given(free=FREE, slices=st.integers(1, 4), size=st.integers(1, 4), required=st.sampled_from(["", "block"]))
def test_slices_are_in_one_domain_each_and_start_if_and_only_if_there_is_room(
    free: list[list[list[int]]], slices: int, size: int, required: str
) -> None:
    scheduler = cluster_of(free)
    topology = GangTopology(required=required, slice_level="rack", slice_size=size)
    placed = started(scheduler, gang(slices * size, topology))
    blocks = [sum(sum(rack) // size for rack in block) for block in free]
    assert bool(placed) == ((max(blocks) if required else sum(blocks)) >= slices)
    for number in range(slices if placed else 0):
        members = [placed[f"g{i}"] for i in range(number * size, (number + 1) * size)]
        assert len(domains("rack", members)) == 1
    if placed and required:
        assert len(domains("block", list(placed.values()))) == 1


@settings(max_examples=examples(150))
@given(seed=st.integers(0, 10**6))
def test_members_of_different_shapes_are_in_the_required_domain(seed: int) -> None:
    rng = random.Random(seed)
    free = [[[rng.randint(0, 3) for _ in range(2)] for _ in range(2)] for _ in range(2)]
    shapes = [Shape(gpu_count=2, gpu_milli=1000), ONE, Shape(cpu_milli=1000), Shape(gpu_count=1, gpu_milli=500)]
    members = [rng.choice(shapes) for _ in range(rng.randint(2, 5))]
    topology = GangTopology(required="rack")
    scheduler = cluster_of(free)
    requests = [replace(r, shape=s) for r, s in zip(gang(len(members), topology), members, strict=True)]
    placed = started(scheduler, requests)
    alone = []
    for b, block in enumerate(free):
        for r, rack in enumerate(block):
            small = Scheduler([node(f"m{b}.{r}.{i}", gpus) for i, gpus in enumerate(rack)], QUEUE)
            alone.append(bool(started(small, [replace(request, topology=None) for request in requests])))
    assert bool(placed) == any(alone)
    if placed:
        assert len(placed) == len(members)
        assert len(domains("rack", list(placed.values()))) == 1


def test_mig_members_are_counted_as_they_fit() -> None:
    nodes = [node(f"n{i}", 1, "b", f"r{i // 2}", mig=True) for i in range(6)]
    scheduler = Scheduler(nodes, QUEUE, levels=LEVELS)
    shape = Shape(gpu_count=1, mig_profile="3g.20gb")
    assert len(started(scheduler, gang(2, None, shape=shape, name="other"))) == 2
    placed = started(scheduler, gang(4, GangTopology(required="rack"), shape=shape), 2.0)
    assert len(placed) == 4
    assert len({int(name[1:]) // 2 for name in placed.values()}) == 1
    assert not started(scheduler, gang(5, GangTopology(required="rack"), shape=shape, name="h"), 3.0)


def test_neighbours_in_rank_are_neighbours_in_the_network() -> None:
    nodes = [node(f"n{i}", 2, "b", f"r{i // 4}") for i in range(16)]
    scheduler = Scheduler(nodes, QUEUE, levels=LEVELS)
    placed = started(scheduler, gang(24, GangTopology(required="block")))
    racks = [int(placed[f"g{i}"][1:]) // 4 for i in range(24)]
    assert sum(one != other for one, other in itertools.pairwise(racks)) == 2
    assert sum(placed[f"g{i}"] != placed[f"g{i + 1}"] for i in range(23)) == 11


@settings(max_examples=examples(100))
@given(seed=st.integers(0, 10**6))
def test_replacement_and_surplus_stay_in_the_domain_of_their_gang(seed: int) -> None:
    rng = random.Random(seed)
    free = [[[rng.randint(0, 3) for _ in range(3)] for _ in range(3)] for _ in range(2)]
    required = rng.choice(["rack", "block"])
    scheduler = cluster_of(free)
    count = rng.randint(2, 4)
    topology = GangTopology(required=required)
    requests = gang(count, topology)
    placed = started(scheduler, requests)
    if not placed:
        return
    home = domains(required, list(placed.values()))
    scheduler.unbind("g1")
    for r in rng.sample(range(20), 2):
        scheduler.submit(Request(id=f"x{r}", shape=ONE, queue="q", priority=rng.choice((-1, 1))))
    extra = replace(requests[0], id="extra", rank=count)
    scheduler.submit(extra)
    for now_s in (2.0, 3.0):
        for d in scheduler.cycle(now_s):
            if isinstance(d, Bind) and not d.id.startswith("x"):
                placed[d.id] = d.node
    assert domains(required, list(placed.values())) == home


def test_replacement_returns_to_the_rack_of_its_slice() -> None:
    scheduler = cluster_of([[[2, 2], [3, 2], [4, 4]]])
    placed = started(scheduler, gang(8, GangTopology(slice_level="rack", slice_size=4)))
    rack = domains("rack", [placed["g0"]])
    assert domains("rack", [placed[f"g{i}"] for i in range(4)]) == rack
    scheduler.finished("g2")
    again = started(
        scheduler, [replace(gang(8, GangTopology(slice_level="rack", slice_size=4))[2], id="g2.again")], 5.0
    )
    assert domains("rack", list(again.values())) == rack


def test_preferred_level_falls_back_one_level_at_a_time() -> None:
    scheduler = cluster_of([[[1, 1], [1, 1]], [[2, 1], [2, 1]], [[1], [1], [1]]])
    placed = started(scheduler, gang(5, GangTopology(preferred="rack")))
    assert domains("block", list(placed.values())) == {"n1"}
    waiting = cluster_of([[[1, 1], [1, 1]], [[2, 1], [2, 1]]])
    assert not started(waiting, gang(5, GangTopology(required="rack", preferred="block")))


def test_fullest_rack_that_holds_the_gang_is_taken() -> None:
    scheduler = cluster_of([[[2, 2, 2], [2, 1], [2, 2]]])
    placed = started(scheduler, gang(3, GangTopology(required="rack")))
    assert domains("rack", list(placed.values())) == {"n0.1"}


def test_unknown_required_level_keeps_the_gang_waiting_and_levels_may_come_later() -> None:
    nodes = [node(f"n{i}", 1) for i in range(4)]
    scheduler = Scheduler(nodes, QUEUE)
    assert not started(scheduler, gang(2, GangTopology(required="rack")))
    scheduler.set_levels(["rack"], {"n1": ["a"], "n3": ["a"]})
    assert set(started(scheduler, [], 2.0).values()) == {"n1", "n3"}


def test_node_without_a_domain_shares_none() -> None:
    nodes = [node(f"n{i}", 2) for i in range(4)]
    scheduler = Scheduler(nodes, QUEUE, levels=["rack"])
    assert not started(scheduler, gang(3, GangTopology(required="rack")))
    assert len(set(started(scheduler, gang(2, GangTopology(required="rack"), name="h"), 2.0).values())) == 1


def test_two_groups_of_a_gang_are_placed_independently() -> None:
    scheduler = cluster_of([[[2], [2]]])
    groups = [GangTopology(required="rack", group=name) for name in ("decode", "prefill")]
    requests = [replace(r, topology=groups[i // 2]) for i, r in enumerate(gang(4, groups[0]))]
    placed = started(scheduler, requests)
    assert len(domains("rack", [placed["g0"], placed["g1"]])) == len(domains("rack", [placed["g2"], placed["g3"]])) == 1


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 10**6))
def test_gangs_without_topology_are_decided_as_in_a_cluster_without_levels(seed: int) -> None:
    rng = random.Random(seed)
    paths = [(f"b{rng.randint(0, 1)}", f"r{rng.randint(0, 2)}") for _ in range(8)]
    nodes = [node(f"n{i}", rng.randint(0, 4), *path) for i, path in enumerate(paths)]
    schedulers = [
        Scheduler(nodes, QUEUE, levels=LEVELS),
        Scheduler([replace(n, domains=()) for n in nodes], QUEUE),
    ]
    for step in range(12):
        shape = rng.choice([ONE, Shape(gpu_count=2, gpu_milli=1000), Shape(gpu_count=1, gpu_milli=400)])
        requests = gang(rng.randint(1, 5), None, shape=shape, name=f"g{step}.")
        one, other = (started(s, requests, float(step)) for s in schedulers)
        assert one == other


def test_domains_know_segments_names_and_distances() -> None:
    nodes = [node("n10", 1, "b", "r1"), node("n9", 1, "b", "r1"), node("n1", 1, "b", "r2"), node("n2", 1)]
    scheduler = Scheduler(nodes, QUEUE, levels=LEVELS)
    found = domains_of(scheduler.cluster)
    names = scheduler.cluster.names
    assert [names[row] for row in found.rows] == ["n9", "n10", "n1", "n2"]
    rows = scheduler.cluster.row_of
    assert [found.distance(rows["n9"], rows[name]) for name in ("n9", "n10", "n1", "n2")] == [0, 2, 4, 6]
    assert [found.name(2, d) for d in range(3)] == ["b/r1", "b/r2", "n2"]
    assert found.count_domains(2, list(rows.values())) == 3


@pytest.mark.parametrize("levels", [["rack", "rack"], ["node"], [""], [f"l{i}" for i in range(17)]])
def test_invalid_levels_are_refused(levels: list[str]) -> None:
    with pytest.raises(CalabashError):
        Scheduler([node("n", 1)], QUEUE, levels=levels)


@pytest.mark.parametrize("fields", [{}, {"slice_level": "rack"}, {"required": "rack", "slice_size": 2}])
def test_topology_request_without_meaning_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(CalabashError):
        GangTopology(**fields)  # type: ignore[arg-type]
