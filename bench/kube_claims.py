"""Claims: every start of every container has what was allocated to its claim, and how fast claims go their way.

**driven**: the agent's own process on a real API server, behind a kubelet that this benchmark drives (``_driven_claims``).
Claims of several shapes come and go: of several cards and requests, shared by containers and by pods, restarted, deleted by
force while a program runs, never given back; the agent is killed and the kubelet restarted on the way.

**allocated**: pods with a claim each through a stock kube-scheduler on invented nodes whose slices are the agent's, beside as
many plain pods through the same scheduler in the same run.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import msgspec
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import PODS
from tests.kube.needs import absent

from bench._driven_claims import CLAIMS, CLASS, SLICES, claims_node
from bench._report import Report, run
from bench._starts_left import wait_for_nothing
from bench.kube_starts import judge
from calabash.agent.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.kubernetes.claims.slices import ServerFeatures, SliceFacts, slices_of
from calabash.model.device import Device, DeviceUuid, NodeName

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
WORKERS = 6
ALONE = 200  # starts of one worker alone
FAULTS = 4  # one of each card, for one that falls ill again and again stays out of use
_BOUND_S = 300.0


def measure_driven(report: Report, cluster: Cluster, starts: int, *, rounds: int) -> None:
    """So many starts; every fault ``rounds`` times."""
    with claims_node(cluster, workers=WORKERS, seed=1) as node:
        tainted = [node.until_tainted(card) for card in range(FAULTS)]
        node.run(min(starts // 2, ALONE), [], workers=1)
        alone_s, node.first_s = node.first_s, []
        began = time.monotonic()
        node.run(starts, node.faults(rounds))
        took_s = time.monotonic() - began
        left, left_s = wait_for_nothing(node.left)
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
        report.add(
            "driven: prepare, p50", statistics.median(node.first_s) * 1e3, "ms", at_most=30, detail=f"{WORKERS} at once"
        )
        report.add("driven: prepare, p50, one at a time", statistics.median(alone_s) * 1e3, "ms", at_most=30)
        report.add("driven: prepare, p99", statistics.quantiles(node.first_s, n=100)[98] * 1e3, "ms")
        report.add(
            "driven: fault of a card until it is published", max(tainted), "s", at_most=1, detail=f"slowest of {FAULTS}"
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


def publish(cluster: Cluster, name: str, number: int) -> None:
    """The slices of a node as its agent would write them."""
    states = tuple(DeviceSnapshot(device=device, mode=None, held=()) for device in cards(number))
    snapshot = NodeSnapshot(node=NodeName(name), devices=states, allocations=(), membership="kernel", slots="tmpfs")
    for place, spec in enumerate(slices_of(snapshot, SliceFacts(driver_version="570.86.10"), ServerFeatures())):
        body = {"metadata": {"name": f"{name}-{place}"}, "spec": msgspec.to_builtins(spec)}
        cluster.api.create(SLICES, body)


def bound_per_s(cluster: Cluster, prefix: str, count: int, *, claims: bool) -> float:
    """So many pods, from the first that is made to the last that is bound."""
    names = [f"{prefix}-{n}" for n in range(count)]
    exactly = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": "4Gi", "cores": "10"}}}
    for name in names if claims else ():
        spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        cluster.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
    began = time.monotonic()
    for name in names:
        container: dict[str, Any] = {"name": "main", "image": "none.invalid/none"}
        spec = {"automountServiceAccountToken": False, "containers": [container]}
        if claims:
            container["resources"] = {"claims": [{"name": "gpu"}]}
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        cluster.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    while True:
        pods = cluster.api.get(PODS)["items"]
        if sum(pod["metadata"]["name"] in names and bool(pod["spec"].get("nodeName")) for pod in pods) == count:
            break
        assert time.monotonic() - began < _BOUND_S, f"{prefix}: not all of {count} are bound"
        time.sleep(0.1)
    took_s = time.monotonic() - began
    for name in names:
        cluster.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        if claims:
            cluster.api.delete(f"{CLAIMS}/{name}")
    return count / took_s


def measure_allocated(report: Report, cluster: Cluster, nodes: int, pods: int) -> None:
    """See the module's description."""
    for number, name in enumerate(cluster.fake_nodes(nodes, {}, prefix="slices")):
        publish(cluster, name, number)
    expression = f'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "{CLASS.split(".")[0]}"'
    cluster.api.create(
        CLASSES, {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    )
    plain, claimed = [], []
    for turn in range(3):
        plain.append(bound_per_s(cluster, f"plain-{turn}", pods, claims=False))
        claimed.append(bound_per_s(cluster, f"claimed-{turn}", pods, claims=True))
    detail = f"{nodes} nodes of 8 cards, {pods} pods, median of 3; a stock kube-scheduler"
    report.add("allocated: plain pods bound", statistics.median(plain), "pods/s", detail=detail)
    report.add("allocated: pods with a claim bound", statistics.median(claimed), "pods/s", detail=detail)
    ratio = statistics.median(c / p for c, p in zip(claimed, plain, strict=True))
    report.add("allocated: with a claim to plain", ratio, "of plain")


def measure(report: Report) -> None:
    """Both parts; the short form is fewer of each."""
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
