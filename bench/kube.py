"""Planner on Kubernetes: decision rate from memory, and rate of planned and bound pods through a real API server.

First the core alone, as the service drives it, at 100, 1,000 and 5,000 nodes of eight devices: pods are added, decided, and
released; kube-scheduler's calls are made as HTTP would bring them; then another planner takes over. Where a real
Kubernetes can run (root, the built programs), pods then go through a real API server and a stock kube-scheduler on
invented nodes, beside plain pods through the same kube-scheduler and through the cluster's own, and a gang of 512.

Goals of the core are in CPU units (``bench._reference``), one of which is about 1 ms on the machines where they were set.
Goals on a real cluster are ratios to plain pods bound by the cluster's own kube-scheduler in the same run.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace

from tests.kube.api import Api, Json
from tests.kube.cluster import Cluster
from tests.kube.needs import absent
from tests.kube.planned import Planned, planned_pod

from bench._reference import CPU_UNIT, add_cpu_time, cpu_time, cpu_unit_s
from bench._report import ROOT, Report, run
from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.kubernetes.objects.names import PLAN, SCHEDULER
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.state.facts import GpuNodeFacts, NodeFacts, PodFacts, ReleasePod
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest
from calabash.model.device import Device, DeviceUuid
from calabash.model.request import GpuRequest

GPUS = 8
# Goals: CPU units.
PLANNED_PER_UNIT = 0.3
FILTER_P99, GANG, TAKE_OVER = 0.02, 300, 2_000
# Goals: of plain pods by the cluster's own kube-scheduler, by nodes; and by the product's, which asks the planner about each.
BOUND_OF_PLAIN = {100: 1.0, 1000: 1.2, 5000: 1.5}
BOUND_OF_SAME = 0.7
GANG_OF_PLAIN = 0.7
REQUESTS = (
    GpuRequest(),
    GpuRequest(memory_mib=8192, core_percent=20),
    GpuRequest(memory_mib=20000, core_percent=50),
    GpuRequest(count=2, memory_mib=16384, core_percent=30),
)


def asked(request: GpuRequest) -> PodRequest:
    part = ContainerRequest(container="main", kind=ContainerKind.MAIN, request=request)
    source = GangSource.ANNOTATION if request.gang else GangSource.NONE
    return PodRequest(dialect="native", containers=(part,), gang_source=source)


def nodes_of(count: int) -> list[tuple[NodeFacts, GpuNodeFacts]]:
    """Return nodes of eight A100 each, with unique UUIDs."""
    found = []
    for number in range(count):
        name = f"node-{number}"
        devices = tuple(
            NodeDevice(
                device=Device(
                    uuid=DeviceUuid(f"GPU-{number:06}-{i}"), index=i, vendor="nvidia", model="A100", memory_mib=40960
                )
            )
            for i in range(GPUS)
        )
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        found.append((NodeFacts(name=name, labels=labels), GpuNodeFacts(name=name, devices=devices)))
    return found


@dataclass(slots=True)
class World:
    """A core and the pods of the API server."""

    core: Core
    pods: dict[str, PodFacts]


def core_of(nodes: list[tuple[NodeFacts, GpuNodeFacts]], pods: dict[str, PodFacts]) -> Core:
    numbers = itertools.count()
    core = Core(new_id=lambda: f"plan-{next(numbers)}")
    for node, devices in nodes:
        core.node_changed(node, 0.0)
        core.devices_changed(devices, 0.0)
    for pod in pods.values():
        core.pod_changed(pod, 0.0)
    core.start(0.0)
    core.decide(0.0)
    return core


def pod(number: int, request: GpuRequest, *, at_s: float = 0.0) -> PodFacts:
    name = f"pod-{number}"
    return PodFacts(uid=name, namespace="team", name=name, created_at_s=at_s, request=asked(request), gated=True)


def released(world: World, now_s: float) -> int:
    """Decide, mark the released pods as written, and return their number."""
    world.core.decide(now_s)
    count = 0
    for action in world.core.take_actions():
        if isinstance(action, ReleasePod):
            world.pods[action.pod.uid] = seen = _with_plan(world.pods[action.pod.uid], action)
            world.core.pod_changed(seen, now_s)
            count += 1
    return count


def _with_plan(seen: PodFacts, action: ReleasePod) -> PodFacts:
    return replace(seen, plan=action.plan, nominated=action.plan.node, gated=False)


def measure_core(report: Report, count: int) -> None:
    """Measure single pods, a gang, kube-scheduler's calls and a takeover by another planner."""
    nodes = nodes_of(count)
    core_of(nodes, {f"pod-{i}": pod(i, r) for i, r in enumerate(REQUESTS)})  # tables of the policy are made once
    world = World(core=core_of(nodes, {}), pods={})
    many = min(400, 2 * count) if report.quick else min(2000, 4 * count)
    planned = 0
    with cpu_time() as took:
        for number in range(many):
            world.pods[f"pod-{number}"] = seen = pod(number, REQUESTS[number % len(REQUESTS)], at_s=float(number))
            world.core.pod_changed(seen, float(number))
            planned += released(world, number * 0.001)
    at = f"at {count:,} nodes"
    report.add_ratio(
        f"planned one by one {at}, per CPU unit",
        planned / took.work_s,
        1 / took.unit_s,
        "/s",
        of=CPU_UNIT,
        at_least=PLANNED_PER_UNIT,
        detail=f"{planned} pods",
    )
    questions_us = []
    for number in range(0, planned, max(1, planned // 200)):
        uid = f"pod-{number}"
        node = world.core.answers.planned_node(uid)
        began_ns = time.thread_time_ns()
        world.core.answers.filter(uid, [node or ""], node or "", 1.0)
        questions_us.append((time.thread_time_ns() - began_ns) / 1000)
    p99_us = statistics.quantiles(questions_us, n=100)[98]
    name = f"filter from memory, p99 {at}"
    report.add_ratio(name, p99_us, 1e6 * cpu_unit_s(), "us", of=CPU_UNIT, at_most=FILTER_P99)
    anew_us = []
    names = [node.name for node, _ in nodes]
    for number in range(0, planned, max(1, planned // 50)):
        uid = f"pod-{number}"
        node = world.core.answers.planned_node(uid)
        others = [name for name in names if name != node]
        began_ns = time.perf_counter_ns()
        world.core.answers.filter(uid, others, "", 1.0)
        anew_us.append((time.perf_counter_ns() - began_ns) / 1000)
    report.add(f"planned anew within an offer, median {at}", statistics.median(anew_us), "us")
    size = min(512, count * 2)
    for number in range(size):
        seen = pod(many + number, GpuRequest(gang="g", gang_size=size, core_percent=50, memory_mib=1024))
        world.pods[seen.uid] = seen
        world.core.pod_changed(seen, many * 0.001)
    with cpu_time() as took:
        planned = released(world, many * 0.001 + 1)
    add_cpu_time(report, f"gang of {size} planned {at}", took, at_most=GANG, detail=f"{planned} released")
    with cpu_time() as took:
        core_of(nodes, world.pods)
    add_cpu_time(report, f"taken over by another {at}", took, at_most=TAKE_OVER)


def measure_memory(report: Report) -> None:
    """Measure the resident memory of a process with a planner's state: 5,000 nodes, 40,000 devices, a pod on each."""
    nodes, pods = (500, 4000) if report.quick else (5000, 40_000)
    command = [sys.executable, "-m", "bench._planner_memory", str(nodes), str(pods)]
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    what = f"resident memory, {nodes:,} nodes, {GPUS * nodes:,} devices, {pods:,} pods"
    report.add(what, float(answer[0]), "MiB", at_most=400, detail=f"{answer[1]} of them counted by the scheduler")


class Seen:
    """Times at which each pod of a namespace was planned and bound, from a watch that is restarted when it ends."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.planned: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._closed = False
        self._watch = api.watch(self._path)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._closed:
            for event in self._watch:
                if event["type"] != "ERROR":
                    self._note(event["object"])
            if not self._closed:
                self._watch = self._api.watch(self._path)

    def _note(self, found: Json) -> None:
        name = found["metadata"]["name"]
        if PLAN in found["metadata"].get("annotations", {}):
            self.planned.setdefault(name, time.monotonic())
        if "nodeName" in found["spec"]:
            self.bound.setdefault(name, time.monotonic())

    def wait(self, count: int, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while len(self.bound) < count and time.monotonic() < end:
            time.sleep(0.05)
        self._closed = True
        if len(self.bound) < count:
            raise TimeoutError(f"{len(self.bound)} of {count} pods are bound after {timeout_s:.0f} s")


def rate(times: dict[str, float]) -> float:
    """Return the events per second, from the first to the last."""
    return (len(times) - 1) / max(max(times.values()) - min(times.values()), 1e-9)


def plain_rate(planned: Planned, program: str, scheduler: str, pods: int) -> float:
    """Return how many pods without devices a kube-scheduler binds per second if all are waiting at its start."""
    cluster, container = planned.cluster, {"name": "main", "image": "localhost/busybox:1"}
    cluster.kill(program)
    spec = {"schedulerName": scheduler, "containers": [container]}
    planned.create(f"plain-{program}", [{"metadata": {"name": f"p{i}"}, "spec": spec} for i in range(pods)])
    seen = Seen(cluster.api, f"plain-{program}")
    cluster.start(program)
    seen.wait(pods, 120)
    return rate(seen.bound)


def measure_real(report: Report, count: int, pods: int) -> None:
    """Measure a real API server and stock kube-schedulers on invented nodes; all pods wait at the start of each."""
    at = f"at {count:,} nodes"
    cluster = Cluster()
    with cluster, Planned(cluster, count, GPUS, prefix="bench", planner={"--identity": "only"}) as planned:
        alone = plain_rate(planned, "scheduler", "default-scheduler", pods)
        report.add(f"plain pods bound {at}", alone, "pods/s", detail=f"{pods} pods, the cluster's own kube-scheduler")
        beside = plain_rate(planned, "calabash-scheduler", SCHEDULER, pods)
        report.add(f"plain pods bound by ours {at}", beside, "pods/s", detail="which asks the planner about each")
        cluster.kill("planner")
        planned.create("ours", [planned_pod(f"p{i}", REQUESTS[i % len(REQUESTS)]) for i in range(pods)])
        seen = Seen(cluster.api, "ours")
        cluster.start("planner")
        seen.wait(pods, 120)
        report.add(f"pods planned and written {at}", rate(seen.planned), "pods/s")
        bound = rate(seen.bound)
        name = f"bound, of plain pods by the same kube-scheduler {at}"
        report.add_ratio(name, bound, beside, "pods/s", of="plain", at_least=BOUND_OF_SAME)
        name = f"bound, of plain pods by the cluster's own {at}"
        report.add_ratio(name, bound, alone, "pods/s", of="plain", at_least=BOUND_OF_PLAIN[count])
        if count < 512:
            return
        gang = GpuRequest(gang="g", gang_size=512, memory_mib=1024, core_percent=10)
        planned.make_namespace("gang")
        seen = Seen(cluster.api, "gang")
        planned.create("gang", [planned_pod(f"g{i}", gang) for i in range(512)])
        last = time.monotonic()
        seen.wait(512, 120)
        released_s, bound_s = (max(times.values()) - last for times in (seen.planned, seen.bound))
        report.add(f"gang of 512, last member created to all released {at}", released_s, "s")
        name = f"gang of 512, last member created to all bound {at}"
        report.add_ratio(
            name, bound_s, 512 / alone, "s", of="512 plain pods by the cluster's own", at_most=GANG_OF_PLAIN
        )


def measure(report: Report) -> None:
    """Measure all."""
    for count in (100, 1000, 5000):
        measure_core(report, count)
    measure_memory(report)
    missing = absent()
    if missing:
        print(f"no real Kubernetes here: {missing}")
        return
    for count in (100,) if report.quick else (100, 1000, 5000):
        measure_real(report, count, 200 if report.quick else 500)


if __name__ == "__main__":
    run("kube", "The planner on Kubernetes", measure)
