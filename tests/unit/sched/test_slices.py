"""Tests of slices of devices: feasibility, charges and reclaim count them."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.sched import (
    UNLIMITED,
    WHOLE_MILLI,
    Amount,
    Bind,
    Defer,
    Evict,
    GpuSpec,
    NodePlacement,
    NodeSpec,
    Options,
    QueueSpec,
    Request,
    Scheduler,
    Shape,
)
from calabash.sched.queues.gang import Unit, units_of

MEMORY_MIB = 81920
WHOLE = Shape(gpu_count=1, gpu_milli=WHOLE_MILLI)


def node(name: str, devices: int) -> NodeSpec:
    return NodeSpec(name=name, cpu_milli=10**6, memory_mib=10**6, gpus=(GpuSpec(memory_mib=MEMORY_MIB),) * devices)


def dust(count: int = 1, slices: int = 1, most: int = 64, milli: int = 0, mib: int = 33) -> Shape:
    return Shape(gpu_count=count, gpu_milli=milli, gpu_memory_mib=mib, gpu_slices=slices, gpu_slices_max=most)


@pytest.mark.parametrize("most", [1, 3, 7, 16, 32, 48, 64])
def test_device_that_is_full_by_count_is_charged_as_a_whole_one(most: int) -> None:
    scheduler = Scheduler([node("a", 1)], [QueueSpec(name="q", limit=UNLIMITED._replace(gpu_milli=WHOLE_MILLI))])
    for i in range(most + 1):
        scheduler.submit(Request(id=f"s{i}", shape=dust(most=most), queue="q", submitted_at_s=float(i)))
    bound = [d.id for d in scheduler.cycle(100.0) if isinstance(d, Bind)]
    assert bound == [f"s{i}" for i in range(most)]
    assert scheduler.tree.used("q").gpu_milli == pytest.approx(WHOLE_MILLI, abs=1e-3)
    assert scheduler.tree.used("q").gpu_milli <= WHOLE_MILLI
    for name in bound:
        scheduler.finished(name)
    assert scheduler.tree.used("q").gpu_milli == 0


@pytest.mark.parametrize("seed", range(40))
def test_charges_of_a_device_cover_its_used_part_and_its_slices(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.choice((7, 32, 48, 64))
    scheduler = Scheduler([node(f"n{i}", 3) for i in range(2)], [QueueSpec(name="q")])
    shapes: dict[str, Shape] = {}
    for i in range(200):
        slices = rng.randint(1, 3)
        shape = dust(rng.randint(1, 2), slices, most, rng.choice((0, 1, 10, 300)), rng.choice((33, 500, 20_000)))
        shapes[f"s{i}"] = shape
        scheduler.submit(Request(id=f"s{i}", shape=shape, queue="q", submitted_at_s=float(i)))
        if i % 20 == 19:
            for decision in scheduler.cycle(float(i)):
                assert not isinstance(decision, Evict)
            there = [r for gang in scheduler.registry.gangs.values() for r in gang.running]
            for name in rng.sample(there, len(there) // 3):
                scheduler.finished(name)
        check_devices(scheduler, most)


def check_devices(scheduler: Scheduler, most: int) -> None:
    """Compare the charges on each device with the part of it that its slices take, computed from the placements alone."""
    slices: dict[tuple[int, int], int] = {}
    charged: dict[tuple[int, int], Fraction] = {}
    used: dict[tuple[int, int], list[Fraction]] = {}
    for gang in scheduler.registry.gangs.values():
        for running in gang.running.values():
            shape = running.request.shape
            for device in running.placement.devices:
                key = (running.placement.node, device)
                slices[key] = slices.get(key, 0) + shape.gpu_slices
                charged[key] = charged.get(key, Fraction(0)) + Fraction(running.charge.gpu_milli) / shape.gpu_count
                parts = used.setdefault(key, [Fraction(0), Fraction(0)])
                parts[0] += Fraction(shape.gpu_milli, WHOLE_MILLI)
                parts[1] += Fraction(shape.gpu_memory_mib, MEMORY_MIB)
    for key, count in slices.items():
        assert count <= most
        assert count == scheduler.cluster.gpu_slices[key]
        assert charged[key] / WHOLE_MILLI >= max(used[key])
        assert charged[key] / WHOLE_MILLI >= Fraction(count, most) - Fraction(count, 10**8)


def test_request_that_finds_no_slice_left_says_so() -> None:
    scheduler = Scheduler([node("a", 2)], [QueueSpec(name="q")])
    for i in range(9):
        scheduler.submit(Request(id=f"s{i}", shape=dust(most=4), queue="q", submitted_at_s=float(i)))
    waits = [d for d in scheduler.cycle(10.0) if isinstance(d, Defer)]
    assert [d.id for d in waits] == ["s8"]
    assert waits[0].reason is Reason.NO_CAPACITY
    assert [in_full(c.text) for c in waits[0].explanation.causes] == [
        "most free slices of a device 0, asked 1 of at most 4"
    ]


def test_placement_beyond_the_slices_of_a_device_is_refused_with_nothing_changed() -> None:
    scheduler = Scheduler([node("a", 1)], [QueueSpec(name="q")])
    place = NodePlacement(node=0, devices=(0,))
    scheduler.cluster.place(dust(slices=3, most=4), place)
    before = scheduler.cluster.gpu_free_mib.copy()
    with pytest.raises(CalabashError, match="3 of at most 4 slices"):
        scheduler.cluster.place(dust(slices=2, most=4), place)
    assert (scheduler.cluster.gpu_free_mib == before).all()
    scheduler.cluster.release(dust(slices=3, most=4), place)
    assert scheduler.cluster.gpu_slices[0, 0] == 0


def test_shape_with_more_slices_than_a_device_takes_is_refused() -> None:
    with pytest.raises(CalabashError, match="65 slices of one device"):
        dust(slices=65)


# ---- reclaim ------------------------------------------------------------------------------------------------------


def world(rng: random.Random) -> tuple[Scheduler, list[Unit]]:
    """Nodes whose devices have borrowed slices, and slices that may not be evicted."""
    nodes = [node("a", rng.randint(1, 4)), node("b", rng.randint(1, 4))]
    queues = [QueueSpec(name="prod", deserved=Amount(gpu_milli=8000)), QueueSpec(name="batch"), QueueSpec(name="kept")]
    scheduler = Scheduler(nodes, queues, options=Options(reclaim_fair_share=False))
    for i in range(rng.randint(1, 9)):
        row = rng.randrange(2)
        there = int(scheduler.cluster.gpu_count[row])
        count = rng.randint(1, min(2, there))
        shape = dust(count, 1, 64, rng.choice((0, 1, 100, 450)), rng.choice((33, 4000)))
        queue, kept = ("kept", True) if rng.random() < 0.15 else ("batch", False)
        request = Request(id=f"u{i}", shape=shape, queue=queue, evictable=not kept)
        devices = tuple(sorted(rng.sample(range(there), count)))
        try:
            scheduler.adopt(request, placement=NodePlacement(node=row, devices=devices), started_at_s=float(i))
        except CalabashError:
            continue
    units = [u for gang in scheduler.registry.gangs.values() if gang.queue == "batch" for u in units_of(gang)]
    return scheduler, units


def fewest_slices(scheduler: Scheduler, units: list[Unit], shape: Shape) -> int | None:
    """Return the fewest slices whose eviction lets the request fit, trying every set of units."""
    best: int | None = None
    for size in range(len(units) + 1):
        for chosen in itertools.combinations(units, size):
            slices = sum(m.request.shape.gpu_count for u in chosen for m in u.members)
            if best is not None and slices >= best:
                continue
            members = [m for u in chosen for m in u.members]
            for m in members:
                scheduler.cluster.release(m.request.shape, m.placement)
            if scheduler.placer.choose(shape) is not None:
                best = slices
            for m in members:
                scheduler.cluster.place(m.request.shape, m.placement, held=True)
    return best


@pytest.mark.parametrize("seed", range(150))
def test_reclaim_of_whole_devices_evicts_the_fewest_slices(seed: int) -> None:
    rng = random.Random(seed)
    scheduler, units = world(rng)
    shape = Shape(gpu_count=rng.randint(1, 3), gpu_milli=WHOLE_MILLI)
    fewest = fewest_slices(scheduler, units, shape)
    scheduler.submit(Request(id="asker", shape=shape, queue="prod", submitted_at_s=50.0))
    decisions = scheduler.cycle(100.0)
    evicted = [d.id for d in decisions if isinstance(d, Evict)]
    started = any(isinstance(d, Bind) and d.id == "asker" for d in decisions)
    assert started == (fewest is not None)
    if fewest is not None:
        assert sum(scheduler.registry.request(name).shape.gpu_count for name in evicted) == fewest


def test_reclaim_finds_the_only_freeable_device_on_the_last_of_many_nodes() -> None:
    queues = [QueueSpec(name="prod", deserved=Amount(gpu_milli=1000)), QueueSpec(name="batch")]
    scheduler = Scheduler([node(f"n{i}", 1) for i in range(400)], queues)
    free = scheduler.cluster.row("n7")
    for row in range(400):
        place = NodePlacement(node=row, devices=(0,))
        scheduler.adopt(
            Request(id=f"b{row}", shape=dust(), queue="batch"),
            placement=place,
            started_at_s=0.0 if row == free else 10.0,  # the oldest is last in eviction order
        )
        if row != free:
            scheduler.adopt(
                Request(id=f"k{row}", shape=dust(), queue="batch", evictable=False), placement=place, started_at_s=0.0
            )
    scheduler.submit(Request(id="asker", shape=WHOLE, queue="prod"))
    decisions = scheduler.cycle(100.0)
    assert [d.id for d in decisions if isinstance(d, Evict)] == [f"b{free}"]
    assert [d.node for d in decisions if isinstance(d, Bind)] == ["n7"]


def test_small_slices_in_quota_keep_no_more_devices_than_they_would_fill() -> None:
    deserved = {"prod": 7000, "batch": 1000}
    queues = [QueueSpec(name=name, deserved=Amount(gpu_milli=milli)) for name, milli in deserved.items()]
    scheduler = Scheduler([node("a", 8)], queues)
    for device in range(8):
        scheduler.adopt(
            Request(id=f"d{device}", shape=dust(), queue="batch"),
            placement=NodePlacement(node=0, devices=(device,)),
            started_at_s=float(device),
        )
    for i in range(7):
        scheduler.submit(Request(id=f"p{i}", shape=WHOLE, queue="prod", submitted_at_s=50.0 + i))
    decisions = scheduler.cycle(100.0)
    assert sorted(d.id for d in decisions if isinstance(d, Bind) and d.id.startswith("p")) == [
        f"p{i}" for i in range(7)
    ]
    assert "d0" not in {d.id for d in decisions if isinstance(d, Evict)}


def test_two_borrowing_queues_do_not_evict_each_other_in_a_loop() -> None:
    """Let both queues borrow on a second device, for which their slices are too small to be in quota."""
    queues = [QueueSpec(name=name, deserved=Amount(WHOLE_MILLI)) for name in "ab"]
    scheduler = Scheduler([node("n", 2)], [*queues, QueueSpec(name="c")], options=Options(reservations=0))
    replica, slot = replace(dust(most=4), mode="timeslice"), replace(dust(most=48), mode="mps")
    for name, queue, shape, device in (
        ("a0", "a", replica, 0),
        ("b0", "b", replica, 0),
        ("c0", "c", replica, 0),
        ("c1", "c", replica, 0),
        ("a1", "a", slot, 1),
    ):
        scheduler.adopt(
            Request(id=name, shape=shape, queue=queue, evictable=queue != "c"),
            placement=NodePlacement(node=0, devices=(device,)),
            started_at_s=0.0,
        )
    scheduler.submit(Request(id="b1", shape=replica, queue="b", submitted_at_s=1.0))
    for _ in range(3):
        assert not [d for d in scheduler.cycle(1.0) if isinstance(d, Evict)]
    assert scheduler.wake_at_s() is None


@pytest.mark.parametrize("best", ["own", "other"])
def test_small_slice_reclaims_on_a_device_with_slices_of_its_queue(best: str) -> None:
    """Use borrowers on two devices, on one of which the queue has a slice in quota; on the other a second one would borrow."""
    scheduler = Scheduler(
        [node("n", 2)],
        [QueueSpec(name="a", deserved=Amount(WHOLE_MILLI)), QueueSpec(name="c")],
        options=Options(reservations=0, reclaim_fair_share=False),
    )
    replica = replace(dust(most=4), mode="timeslice")
    own = 0 if best == "own" else 1
    scheduler.adopt(
        Request(id="a0", shape=replica, queue="a"),
        placement=NodePlacement(node=0, devices=(own,)),
        started_at_s=0.0,
    )
    for number, device in enumerate((0,) * (4 - (own == 0)) + (1,) * (4 - (own == 1))):
        scheduler.adopt(
            Request(id=f"c{number}", shape=replica, queue="c"),
            placement=NodePlacement(node=0, devices=(device,)),
            started_at_s=float(number),
        )
    scheduler.submit(Request(id="a1", shape=replica, queue="a", submitted_at_s=10.0))
    bound = [d for d in scheduler.cycle(10.0) if isinstance(d, Bind)]
    assert [(d.id, d.placement.devices) for d in bound] == [("a1", (own,))]
