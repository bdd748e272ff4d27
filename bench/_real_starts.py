"""Starts of containers on a real node: pods come and go, and the kubelet restarts their containers again and again."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.kube.gpu_node import PODS, GpuNode

from bench._starts import INIT, MAIN, SIDE, START_S, Shaper, Tally
from bench._starts_left import Left, specs_in, used_bytes


class Runs:
    """Ended runs of one pod's containers, collected from the pod's statuses; a run is a container of the runtime.

    A kubelet that is killed breaks off the start that its runtime is making; no program of such a container has ever run.
    """

    def __init__(self) -> None:
        self.ended: dict[str, set[str]] = {}
        self.broken_off: set[str] = set()
        self.told: dict[str, str] = {}

    def record(self, statuses: Sequence[Mapping[str, Any]]) -> None:
        """Record the last run and the one before from the statuses of the pod's containers."""
        for status in statuses:
            ended = self.ended.setdefault(status["name"], set())
            self.told[status["name"]] = json.dumps(status)
            for state in (status["state"], status.get("lastState", {})):
                if "terminated" in state and (run := state["terminated"].get("containerID")):
                    (self.broken_off if state["terminated"].get("reason") == "StartError" else ended).add(run)


class RealStarts:
    """A real kubelet and containerd. Workers keep one pod each alive until its containers have started often enough."""

    def __init__(self, gpu_node: GpuNode, *, workers: int, seed: int) -> None:
        self.gpu_node = gpu_node
        self.cluster = gpu_node.cluster
        self.tally = Tally()
        self._workers, self._seed = workers, seed
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._log = gpu_node.node.outside("/var/lib/seen/seen")
        self._log.parent.mkdir(mode=0o777)
        self._log.touch()
        self._heard = 0
        self.refused = 0
        self.broken_off = 0

    def listen(self) -> None:
        """Read what programs have reported since the last call."""
        with self._log.open("rb") as file:
            file.seek(self._heard)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._heard += len(whole)
        for line in whole.splitlines():
            self.tally.heard(line.decode(errors="replace"))

    def run(self, starts: int, limit_s: float, faults: Sequence[Callable[[], None]]) -> None:
        """Run pods until ``starts`` starts were reported or ``limit_s`` has passed; inject the faults evenly meanwhile."""
        until = time.monotonic() + limit_s
        began = time.monotonic()
        waiting = list(faults)
        with ThreadPoolExecutor(self._workers) as pool:
            working = [pool.submit(self._work, worker) for worker in range(self._workers)]
            try:
                while self.tally.starts < starts and time.monotonic() < until:
                    if any(work.done() for work in working):
                        break
                    self.listen()
                    share = max(self.tally.starts / starts, (time.monotonic() - began) / limit_s)
                    if waiting and share > 1 - len(waiting) / (len(faults) + 1):
                        waiting.pop(0)()
                    time.sleep(0.1)
            finally:
                self._stop.set()
                end = time.monotonic() + START_S
                while not all(work.done() for work in working) and time.monotonic() < end:
                    self.listen()
                    time.sleep(0.1)
            for work in working:
                work.result()
        self.listen()

    def faults(self) -> list[Callable[[], None]]:
        restart = self.cluster.restart

        def load(begin: bool) -> None:
            if begin:
                self.cluster.start_program("load", ["sh", "-c", "while :; do :; done"])
            else:
                self.cluster.kill("load")

        def agent() -> None:
            restart("agent")

        def kubelet() -> None:
            restart(self.gpu_node.node.kubelet)

        return [agent, kubelet, agent, lambda: load(True), agent, kubelet, lambda: load(False), agent]

    def left(self) -> Left:
        beside = self.gpu_node.node.name
        mounts = self.cluster.exec_inside("cat", "/proc/mounts", beside=beside).splitlines()
        slots = max(len(self.gpu_node.slots()), sum("/var/lib/calabash/alloc/" in line for line in mounts))
        return Left(
            specs=specs_in(self.gpu_node.node.outside("/var/run/cdi")),
            slots=slots,
            used_bytes=used_bytes(self.gpu_node.state),
            slices=sum(len(device.get("slices", [])) for device in self.gpu_node.status()["devices"]),
        )

    def _work(self, worker: int) -> None:
        shaper = Shaper(devices=self.gpu_node.devices(), most_mib=600, seed=self._seed * 1000 + worker)
        while not self._stop.is_set():
            self._pod(shaper)

    def _pod(self, shaper: Shaper) -> None:
        containers = shaper.pod()
        mark = f"real-{next(self._numbers)}"
        labels = {c.name: self.tally.plan(mark, c.plan) for c in containers}
        told = {c.name: f"sees {labels[c.name]} /out/seen" for c in containers}
        scripts = {c.name: told[c.name] + ("; exec sleep 10000" if c.kind == SIDE else "") for c in containers}
        name = self.gpu_node.run(
            [c.plan for c in containers],
            scripts,
            init=[c.name for c in containers if c.kind == INIT],
            sidecars=[c.name for c in containers if c.kind == SIDE],
            more={"volumes": [{"name": "out", "hostPath": {"path": "/var/lib/seen"}}]},
            each={"volumeMounts": [{"name": "out", "mountPath": "/out"}]},
            restart="Always",
        )
        wanted = shaper.number(2, 10)
        main = [labels[c.name] for c in containers if c.kind == MAIN]
        until = time.monotonic() + START_S + 5 * wanted
        runs = Runs()
        while not all(self.tally.reported_starts(label) >= (1 if self._stop.is_set() else wanted) for label in main):
            status = self._poll(name, runs)
            if status.get("reason") == "UnexpectedAdmissionError":
                self.refused += (
                    1  # a kubelet fails for good what reaches it while the agent is away; owners make others
                )
                time.sleep(1)
                break
            if time.monotonic() > until:
                self._gave_up(name, [label for label in main if not self.tally.reported_starts(label)])
                break
            time.sleep(0.2)
        self._poll(name, runs)
        for container, ended in runs.ended.items():
            self.tally.ran(labels[container], len(ended), runs.told[container])
        self.broken_off += len(runs.broken_off)
        self.gpu_node.delete(name)

    def _poll(self, name: str, runs: Runs) -> Mapping[str, Any]:
        """Read the pod's status and record its ended runs."""
        status: Mapping[str, Any] = self.cluster.api.get(f"{PODS}/{name}")["status"]
        runs.record([*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])])
        return status

    def _gave_up(self, name: str, labels: Sequence[str]) -> None:
        told = self.cluster.kubectl("describe", "pod", name, check=False)
        for label in labels:
            self.tally.gave_up(label, told[-1500:])
