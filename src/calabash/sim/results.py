"""Results of simulation runs, with stable field names, and their means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one run: one policy and one seed. Ratios are 0..1.

    Attributes:
        protocol: name of the experiment, "arrivals" or "churn".
        arrivals: number of arrived requests.
        allocation_ratio_end: allocated divided by installed device compute after the last arrival ("arrivals"), or its
            mean over the measured time ("churn").
        allocation_ratio_at_100: allocated divided by installed device compute when the requested compute first reaches
            the compute of the cluster.
        cpu_only_admitted_ratio: admitted fraction of the requests without devices.
        constrained_admitted_ratio: admitted fraction of the requests that name device models.
        rejected_8gpu_ratio: rejected fraction of the requests for eight devices.
        rejected_milli_ratio: rejected fraction of the requested device compute.
        moves_per_100_arrivals: requests that defragmentation moved.
        killed_per_100_arrivals: requests that failures of nodes ended.
        load: offered divided by installed device compute in the experiment "churn"; 0 in "arrivals".
        curve: allocation ratio by whole percent of arrived demand.
    """

    workload: str
    policy: str
    seed: int
    protocol: str
    arrivals: int
    allocation_ratio_end: float
    allocation_ratio_at_100: float = 0.0
    cpu_only_admitted_ratio: float = 1.0
    constrained_admitted_ratio: float = 1.0
    rejected_8gpu_ratio: float = 0.0
    rejected_milli_ratio: float = 0.0
    moves_per_100_arrivals: float = 0.0
    killed_per_100_arrivals: float = 0.0
    decisions_per_s: float = 0.0
    load: float = 0.0
    curve: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, str, float]:
        """Identity of the run: workload, policy, seed, protocol and load."""
        return (self.workload, self.policy, self.seed, self.protocol, self.load)


MEASURES = tuple(
    f.name
    for f in fields(RunResult)
    if f.name not in {"workload", "policy", "seed", "protocol", "arrivals", "load", "curve"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Mean and standard deviation of every measure over the seeds of one policy and workload."""

    workload: str
    policy: str
    protocol: str
    load: float
    seeds: tuple[int, ...]
    mean: dict[str, float]
    deviation: dict[str, float]


def summarise(results: Iterable[RunResult]) -> list[Summary]:
    """Return one summary per workload, protocol, load and policy, in order of first appearance."""
    groups: dict[tuple[str, str, float, str], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.workload, result.protocol, result.load, result.policy), []).append(result)
    return [_summary(runs) for runs in groups.values()]


def _summary(runs: Sequence[RunResult]) -> Summary:
    first = runs[0]
    values = {name: [float(getattr(run, name)) for run in runs] for name in MEASURES}
    return Summary(
        workload=first.workload,
        policy=first.policy,
        protocol=first.protocol,
        load=first.load,
        seeds=tuple(sorted(run.seed for run in runs)),
        mean={name: fmean(v) for name, v in values.items()},
        deviation={name: stdev(v) if len(v) > 1 else 0.0 for name, v in values.items()},
    )


def to_plain(result: RunResult) -> dict[str, Any]:
    """Return the result as JSON values."""
    return asdict(result)


def from_plain(value: dict[str, Any]) -> RunResult:
    """Return the result from the values of ``to_plain``. Raises TypeError for unknown or missing fields."""
    return RunResult(**{**value, "curve": tuple(value.get("curve", ()))})
