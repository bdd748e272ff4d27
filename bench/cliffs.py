"""Slow cases of the scheduler: cycles and single decisions over worlds that make the most work, on 1,000 nodes of 8 devices.

Each case builds a world, measures one or more steps in it, and checks what the step decided, so that a case that decides
nothing fails. Times are processor time in CPU units (``bench._reference``), one of which is about 1 ms on the machines where
the goals were set; a goal therefore reads as the wanted milliseconds. The detail of a figure gives the measured milliseconds.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench._reference import CpuTime, add_cpu_time, cpu_time
from bench._report import Report, run
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Decision, Options, Request
from calabash.sched.queues.spec import QUEUE_DEPTH_MAX, UNLIMITED, QueueSpec
from calabash.sched.rounds import CycleLimit
from calabash.sched.scheduler import Scheduler

DEVICES = 8
QUEUE = QueueSpec(name="q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of all cases: nodes of the cluster, and the divisor of the numbers of requests and queues."""

    nodes: int
    part: int

    def count(self, full: int) -> int:
        """Return how many requests or queues there are for so many in full size."""
        return max(1, full // self.part)


FULL = Size(nodes=1_000, part=1)
QUICK = Size(nodes=100, part=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measured step of a case.

    Attributes:
        wanted_ms: goal in full size, milliseconds of processor time.
        decided: number of decisions by the name of their class.
        promised: reservations afterwards.
    """

    name: str
    wanted_ms: float
    took: CpuTime
    decided: Counter[str]
    promised: int


Case = Callable[[Size], Iterator[Step]]


def measured(name: str, wanted_ms: float, scheduler: Scheduler, step: Callable[[], Sequence[Decision]]) -> Step:
    """Take the processor time of one step. The garbage of what the case has built is collected before."""
    gc.collect()
    with cpu_time() as took:
        decisions = step()
    decided = Counter(type(decision).__name__ for decision in decisions)
    promised = len(scheduler.state.reservations)
    return Step(name=name, wanted_ms=wanted_ms, took=took, decided=decided, promised=promised)


def whole(count: int, cpu_milli: int = 0) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000, cpu_milli=cpu_milli)


def devices(count: float) -> Amount:
    return Amount(count * 1000)


def cluster(
    nodes: int, queues: Sequence[QueueSpec] = (QUEUE,), limit: CycleLimit | None = None, **options: float
) -> Scheduler:
    gpus = tuple(GpuSpec(model="A100", memory_mib=40960, numa=k // 4) for k in range(DEVICES))
    specs = [NodeSpec(name=f"n{i}", cpu_milli=96_000, memory_mib=1 << 20, gpus=gpus) for i in range(nodes)]
    return Scheduler(specs, queues, options=Options(**options), limit=limit)  # type: ignore[arg-type]


def fill(scheduler: Scheduler, nodes: int, shape: Shape, each: int, queue: str = "q", **more: float) -> None:
    """Run so many requests of one shape on each node since time 0."""
    for node in range(nodes):
        for k in range(each):
            request = Request(id=f"r{node}.{k}", queue=queue, shape=shape, **more)  # type: ignore[arg-type]
            scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    scheduler.cycle(0.5)


def halves(nodes: int) -> list[QueueSpec]:
    """Return a queue that deserves half of the devices, and one that deserves none."""
    return [QueueSpec(name="own", deserved=devices(nodes * DEVICES / 2)), QUEUE]


def reclaims(size: Size) -> Iterator[Step]:
    scheduler = cluster(size.nodes, halves(size.nodes))
    fill(scheduler, size.nodes, whole(1), DEVICES)
    count = size.count(100)
    for i in range(count):
        scheduler.submit(Request(id=f"z{i}", queue="own", shape=whole(8)))
    step = measured("reclaims of 8 from borrowers of one device", 300, scheduler, lambda: scheduler.cycle(3.0))
    assert step.decided == {"Bind": count, "Evict": 8 * count, "Defer": 8 * count}, step.decided
    yield step


def two_priorities(size: Size) -> Iterator[Step]:
    draws = random.Random(1)
    scheduler = cluster(size.nodes)
    fill(scheduler, size.nodes, whole(8), 1, run_time_s=500.0)
    count = size.count(5_000)
    for i in range(count):
        run_time_s, priority = draws.choice([None, 10.0, 100.0, 10_000.0]), draws.choice([0, 0, 1])
        shape = whole(draws.choice([1, 2, 4, 8]))
        request = Request(
            id=f"w{i}", queue="q", owner=f"o{i % 500}", shape=shape, run_time_s=run_time_s, priority=priority
        )
        scheduler.submit(request)
    step = measured("one queue with waiting of two priorities", 300, scheduler, lambda: scheduler.cycle(1.0))
    # Only requests for 8 may evict the 8 devices of a victim: about one in twelve is one and has the higher priority.
    assert step.decided["Bind"] == step.decided["Evict"] >= count // 20, step.decided
    yield step


def hopeless(size: Size) -> Iterator[Step]:
    """Yield reclaims that must fail: one request on each node cannot be evicted, so no eviction frees a whole node."""
    scheduler = cluster(size.nodes, halves(size.nodes), reservations=0)
    for node in range(size.nodes):
        for k in range(DEVICES):
            request = Request(id=f"r{node}.{k}", queue="q", shape=whole(1), evictable=k > 0)
            scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    scheduler.cycle(0.5)
    count = size.count(100)
    for i in range(count):
        scheduler.submit(Request(id=f"z{i}", queue="own", shape=whole(8, i + 1)))
    step = measured("hopeless reclaims of distinct shapes", 300, scheduler, lambda: scheduler.cycle(3.0))
    assert step.decided == {"Defer": count}, step.decided
    yield step
    step = measured("hopeless reclaims, later unchanged cycle", 1, scheduler, lambda: scheduler.cycle(4.0))
    assert not step.decided, step.decided
    yield step


def limited(size: Size) -> Iterator[Step]:
    """Yield hopeless reclaims with the time limit of pool and planner, and a request of another queue that fits."""
    limit = CycleLimit(clock=time.thread_time)
    scheduler = cluster(size.nodes, halves(size.nodes), limit, reservations=0)
    for node in range(size.nodes):
        for k in range(DEVICES):
            request = Request(id=f"r{node}.{k}", queue="q", shape=whole(1), evictable=k > 0)
            scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    scheduler.finished("r0.1")
    while scheduler.wake_at_s() == scheduler.state.now_s:
        scheduler.cycle(0.5)
    count = size.count(100)
    for i in range(count):
        scheduler.submit(Request(id=f"z{i}", queue="own", shape=whole(8, i + 1)))
    step = measured("hopeless reclaims, first cycle with a limit of 20 ms", 40, scheduler, lambda: scheduler.cycle(3.0))
    assert 0 < step.decided["Defer"] <= count, step.decided
    yield step
    scheduler.submit(Request(id="n", queue="q", shape=whole(1)))
    step = measured("hopeless reclaims, a newcomer with the limit", 40, scheduler, lambda: scheduler.decide("n", 3.0))
    assert step.decided["Bind"] == 1, step.decided
    yield step


def preemptions(size: Size) -> Iterator[Step]:
    running, count = size.nodes * 3, size.count(200)
    limit = UNLIMITED._replace(gpu_milli=running * 1000)
    scheduler = cluster(size.nodes, [QueueSpec(name="q", limit=limit)])
    for i in range(running):
        scheduler.adopt(Request(id=f"r{i}", queue="q", shape=whole(1)), started_at_s=0.0)
    scheduler.cycle(0.1)
    for i in range(count):
        scheduler.submit(Request(id=f"w{i}", queue="q", shape=whole(8, i), priority=1))
    step = measured("preemptions at a limit", 300, scheduler, lambda: scheduler.cycle(1.0))
    assert step.decided == {"Bind": count, "Evict": 8 * count, "Defer": 8 * count}, step.decided
    yield step


def defragmentations(size: Size) -> Iterator[Step]:
    scheduler = cluster(size.nodes, defragment_moves_max=8)
    for node in range(size.nodes):
        for k in range(4):
            request = Request(id=f"r{node}.{k}", queue="q", shape=Shape(gpu_count=1, gpu_milli=500))
            scheduler.adopt(request, placement=NodePlacement(node=node, devices=(2 * k,)), started_at_s=0.0)
    scheduler.cycle(0.1)
    count = size.count(100)
    for i in range(count):
        scheduler.submit(Request(id=f"d{i}", queue="q", shape=whole(8, i + 1)))
    step = measured("distinct defragmentations", 300, scheduler, lambda: scheduler.cycle(2.0))
    assert step.decided == {"Bind": count, "Move": 4 * count}, step.decided
    yield step


def shapes(size: Size) -> Iterator[Step]:
    scheduler = cluster(size.nodes)
    fill(scheduler, size.nodes, whole(8), 1, run_time_s=500.0)
    count = size.count(3_000)
    for i in range(count):
        shape = Shape(gpu_count=1, gpu_milli=1 + i % 999, cpu_milli=i)
        scheduler.submit(Request(id=f"w{i}", queue="q", shape=shape))
    step = measured("distinct shapes wait, nothing is free", 300, scheduler, lambda: scheduler.cycle(1.0))
    assert step.decided == {"Defer": count}, step.decided
    yield step
    step = measured("distinct shapes, unchanged cycle", 1, scheduler, lambda: scheduler.cycle(2.0))
    assert not step.decided, step.decided
    yield step
    step = measured("distinct shapes, next unchanged cycle", 1, scheduler, lambda: scheduler.cycle(2.5))
    assert not step.decided, step.decided
    yield step
    scheduler.submit(Request(id="n", queue="q", shape=whole(1, 7)))
    scheduler.finished("r0.0")
    step = measured("distinct shapes, a newcomer after an end", 10, scheduler, lambda: scheduler.decide("n", 3.0))
    assert step.decided["Bind"] >= min(count, DEVICES), step.decided
    yield step


def leaf_queues(size: Size) -> Iterator[Step]:
    """Yield decisions with three levels of queues, ten below each, of equal guarantees; one queue holds everything."""
    count = size.count(1_000)
    each = devices(size.nodes * DEVICES / (2 * count))
    tops, middles = -(-count // 100), -(-count // 10)
    queues = [QueueSpec(name="greedy"), *(QueueSpec(name=f"a{i}") for i in range(tops))]
    queues += [QueueSpec(name=f"b{i}", parent=f"a{i // 10}") for i in range(middles)]
    queues += [QueueSpec(name=f"c{i}", parent=f"b{i // 10}", deserved=each) for i in range(count)]
    scheduler = cluster(size.nodes, queues)
    fill(scheduler, size.nodes, whole(8), 1, queue="greedy")
    for i in range(count):
        scheduler.submit(Request(id=f"w{i}", queue=f"c{i}", shape=whole(2)))
    step = measured("leaf queues of three levels, each reclaims 2", 300, scheduler, lambda: scheduler.cycle(1.0))
    assert step.decided["Bind"] == count, step.decided
    assert step.decided["Evict"] == -(-count // 4), step.decided
    yield step


def gangs(size: Size) -> Iterator[Step]:
    scheduler = cluster(size.nodes)
    fill(scheduler, size.nodes, whole(8), 1, run_time_s=1_000.0)
    count = size.count(2_000)
    for i in range(count):
        for member in range(4):
            scheduler.submit(
                Request(
                    id=f"g{i}m{member}", queue="q", gang=f"g{i}", min_member=4, shape=whole(8, i + 1), run_time_s=100.0
                )
            )
    step = measured("distinct gangs of 4x8 that do not fit", 300, scheduler, lambda: scheduler.cycle(1.0))
    assert step.decided == {"Defer": 4 * count}, step.decided
    assert step.promised == 1
    yield step


def reservation(size: Size) -> Iterator[Step]:
    scheduler = cluster(size.nodes)
    for node in range(size.nodes):
        for k in range(DEVICES):
            request = Request(id=f"r{node}.{k}", queue="q", shape=whole(1), run_time_s=float(10 + node + k * 1000))
            scheduler.adopt(request, node=f"n{node}", started_at_s=0.0)
    scheduler.cycle(0.1)
    count = size.count(200)
    for i in range(count):
        scheduler.submit(Request(id=f"y{i}", queue="q", gang="y", min_member=count, shape=whole(8), run_time_s=10.0))
    step = measured("reservation for a gang of members of 8", 100, scheduler, lambda: scheduler.decide("y0", 1.0))
    assert step.decided == {"Defer": count}, step.decided
    assert step.promised == 1
    yield step


def slices(size: Size) -> Iterator[Step]:
    scheduler = cluster(size.nodes, halves(size.nodes), reservations=0)
    fill(scheduler, size.nodes, Shape(gpu_count=1, gpu_milli=100), 10 * DEVICES)
    scheduler.submit(Request(id="x", queue="own", shape=Shape(gpu_count=1, gpu_milli=950)))
    step = measured("reclaim of 0.95 among slices of 0.1", 100, scheduler, lambda: scheduler.decide("x", 1.0))
    assert step.decided == {"Bind": 1, "Evict": 10, "Defer": 10}, step.decided
    yield step


def chain(size: Size) -> Iterator[Step]:
    queues = [QueueSpec(name=f"c{i}", parent=f"c{i - 1}" if i else "") for i in range(QUEUE_DEPTH_MAX)]
    scheduler = cluster(size.nodes, queues)
    count = size.count(2_000)
    for i in range(count):
        scheduler.submit(Request(id=f"w{i}", queue=queues[-1].name, shape=whole(4)))
    step = measured("starts below a chain of queues at the limit", 100, scheduler, lambda: scheduler.cycle(1.0))
    assert step.decided == {"Bind": count}, step.decided
    yield step


def gang(size: Size) -> Iterator[Step]:
    scheduler, count = cluster(5 * size.nodes), size.count(512)
    for i in range(count):
        scheduler.submit(Request(id=f"g{i}", queue="q", gang="g", min_member=count, shape=whole(8)))
    step = measured("gang members of 8 on five times the nodes", 50, scheduler, lambda: scheduler.cycle(0.0))
    assert step.decided == {"Bind": count}, step.decided
    yield step


# With the number of requests or queues in full size.
CASES: tuple[tuple[Case, int], ...] = (
    (reclaims, 100),
    (two_priorities, 5_000),
    (hopeless, 100),
    (limited, 100),
    (preemptions, 200),
    (defragmentations, 100),
    (shapes, 3_000),
    (leaf_queues, 1_000),
    (gangs, 2_000),
    (reservation, 200),
    (slices, 1),
    (chain, 2_000),
    (gang, 512),
)


def measure(report: Report) -> None:
    """Measure all cases. Only the full size has goals."""
    size = QUICK if report.quick else FULL
    report.fact("size", f"{size.nodes:,} nodes of {DEVICES} devices, {5 * size.nodes:,} for the last figure")
    report.fact("what counts", "the ratio to the CPU unit of the same run; a time says how busy the machine was, too")
    for case, full in CASES:
        for step in case(size):
            decided = (
                ", ".join(f"{count:,} {kind}" for kind, count in sorted(step.decided.items())) or "nothing decided"
            )
            goal = None if report.quick else step.wanted_ms
            detail = f"wanted {step.wanted_ms:g} ms; {decided}"
            add_cpu_time(report, f"{size.count(full):,} {step.name}", step.took, at_most=goal, detail=detail)


if __name__ == "__main__":
    run("cliffs", "Slow cases of the scheduler", measure)
