"""Fault injection for planners: a stream of pods, connections that can be cut, replicas, and a check of invariants."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned

from calabash.kubernetes.objects.names import PLAN, SCHEDULER
from calabash.kubernetes.objects.plan import PodPlan, read_plan
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration

MEMORY_MIB = 40960  # of every simulated device
FRONT = 7079  # port at which kube-scheduler reaches the leading one of two planners
BOTH = {"first": "", "second": ""}
LINES = 7443  # port for the connections of a planner to the API server


def plan_of(pod: Json) -> PodPlan | None:
    text = pod["metadata"].get("annotations", {}).get(PLAN)
    return read_plan(text) if text is not None else None


def over_committed(pods: Sequence[Json]) -> list[str]:
    """Return a text for every violation of the planner's invariants among the pods.

    Violations are a bound pod without a plan, a pod that is bound to another node than its plan names, a pod with the
    plan of another pod, and a device of which bound pods have more than it has.
    """
    wrong: list[str] = []
    cores: dict[tuple[str, str], int] = {}
    memory: dict[tuple[str, str], int] = {}
    for pod in pods:
        name, node, plan = pod["metadata"]["name"], pod["spec"].get("nodeName"), plan_of(pod)
        if not node:
            continue
        if plan is None or plan.node != node or plan.pod_uid != pod["metadata"]["uid"]:
            wrong.append(f"{name} is on {node}, its plan is {plan}")
            continue
        for container in plan.containers:
            for part in container.slices:
                key = (node, part.device)
                cores[key] = cores.get(key, 0) + part.core_percent
                memory[key] = memory.get(key, 0) + (part.memory_mib or MEMORY_MIB)
    wrong += [f"{key}: {percent} % of a device" for key, percent in cores.items() if percent > 100]
    wrong += [f"{key}: {mib} MiB of {MEMORY_MIB}" for key, mib in memory.items() if mib > MEMORY_MIB]
    return wrong


class Stream:
    """Thread that creates pods at a fixed rate while its context is entered.

    If the creation of a pod gets no answer, it is repeated under the same name, so that every pod exists in the end.
    ``count`` is the number of pods so far.

    Args:
        planned: the planner's cluster.
        namespace: namespace of the pods.
        pod: returns a pod by its number.
        per_s: number of pods per second.
    """

    def __init__(self, planned: Planned, namespace: str, pod: Callable[[int], Json], *, per_s: float) -> None:
        planned.make_namespace(namespace)
        self._api, self._path = planned.api, f"/api/v1/namespaces/{namespace}/pods"
        self._pod, self._pause_s = pod, 1 / per_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0

    def _run(self) -> None:
        while not self._ended.is_set():
            self._create(self._pod(self.count))
            self.count += 1
            self._ended.wait(self._pause_s)

    def _create(self, pod: Json) -> None:
        while True:
            try:
                self._api.create(self._path, pod)
            except RefusedError as refused:
                if refused.status == 409:
                    return
            except OSError:
                pass
            except Exception as error:  # the HTTP client got half an answer
                if not type(error).__module__.startswith(("http", "json")):
                    raise
            else:
                return
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(60)


def retry_until_answered(act: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Call ``act`` until the API server answers, and return the result."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except (OSError, RefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def seconds_until_next(planned: Planned, namespace: str, what: Callable[[Json], bool], timeout_s: float = 60) -> float:
    """Wait until one more pod of the namespace satisfies the predicate ``what``; return the seconds that it took.

    The caller makes sure that there is a pod that will satisfy it.
    """
    began = time.monotonic()

    def matching() -> set[str]:
        found: dict[str, Json] = retry_until_answered(lambda: planned.pods(namespace))
        return {pod["metadata"]["name"] for pod in found.values() if what(pod)}

    before = matching()
    while not matching() - before:
        if time.monotonic() > began + timeout_s:
            raise TimeoutError(f"nothing happened in {timeout_s:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def has_plan(pod: Json) -> bool:
    return PLAN in pod["metadata"].get("annotations", {})


def is_bound(pod: Json) -> bool:
    return "nodeName" in pod["spec"]


def wait_until_bound(planned: Planned, namespace: str, count: int) -> list[Json]:
    """Wait until ``count`` pods of a namespace are bound, and return all pods of the namespace."""
    planned.cluster.wait_for(
        lambda: sum(map(is_bound, retry_until_answered(lambda: planned.pods(namespace)).values())) >= count,
        f"{count} pods bound",
    )
    return list(planned.pods(namespace).values())


@contextmanager
def planner_behind_lines(cluster: Cluster, gpus: int, *, prefix: str) -> Iterator[tuple[Planned, Lines]]:
    """Run a planner of 100 nodes that reaches the API server through a proxy; yield both.

    The proxy can cut the planner's connections.
    """
    lines = Lines(cluster, LINES, lambda: cluster.namespaces.connect(cluster.namespaces.port))
    options = {"--identity": "only", "--kubeconfig": str(kubeconfig_with_port(cluster, LINES))}
    with Planned(cluster, 100, gpus, prefix=prefix, planner=options) as planned:
        yield planned, lines
    lines.close()


class Lines:
    """Proxy on a port of the cluster's network, whose connections can all be cut at once.

    Args:
        cluster: the cluster.
        port: port on which the proxy listens.
        target: returns a new connection to the destination; if it returns None, the client's connection is closed.
    """

    def __init__(self, cluster: Cluster, port: int, target: Callable[[], socket.socket | None]) -> None:
        self._listener = cluster.listen(port)
        self._target = target
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """End every connection and wait until its sockets are closed; return the number of connections."""
        with self._lock:
            found = list(self._open)
        for one in found:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        while any(one.fileno() >= 0 for one in found):
            time.sleep(0.001)
        return len(found) // 2

    def close(self) -> None:
        self._ended = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            try:
                far = self._target()
            except OSError:
                return
            if far is None:
                return
            with far:
                for end in (near, far):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {near, far}
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()
                with self._lock:
                    self._open -= {near, far}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def kubeconfig_with_port(cluster: Cluster, port: int) -> Path:
    """Return a copy of the administrator's kubeconfig whose server is another port of the cluster's network."""
    content = json.loads(cluster.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = cluster.secrets.directory / f"by-{port}.kubeconfig"
    path.write_text(json.dumps(content))
    return path


_REPLICA = """
import sys
from calabash.kubernetes.leader.lease import RENEW_EVERY_S
from calabash.kubernetes.planner.run import run_planner
from calabash.kubernetes.planner.service import PlannerSettings
from calabash.kubernetes.objects.shards import Shard
from calabash.adapters.kube import load_client
path, port, name, term_s, nodes = sys.argv[1:]
settings = PlannerSettings(
    port=int(port),
    identity=name,
    term_s=float(term_s),
    renew_every_s=min(RENEW_EVERY_S, float(term_s) / 5),
    shard=Shard.from_selector(nodes),
)
run_planner(load_client(path, connections=140), settings)
"""


class Replicas:
    """Planners that elect a leader by a Lease, and one kube-scheduler that calls the leader.

    kube-scheduler calls a proxy, which forwards the calls to the current leader, as a Service would. ``leader`` is the
    name of the leading planner; "" if none leads.

    Args:
        cluster: the cluster.
        term_s: term of the lease in seconds.
        front: port of the proxy; the planners listen on the ports after it.
        scheduler: name of the scheduler in pods.
        planners: names of the planner programs, each with the label selector of its nodes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        term_s: float,
        front: int = FRONT,
        scheduler: str = SCHEDULER,
        planners: Mapping[str, str] = BOTH,
    ) -> None:
        self.cluster = cluster
        self._term_s = term_s
        self._scheduler = f"replicas-{scheduler}"
        self.ports: dict[str, int] = {}
        self._front = front
        for name, nodes in planners.items():
            self.add(name, nodes)
        self.leader = ""
        self._ended = threading.Event()
        self._lines = Lines(cluster, front, self._to_leader)
        self._thread = threading.Thread(target=self._follow_leader, daemon=True)
        self._thread.start()
        cluster.add_scheduler(self._scheduler, scheduler_configuration(f"http://127.0.0.1:{front}", name=scheduler))

    def add(self, name: str, nodes: str = "") -> None:
        """Start one more planner, for the nodes that the label selector ``nodes`` selects; "" for all nodes."""
        port = self._front + 1 + len(self.ports)
        words = [str(self.cluster.kubeconfig), str(port), name, str(self._term_s), nodes]
        self.cluster.start_program(name, [sys.executable, "-c", _REPLICA, *words])
        self.ports[name] = port

    def wait_for_leader(self, other_than: str = "", timeout_s: float = 60) -> str:
        """Wait until a planner other than ``other_than`` leads, and return its name."""
        self.cluster.wait_for(lambda: self.leader not in ("", other_than), "a leader", timeout_s)
        return self.leader

    def close(self) -> None:
        self._ended.set()
        self._thread.join(60)
        self._lines.close()
        for name in (self._scheduler, *self.ports):
            with suppress(RuntimeError, TimeoutError):
                self.cluster.kill(name)

    def _to_leader(self) -> socket.socket | None:
        port = self.ports.get(self.leader)
        return self.cluster.namespaces.connect(port) if port else None

    def _follow_leader(self) -> None:
        while not self._ended.wait(0.1):
            now = next((name for name, port in list(self.ports.items()) if self._leads(port)), "")
            if now != self.leader:
                self.leader = now
                self._lines.cut()

    def _leads(self, port: int) -> bool:
        try:
            with self.cluster.namespaces.connect(port) as line:
                line.settimeout(0.5)
                line.sendall(b"GET /readyz HTTP/1.1\r\nHost: planner\r\nConnection: close\r\n\r\n")
                return line.recv(4096).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def status_of(cluster: Cluster, program: str) -> Mapping[str, str]:
    """Return the fields of ``/proc/PID/status`` of a program of the cluster, such as ``VmRSS``."""
    text = cluster.exec_inside("cat", f"/proc/{cluster.namespaces.number(program)}/status")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def resident_mib(cluster: Cluster, program: str) -> float:
    return int(status_of(cluster, program)["VmRSS"].split()[0]) / 1024
