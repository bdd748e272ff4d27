"""Planner on Kubernetes under faults, and its size: on a real API server with invented nodes.

First size: 5,000 nodes with 40,000 devices and bound pods; a planner is started, decides its first pod, and its memory is
read. Then 100 nodes and a stream of pods while the API server, etcd and the planner are killed and started again, while every
connection of the planner is cut 100 times, while it hangs for longer than its lease, and while one of two is lost. After
each all pods must be bound, and the devices in the plans of all bound pods are added up to find double placements.

The processor time of the start is in CPU units (``bench._reference``). Times to a decision after a fault have goals in
seconds: leases, retries and the restart of etcd set them.
"""

from __future__ import annotations

import random
import signal
import time

from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.needs import absent
from tests.kube.planned import Planned, crd, planned_pod
from tests.kube.planner_faults import (
    Lines,
    Replicas,
    Stream,
    has_plan,
    is_bound,
    over_committed,
    planner_behind_lines,
    seconds_until_next,
    status_of,
    wait_until_bound,
)

from bench._reference import CPU_UNIT, cpu_unit_s
from bench._report import Report, run
from calabash.kubernetes.leader.lease import TERM_S
from calabash.kubernetes.objects.names import PLAN
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, write_plan
from calabash.model.request import GpuRequest

GPUS = 8
START_UNITS = 6_000  # goal: processor time of a start at 5,000 nodes, in CPU units
DECISION_S = 5.0  # goal: over what timers take; a planner that does not recover decides nothing in a minute
HANG_PART = 0.25  # goal: of the time for which the planner hangs
SHARE = GpuRequest(memory_mib=8192, core_percent=20)
KINDS = (
    SHARE,
    GpuRequest(),
    GpuRequest(memory_mib=20000, core_percent=50),
    GpuRequest(count=2, memory_mib=4096, core_percent=20),
)
GPU_NODES = "/apis/calabash.dev/v1alpha1/gpunodes"


def uuid(node: int, device: int) -> str:
    return f"GPU-{node:08d}-0000-4000-8000-{device:012d}"


def devices(node: int) -> list[Json]:
    """Return the devices of a node as its agent reports them."""
    return [
        {
            "uuid": uuid(node, i),
            "index": i,
            "model": "NVIDIA A100-SXM4-40GB",
            "memoryMib": 40960,
            "health": "healthy",
            "numaNode": i // 4,
            "pciBusId": f"00000000:{i:02X}:00.0",
            "nvlinkPeers": [uuid(node, peer) for peer in range(GPUS) if peer != i],
            "modes": ["exclusive", "timeslice", "vgpu"],
        }
        for i in range(GPUS)
    ]


