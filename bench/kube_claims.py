"""Claims (DRA): every start of a container has what was allocated to its claim, and the rate of claims.

**driven**: the agent's own process on a real API server, behind a kubelet that this benchmark drives (``_driven_claims``).
Claims of several shapes come and go: of several cards and requests, shared by containers and by pods, restarted, deleted by
force while a program runs, never unprepared; the agent is killed and the kubelet restarted on the way.

**allocated**: pods with a claim each on invented nodes whose ResourceSlices are the agent's: through a stock kube-scheduler
alone, and through the planner and the kube-scheduler that calls it; compared with as many plain pods through the stock one in
the same run. Also the stock kube-scheduler where the same nodes offer eight whole cards each, or keep them in one mode
(without counters).

Goals are ratios: of a claim's preparation to a durable commit (``bench._reference``), of several at once to one alone, of pods
with a claim to plain pods.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import PODS
from tests.kube.needs import absent
from tests.kube.planned import Planned

from bench._driven_claims import CLAIMS, CLASS, SLICES, claims_node
from bench._reference import commit_s
from bench._report import Report, run
from bench._starts_left import wait_until_nothing_is_left
from bench.kube_starts import judge
from calabash.kubernetes.claims.slices import ServerFeatures, SliceFacts, slices_of
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest, write_request
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.request import GpuRequest
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot

GPU_NODES = "calabash.dev/v1alpha1"
WHOLE_CLASS = "calabash.dev"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
WORKERS = 6
ALONE = 200  # starts of one worker alone
FAULTS = 4  # one of each card, because a card that fails repeatedly stays out of use
TURNS = 3
PREPARE, AT_ONCE = 30, 2.5  # goals: of a durable commit; of one claim alone
OF_PLAIN = 0.7  # goal: pods with a claim through the planner, of plain pods
_BOUND_S = 300.0


def measure_driven(report: Report, cluster: Cluster, starts: int, *, rounds: int) -> None:
    """Measure so many starts, with every fault ``rounds`` times."""
    with claims_node(cluster, workers=WORKERS, seed=1) as node:
        tainted = [node.until_tainted(card) for card in range(FAULTS)]
        with tempfile.TemporaryDirectory() as scratch:
            commit = commit_s(Path(scratch))
        node.run(min(starts // 2, ALONE), [], workers=1)
        alone_s, node.first_s = node.first_s, []
        began = time.monotonic()
        node.run(starts, node.faults(rounds))
        took_s = time.monotonic() - began
        left, left_s = wait_until_nothing_is_left(node.left)
        detail = f"{took_s:.0f} s; {rounds} times each: agent killed, kubelet restarted"
        report.add("driven: container starts", node.tally.starts, "starts", at_least=starts, detail=detail)
        judge(report, "driven", node.tally, left, left_s)
        report.add(
            "driven: claims",
            len(alone_s) + len(node.first_s),
            "claims",
            detail=f"{node.shared} of them used by two pods",
        )
        report.add("driven: starts asked again", node.again, "times", detail="refused, or the agent was away")
        report.add("driven: claims whose pods were deleted by force while they ran", node.by_force, "claims")
        report.add("driven: claims deleted and never given back", node.forgotten, "claims")
        alone_ms, at_once_ms = (1e3 * statistics.median(found) for found in (alone_s, node.first_s))
        name = "driven: prepare, p50, one at a time"
        report.add_ratio(name, alone_ms, 1e3 * commit, "ms", of="durable commit", at_most=PREPARE)
        name, of = "driven: prepare, p50", "one at a time"
        report.add_ratio(name, at_once_ms, alone_ms, "ms", of=of, at_most=AT_ONCE, detail=f"{WORKERS} at once")
        report.add("driven: prepare, p99", statistics.quantiles(node.first_s, n=100)[98] * 1e3, "ms")
        report.add(
            "driven: fault of a card until it is published",
            max(tainted),
            "s",
            at_most=1,
            detail=f"slowest of {FAULTS}; a promise, set by the agent's poll interval",
        )


def cards(node: int) -> tuple[Device, ...]:
    return tuple(
        Device(
            uuid=DeviceUuid(f"GPU-{node:04x}{i:04x}-0000-4000-8000-{i:012x}"),
            index=i,
            vendor="nvidia",
            model="NVIDIA A100-SXM4-40GB",
            memory_mib=40960,
        )
        for i in range(8)
    )


def publish(cluster: Cluster, names: Sequence[str], server: ServerFeatures, *, pinned: str = "") -> int:
    """Write the ResourceSlices of these nodes as their agents would, and delete all others; return the devices of each node.

    ``pinned`` is the one mode in which their operator keeps all cards.
    """
    cluster.api.delete(SLICES)
    count = 0
    for number, name in enumerate(names):
        kept = [replace(card, pinned=pinned) for card in cards(number)]
        states = tuple(DeviceSnapshot(device=device, mode=None, held=()) for device in kept)
        snapshot = NodeSnapshot(node=NodeName(name), devices=states, allocations=(), membership="kernel", slots="tmpfs")
        specs = slices_of(snapshot, SliceFacts(driver_version="570.86.10"), server)
        count = sum(len(spec.devices or ()) for spec in specs)
        for place, spec in enumerate(specs):
            body = {"metadata": {"name": f"{name}-{place}"}, "spec": msgspec.to_builtins(spec)}
            cluster.api.create(SLICES, body)
    return count


def report_devices(cluster: Cluster, names: Sequence[str]) -> None:
    """Report the same nodes' devices to the planner as their agents would."""
    path = "/apis/calabash.dev/v1alpha1/gpunodes"
    for number, name in enumerate(names):
        told = [
            {
                "uuid": card.uuid,
                "index": card.index,
                "model": card.model,
                "memoryMib": card.memory_mib,
                "health": "healthy",
            }
            for card in cards(number)
        ]
        cluster.api.create(path, {"apiVersion": GPU_NODES, "kind": "GpuNode", "metadata": {"name": name}})
        cluster.api.patch(f"{path}/{name}/status", {"status": {"devices": told, "door": AllocationApi.CLAIMS.value}})


