"""Many runs: policies times seeds, in parallel, with progress and with what is done kept on disk.

Each finished run is written at once to a file beside the result (``NAME.partial.jsonl``), so an interrupted experiment
goes on where it stopped; runs are recognised by workload, policy, seed, protocol, load and the experiment's content.
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
    """What to run.

    Args:
        nodes, workload: the cluster and what it is asked for; the workload's file is also the demand that policies learn.
        policies: names as in ``sched.policies.registry``.
        seeds: one run each.
        load: None for the arrivals protocol; else the churn protocol's offered load.
        defragment: move running requests for large ones (churn only).
        failures: take nodes away for a while (churn only).
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
        """(policy, seed) of every run, seeds first so that all policies of a seed come close together."""
        return [(policy, seed) for seed in self.seeds for policy in self.policies]

    @property
    def protocol(self) -> str:
        """Name in results."""
        if self.load is None:
            return "arrivals"
        return "churn" + ("+defrag" if self.defragment else "") + ("+failures" if self.failures else "")

    @property
    def fingerprint(self) -> str:
        """Changes when the cluster, the workload or the protocol does."""
        text = repr(_canonical((self.nodes, self.workload, self.load, self.defragment, repr(self.failures))))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Plain values whose repr is the same in every process: sets are listed in an order that differs, hashes differ."""
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
    """``42-51`` or ``1,2,7-9``. Raises CalabashError when it is neither."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise CalabashError(f"seeds {text!r} are not understood", hint="write 42-51 or 1,2,7-9")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low >= SEEDS_MAX:
            raise CalabashError(f"seeds {part!r}: {high - low + 1} of them", hint=f"1 to {SEEDS_MAX} in rising order")
        seeds.extend(range(low, high + 1))
    return tuple(dict.fromkeys(seeds))


def run_one(experiment: Experiment, policy: str, seed: int) -> RunResult:
    """One policy, one seed."""
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
    """Every run, in the order of ``tasks``. KeyboardInterrupt passes through; what is done stays in ``partial``."""
    for policy in experiment.policies:
        policy_named(policy)  # an unknown name is refused before anything runs
    content = experiment.fingerprint
    done = {(r.policy, r.seed): r for r in _resume(partial, content)}
    names = {policy: policy_named(policy).name for policy in experiment.policies}
    open_tasks = [(p, s) for p, s in experiment.tasks if (names[p], s) not in done]
    if progress:
        progress(len(done), len(experiment.tasks), None)
    for result in _results(experiment, open_tasks, jobs):
        done[result.policy, result.seed] = result
        _keep(partial, content, result)
        if progress:
            progress(len(done), len(experiment.tasks), result)
    return [done[names[policy], seed] for policy, seed in experiment.tasks]


_worker_experiment: Experiment | None = None


def _start_worker(experiment: Experiment) -> None:
    global _worker_experiment  # noqa: PLW0603 - a worker process serves one experiment
    _worker_experiment = experiment
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle


def _work(task: tuple[str, int]) -> RunResult:
    assert _worker_experiment is not None
    return run_one(_worker_experiment, *task)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the interpreters that are started meanwhile from importing modules of the working directory."""
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
    """Ctrl-C is answered afterwards; processes that are started meanwhile inherit the mask and never see one."""
    resource_tracker.ensure_running()  # starting it would lift the mask
    held: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    # The mask is this thread's: a signal may still come in through a thread of a library, hence the handler.
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
        with _interrupts_held():  # a worker that still imports would answer Ctrl-C with its stack
            pool = stack.enter_context(context.Pool(min(jobs, len(tasks)), _start_worker, (experiment,)))
        yield from pool.imap_unordered(_work, tasks)


def partial_path(result: Path) -> Path:
    """Where runs are kept until the result is written."""
    return result.with_name(result.name + ".partial.jsonl")


def _resume(partial: Path | None, content: str) -> list[RunResult]:
    """Runs of the same experiment that are on disk; a last line that was cut by a crash is dropped."""
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
                f"{partial}:{number}: not a kept run: {error}",
                reason=Reason.BAD_FILE,
                hint="remove the file to start again",
            ) from None
    return found


def _keep(partial: Path | None, content: str, result: RunResult) -> None:
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