class Large(Planned):
    """Cluster of nodes of eight devices whose objects are made in one write each."""

    def _install(self) -> None:
        definition = crd("gpunodes", "GpuNode")
        del definition["spec"]["versions"][0]["subresources"]
        self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        super()._install()

    def _devices(self, node: str) -> None:
        number = int(node.rsplit("-", 1)[1])
        body = {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": node}}
        self.api.create(GPU_NODES, body | {"status": {"devices": devices(number)}})

    def bound_pod(self, number: int) -> None:
        """Create a pod that another planner placed long ago."""
        at, path = number % len(self.nodes), "/api/v1/namespaces/team/pods"
        pod = planned_pod(f"p{number}", SHARE, nodeName=self.nodes[at])
        del pod["spec"]["schedulingGates"]
        made = self.api.create(path, pod)
        piece = PlannedSlice(device=uuid(at, number // len(self.nodes) % GPUS), memory_mib=8192, core_percent=20)
        plan = PodPlan(
            id=f"{number:016x}",
            pod_uid=made["metadata"]["uid"],
            node=self.nodes[at],
            containers=(PlannedContainer(name="main", mode="vgpu", slices=(piece,)),),
        )
        self.api.patch(f"{path}/p{number}", {"metadata": {"annotations": {PLAN: write_plan(plan)}}})


def measure_size(report: Report, count: int, pods: int) -> None:
    """Measure a planner that starts in a full cluster: time to its first decision, and memory."""
    at = f"at {count:,} nodes, {count * GPUS:,} devices"
    cluster = Cluster()
    with cluster, Large(cluster, count, GPUS, prefix="large", planner={"--identity": "only"}) as planned:
        planned.close()
        planned.make_namespace("team")
        planned.each(planned.bound_pod, list(range(pods)))
        planned.create("team", [planned_pod("waiting", SHARE)])
        began = time.monotonic()
        cluster.start("planner")
        cluster.wait_for(
            lambda: has_plan(planned.api.get("/api/v1/namespaces/team/pods/waiting")), "a decision", timeout_s=300
        )
        took_s = time.monotonic() - began
        detail = f"from the program's start to the first plan written, {pods:,} bound pods"
        report.add(f"cold start {at}", took_s, "s", detail=detail)
        found = status_of(cluster, "planner")
        for name, key in (("resident", "VmRSS"), ("resident at most", "VmHWM")):
            report.add(f"planner {name} {at}", int(found[key].split()[0]) / 1024, "MiB", at_most=400)
        cpu_ms, unit_ms = 1000 * _cpu_s(cluster), 1000 * cpu_unit_s()
        name = f"processor time of the start {at}"
        report.add_ratio(name, cpu_ms, unit_ms, "ms", of=CPU_UNIT, at_most=START_UNITS)


def _cpu_s(cluster: Cluster) -> float:
    """Return the CPU time of the planner so far."""
    text = cluster.exec_inside("cat", f"/proc/{cluster.namespaces.number('planner')}/stat")
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


def pod(number: int) -> Json:
    return planned_pod(f"p{number:05}", KINDS[number % len(KINDS)])


def judged(report: Report, planned: Planned, space: str, count: int, what: str) -> None:
    """Wait until all pods are bound; report double placements and lost pods."""
    found = wait_until_bound(planned, space, count)
    report.add(f"double placements, {what}", len(over_committed(found)), "", at_most=0, detail=f"{count} pods")
    report.add(f"lost pods, {what}", count - sum(map(is_bound, found)), "", at_most=0)
    planned.clear(space)


def measure_kills(report: Report, planned: Planned, turns: int) -> None:
    """Kill and restart each of three components during a stream of pods."""
    for component in ("apiserver", "etcd", "planner"):
        space, worst_s = f"killed-{component}", 0.0
        with Stream(planned, space, pod, per_s=20) as stream:
            for _ in range(turns):
                time.sleep(1.0)
                planned.cluster.kill(component)
                time.sleep(1.0)
                planned.cluster.start(component)
                worst_s = max(worst_s, seconds_until_next(planned, space, has_plan))
        what = f"{component} killed {turns} times in a stream"
        detail = "set by retries of connections"
        report.add(f"first decision, {what}, worst", worst_s, "s", at_most=DECISION_S, detail=detail)
        judged(report, planned, space, stream.count, what)


def measure_lines(report: Report, planned: Planned, lines: Lines, times: int) -> None:
    """Cut every connection of the planner again and again."""
    broken = 0
    with Stream(planned, "broken", pod, per_s=20) as stream:
        for _ in range(times):
            time.sleep(random.uniform(0.05, 0.2))
            broken += lines.cut()
    judged(
        report, planned, "broken", stream.count, f"all its connections cut {times} times ({broken / times:.1f} each)"
    )


def measure_hang(report: Report, planned: Planned, seconds: float) -> None:
    """Stop the planner amid a gang and continue it."""
    cluster = planned.cluster
    gang = [planned_pod(f"g{i:02}", GpuRequest(gang="g", gang_size=32, core_percent=50)) for i in range(32)]
    planned.create("hangs", gang[:-1])
    cluster.namespaces.signal("planner", signal.SIGSTOP)
    planned.create("hangs", [gang[-1], *[pod(i) for i in range(20)]])
    began = time.monotonic()
    container = {"name": "main", "image": "localhost/busybox:1"}
    planned.create("others", [{"metadata": {"name": "other"}, "spec": {"containers": [container]}}])
    planned.wait_bound("others", 1)
    other_s, hang = time.monotonic() - began, "the planner's hang"
    time.sleep(seconds)
    cluster.namespaces.signal("planner", signal.SIGCONT)
    name = "a pod of others bound while the planner hangs"
    report.add_ratio(name, other_s, other_s + seconds, "s", of=hang, at_most=HANG_PART)
    began = time.monotonic()
    planned.wait_bound("hangs", 52, 120)
    what = f"the planner hung for {seconds:.0f} s amid a gang"
    ours_s = time.monotonic() - began
    report.add_ratio(f"all of ours bound after {what}", ours_s, other_s + seconds, "s", of=hang, at_most=HANG_PART)
    judged(report, planned, "hangs", 52, what)
    planned.clear("others")


def measure_replicas(report: Report, planned: Planned, term_s: float) -> None:
    """Stop the leader amid a gang, continue it when the other planner leads, then kill that one."""
    cluster = planned.cluster
    planned.close()
    with Replicas(cluster, term_s=term_s) as replicas:
        first = replicas.wait_for_leader()
        gang = GpuRequest(gang="g", gang_size=64, core_percent=50, memory_mib=1024)
        planned.create("two", [planned_pod(f"g{i:02}", gang) for i in range(64)])
        cluster.wait_for(lambda: any(map(has_plan, planned.pods("two").values())), "a plan", every_s=0.0)
        cluster.namespaces.signal(first, signal.SIGSTOP)
        stopped = time.monotonic()
        newcomers = [pod(i) for i in range(100)]
        planned.create("two", newcomers)
        second = replicas.wait_for_leader(other_than=first)
        names = {one["metadata"]["name"] for one in newcomers}
        cluster.wait_for(
            lambda: any(has_plan(found) for name, found in planned.pods("two").items() if name in names), "a decision"
        )
        what = f"first decision, leader stopped, term of {term_s:.0f} s"
        detail = "set by the lease's term"
        report.add(what, time.monotonic() - stopped, "s", at_most=term_s + DECISION_S, detail=detail)
        cluster.namespaces.signal(first, signal.SIGCONT)
        planned.wait_bound("two", 164, 120)
        cluster.kill(second)
        planned.create("two", [pod(i) for i in range(100, 120)])
        took_s = seconds_until_next(planned, "two", has_plan)
        what = f"first decision, leader killed, term of {term_s:.0f} s"
        report.add(what, took_s, "s", at_most=term_s + DECISION_S, detail=detail)
        judged(report, planned, "two", 184, "leader stopped amid a gang and woken, the next one killed")


def measure(report: Report) -> None:
    """Measure all."""
    missing = absent()
    if missing:
        report.fact("no real Kubernetes here", str(missing))
        return
    random.seed(7)
    quick = report.quick
    measure_size(report, *((100, 200) if quick else (5000, 3000)))
    with Cluster() as cluster, planner_behind_lines(cluster, GPUS, prefix="bench") as (planned, lines):
        measure_lines(report, planned, lines, 20 if quick else 100)
        if not quick:
            measure_kills(report, planned, 3)
            measure_hang(report, planned, 20.0)
        measure_replicas(report, planned, 3.0 if quick else TERM_S)


if __name__ == "__main__":
    run("kube_endures", "The planner on Kubernetes while things break", measure)
