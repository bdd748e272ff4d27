"""Tests of gangs of different shapes: a placement is found if there is one, compared with trying all placements."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.examples import examples

from calabash.model.messages import in_full
from calabash.sched.actions.packing import pack
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Evict, Options, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler

DEFAULT_CASES = examples(1200)
PARTS = 4


def random_nodes(rng: random.Random) -> list[NodeSpec]:
    return [
        NodeSpec(
            name=f"n{i}",
            cpu_milli=rng.choice((2000, 4000, 8000)),
            memory_mib=rng.choice((4096, 8192)),
            gpus=tuple(
                GpuSpec(model=rng.choice(("T4", "P40")), memory_mib=16384) for _ in range(rng.choice((0, 1, 2, 3)))
            ),
            labels={"zone": rng.choice("ab")},
        )
        for i in range(rng.randint(1, 3))
    ]


def random_member(rng: random.Random) -> Shape:
    kind = rng.choice(("cpu", "whole", "share", "shares", "memory"))
    amounts: dict[str, dict[str, Any]] = {
        "cpu": {},
        "whole": {"gpu_count": rng.choice((1, 1, 2)), "gpu_milli": 1000},
        "share": {"gpu_count": 1, "gpu_milli": rng.choice((300, 400, 600, 700))},
        "shares": {"gpu_count": 2, "gpu_milli": rng.choice((300, 500))},
        "memory": {"gpu_count": 1, "gpu_milli": rng.choice((100, 500)), "gpu_memory_mib": rng.choice((6000, 10000))},
    }
    return Shape(
        cpu_milli=rng.choice((0, 1000, 2000, 4000)),
        memory_mib=rng.choice((0, 0, 4096)),
        models=frozenset(rng.choice(((), (), ("T4",), ("P40",)))) if kind != "cpu" else frozenset(),
        selector=rng.choice(((), (), ("zone=a",), ("zone=b",))),
        **amounts[kind],
    )


def fits_somehow(nodes: Sequence[NodeSpec], members: Sequence[Shape]) -> bool:
    """Return True if all members can be placed on an empty cluster, trying every placement."""
    hosts = [[node.cpu_milli, node.memory_mib] for node in nodes]
    devices = [[[1000, gpu.memory_mib] for gpu in node.gpus] for node in nodes]

    def ways(shape: Shape) -> Iterator[tuple[int, tuple[int, ...]]]:
        for at, node in enumerate(nodes):
            wanted = [text.partition("=")[2] for text in shape.selector]
            if hosts[at][0] < shape.cpu_milli or hosts[at][1] < shape.memory_mib:
                continue
            if any(node.labels["zone"] != zone for zone in wanted):
                continue
            memory_mib = 16384 if shape.whole else shape.gpu_memory_mib
            able = [
                d
                for d, (milli, mib) in enumerate(devices[at])
                if milli >= shape.gpu_milli
                and mib >= memory_mib
                and (not shape.models or node.gpus[d].model in shape.models)
            ]
            yield from ((at, chosen) for chosen in itertools.combinations(able, shape.gpu_count))

    def take(shape: Shape, at: int, chosen: tuple[int, ...], sign: int) -> None:
        hosts[at][0] -= sign * shape.cpu_milli
        hosts[at][1] -= sign * shape.memory_mib
        for device in chosen:
            devices[at][device][0] -= sign * shape.gpu_milli
            devices[at][device][1] -= sign * (16384 if shape.whole else shape.gpu_memory_mib)

    def place(number: int) -> bool:
        if number == len(members):
            return True
        for at, chosen in list(ways(members[number])):
            take(members[number], at, chosen, 1)
            if place(number + 1):
                return True
            take(members[number], at, chosen, -1)
        return False

    return place(0)


def gang_of(shapes: Sequence[Shape], queue: str = "q") -> list[Request]:
    return [
        Request(id=f"m{i}", queue=queue, gang="g", min_member=len(shapes), shape=shape)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("part", range(PARTS))
def test_gang_of_different_shapes_starts_exactly_if_it_can_be_placed(part: int) -> None:
    count = DEFAULT_CASES // PARTS
    fitted = 0
    for seed in range(part * count, (part + 1) * count):
        rng = random.Random(seed)
        nodes = random_nodes(rng)
        shapes = [random_member(rng) for _ in range(rng.randint(2, 5))]
        policy = rng.choice(("pgb-online", "bestfit", "fgd"))
        scheduler = Scheduler(nodes, [QueueSpec(name="q")], policy=policy)
        for request in gang_of(shapes):
            scheduler.submit(request)
        started = [d for d in scheduler.cycle(0.0) if isinstance(d, Bind)]
        expected = fits_somehow(nodes, shapes)
        assert len(started) == (len(shapes) if expected else 0), f"seed {seed}, policy {policy}"
        assert not scheduler.state.cut, f"seed {seed}: the search reached a bound"
        fitted += expected
    assert count // 10 < fitted < count


@pytest.mark.parametrize("policy", ["pgb-online", "bestfit", "fgd"])
def test_gang_of_different_shapes_that_fits_on_free_devices_evicts_nothing(policy: str) -> None:
    nodes = [
        NodeSpec(name=z, cpu_milli=4000, memory_mib=1 << 20, gpus=(GpuSpec(model="T4"),) * 3, labels={"zone": z})
        for z in "ba"
    ]
    queues = [QueueSpec(name="own", deserved=Amount(2000)), QueueSpec(name="lent")]
    scheduler = Scheduler(nodes, queues, policy=policy, options=Options(reservations=0))
    for name, devices, node, evictable in (("borrower", 2, "b", True), ("other", 1, "a", False)):
        shape = Shape(gpu_count=devices, gpu_milli=1000)
        scheduler.adopt(Request(id=name, queue="lent", shape=shape, evictable=evictable), node=node, started_at_s=0.0)
    members = [Shape(gpu_count=1, gpu_milli=1000, cpu_milli=4000), Shape(cpu_milli=4000, selector=("zone=b",))]
    for request in gang_of(members, "own"):
        scheduler.submit(request)
    decided = scheduler.cycle(1.0)
    assert {d.id: d.node for d in decided if isinstance(d, Bind)} == {"m0": "a", "m1": "b"}
    assert not [d for d in decided if isinstance(d, Evict)]


def test_explanation_says_that_not_all_placements_of_a_gang_were_tried() -> None:
    """Use devices that take two members each and a gang of one member more than fits, so that the search reaches its bound."""
    nodes = [NodeSpec(name=f"n{i}", cpu_milli=1000 + i, memory_mib=1 << 20, gpus=(GpuSpec(),) * 2) for i in range(8)]
    scheduler = Scheduler(nodes, [QueueSpec(name="q")], options=Options(reservations=0))
    shapes = [Shape(gpu_count=1, gpu_milli=340 + i, cpu_milli=i) for i in range(33)]
    for request in gang_of(shapes):
        scheduler.submit(request)
    assert not [d for d in scheduler.cycle(0.0) if isinstance(d, Bind)]
    assert scheduler.state.cut
    assert "not all ways to place them together were tried" in in_full(scheduler.explain("m0", 0.0).summary)


def test_failed_search_leaves_the_transaction_unchanged() -> None:
    scheduler = Scheduler(
        [NodeSpec(name="n", cpu_milli=4000, memory_mib=8192, gpus=(GpuSpec(),) * 2)], [QueueSpec(name="q")]
    )
    before = scheduler.cluster.gpu_free_milli.copy()
    shapes = [Shape(gpu_count=1, gpu_milli=700), Shape(gpu_count=1, gpu_milli=600), Shape(gpu_count=1, gpu_milli=500)]
    found = pack(scheduler.state.transaction, gang_of(shapes))
    assert (found.placed, found.cut) == (None, False)
    assert (scheduler.cluster.gpu_free_milli == before).all()
    assert scheduler.state.transaction.mark() == 0
