"""Tests of the affinity handshake with a real API server and its own kube-scheduler, which calls no extender.

The planner confines pods to nodes by node affinity. Pods are bound to these nodes; a pod that was bound without the
planner gets a plan or the reason why it has none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.hollow import HollowKubelets
from tests.kube.planned import Planned, confined_to, planned_pod

from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY, PLAN, PLANNED
from calabash.kubernetes.objects.plan import PodPlan, read_plan
from calabash.model.request import GpuRequest

PREFIX = "confined"
WHOLE = GpuRequest()
QUEUES = "/apis/calabash.dev/v1alpha1/queues"


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    options = {"--handshake": "affinity", "--identity": "only"}
    with Planned(own_control_plane, 140, 2, prefix=PREFIX, planner=options) as found:
        yield found


def asking(name: str, request: GpuRequest = WHOLE, *, cpu: str = "", **spec: Any) -> Json:
    """Return a pod in the form that admission gives it if the product has no scheduler of its own."""
    pod = planned_pod(name, request, schedulerName="default-scheduler", **spec)
    resources = pod["spec"]["containers"][0]["resources"]
    for nominal in (MEMORY, CORES):
        resources["limits"].pop(nominal, None)
    if cpu:
        resources["requests"] = {"cpu": cpu}
    return pod


def deployment(name: str, replicas: int, pod: Json) -> Json:
    labels = {"app": name}
    meta = pod["metadata"] | {"labels": labels}
    meta.pop("name")
    template = {"metadata": meta, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def plan(pod: Json) -> PodPlan | None:
    text = pod["metadata"].get("annotations", {}).get(PLAN)
    return read_plan(text) if text else None


def filler(name: str, node: str) -> Json:
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"requests": {"cpu": "64"}}}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}


def remove(planned: Planned, *namespaces: str) -> None:
    for namespace in namespaces:
        planned.cluster.kubectl(
            "delete", "deployments,pods", "--all", "--force", "--grace-period=0", "--wait=false", "-n", namespace
        )


def by_hand(name: str, node: str, gpus: int) -> Json:
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"limits": {GPUS: str(gpus)}}}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name}, "spec": spec}


def everyone_planned(planned: Planned, namespace: str, count: int) -> dict[str, Json]:
    """Wait until the namespace has exactly ``count`` pods, all bound with a plan for their node; return the pods."""

    def found() -> dict[str, Json]:
        pods = planned.pods(namespace)
        ready = {n: p for n, p in pods.items() if (made := plan(p)) and made.node == p["spec"].get("nodeName")}
        return ready if len(ready) == count == len(pods) else {}

    return planned.cluster.wait_for(found, f"{count} pods of {namespace} with plans")


def test_50_pods_whose_planned_nodes_are_full_are_bound_inside_their_lists_and_planned_where_they_are(
    planned: Planned,
) -> None:
    cluster = planned.cluster
    cluster.kill("scheduler")
    planned.make_namespace("full")
    pod = asking("p", GpuRequest(count=2), cpu="1")
    planned.api.create("/apis/apps/v1/namespaces/full/deployments", deployment("p", 50, pod))

    def released() -> bool:
        pods = planned.pods("full").values()
        return len(pods) == 50 and not any(p["spec"].get("schedulingGates") for p in pods)

    cluster.wait_for(released, "50 pods released")
    pods = planned.pods("full")
    first = {name: confined_to(p)[0] for name, p in pods.items()}
    assert len(set(first.values())) == 50
    assert {len(confined_to(p)) for p in pods.values()} == {4}
    assert not any(plan(p) for p in pods.values()), "the plan is final when they are bound"
    planned.create("fillers", [filler(f"f-{node}", node) for node in first.values()])
    began = time.monotonic()
    cluster.start("scheduler")
    ready = everyone_planned(planned, "full", 50)
    print(f"bound inside their lists and planned after {time.monotonic() - began:.2f} s of the scheduler's start")
    again = sum(name not in pods for name in ready)
    print(f"{again} were made again by their owner, because their second node had been taken, or had no room")
    for found in ready.values():
        assert found["spec"]["nodeName"] in confined_to(found)
        assert found["spec"]["nodeName"] not in first.values()
    assert max(Counter(p["spec"]["nodeName"] for p in ready.values()).values()) == 1
    remove(planned, "full", "fillers")


def test_gang_is_released_together(planned: Planned) -> None:
    gang = GpuRequest(gang="g", gang_size=8)
    planned.create("gang", [asking(f"p{i}", gang) for i in range(7)])
    planned.create("beside", [asking("later")])
    everyone_planned(planned, "beside", 1)  # the decision that places the later pod knew the 7 members
    assert all(p["spec"].get("schedulingGates") for p in planned.pods("gang").values())
    planned.create("gang", [asking("p7", gang)])
    everyone_planned(planned, "gang", 8)
    remove(planned, "gang", "beside")


def test_pod_that_was_bound_by_hand_is_planned_on_its_node_or_gets_the_reason(planned: Planned) -> None:
    node = planned.nodes[3]
    planned.create("hand", [by_hand("fits", node, 2)])
    everyone_planned(planned, "hand", 1)
    planned.create("hand", [by_hand("late", node, 1)])

    def told() -> Json | None:
        status = planned.api.get("/api/v1/namespaces/hand/pods/late")["status"]
        return next((c for c in status.get("conditions", []) if c["type"] == PLANNED), None)

    condition = planned.cluster.wait_for(told, "the condition")
    assert condition is not None
    assert "needs 1 whole device" in condition["message"]
    assert f"{node} has 0 of 2 devices idle" in condition["message"]
    assert plan(planned.pods("hand")["late"]) is None
    planned.api.delete("/api/v1/namespaces/hand/pods/fits", {"gracePeriodSeconds": 0})
    everyone_planned(planned, "hand", 1)
    remove(planned, "hand")


def test_what_its_kubelet_refused_is_deleted_if_its_owner_makes_it_again_and_stays_with_an_event_else(
    planned: Planned,
) -> None:
    planned.make_namespace("swept")
    planned.api.create("/apis/apps/v1/namespaces/swept/deployments", deployment("d", 1, asking("d")))
    planned.create("swept", [asking("alone")])
    first = everyone_planned(planned, "swept", 2)
    refused = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough cpu"}
    for name in first:
        planned.api.patch(f"/api/v1/namespaces/swept/pods/{name}/status", {"status": refused})

    def replacement() -> bool:
        pods = planned.pods("swept")
        return len(pods) == 2 and set(pods) & set(first) == {"alone"} and all(map(plan, pods.values()))

    planned.cluster.wait_for(replacement, "the pod that its owner made")
    events = planned.api.get("/api/v1/namespaces/swept/events")["items"]
    said = {e["involvedObject"]["name"]: e["message"] for e in events if e["reason"] == "KubeletRefused"}
    assert set(said) == set(first)
    assert "OutOfcpu: Pod was rejected" in said["alone"]
    remove(planned, "swept")


def test_budget_protects_its_pods_another_pod_is_evicted_and_the_queue_status_shows_it(planned: Planned) -> None:
    api, cluster = planned.api, planned.cluster
    for name, spec in (("own", {"deserved": 2}), ("default", {})):
        api.create(
            QUEUES, {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        )
    api.create("/api/v1/namespaces", {"metadata": {"name": "owner", "labels": {"calabash.dev/queue": "own"}}})
    planned.make_namespace("lent")
    hosts = planned.nodes[10:12]
    here = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": here}}
    affinity = {"nodeAffinity": required}
    budget = {"metadata": {"name": "db"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}}
    api.create("/apis/policy/v1/namespaces/lent/poddisruptionbudgets", budget)
    pods = []
    for name in ("db", "web"):
        pods.append(asking(name, GpuRequest(count=2), affinity=affinity))
        pods[-1]["metadata"]["labels"] = {"app": name}
    path = "/apis/policy/v1/namespaces/lent/poddisruptionbudgets/db"
    with HollowKubelets(api, hosts[0][:-1]):
        planned.create("lent", pods)
        everyone_planned(planned, "lent", 2)
        cluster.wait_for(lambda: api.get(path)["status"].get("currentHealthy") == 1, "the budget sees its pod")
    planned.create("owner", [asking("first", WHOLE, affinity=affinity)])
    everyone_planned(planned, "owner", 1)
    assert set(planned.pods("lent")) == {"db"}
    second = asking("second", GpuRequest(count=2), affinity=affinity)
    planned.create("owner", [second])

    def told() -> str:
        conditions = api.get("/api/v1/namespaces/owner/pods/second")["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "PodScheduled"), "")

    cluster.wait_for(told, "the reason")

    def status(name: str) -> Json:
        found: Json = api.get(f"{QUEUES}/{name}").get("status", {})
        return found

    cluster.wait_for(lambda: status("own").get("waiting") == 1, "the status of the queue")
    cluster.wait_for(lambda: "allocated" in status("default"), "the status of the default queue")
    assert status("own")["allocated"] == 1
    assert status("own")["borrowed"] == 0
    assert (status("default")["allocated"], status("default")["borrowed"]) == (2, 2)
    assert set(planned.pods("lent")) == {"db"}
    remove(planned, "lent", "owner")
