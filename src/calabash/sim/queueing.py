"""Simulation of queues with run times: jobs arrive, wait, run, are evicted and end, scheduled by the real scheduler.

Theory of operation. Events (arrivals and ends of jobs) are in a heap, and the virtual clock jumps from one to the next. All
events of one time are reported to the scheduler; then one cycle runs, and its decisions add the ends of started jobs. Nothing
changes between events, so shares and utilization are integrated exactly. An evicted job starts from the beginning unless
``keep_progress`` is set.

Fairness is measured in windows of one half-life. For every queue that was backlogged during the whole window (it had waiting
jobs after every cycle), the error is the difference between its time-averaged share of the cluster and the share that it was
entitled to without past usage. The result is the largest error of all windows.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.decisions import Bind, Evict, Request
from calabash.sched.scheduler import Scheduler

BACKLOGGED_RATIO = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job: a request and its real run time. It arrives at ``request.submitted_at_s``."""

    request: Request
    run_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """Results of one queue over the whole run. ``share_ratio`` is its share of the cluster's devices, averaged over time."""

    queue: str
    started: int
    waited_mean_s: float
    waited_p95_s: float
    share_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueingResult:
    """Results of a run.

    Args:
        finished, waiting: number of jobs at the end.
        utilization_ratio: used divided by installed device compute, averaged over time.
        fairness_error_ratio: largest fairness error of all windows (see the description of the module); 0 if no queue
            was backlogged for a whole window.
        windows: number of measured errors: one for each window and each queue that was backlogged in it.
        evicted_over_asked_ratio: evicted device compute divided by the device compute of the requests that caused
            evictions; 0 without evictions.
        span_s: simulated time.
    """

    queues: tuple[QueueFigures, ...]
    finished: int
    waiting: int
    cycles: int
    utilization_ratio: float
    fairness_error_ratio: float
    windows: int
    evicted_over_asked_ratio: float
    evictions: int
    span_s: float


@dataclass(slots=True)
class _Window:
    """Time integrals of one fairness window, by queue."""

    began_s: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    entitled: dict[str, float] = field(default_factory=dict)
    backlogged_s: dict[str, float] = field(default_factory=dict)


