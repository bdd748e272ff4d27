"""Tests of the queue simulation: work is conserved, shares are fair, and evictions are few."""

from __future__ import annotations

import pytest

from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sim.queueing import Job, Load, Queueing, QueueingResult, random_jobs

HOUR_S = 3600.0
SIZES = [Shape(gpu_count=k, gpu_milli=1000) for k in (1, 1, 1, 1, 2, 2, 4)]


def nodes(count: int, gpus: int = 8) -> list[NodeSpec]:
    return [NodeSpec(name=f"n{i}", cpu_milli=1000, memory_mib=1000, gpus=(GpuSpec(),) * gpus) for i in range(count)]


def one(name: str, *, gpus: int = 1, at_s: float = 0.0, run_time_s: float = 10.0, queue: str = "a") -> Job:
    shape = Shape(gpu_count=gpus, gpu_milli=1000)
    return Job(
        request=Request(id=name, shape=shape, queue=queue, submitted_at_s=at_s, run_time_s=run_time_s),
        run_time_s=run_time_s,
    )


def test_second_job_waits_as_long_as_the_first_runs() -> None:
    scheduler = Scheduler(nodes(1, gpus=1), [QueueSpec(name="a")])
    result = Queueing(scheduler, [one("x"), one("y", at_s=2.0)], window_s=1e9).run(until_s=1000.0)
    assert result.finished == 2
    assert result.span_s == 20.0
    assert result.utilization_ratio == pytest.approx(1.0)
    assert result.queues[0].waited_mean_s == pytest.approx((0.0 + 8.0) / 2)


def busy(options: Options, *, seed: int, hours: float = 36.0) -> QueueingResult:
    """Simulate three queues that request more than the cluster; two of them deserve a quarter each."""
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
    jobs = random_jobs(loads, until_s=hours * HOUR_S, seed=seed)
    return Queueing(Scheduler(nodes(4), queues, options=options), jobs, window_s=6 * HOUR_S).run(until_s=hours * HOUR_S)


def test_backlogged_queues_get_their_entitled_shares() -> None:
    result = busy(Options(half_life_s=6 * HOUR_S, min_run_time_s=300.0), seed=1)
    assert result.windows >= 3
    assert result.utilization_ratio > 0.9
    assert result.fairness_error_ratio <= 0.02
    assert 0 < result.evicted_over_asked_ratio <= 1.2


def test_equal_seeds_give_equal_queue_results() -> None:
    options = Options(min_run_time_s=300.0)
    assert busy(options, seed=3, hours=6.0) == busy(options, seed=3, hours=6.0)


def test_all_jobs_finish_after_the_last_arrival() -> None:
    loads = [
        Load(queue="a", jobs_per_hour=20, run_time_mean_s=HOUR_S, gang=2),
        Load(queue="b", jobs_per_hour=5, run_time_mean_s=HOUR_S),
    ]
    jobs = random_jobs(loads, until_s=4 * HOUR_S, seed=5)
    scheduler = Scheduler(nodes(1), [QueueSpec(name="a"), QueueSpec(name="b", deserved=Amount(4000))])
    result = Queueing(scheduler, jobs, window_s=HOUR_S).run(until_s=1e9)
    assert result.finished == len(jobs)
    assert result.waiting == 0
    assert not scheduler.registry.gangs
    assert (scheduler.cluster.gpu_free_milli == 1000).all()


def test_kept_progress_shortens_the_rest_of_an_evicted_job() -> None:
    def run(*, keep_progress: bool) -> float:
        queues = [QueueSpec(name="a"), QueueSpec(name="b", deserved=Amount(1000))]
        jobs = [one("x", run_time_s=100.0), one("y", queue="b", at_s=90.0, run_time_s=10.0)]
        scheduler = Scheduler(nodes(1, gpus=1), queues)
        return Queueing(scheduler, jobs, window_s=1e9, keep_progress=keep_progress).run(until_s=1e9).span_s

    assert run(keep_progress=True) == pytest.approx(110.0)
    assert run(keep_progress=False) == pytest.approx(200.0)