def pod(name: str, *, claims: bool, planned: bool) -> Json:
    """Return a pod: plain, with a claim of its own name, or with such a claim as admission leaves it for the planner."""
    meta: Json = {"name": name}
    container: Json = {"name": "main", "image": "none.invalid/none"}
    spec: Json = {"automountServiceAccountToken": False, "containers": [container]}
    if claims:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    if planned:
        part = ContainerRequest(container="gpu", kind=ContainerKind.MAIN, request=GpuRequest())
        asked = PodRequest(dialect="claims", containers=(part,), allocation_api=AllocationApi.CLAIMS)
        meta["annotations"] = {REQUEST: write_request(asked)}
        spec |= {"schedulerName": SCHEDULER, "schedulingGates": [{"name": PLAN_GATE}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def bound_per_s(cluster: Cluster, prefix: str, count: int, *, asks: Json | None = None, planned: bool = False) -> float:
    """Return pods bound per second, from the first creation to the last binding; with ``asks`` each pod has such a claim."""
    names = [f"{prefix}-{n}" for n in range(count)]
    for name in names if asks else ():
        spec: Json = {"devices": {"requests": [{"name": "gpu", "exactly": asks}]}}
        cluster.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
    began = time.monotonic()
    for name in names:
        cluster.api.create(PODS, pod(name, claims=asks is not None, planned=planned))
    while True:
        pods = cluster.api.get(PODS)["items"]
        if sum(pod["metadata"]["name"] in names and bool(pod["spec"].get("nodeName")) for pod in pods) == count:
            break
        assert time.monotonic() - began < _BOUND_S, f"{prefix}: not all of {count} are bound"
        time.sleep(0.1)
    took_s = time.monotonic() - began
    for name in names:
        cluster.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        if asks:
            cluster.api.delete(f"{CLAIMS}/{name}")
    return count / took_s


def measure_allocated(report: Report, cluster: Cluster, nodes: int, pods: int) -> None:
    """Measure allocation of claims; see the module's description."""
    names = cluster.fake_nodes(nodes, {}, prefix="slices")
    for name, mode in ((CLASS, "vgpu"), (WHOLE_CLASS, "exclusive")):
        expression = f'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "{mode}"'
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        cluster.api.create(CLASSES, body)
    share = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": "4Gi", "cores": "10"}}}
    whole = {"deviceClassName": WHOLE_CLASS}
    detail = f"{nodes} nodes of 8 cards, {pods} pods, median of {TURNS}; a stock kube-scheduler"
    publish(cluster, names, ServerFeatures(counters=False))
    wholes = [bound_per_s(cluster, f"whole-{turn}", pods, asks=whole) for turn in range(TURNS)]
    few = publish(cluster, names, ServerFeatures(), pinned="vgpu")
    pinned = [bound_per_s(cluster, f"pinned-{turn}", pods, asks=share) for turn in range(TURNS)]
    devices = publish(cluster, names, ServerFeatures())
    plain, claimed = [], []
    for turn in range(TURNS):
        plain.append(bound_per_s(cluster, f"plain-{turn}", pods))
        claimed.append(bound_per_s(cluster, f"claimed-{turn}", pods, asks=share))
    with Planned(cluster, 0, 0, prefix="none", planner={"--identity": "only"}):
        report_devices(cluster, names)
        bound_per_s(cluster, "first", 1, asks=share, planned=True)  # when it is bound, both programs lead
        ours = [bound_per_s(cluster, f"ours-{turn}", pods, asks=share, planned=True) for turn in range(TURNS)]
    base, stock, alone, kept, by_us = (statistics.median(found) for found in (plain, claimed, wholes, pinned, ours))
    without = f"{nodes} nodes of 8 devices without counters, {pods} pods, median of {TURNS}; a stock kube-scheduler"
    report.add("allocated: plain pods bound", base, "pods/s", detail=detail)
    report.add("allocated: pods with a claim bound", stock, "pods/s", detail=f"{detail}; {devices} devices a node")
    report.add(
        "allocated: pods with a claim bound, by the planner", by_us, "pods/s", detail="the same nodes and slices"
    )
    report.add("allocated: pods with a claim bound, whole cards without counters", alone, "pods/s", detail=without)
    in_one = "allocated: pods with a claim bound, cards kept in one mode"
    report.add(in_one, kept, "pods/s", detail=f"{detail}; {few} devices a node")
    for how, found, goal in (
        ("", stock, None),
        (", by the planner", by_us, OF_PLAIN),
        (", whole cards without counters", alone, None),
        (", cards kept in one mode", kept, None),
    ):
        report.add_ratio(f"allocated: with a claim{how}, to plain", found, base, "pods/s", of="plain", at_least=goal)


def measure(report: Report) -> None:
    """Measure both parts; the short form makes fewer starts and pods."""
    missing = absent()
    if missing:
        print(f"no real Kubernetes here: {missing}")
        return
    with Cluster() as cluster:
        measure_driven(report, cluster, 300 if report.quick else 10_000, rounds=1 if report.quick else 10)
    with Cluster() as cluster:
        measure_allocated(report, cluster, 10 if report.quick else 100, 20 if report.quick else 200)


if __name__ == "__main__":
    run("kube_claims", "Claims: right limits over ten thousand starts, and how fast they go their way", measure)
