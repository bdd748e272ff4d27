"""Queues at scale: gangs, reclaim, consolidation, explanations and fairness, by the scheduler itself without a cluster.

Goals are those of large open schedulers' published cases, bettered: a gang of 512 on 512 nodes, reclaim of 2,000
devices, 41 eight-device requests that need consolidation at 500 nodes, "why is it pending" at 100,000 devices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench._report import Report, run
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Decision, Evict, Move, Options, Request
from calabash.sched.queues.fairshare import Amount
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sim.queueing import Load, Queueing, random_jobs

DEVICES = 8
HOUR_S = 3600.0
SIZES = [Shape(gpu_count=count, gpu_milli=1000) for count in (1, 1, 1, 1, 2, 2, 4)]


def whole(count: int) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000)


def cluster(nodes: int) -> list[NodeSpec]:
    gpus = tuple(GpuSpec(model="H100", memory_mib=81920) for _ in range(DEVICES))
    return [NodeSpec(name=f"n{i}", cpu_milli=192_000, memory_mib=1 << 21, gpus=gpus) for i in range(nodes)]


def halves(nodes: int, options: Options | None = None) -> Scheduler:
    """Two queues that deserve half each, everything held by one of them in two-device requests."""
    deserved = Amount(nodes * DEVICES * 500)
    queues = [QueueSpec(name="research", deserved=deserved), QueueSpec(name="prod", deserved=deserved)]
    scheduler = Scheduler(cluster(nodes), queues, options=options)
    for row in range(nodes):
        for first in range(0, DEVICES, 2):
            request = Request(id=f"r{row}.{first}", queue="research", shape=whole(2), run_time_s=HOUR_S + row % 997)
            scheduler.adopt(
                request, placement=NodePlacement(node=row, devices=(first, first + 1)), started_at_s=-float(row % 991)
            )
    return scheduler


def timed(scheduler: Scheduler, now_s: float) -> tuple[float, Sequence[Decision]]:
    began = time.perf_counter()
    decisions = scheduler.cycle(now_s)
    return time.perf_counter() - began, decisions


def count(decisions: Sequence[Decision], kind: type) -> int:
    return sum(isinstance(d, kind) for d in decisions)


def measure_gang(report: Report) -> None:
    """512 members of eight devices on 512 nodes."""
    best_s = float("inf")
    for _ in range(3):
        scheduler = Scheduler(cluster(512), [QueueSpec(name="q")])
        for i in range(512):
            scheduler.submit(Request(id=f"g{i}", queue="q", shape=whole(DEVICES), gang="g", min_member=512))
        took_s, decisions = timed(scheduler, 0.0)
        assert count(decisions, Bind) == 512
        best_s = min(best_s, took_s)
    report.add("gang of 512 on 512 nodes, decided", best_s, "s", at_most=0.2, detail="best of 3")


def measure_reclaim(report: Report) -> None:
    scheduler = halves(500)
    scheduler.submit(Request(id="one", queue="prod", shape=whole(1)))
    took_s, decisions = timed(scheduler, 1.0)
    assert count(decisions, Evict) == 1
    report.add("reclaim of one device at 500 nodes", took_s, "s", at_most=1.0)
    nodes = 2_000 if report.quick else 12_500
    scheduler = halves(nodes)
    for i in range(250):
        scheduler.submit(Request(id=f"g{i}", queue="prod", shape=whole(DEVICES), gang="g", min_member=250))
    took_s, decisions = timed(scheduler, 1.0)
    assert count(decisions, Bind) == 250
    where = f"{nodes * DEVICES:,} devices"
    report.add("reclaim of 2,000 devices for one gang", took_s, "s", at_most=10.0, detail=where)
    report.add("evicted over asked devices", count(decisions, Evict) * 2 / 2000, "ratio", at_most=1.2)


def measure_consolidation(report: Report) -> None:
    """Seven of eight devices free on every node: 41 requests for eight need 41 moves."""
    options = Options(defragment_moves_max=4)
    scheduler = Scheduler(cluster(500), [QueueSpec(name="q")], options=options)
    for row in range(500):
        request = Request(id=f"s{row}", queue="q", shape=whole(1))
        scheduler.adopt(request, placement=NodePlacement(node=row, devices=(row % DEVICES,)), started_at_s=0.0)
    for i in range(41):
        scheduler.submit(Request(id=f"b{i}", queue="q", shape=whole(DEVICES)))
    took_s, decisions = timed(scheduler, 1.0)
    assert count(decisions, Bind) == 41
    report.add("consolidation for 41 x 8 devices at 500 nodes", took_s, "s", at_most=10.0)
    report.add("moves for them", count(decisions, Move), "moves", at_most=41)


def measure_why(report: Report) -> None:
    for nodes in (500, 12_500):
        scheduler = halves(nodes)
        scheduler.submit(Request(id="x", queue="research", shape=whole(DEVICES)))
        scheduler.cycle(1.0)
        began = time.perf_counter()
        reported = scheduler.why("x", 2.0)
        took_s = time.perf_counter() - began
        assert reported.causes
        report.add(f"why is it pending, {nodes * DEVICES:,} devices", took_s, "s", at_most=1.0)


def measure_hopeless(report: Report) -> None:
    many = 5_000 if report.quick else 20_000
    scheduler = halves(500)
    for i in range(many):
        scheduler.submit(Request(id=f"p{i}", queue="research", shape=whole(1 + i % DEVICES), submitted_at_s=float(i)))
    scheduler.cycle(1.0)
    took_s, decisions = timed(scheduler, 2.0)
    assert not decisions
    report.add("a request that cannot run, per cycle", took_s / many * 1000, "ms", at_most=1.0, detail=f"{many:,} wait")


def measure_fairness(report: Report) -> None:
    """Three queues that always want more than there is, on 32 devices, for 36 hours."""
    queues = [
        QueueSpec(name="a", deserved=Amount(8000)),
        QueueSpec(name="b", deserved=Amount(8000)),
        QueueSpec(name="c", over_quota_weight=2.0),
    ]
    loads = [
        Load(queue="a", jobs_per_hour=14, run_time_mean_s=HOUR_S, shapes=SIZES),
        Load(queue="b", jobs_per_hour=7, run_time_mean_s=2 * HOUR_S, shapes=SIZES),
        Load(queue="c", jobs_per_hour=14, run_time_mean_s=HOUR_S, shapes=SIZES),
    ]
    half_life_s = 6 * HOUR_S
    errors, used, ratios, seeds = [], [], [], (1,) if report.quick else (1, 2, 3)
    for seed in seeds:
        options = Options(half_life_s=half_life_s, min_run_time_s=300.0)
        scheduler = Scheduler(cluster(4), queues, options=options)
        jobs = random_jobs(loads, until_s=36 * HOUR_S, seed=seed)
        result = Queueing(scheduler, jobs, window_s=half_life_s).run(until_s=36 * HOUR_S)
        errors.append(result.fairness_error_ratio)
        used.append(result.utilization_ratio)
        ratios.append(result.evicted_over_asked_ratio)
    detail = f"seeds {', '.join(map(str, seeds))}; windows of one half-life"
    report.add("fairness error, worst queue and window", max(errors) * 100, "%", at_most=2.0, detail=detail)
    report.add("evicted over asked, whole run", max(ratios), "ratio", at_most=1.2)
    report.add("utilization under that load", min(used) * 100, "%")


def measure(report: Report) -> None:
    """All of it."""
    measure_gang(report)
    measure_reclaim(report)
    measure_consolidation(report)
    measure_why(report)
    measure_hopeless(report)
    measure_fairness(report)


if __name__ == "__main__":
    run("queues", "Queues, gangs, reclaim and explanations", measure)
