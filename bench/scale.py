"""Cost of a cluster of many nodes: objects, bytes, writes, watches, lists, and the planner; measured, then extrapolated.

Nodes of eight cards are invented in a real API server and etcd, at a few sizes. The cost of each operation (a write, an event
for one watcher, an object of a list) is measured at each size; a straight line goes through the sizes, and its residual
stands beside it. The planner's core is measured without an API server, at larger sizes. The need of a cluster of 1,000, 10,000
and 50,000 nodes is the sum over its events, at the rates of ``_scale_model``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict

import msgspec
from tests.kube.needs import absent

from bench._reference import cpu_unit_s
from bench._report import ROOT, Report, run
from bench._scale_cluster import NAMESPACE, ScaledCluster
from bench._scale_fit import Line, line_through
from bench._scale_model import SIZES, Costs, demands
from bench._scale_objects import (
    GPU_NODES,
    GPUS,
    SLICES,
    gpu_node_status,
    json_bytes,
    node_name,
    pod_body,
    resource_slices,
)
from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.claims.slices import slice_name
from calabash.kubernetes.objects.names import PLAN, PLANNED_BY, POOL
from calabash.kubernetes.objects.plan import read_plan
from calabash.model.request import GpuRequest

SMALL = GpuRequest(memory_mib=8192, core_percent=20)
CORES_S = 150.0  # no larger planner is begun after that, and no larger cluster after the other
CLUSTERS_S = 240.0
_TWO = 250  # the smallest sizes that give a line
TOLD = 200  # writes of which the cost of one is told
Points = dict[str, dict[int, float]]  # by what, by nodes


def measure(report: Report) -> None:
    """Measure all."""
    measure_sizes(report)
    lines = measure_core(report)
    passed_over_us = measure_passed_over(report)
    missing = absent()
    if missing:
        report.fact("no real Kubernetes here", missing)
        return
    found: Points = defaultdict(dict)
    began = time.monotonic()
    for nodes, pods in ((50, 8), (100, 8)) if report.quick else ((100, 8), (250, 8), (1000, 8), (2500, 4)):
        if nodes > _TWO and time.monotonic() - began > CLUSTERS_S:
            report.fact(f"a cluster of {nodes:,} nodes", "left out, for want of time on this machine")
            continue
        with ScaledCluster(nodes, pods=pods) as scaled:
            scaled.fill()
            measure_cluster(found, scaled)
            measure_planner(found, scaled)
            measure_part(found, scaled)
        for name, points in found.items():
            what, unit = name.rsplit(", ", 1)
            report.add(f"{what} at {nodes:,} nodes", points[nodes], unit)
    costs = Costs(
        write_ms=_mean(found["GpuNode written in CPU of the API server, ms"]),
        event_ms=_mean(found["event of a GpuNode for one watcher in CPU of the API server, ms"]),
        pod_ms=_mean(found["pod planned and bound in CPU of the API server, ms"]),
        planner_event_ms=_mean(found["use told to a planner in its CPU, ms"]),
        listed_us=_mean(found["GpuNode listed, us"]),
        pod_listed_us=_mean(found["pod listed, us"]),
        etcd_bytes=line_through(found["etcd's file, bytes"]),
        planner_mib=lines["memory"],
        planner_start_s=lines["start"],
        passed_over_us=passed_over_us,
        cpu_unit_s=cpu_unit_s(),
    )
    extrapolate(report, costs)


def measure_sizes(report: Report) -> None:
    """Measure the size of objects as they are sent."""
    for what, status in (
        ("idle", gpu_node_status(1, slices=0)),
        ("a slice on each card", gpu_node_status(1)),
        ("four slices on each card", gpu_node_status(1, slices=4)),
        ("MIG, a slice on each card", gpu_node_status(1, mig=True)),
    ):
        report.add(f"status of a GpuNode, {what}", json_bytes(status), "bytes")
    for what, mig in (("without places of MIG", False), ("with places of MIG", True)):
        slices = resource_slices(1, mig=mig)
        report.add(f"ResourceSlices of a node, {what}", json_bytes(*slices), "bytes", detail=f"{len(slices)} objects")


def measure_core(report: Report) -> dict[str, Line]:
    """Measure the planner's memory and the time of a takeover, each in a process of its own."""
    sizes = (250, 500, 1000) if report.quick else (1000, 2500, 5000, 10_000)
    began = time.monotonic()
    memory: dict[int, float] = {}
    start: dict[int, float] = {}
    for nodes in sizes:
        if time.monotonic() - began > CORES_S:
            report.fact(f"a planner of {nodes:,} nodes", "left out, for want of time on this machine")
            continue
        command = [sys.executable, "-m", "bench._planner_memory", str(nodes), str(nodes * GPUS)]
        answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
        memory[nodes], start[nodes] = float(answer[0]), float(answer[2])
        at = f"{nodes:,} nodes, {nodes * GPUS:,} pods"
        report.add(f"planner's memory, {at}", memory[nodes], "MiB")
        report.add(f"planner's CPU until it decides, {at}", start[nodes], "s")
    lines = {"memory": line_through(memory), "start": line_through(start)}
    report.fact("planner's memory", lines["memory"].text("MiB"))
    report.fact("planner's CPU until it decides", lines["start"].text("s"))
    return lines