class Queueing:
    """Simulation of jobs that wait in queues and run on a cluster.

    Args:
        window_s: length of a fairness window.
        keep_progress: an evicted job continues where it was, instead of starting from the beginning.
    """

    def __init__(
        self, scheduler: Scheduler, jobs: Iterable[Job], *, window_s: float, keep_progress: bool = False
    ) -> None:
        self.scheduler = scheduler
        self.window_s = window_s
        self.keep_progress = keep_progress
        self.jobs = {job.request.id: job for job in jobs}
        self._left_s = {name: job.run_time_s for name, job in self.jobs.items()}
        self._events: list[tuple[float, int, str, int]] = []
        self._generation: dict[str, int] = {}
        self._started_at_s: dict[str, float] = {}
        self._waited_s: dict[str, list[float]] = {}
        self._window = _Window()
        self._share: dict[str, float] = {}
        self._used_s = 0.0
        self._errors: list[float] = []
        self._finished = self._cycles = self._evictions = 0
        self._evicted_milli = self._asked_milli = 0.0
        self.now_s = 0.0
        for job in self.jobs.values():
            heapq.heappush(self._events, (job.request.submitted_at_s, 0, job.request.id, 0))

    def run(self, *, until_s: float) -> QueueingResult:
        """Run until a time, or until there are no more events, and return the results."""
        while self._events and self._events[0][0] <= until_s:
            at_s = self._events[0][0]
            self._integrate(at_s)
            while self._events and self._events[0][0] <= at_s:
                self._handle_event(*heapq.heappop(self._events)[1:])
            self._run_cycle()
        self._integrate(max(until_s, self.now_s) if self._events else self.now_s)
        return self._result()

    def _handle_event(self, kind: int, name: str, generation: int) -> None:
        self.scheduler.advance(self.now_s)
        if kind == 0:
            self.scheduler.submit(self.jobs[name].request)
        elif self._generation.get(name) == generation:
            self.scheduler.finished(name)
            del self._generation[name]
            self._finished += 1

    def _run_cycle(self) -> None:
        self._cycles += 1
        requesters = set()
        for decision in self.scheduler.cycle(self.now_s):
            if isinstance(decision, Bind):
                self._start(decision.id)
                if decision.after:
                    requesters.add(decision.id)
            elif isinstance(decision, Evict):
                self._stop(decision.id)
        for name in requesters:
            self._asked_milli += self.scheduler.state.charges.charge(self.jobs[name].request.shape).gpu_milli

    def _start(self, name: str) -> None:
        if name not in self._started_at_s:
            job = self.jobs[name]
            self._waited_s.setdefault(job.request.queue, []).append(self.now_s - job.request.submitted_at_s)
        self._started_at_s[name] = self.now_s
        generation = self._generation[name] = self._cycles
        heapq.heappush(self._events, (self.now_s + self._left_s[name], 1, name, generation))

    def _stop(self, name: str) -> None:
        self._evictions += 1
        self._evicted_milli += self.scheduler.state.charges.charge(self.jobs[name].request.shape).gpu_milli
        del self._generation[name]
        if self.keep_progress:
            self._left_s[name] = max(1e-9, self._left_s[name] - (self.now_s - self._started_at_s[name]))

    def _integrate(self, to_s: float) -> None:
        """Advance the virtual clock to ``to_s``, and add shares and use since the last event to the time integrals."""
        tree = self.scheduler.tree
        capacity = max(1, tree.capacity.gpu_milli)
        entitled = tree.entitled() if to_s > self.now_s else {}
        while self.now_s < to_s:
            step_s = min(to_s, self._window.began_s + self.window_s) - self.now_s
            for queue in tree.form.leaves:
                share = tree.used(queue).gpu_milli / capacity
                window = self._window
                window.used[queue] = window.used.get(queue, 0.0) + share * step_s
                window.entitled[queue] = window.entitled.get(queue, 0.0) + entitled[queue][0] / capacity * step_s
                if tree.waiting(queue).gpu_milli > 0:
                    window.backlogged_s[queue] = window.backlogged_s.get(queue, 0.0) + step_s
                self._share[queue] = self._share.get(queue, 0.0) + share * step_s
                self._used_s += share * step_s
            self.now_s += step_s
            if self.now_s >= self._window.began_s + self.window_s - 1e-9:
                self._close_window()

    def _close_window(self) -> None:
        window = self._window
        self._errors.extend(
            abs(window.used[queue] - window.entitled[queue]) / self.window_s
            for queue, backlogged_s in window.backlogged_s.items()
            if backlogged_s >= BACKLOGGED_RATIO * self.window_s
        )
        self._window = _Window(began_s=self.now_s)

    def _result(self) -> QueueingResult:
        span_s = max(self.now_s, 1e-9)
        figures = []
        for queue in self.scheduler.tree.form.leaves:
            waits = sorted(self._waited_s.get(queue, ()))
            figures.append(
                QueueFigures(
                    queue=queue,
                    started=len(waits),
                    waited_mean_s=sum(waits) / len(waits) if waits else 0.0,
                    waited_p95_s=waits[int(0.95 * (len(waits) - 1))] if waits else 0.0,
                    share_ratio=self._share.get(queue, 0.0) / span_s,
                )
            )
        return QueueingResult(
            queues=tuple(figures),
            finished=self._finished,
            waiting=sum(len(g.waiting) for g in self.scheduler.registry.gangs.values()),
            cycles=self._cycles,
            utilization_ratio=self._used_s / span_s,
            fairness_error_ratio=max(self._errors, default=0.0),
            windows=len(self._errors),
            evicted_over_asked_ratio=self._evicted_milli / self._asked_milli if self._asked_milli else 0.0,
            evictions=self._evictions,
            span_s=span_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Random jobs of one queue: Poisson arrivals, exponential run times, shapes chosen at random from ``shapes``.

    Args:
        gang: number of members of each job.
        estimate_factor: run time that users state divided by the real run time; None: users state no run time.
    """

    queue: str
    jobs_per_hour: float
    run_time_mean_s: float
    shapes: Sequence[Shape] = (Shape(gpu_count=1, gpu_milli=WHOLE_MILLI),)
    priority: int = 0
    gang: int = 1
    estimate_factor: float | None = 1.0


def random_jobs(loads: Sequence[Load], *, until_s: float, seed: int) -> list[Job]:
    """Return the jobs of all loads that arrive before ``until_s``. The members of a gang have the same run time."""
    jobs: list[Job] = []
    for number, load in enumerate(loads):
        rng = random.Random(seed * 1_000_003 + number)  # noqa: S311  a simulation, not a secret
        at_s, count = 0.0, 0
        while True:
            at_s += rng.expovariate(load.jobs_per_hour / 3600.0)
            if at_s >= until_s:
                break
            run_time_s = max(1.0, rng.expovariate(1.0 / load.run_time_mean_s))
            shape = rng.choice(load.shapes)
            name = f"{load.queue}/{number}-{count}"
            count += 1
            request = Request(
                id=name,
                shape=shape,
                queue=load.queue,
                priority=load.priority,
                run_time_s=run_time_s * load.estimate_factor if load.estimate_factor else None,
                submitted_at_s=at_s,
                gang=name if load.gang > 1 else "",
                min_member=load.gang,
            )
            jobs.extend(
                Job(request=request if load.gang == 1 else replace(request, id=f"{name}.{m}"), run_time_s=run_time_s)
                for m in range(load.gang)
            )
    return jobs
