"""Tests of start groups: their equivalence keys, and that equal shapes of waiting requests are one object."""

from __future__ import annotations

from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Defer, Request
from calabash.sched.queues.gang import start_groups_of
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler


def card() -> Shape:
    return Shape(gpu_count=1, gpu_milli=1000)


def scheduler(cards: int) -> Scheduler:
    gpus = tuple(GpuSpec(model="H100", memory_mib=81920) for _ in range(cards))
    node = NodeSpec(name="n", cpu_milli=64_000, memory_mib=1 << 20, gpus=gpus)
    return Scheduler([node], [QueueSpec(name="q")])


def member(name: str, *, min_member: int) -> Request:
    return Request(id=name, queue="q", shape=card(), gang="g", min_member=min_member, submitted_at_s=float(name[1:]))


def test_equal_shapes_of_waiting_requests_are_one_object() -> None:
    world = scheduler(1)
    first, second = card(), card()
    assert first is not second
    for name, shape in (("a", first), ("b", second)):
        world.submit(Request(id=name, queue="q", shape=shape))
    assert world.registry.request("a").shape is world.registry.request("b").shape


def test_equivalence_key_of_an_old_start_group_follows_changes_of_its_gang() -> None:
    world = scheduler(1)
    for i in range(3):
        world.submit(member(f"m{i}", min_member=1))
    gang = world.registry.gang_of("m0")
    surplus = [p for p in start_groups_of(gang) if p.requests[0].id != "m0"]
    assert [p.equivalence_key for p in surplus] == [("q", 0, card(), 1)] * 2
    world.cycle(0.0)
    assert [p.equivalence_key for p in surplus] == [("q", 0, card(), 0)] * 2


def test_core_of_several_members_and_incomplete_gang_have_no_equivalence_key() -> None:
    world = scheduler(1)
    world.submit(member("m0", min_member=2))
    assert [p.equivalence_key for p in start_groups_of(world.registry.gang_of("m0"))] == [None]
    world.submit(member("m1", min_member=2))
    assert [p.equivalence_key for p in start_groups_of(world.registry.gang_of("m0"))] == [None]


def test_only_the_reserved_request_of_equivalent_ones_has_an_estimated_start() -> None:
    world = scheduler(1)
    world.submit(Request(id="r", queue="q", shape=card(), run_time_s=100.0))
    assert [d.id for d in world.cycle(0.0) if isinstance(d, Bind)] == ["r"]
    for i in range(3):
        world.submit(Request(id=f"w{i}", queue="q", shape=card(), submitted_at_s=float(i)))
    told = {d.id: d.explanation for d in world.cycle(1.0) if isinstance(d, Defer)}
    assert told["w0"].estimated_start_s == 100.0
    assert told["w1"].estimated_start_s is None
    assert told["w1"] is told["w2"]