def measure_cluster(found: Points, scaled: ScaledCluster) -> None:
    """Measure writes, events and lists."""
    nodes = scaled.nodes
    for kind, (count, spent) in scaled.filled.items():
        found[f"{kind} created in CPU of the API server, ms"][nodes] = 1000 * spent.api_s / count
    stored = scaled.stored_bytes()
    found["etcd's file, bytes"][nodes] = sum(v for k, v in stored.items() if k.startswith("apiserver_storage_size"))
    pod = f"/api/v1/namespaces/{NAMESPACE}/pods/job-0-abcde"
    for what, path in (
        ("Node", f"/api/v1/nodes/{node_name(0)}"),
        ("pod", pod),
        ("ResourceSlice of 40 devices", f"{SLICES}/{slice_name(node_name(0), 1)}"),
    ):
        found[f"{what} in etcd, bytes"][nodes] = scaled.size_as_protobuf(path)
    found["GpuNode in etcd, bytes"][nodes] = scaled.size_as_json(f"{GPU_NODES}/{node_name(0)}")
    for what, path in (("Node", "/api/v1/nodes"), ("GpuNode", GPU_NODES), ("ResourceSlice", SLICES), ("pod", pod)):
        with scaled.spending() as listing:
            count, size = scaled.list_all(path.removesuffix("/job-0-abcde"))
        found[f"{what} listed, us"][nodes] = 1e6 * listing[0].wall_s / count
        found[f"{what} listed, bytes"][nodes] = size / count
    ms: dict[int, float] = {}
    for watchers in (0, 32):
        with scaled.watchers(GPU_NODES, watchers) as received, scaled.spending() as telling:
            for number in range(TOLD):
                scaled.report_devices(number % nodes, 2000 + 100 * watchers + number)
            scaled.wait_for(lambda: received.lines >= TOLD * watchers, "events")  # noqa: B023 - asked at once
        ms[watchers] = 1000 * telling[0].api_s / TOLD
        if watchers:
            found["event of a GpuNode, bytes"][nodes] = received.total_bytes / received.lines
    found["GpuNode written in CPU of the API server, ms"][nodes] = ms[0]
    found["event of a GpuNode for one watcher in CPU of the API server, ms"][nodes] = max(0.0, (ms[32] - ms[0]) / 32)
    found["API server's memory, MiB"][nodes] = scaled.resident_mib("apiserver")
    found["etcd's memory, MiB"][nodes] = scaled.resident_mib("etcd")


def measure_planner(found: Points, scaled: ScaledCluster) -> None:
    """Measure a planner process: time until it leads, cost while only use is reported, time until another one leads."""
    nodes = scaled.nodes
    began = time.monotonic()
    scaled.start_planner("first", 7071)
    scaled.wait_for(lambda: scaled.leads("first"), "the first planner to lead")
    found["planner leads after its start, s"][nodes] = time.monotonic() - began
    found["planner's CPU until it leads, s"][nodes] = scaled.cpu_s("first")
    found["planner's memory as a program, MiB"][nodes] = scaled.resident_mib("first")
    scaled.wait_until_quiet()
    before, began = scaled.cpu_s("first"), time.monotonic()
    time.sleep(5.0)  # what it costs to do nothing is a rate
    idle = (scaled.cpu_s("first") - before) / (time.monotonic() - began)
    before, began = scaled.cpu_s("first"), time.monotonic()
    for number in range(3 * TOLD):
        scaled.report_devices(number % nodes, 5000 + number)
    spent = scaled.cpu_s("first") - before - idle * (time.monotonic() - began)
    found["planner's CPU at rest, cores"][nodes] = idle
    found["use told to a planner in its CPU, ms"][nodes] = max(0.0, 1000 * spent / (3 * TOLD))
    _plan(found, scaled)
    scaled.start_planner("second", 7072)
    scaled.wait_for(lambda: "answers kube-scheduler" in scaled.cluster.log("second"), "the second planner")
    time.sleep(1.0)  # for its lists; one that leads at once would have to make them first
    began = time.monotonic()
    scaled.cluster.kill("first", signal.SIGTERM)
    scaled.wait_for(lambda: scaled.leads("second"), "the second planner to lead")
    found["second planner leads after the first resigned, s"][nodes] = time.monotonic() - began
    scaled.cluster.kill("second", signal.SIGTERM)  # which gives its lease back: nobody waits for it


