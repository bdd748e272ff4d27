"""Pods of many shapes whose programs report their devices, and the comparison of these reports with the plans.

A start is **wrong** if its program saw other devices or other amounts than the plan of its container, by CUDA or by NVML,
or could allocate more than it was given; **lost** if a container has run, or should have, and its program reported nothing.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.compiled import compiled

from bench._report import ROOT
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice

GPUS = "4xT4"
START_S = 90.0  # a container that has not started by then is lost
LEAST_MIB = 160  # a context takes about 100
MIB = 1 << 20
INIT, SIDE, MAIN = "init", "side", "main"
SHAPES: Mapping[str, tuple[tuple[str, str, int], ...]] = {  # container, kind, devices
    "plain": (("main", MAIN, 1),),
    "two devices": (("main", MAIN, 2),),
    "init": (("first", INIT, 1), ("second", INIT, 1), ("main", MAIN, 1)),
    "init with more": (("first", INIT, 2), ("main", MAIN, 1), ("other", MAIN, 1)),
    "sidecar": (("side", SIDE, 1), ("main", MAIN, 1)),
    "all": (("first", INIT, 1), ("side", SIDE, 1), ("main", MAIN, 2), ("other", MAIN, 1)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedContainer:
    """A container of a pod that is to be created."""

    name: str
    kind: str
    plan: PlannedContainer


@dataclass(slots=True)
class Shaper:
    """Generator of pods, the same ones for the same seed; no amount is used twice in a row.

    Args:
        devices: the UUIDs of the cards of the node.
        most_mib: the most that one container asks of a device.
    """

    devices: Sequence[str]
    most_mib: int
    seed: int
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def pod(self) -> tuple[WantedContainer, ...]:
        """Return the containers of the next pod, in the order of its spec."""
        shape = self._random.choice(list(SHAPES.values()))
        return tuple(WantedContainer(name=n, kind=k, plan=self._plan(n, count)) for n, k, count in shape)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def number(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def devices_of(self, count: int) -> list[str]:
        """Return ``count`` cards, chosen at random."""
        return self._random.sample(list(self.devices), count)

    def _plan(self, name: str, count: int) -> PlannedContainer:
        amount = self._random.randint(LEAST_MIB, self.most_mib)
        cores = self._random.randint(1, 3)
        slices = tuple(
            PlannedSlice(device=uuid, memory_mib=amount, core_percent=cores) for uuid in self.devices_of(count)
        )
        return PlannedContainer(name=name, mode="vgpu", slices=slices)


class Tally:
    """Planned and reported starts, by ``<pod uid>/<container>``. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[str, PlannedContainer] = {}
        self._seen: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()
        self._told: dict[str, str] = {}
        self.wrong: list[str] = []
        self.never: list[str] = []

    def plan(self, uid: str, container: PlannedContainer) -> str:
        """Record the plan of a container that will be started; return its label."""
        label = f"{uid}/{container.name}"
        with self._lock:
            self._plans[label] = container
        return label

    def heard(self, line: str) -> None:
        """Record the report of a program and compare it with the plan."""
        try:
            told = json.loads(line)
            label, problem = str(told["label"]), ""
        except (ValueError, KeyError, TypeError):
            told, label, problem = {}, "", "cannot be read"
        with self._lock:
            plan = self._plans.get(label)
            if plan is None:
                problem = problem or "belongs to no planned container"
            else:
                self._seen[label] += 1
                problem = difference(plan, told)
            if problem:
                self.wrong.append(f"{label}: {problem}: {line.strip()[:600]}")

    def begun(self, label: str) -> None:
        """Record that a container runs once more."""
        with self._lock:
            self._ran[label] += 1

    def ran(self, label: str, times: int, told: str = "") -> None:
        """Record how often a container has run in all; ``told`` is the status that its kubelet reports."""
        with self._lock:
            self._ran[label] = times
            self._told[label] = told

    def gave_up(self, label: str, why: str) -> None:
        """Record that a container that should have started never did."""
        with self._lock:
            self.never.append(f"{label}: {why}")

    def reported_starts(self, label: str) -> int:
        """Return the number of reported starts of a container."""
        with self._lock:
            return self._seen[label]

    @property
    def starts(self) -> int:
        """Return the number of reported starts of all containers."""
        with self._lock:
            return self._seen.total()

    def lost(self) -> list[str]:
        """Return a sentence for each container with a start that was not reported."""
        with self._lock:
            missed = [(label, times) for label, times in self._ran.items() if times > self._seen[label]]
            told = [
                f"{label}: {n - self._seen[label]} of {n} {self._told.get(label, '')}".strip() for label, n in missed
            ]
            return told + self.never


def difference(plan: PlannedContainer, told: Mapping[str, object]) -> str:
    """Return the first difference between a plan and a report; "" if there is none."""
    devices = told.get("devices")
    if not isinstance(devices, list) or told.get("listed") != len(plan.slices) or len(devices) != len(plan.slices):
        return f"{len(plan.slices)} devices were planned"
    wanted = {s.device: s.memory_mib * MIB for s in plan.slices}
    for device in devices:
        size = wanted.pop(device["cuda"], None)
        if size is None:
            return f"device {device['cuda']} was not planned"
        if device["nvml"] != device["cuda"]:
            return f"NVML shows {device['nvml']} in the place of {device['cuda']}"
        if set(device["totals"]) != {size}:
            return f"{size} bytes were planned of {device['cuda']}"
        if device["half"] != 0 or device["over"] == 0:
            return "half of it was refused, or more than all of it was given"
    return ""


def sees() -> Path:
    """Return the compiled program of ``programs/sees.c``."""
    source = ROOT / "bench" / "programs" / "sees.c"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    return compiled("sees", ["gcc", *flags, source, "-ldl"])
