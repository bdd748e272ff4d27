"""Long-run shares of queues with and without a half-life of past use, in simulated time, with the options of a pool.

Both cases are those for which past use exists. In the first, two queues share one device, and the programs of one run
eight times as long: queues that alternate get unequal parts of the time. In the second, one queue has the devices for itself
for two days, and the other one asks for all of them only then.
"""

from __future__ import annotations

from bench._report import Report, run
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Options
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sim.queueing import Load, Queueing, random_jobs

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
ONE = [Shape(gpu_count=1, gpu_milli=1000)]
HALF_LIVES_S = {"no half-life": 0.0, "half-life 1 d": DAY_S, "half-life 7 d": 7 * DAY_S}


def scheduler_of(devices: int, half_life_s: float) -> Scheduler:
    options = Options(half_life_s=half_life_s, reclaim_fair_share=False, preempt=False)
    node = NodeSpec(name="n", cpu_milli=192_000, memory_mib=1 << 21, gpus=(GpuSpec(),) * devices)
    return Scheduler([node], [QueueSpec(name="long"), QueueSpec(name="short")], options=options)


def share_of_short(devices: int, half_life_s: float, loads: list[Load], *, until_s: float, seed: int) -> float:
    """Return the part of the time of the devices in use that queue ``short`` had, in percent."""
    jobs = random_jobs(loads, until_s=until_s, seed=seed)
    if devices > 1:  # the queue asks for nothing in the first two days
        jobs = [j for j in jobs if j.request.queue == "long" or j.request.submitted_at_s >= 2 * DAY_S]
    result = Queueing(scheduler_of(devices, half_life_s), jobs, window_s=DAY_S).run(until_s=until_s)
    shares = {figures.queue: figures.share_ratio for figures in result.queues}
    return 100 * shares["short"] / (shares["short"] + shares["long"])


def measure(report: Report) -> None:
    """Measure all."""
    alternate = [
        Load(queue="long", jobs_per_hour=0.25, run_time_mean_s=8 * HOUR_S, shapes=ONE),
        Load(queue="short", jobs_per_hour=2.0, run_time_mean_s=HOUR_S, shapes=ONE),
    ]
    late = [
        Load(queue="long", jobs_per_hour=12.0, run_time_mean_s=HOUR_S, shapes=ONE),
        Load(queue="short", jobs_per_hour=24.0, run_time_mean_s=HOUR_S, shapes=ONE),
    ]
    days = (4, 3) if report.quick else (20, 6)
    cases = (
        ("part of the queue with programs of 1 h against 8 h", 1, alternate, days[0]),
        ("part of the queue that came two days later", 8, late, days[1]),
    )
    for case, devices, loads, span in cases:
        for name, half_life_s in HALF_LIVES_S.items():
            found = share_of_short(devices, half_life_s, loads, until_s=span * DAY_S, seed=1)
            report.add(f"{case}, {name}", found, "%", detail=f"{span} days, {devices} devices, seed 1")


if __name__ == "__main__":
    run("past_use", "Long-run shares with past use", measure)