def _plan(found: Points, scaled: ScaledCluster) -> None:
    """Measure pods that are created with our gate, planned, and bound; subtract what the API server does anyway."""
    from tests.kube.planned import planned_pod  # noqa: PLC0415 - only where a cluster can run

    names = [f"new-{number}" for number in range(TOLD)]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    scaled.wait_until_quiet()
    with scaled.spending() as resting:
        time.sleep(3.0)  # the API server's own work is a rate
    with scaled.spending() as spent:
        version = scaled.api.get(f"{path}?limit=1")["metadata"]["resourceVersion"]
        seen = iter(scaled.api.watch(f"{path}?resourceVersion={version}"))
        for name in names:
            scaled.api.create(path, planned_pod(name, SMALL))
        waiting = set(names)
        for event in seen:
            meta = event["object"]["metadata"]
            if meta["name"] in waiting and PLAN in meta.get("annotations", {}):
                waiting.discard(meta["name"])
                node = read_plan(meta["annotations"][PLAN]).node
                body = {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": node}}
                scaled.api.create(f"{path}/{meta['name']}/binding", body)
            if not waiting:
                break
        del seen  # which ends the watch
    idle = resting[0].api_s / resting[0].wall_s * spent[0].wall_s
    found["pod planned and bound in CPU of the API server, ms"][scaled.nodes] = 1000 * (spent[0].api_s - idle) / TOLD


def measure_part(found: Points, scaled: ScaledCluster) -> None:
    """Measure a planner of one of two pools: until it leads, and until all nodes of its pool are labelled."""
    nodes = scaled.nodes
    last = f"{GPU_NODES}/{node_name(nodes - 2)}"  # of the even ones, which are in its pool
    with scaled.spending() as spent:
        began = time.monotonic()
        scaled.start_planner("part", 7073, "--node-selector", f"{POOL}=a")
        scaled.wait_for(lambda: scaled.leads("part"), "the planner of a part to lead")
        found["planner of half the nodes leads after its start, s"][nodes] = time.monotonic() - began
        found["CPU of a planner of half the nodes until it leads, s"][nodes] = scaled.cpu_s("part")
        led = time.monotonic()
        scaled.wait_for(lambda: PLANNED_BY in scaled.api.get(last)["metadata"].get("labels", {}), "its last node")
        found["all its nodes are labelled after it leads, s"][nodes] = time.monotonic() - led
    scaled.wait_until_quiet()
    found["memory of a planner of half the nodes, MiB"][nodes] = scaled.resident_mib("part")
    found["CPU of the API server while a planner of half the nodes begins, s"][nodes] = spent[0].api_s
    scaled.cluster.kill("part")


def measure_passed_over(report: Report) -> float:
    """Return the microseconds of CPU for a pod of another pool, which a planner receives and does not keep."""
    text = msgspec.json.encode([pod_body(number, number, 0) for number in range(TOLD)])
    rounds = 5 if report.quick else 50
    began = time.process_time()
    for _ in range(rounds):
        msgspec.json.decode(text, type=list[Pod])
    cost_us = 1e6 * (time.process_time() - began) / (rounds * TOLD)
    report.add("CPU of a planner for a pod of another part", cost_us, "us")
    return cost_us


def extrapolate(report: Report, costs: Costs) -> None:
    """Report the needs of clusters of these sizes."""
    report.fact("etcd's file", costs.etcd_bytes.text("bytes"))
    for nodes in SIZES:
        for demand in demands(nodes, costs):
            name = f"{nodes:,} nodes: {demand.what}"
            detail = demand.how
            if demand.at_most is None:
                report.add(name, demand.value, demand.unit, detail=detail)
            else:
                report.add(name, demand.value, demand.unit, at_most=demand.at_most, detail=detail)


def _mean(points: dict[int, float]) -> float:
    return sum(points.values()) / len(points)


if __name__ == "__main__":
    run("scale", "A cluster of many nodes", measure)
