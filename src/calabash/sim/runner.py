"""Runner of experiments: all policies with all seeds, in parallel worker processes, with resume after an interruption.

Each finished run is appended to a file next to the result (``NAME.partial.jsonl``), so that an interrupted experiment continues
where it stopped. Saved runs are identified by policy, seed and a fingerprint of the experiment.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.policies.registry import policy_named
from calabash.sim import arrivals, churn
from calabash.sim.failures import Failures
from calabash.sim.results import RunResult, from_plain, to_plain
from calabash.sim.workload import Workload

Progress = Callable[[int, int, RunResult | None], None]
SEEDS_MAX = 10_000
_SAFE_PATH = "PYTHONSAFEPATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Experiment: one run per policy and seed.

    Args:
        nodes: the cluster.
        workload: the requests; also the demand from which policies learn.
        policies: names as in ``sched.policies.registry``.
        load: offered load for the experiment "churn"; None selects the experiment "arrivals", which has no load.
        defragment: move running requests to make room for large ones ("churn" only).
        failures: failures of nodes ("churn" only); None for none.
    """

    nodes: Sequence[NodeSpec]
    workload: Workload
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    load: float | None = None
    defragment: bool = False
    failures: Failures | None = None

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """Policy and seed of every run, ordered by seed, so that the runs of one seed are close together."""
        return [(policy, seed) for seed in self.seeds for policy in self.policies]

    @property
    def protocol(self) -> str:
        """Name of the kind of experiment in results: "arrivals" or "churn"."""
        if self.load is None:
            return "arrivals"
        return "churn" + ("+defrag" if self.defragment else "") + ("+failures" if self.failures else "")

    @property
    def fingerprint(self) -> str:
        """Hash of the cluster, the workload and the kind of experiment, by which saved runs are recognised."""
        text = repr(_canonical((self.nodes, self.workload, self.load, self.defragment, repr(self.failures))))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Return plain values whose ``repr`` is the same in every process; the order of sets differs between processes."""
    if is_dataclass(value):
        return [_canonical(getattr(value, part.name)) for part in fields(value) if part.compare]
    if isinstance(value, Mapping):
        return sorted((repr(key), _canonical(part)) for key, part in value.items())
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_canonical(part)) for part in value)
    if isinstance(value, (list, tuple)):
        return [_canonical(part) for part in value]
    return value


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse a list of seeds like ``42-51`` or ``1,2,7-9``. Raises CalabashError."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise CalabashError(f"seeds {text!r} are not a list of numbers", hint="write 42-51 or 1,2,7-9")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low >= SEEDS_MAX:
            raise CalabashError(
                f"seeds {part!r} are {high - low + 1} seeds, which is out of range",
                hint=f"write 1 to {SEEDS_MAX} seeds, the lowest first",
            )
        seeds.extend(range(low, high + 1))
    return tuple(dict.fromkeys(seeds))


def run_one(experiment: Experiment, policy: str, seed: int) -> RunResult:
    """Run one policy with one seed."""
    made = policy_named(policy, demand=experiment.workload.demand, seed=seed)
    if experiment.load is None:
        return arrivals.simulate(experiment.nodes, experiment.workload, made, seed)
    return churn.simulate(
        experiment.nodes,
        experiment.workload,
        made,
        seed,
        load=experiment.load,
        defragment=experiment.defragment,
        failures=experiment.failures,
    )


def run(
    experiment: Experiment, *, jobs: int = 1, progress: Progress | None = None, partial: Path | None = None
) -> list[RunResult]:
    """Run an experiment and return the results in the order of ``Experiment.tasks``.

    KeyboardInterrupt is not caught; finished runs are kept in ``partial``.

    Args:
        jobs: number of worker processes.
        progress: called with the numbers of finished and all runs, and the last result; None at the start.
        partial: file for finished runs; None: finished runs are not saved.
    """
    for policy in experiment.policies:
        policy_named(policy)  # refuse an unknown name before the first run
    content = experiment.fingerprint
    done = {(r.policy, r.seed): r for r in _resume(partial, content)}
    names = {policy: policy_named(policy).name for policy in experiment.policies}
    open_tasks = [(p, s) for p, s in experiment.tasks if (names[p], s) not in done]
    if progress:
        progress(len(done), len(experiment.tasks), None)
    for result in _results(experiment, open_tasks, jobs):
        done[result.policy, result.seed] = result
        _save(partial, content, result)
        if progress:
            progress(len(done), len(experiment.tasks), result)
    return [done[names[policy], seed] for policy, seed in experiment.tasks]


_worker_experiment: Experiment | None = None


def _start_worker(experiment: Experiment) -> None:
    global _worker_experiment  # noqa: PLW0603 - a worker process serves one experiment
    _worker_experiment = experiment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C


def _work(task: tuple[str, int]) -> RunResult:
    assert _worker_experiment is not None
    return run_one(_worker_experiment, *task)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Prevent interpreters that are started in the block from importing modules of the working directory."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block. Processes that are started in the block inherit the signal mask."""
    resource_tracker.ensure_running()  # because starting it later would reset the mask
    held: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    # The mask is that of this thread. A thread of a library may still receive the signal, therefore the handler is set too.
    handler = signal.signal(signal.SIGINT, lambda number, _frame: held.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if held:
        raise KeyboardInterrupt


def _results(experiment: Experiment, tasks: list[tuple[str, int]], jobs: int) -> Iterable[RunResult]:
    if jobs <= 1 or len(tasks) <= 1:
        for policy, seed in tasks:
            yield run_one(experiment, policy, seed)
        return
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        stack.enter_context(_safe_path())
        with _interrupts_held():  # a worker would print a traceback if Ctrl-C came during its imports
            pool = stack.enter_context(context.Pool(min(jobs, len(tasks)), _start_worker, (experiment,)))
        yield from pool.imap_unordered(_work, tasks)


def partial_path(result: Path) -> Path:
    """Return the path of the file of finished runs, which exists until the result is written."""
    return result.with_name(result.name + ".partial.jsonl")


def _resume(partial: Path | None, content: str) -> list[RunResult]:
    """Return the saved runs of the same experiment. An incomplete last line, left by a crash, is ignored."""
    if partial is None or not partial.exists():
        return []
    found = []
    lines = partial.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if value["experiment"] == content:
                found.append(from_plain(value["result"]))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise CalabashError(
                f"{partial}:{number}: the line is not a saved run: {error}",
                reason=Reason.BAD_FILE,
                hint="delete the file to start again",
            ) from None
    return found


def _save(partial: Path | None, content: str, result: RunResult) -> None:
    if partial is None:
        return
    line = json.dumps({"experiment": content, "result": to_plain(result)})
    with partial.open("a", encoding="utf-8") as sink:
        if sink.tell() and not _ends_with_newline(partial):
            sink.write("\n")
        sink.write(line + "\n")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as source:
        source.seek(-1, 2)
        return source.read(1) == b"\n"
