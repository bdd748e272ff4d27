"""Agent of a node behind a driven kubelet (``_driven``), with pods that come and go."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import Any, TypeVar

from tests.kube import fakes
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import PODS, cuda_tree
from tests.native.simnode import simctl

from bench._driven import DrivenKubelet, NotNowError, Runtime
from bench._report import ROOT
from bench._starts import GPUS, INIT, MAIN, SIDE, START_S, Shaper, Tally, WantedContainer, sees
from bench._starts_left import Left, cards, specs_in, used_bytes
from calabash.adapters.host.cgroups.container_groups import find_container_hierarchy
from calabash.kubernetes.objects.names import PLAN
from calabash.kubernetes.objects.plan import PlannedContainer, PodPlan, write_plan

AGENT = "calabash.kubernetes.node_plugin.daemon"
RELAY = "calabash.kubernetes.node_plugin.devices.relay"

_Node = TypeVar("_Node", bound="DrivenNode")


class DrivenNode:
    """A node whose kubelet is driven by the benchmark. Each worker runs one pod at a time."""

    name = "driven"
    agent = "driven-agent"
    relay = "driven-relay"
    words: tuple[str, ...] = ()

    def __init__(self, cluster: Cluster, *, workers: int, seed: int) -> None:
        self.cluster = cluster
        self.tally = Tally()
        self.refused = 0
        self.again = 0
        self.by_force = 0
        self._workers, self._seed = workers, seed
        self._numbers = itertools.count(1)
        self._active: set[str] = set()
        self._stop = threading.Event()
        root = cluster.root / self.name
        self._home, self._specs, self._state = root / "home", root / "cdi", root / "sim" / "node.state"
        self._state.parent.mkdir(parents=True)
        made = simctl("create", self._state, "--gpus", GPUS, "--seed", 1)
        assert made.returncode == 0, made.stderr
        hierarchy = find_container_hierarchy()
        assert hierarchy is not None
        self._groups = hierarchy.directory / cluster.root.name / self.name / "kubepods"
        self._runtime = Runtime(root / "runtime.sock", cuda_tree(root / "root", sees()), self._groups)
        self.kubelet = DrivenKubelet(root / "kubelet", self._specs)
        for crd in sorted((ROOT / "charts" / "calabash" / "crds").glob("*.yaml")):
            cluster.kubectl("apply", "--server-side", "-f", str(crd))
        fakes.fake_nodes(cluster.api, 1, {}, prefix=self.name)
        self._node = f"{self.name}-0"
        self._root = root

    def begin(self) -> None:
        self.kubelet.start()
        container = str(Path(__file__).with_name("_container.py"))
        self.cluster.start_program(
            "driven-runtime", [sys.executable, "-S", container, str(self._root / "runtime.sock")]
        )
        words = [f"--node={self._node}", f"--home={self._home}", f"--kubelet={self._root / 'kubelet'}"]
        words += [
            f"--specs={self._specs}",
            f"--sim={self._state}",
            f"--kubeconfig={self.cluster.kubeconfig}",
            "--relay",
        ]
        places = [f"--home={self._home}", f"--kubelet={self._root / 'kubelet'}"]
        self.cluster.start_program(self.relay, [sys.executable, "-m", RELAY, *places])
        self.cluster.start_program(self.agent, [sys.executable, "-m", AGENT, *words, *self.words])
        self.wait_until_offered()

    def wait_until_offered(self) -> None:
        """Wait until the kubelet has the devices that the agent offers."""
        self.kubelet.wait_for_device_ids()

    def end(self) -> None:
        for program in (self.agent, self.relay, "driven-runtime"):
            with suppress(RuntimeError, TimeoutError):
                self.cluster.kill(program)
        self.kubelet.stop()
        fakes.remove_nodes(self.cluster.api, [self._node])

    def run(self, starts: int, faults: Sequence[Callable[[], None]], *, workers: int = 0) -> None:
        """Run pods until ``starts`` more starts were reported; inject the faults evenly meanwhile. ``workers``: 0 for all."""
        workers = workers or self._workers
        self._stop.clear()
        with ThreadPoolExecutor(workers) as pool:
            working = [pool.submit(self._work, worker) for worker in range(workers)]
            try:
                for number, fault in enumerate(faults, 1):
                    at = starts * number // (len(faults) + 1)
                    while self.tally.starts < at and not any(work.done() for work in working):
                        time.sleep(0.05)
                    fault()
                while self.tally.starts < starts and not any(work.done() for work in working):
                    time.sleep(0.05)
            finally:
                self._stop.set()
            for work in working:
                work.result()

    def faults(self, rounds: int) -> list[Callable[[], None]]:
        """Return ``rounds`` faults of each kind."""

        def kill_agent() -> None:
            self.cluster.restart(self.agent)
            self.wait_until_offered()

        def restart_kubelet() -> None:
            self.kubelet.stop()
            time.sleep(0.5)
            self.kubelet.start()
            self.kubelet.wait_for_device_ids()

        def garble() -> None:
            self.kubelet.garble(True)
            time.sleep(2)
            self.kubelet.garble(False)

        return [kill_agent, restart_kubelet, garble] * rounds

    def left(self) -> Left:
        mounts = self.cluster.exec_inside("cat", "/proc/mounts").splitlines()
        slots = max(len(list((self._home / "alloc").iterdir())), sum(str(self._home) in line for line in mounts))
        node = self.cluster.api.get(f"/apis/calabash.dev/v1alpha1/gpunodes/{self._node}")
        return Left(
            specs=specs_in(self._specs),
            slots=slots,
            used_bytes=used_bytes(self._state),
            slices=sum(len(device.get("slices", [])) for device in node["status"]["devices"]),
        )

    # -- one worker ---------------------------------------------------------------------------------------------------

    def _work(self, worker: int) -> None:
        devices = [card["uuid"] for card in cards(self._state)]
        shaper = Shaper(devices=devices, most_mib=900, seed=self._seed * 1000 + worker)
        while not self._stop.is_set():
            self._pod(f"driven-{worker}", shaper)

    def _pod(self, name: str, shaper: Shaper) -> None:
        containers = shaper.pod()
        uid = self._make(name, containers)
        self._active.add(uid)
        held: list[socket] = []
        try:
            try:
                self.kubelet.admit(uid, "default", name, containers, lambda: set(self._active))
            except NotNowError:
                self.refused += 1  # a kubelet fails the pod, and its controller creates another
                time.sleep(0.5)
                return
            self._containers(uid, name, containers, shaper, held)
        finally:
            self._finish(uid, name, held, shaper)

    def _containers(
        self, uid: str, name: str, containers: Sequence[WantedContainer], shaper: Shaper, held: list[socket]
    ) -> None:
        done: list[str] = []
        for container in containers:
            if container.kind == INIT:
                for _ in range(2 if shaper.chance(0.2) else 1):  # some fail once
                    self._start(uid, container)
                done.append(container.name)
                self._say(name, containers, done=done)
            elif container.kind == SIDE and (side := self._start(uid, container, hold=True)) is not None:
                held.append(side)
        main = [container for container in containers if container.kind == MAIN]
        for number in range(shaper.number(1, 12)):
            for container in main:
                self._start(uid, container)
            if number == 0:
                self._say(name, containers, done=done, running=[c.name for c in main])
        if shaper.chance(0.2) and (last := self._start(uid, main[0], hold=True)) is not None:
            held.append(last)

    def _start(self, uid: str, container: WantedContainer, *, hold: bool = False) -> socket | None:
        """Start a container and retry as a kubelet would; return the connection of its program if it is to stay."""
        return self._run(uid, container.plan, lambda: self.kubelet.prepare(uid, container.name), hold=hold)

    def _run(
        self, uid: str, plan: PlannedContainer, ask: Callable[[], Mapping[str, Any]], *, hold: bool
    ) -> socket | None:
        """Run the program of a container with the edits that ``ask`` returns, and record its report.

        Returns:
            The connection of the program if ``hold``, else None.
        """
        label = self.tally.plan(uid, plan)
        until = time.monotonic() + START_S
        while True:
            try:
                edits = ask()
                break
            except NotNowError as error:
                self.again += 1
                if time.monotonic() > until:
                    self.tally.gave_up(label, str(error))
                    return None
                time.sleep(0.1)
        self.tally.begun(label)
        words = ["/bin/sees", label, "-", *(["hold"] if hold else [])]
        connection = self._runtime.start(uid, next(self._numbers), edits, words)
        line = connection.makefile("r").readline()
        if line:
            self.tally.heard(line)
        if hold:
            return connection
        while connection.recv(4096):
            pass
        connection.close()
        return None

    def _finish(self, uid: str, name: str, held: Sequence[socket], shaper: Shaper) -> None:
        """End a pod: by a forced deletion while its programs run, by the programs' end, or by a deletion."""
        if held and shaper.chance(0.5):
            self.by_force += 1
            self._delete(name)
            time.sleep(0.3)
        elif shaper.chance(0.5):
            self._patch(name, {"status": {"phase": "Succeeded"}}, "/status")
        for connection in held:
            connection.close()
        until = time.monotonic() + 20
        while not self._runtime.end(uid) and time.monotonic() < until:
            time.sleep(0.01)
        self._delete(name)
        self._active.discard(uid)

    # -- the API server -----------------------------------------------------------------------------------------------

    def _make(self, name: str, containers: Sequence[WantedContainer]) -> str:
        """Create the pod, bound and with its plan; return its UID."""
        spec: dict[str, Any] = {
            "nodeName": self._node,
            "initContainers": [_spec(c) for c in containers if c.kind != MAIN],
            "containers": [_spec(c) for c in containers if c.kind == MAIN],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        uid = str(self.cluster.api.create(PODS, body)["metadata"]["uid"])
        plan = PodPlan(id="1", pod_uid=uid, node=self._node, containers=tuple(c.plan for c in containers))
        self._patch(name, {"metadata": {"annotations": {PLAN: write_plan(plan)}}})
        return uid

    def _say(
        self, name: str, containers: Sequence[WantedContainer], *, done: Sequence[str], running: Sequence[str] = ()
    ) -> None:
        """Report the status of a pod to the API server, as the kubelet does."""
        now = {"ready": False, "restartCount": 0, "image": "sees", "imageID": "sees"}
        early = [{**now, "name": c, "state": {"terminated": {"exitCode": 0}}} for c in done]
        late = [{**now, "name": c, "state": {"running": {}}} for c in running]
        phase = "Running" if running else "Pending"
        status = {"phase": phase, "initContainerStatuses": early, "containerStatuses": late}
        self._patch(name, {"status": status}, "/status")

    def _patch(self, name: str, body: Json, of: str = "") -> None:
        self.cluster.api.patch(f"{PODS}/{name}{of}", body)

    def _delete(self, name: str) -> None:
        with suppress(RefusedError):
            self.cluster.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def _spec(container: WantedContainer) -> Json:
    always = {"restartPolicy": "Always"} if container.kind == SIDE else {}
    return {"name": container.name, "image": "sees", **always}


def driven_node(cluster: Cluster, *, workers: int, seed: int) -> AbstractContextManager[DrivenNode]:
    """Run a driven node; its agent serves in the block and is stopped afterwards."""
    return serving(DrivenNode(cluster, workers=workers, seed=seed))


@contextmanager
def serving(node: _Node) -> Iterator[_Node]:
    """Start a node for the block and stop it afterwards."""
    try:
        node.begin()
        yield node
    finally:
        node.end()
