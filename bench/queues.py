"""Queues at scale: gangs, reclaim, consolidation, explanations and fairness, by the scheduler itself without a cluster.

Goals were set to improve on the published cases of large open schedulers: a gang of 512 on 512 nodes, reclaim of 2,000
devices, 41 eight-device requests that need consolidation at 500 nodes, explanations of pending requests at 100,000 devices.
Times are processor time, in CPU units (``bench._reference``), one of which is about 1 ms on the machines where they were set.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench._reference import CpuTime, add_cpu_time, cpu_time
from bench._report import Report, run
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Decision, Evict, Move, Options, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sim.queueing import Load, Queueing, random_jobs

DEVICES = 8
HOUR_S = 3600.0
# Goals: CPU units.
GANG = 200
RECLAIM_ONE = 100
RECLAIM_MANY = 6_000
CONSOLIDATION = 500
WHY = 10
HOPELESS = 0.05
SIZES = [Shape(gpu_count=count, gpu_milli=1000) for count in (1, 1, 1, 1, 2, 2, 4)]


def whole(count: int) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000)


def cluster(nodes: int) -> list[NodeSpec]:
    gpus = tuple(GpuSpec(model="H100", memory_mib=81920) for _ in range(DEVICES))
    return [NodeSpec(name=f"n{i}", cpu_milli=192_000, memory_mib=1 << 21, gpus=gpus) for i in range(nodes)]


def halves(nodes: int, options: Options | None = None) -> Scheduler:
    """Return a scheduler with two queues that deserve half each; one of them holds everything in two-device requests."""
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


def timed(scheduler: Scheduler, now_s: float) -> tuple[CpuTime, Sequence[Decision]]:
    """Return the processor time of one cycle, and its decisions."""
    with cpu_time() as took:
        decisions = scheduler.cycle(now_s)
    return took, decisions


def count(decisions: Sequence[Decision], kind: type) -> int:
    return sum(isinstance(d, kind) for d in decisions)


def measure_gang(report: Report) -> None:
    """Measure 512 members of eight devices on 512 nodes."""
    times = []
    for _ in range(3):
        scheduler = Scheduler(cluster(512), [QueueSpec(name="q")])
        for i in range(512):
            scheduler.submit(Request(id=f"g{i}", queue="q", shape=whole(DEVICES), gang="g", min_member=512))
        took, decisions = timed(scheduler, 0.0)
        assert count(decisions, Bind) == 512
        times.append(took)
    best = min(times, key=lambda one: one.units)
    add_cpu_time(report, "gang of 512 on 512 nodes, decided", best, at_most=GANG, detail="best of 3")


def measure_reclaim(report: Report) -> None:
    scheduler = halves(500)
    scheduler.submit(Request(id="one", queue="prod", shape=whole(1)))
    took, decisions = timed(scheduler, 1.0)
    assert count(decisions, Evict) == 1
    add_cpu_time(report, "reclaim of one device at 500 nodes", took, at_most=RECLAIM_ONE)
    nodes = 2_000 if report.quick else 12_500
    scheduler = halves(nodes)
    for i in range(250):
        scheduler.submit(Request(id=f"g{i}", queue="prod", shape=whole(DEVICES), gang="g", min_member=250))
    took, decisions = timed(scheduler, 1.0)
    assert count(decisions, Bind) == 250
    where = f"{nodes * DEVICES:,} devices"
    add_cpu_time(report, "reclaim of 2,000 devices for one gang", took, at_most=RECLAIM_MANY, detail=where)
    report.add("evicted over asked devices", count(decisions, Evict) * 2 / 2000, "ratio", at_most=1.2)


def measure_consolidation(report: Report) -> None:
    """Measure consolidation: seven of eight devices are free on every node, and 41 requests for eight need 41 moves."""
    options = Options(defragment_moves_max=4)
    scheduler = Scheduler(cluster(500), [QueueSpec(name="q")], options=options)
    for row in range(500):
        request = Request(id=f"s{row}", queue="q", shape=whole(1))
        scheduler.adopt(request, placement=NodePlacement(node=row, devices=(row % DEVICES,)), started_at_s=0.0)
    for i in range(41):
        scheduler.submit(Request(id=f"b{i}", queue="q", shape=whole(DEVICES)))
    took, decisions = timed(scheduler, 1.0)
    assert count(decisions, Bind) == 41
    add_cpu_time(report, "consolidation for 41 x 8 devices at 500 nodes", took, at_most=CONSOLIDATION)
    report.add("moves for them", count(decisions, Move), "moves", at_most=41)


def measure_why(report: Report) -> None:
    for nodes in (500, 12_500):
        scheduler = halves(nodes)
        scheduler.submit(Request(id="x", queue="research", shape=whole(DEVICES)))
        scheduler.cycle(1.0)
        with cpu_time() as took:
            reported = scheduler.explain("x", 2.0)
        assert reported.causes
        add_cpu_time(report, f"why is it pending, {nodes * DEVICES:,} devices", took, at_most=WHY)


def measure_hopeless(report: Report) -> None:
    many = 5_000 if report.quick else 20_000
    scheduler = halves(500)
    for i in range(many):
        scheduler.submit(Request(id=f"p{i}", queue="research", shape=whole(1 + i % DEVICES), submitted_at_s=float(i)))
    scheduler.cycle(1.0)
    took, decisions = timed(scheduler, 2.0)
    assert not decisions
    name, detail = "a request that cannot run, per cycle", f"{many:,} wait"
    add_cpu_time(report, name, took, at_most=HOPELESS, times=many, detail=detail)


def measure_fairness(report: Report) -> None:
    """Measure three queues that always want more than there is, on 32 devices, for 36 hours."""
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
    """Measure all."""
    measure_gang(report)
    measure_reclaim(report)
    measure_consolidation(report)
    measure_why(report)
    measure_hopeless(report)
    measure_fairness(report)


if __name__ == "__main__":
    run("queues", "Queues, gangs, reclaim and explanations", measure)
