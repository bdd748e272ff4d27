"""The filters of nodes give the results of a real kube-scheduler, for random pods, nodes and pods on the nodes.

``CALABASH_FILTER_PAIRS`` is the number of pairs of a pod and its candidate nodes, ``CALABASH_FILTER_SEED`` selects others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from tests.kube.api import Api, Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.fakes import node
from tests.kube.filter_pairs import NAMESPACES, RUNTIME_CLASSES, Pair, random_pair

from calabash.kubernetes.node_filters.checked_pod import CheckedPod, check_pod
from calabash.kubernetes.node_filters.cluster import NodeFilters
from calabash.kubernetes.node_filters.existing_pod import read_existing_pod
from calabash.kubernetes.node_filters.node import read_node
from calabash.kubernetes.node_filters.reasons import Filter, Refusal, Unchecked

PAIRS = int(os.environ.get("CALABASH_FILTER_PAIRS", "400"))
SEED = int(os.environ.get("CALABASH_FILTER_SEED", "1"))
BATCH = 200
REFUSED_BY_API_MAX = 0.1  # part of the pairs with an object that the API server does not accept
TESTED = {  # filters that must have refused at least one node
    Filter.NODE_UNSCHEDULABLE,
    Filter.TAINT_TOLERATION,
    Filter.NODE_AFFINITY,
    Filter.NODE_PORTS,
    Filter.NODE_RESOURCES_FIT,
    Filter.INTER_POD_AFFINITY,
}
_FINAL = "pairs-final"


@pytest.fixture(scope="module")
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    api = control_plane.api
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    for name, labels in {**NAMESPACES, _FINAL: {}}.items():
        api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    for name, spec in RUNTIME_CLASSES.items():
        api.create(classes, {"metadata": {"name": name}, "handler": "any", **spec})
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in (*NAMESPACES, _FINAL)]
    control_plane.wait_for(lambda: all(map(api.exists, accounts)), "the service accounts")
    yield control_plane
    for name in (*NAMESPACES, _FINAL):
        api.delete(f"/api/v1/namespaces/{name}")
    for name in RUNTIME_CLASSES:
        api.delete(f"{classes}/{name}")


@dataclass(slots=True)
class Counts:
    """Numbers of pods by outcome and of refused nodes by filter, and the pairs with different results."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[Filter] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)


def test_filters_accept_the_nodes_to_which_kube_scheduler_binds(cluster: Cluster) -> None:
    counts = Counts()
    for first in range(0, PAIRS, BATCH):
        pairs = [random_pair(number, SEED) for number in range(first, min(first + BATCH, PAIRS))]
        _check_batch(cluster, pairs, counts)
    outcomes, refusals = counts.outcomes, counts.refusals
    print(f"{PAIRS} pairs: {dict(outcomes)}; refused nodes: { {str(k): n for k, n in refusals.items()} }")
    assert counts.different == []
    assert outcomes["refused by the API server"] <= REFUSED_BY_API_MAX * PAIRS
    if PAIRS >= BATCH:
        assert set(refusals) >= TESTED
        assert min(outcomes["bound"], outcomes["unschedulable"]) > PAIRS // 10


def _check_batch(cluster: Cluster, pairs: list[Pair], counts: Counts) -> None:
    api = cluster.api
    with ThreadPoolExecutor(8) as several:
        for _ in several.map(lambda body: api.create("/api/v1/nodes", body), (n for p in pairs for n in p.nodes)):
            pass
        ready = several.map(lambda pair: _create_existing(api, pair), pairs)
        valid = [pair for pair, good in zip(pairs, ready, strict=True) if good]
        _wait_for_scheduler(cluster)
        filters = _filters(api)
        created = list(several.map(lambda pair: _created(api, pair.pod), valid))
        counts.outcomes["refused by the API server"] += len(pairs) - len(valid) + created.count(False)
        valid = [pair for pair, good in zip(valid, created, strict=True) if good]
        pods = _decided_pods(cluster, {pair.pod["metadata"]["name"] for pair in valid})
        for pair in valid:
            _compare(pair, pods[pair.pod["metadata"]["name"]], filters, counts)
        list(several.map(lambda name: _delete_pods(api, name), (*NAMESPACES, _FINAL)))
    api.delete("/api/v1/nodes")


def _compare(pair: Pair, pod: Json, filters: NodeFilters, counts: Counts) -> None:
    """Compare the decision of kube-scheduler for a pod with the result of the filters."""
    unbound = {**pod, "spec": {name: value for name, value in pod["spec"].items() if name != "nodeName"}}
    checked = check_pod(unbound)
    names = [one["metadata"]["name"] for one in pair.nodes]
    found = filters.refusals(checked, names) if isinstance(checked, CheckedPod) else checked
    if isinstance(found, Unchecked):
        counts.different.append(f"pair {pair.number}: cannot be checked: {found}")
        return
    accepted = [name for name, refusal in found.items() if refusal is None]
    counts.refusals.update(refusal.filter for refusal in found.values() if isinstance(refusal, Refusal))
    bound = pod["spec"].get("nodeName")
    counts.outcomes["bound" if bound else "unschedulable"] += 1
    if (bound not in accepted) if bound else bool(accepted):
        said = [c.get("message") for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
        counts.different.append(f"pair {pair.number}: kube-scheduler: {bound or said}, filters: {found}")


def _filters(api: Api) -> NodeFilters:
    """Return the filters with all nodes and pods of the cluster."""
    filters = NodeFilters()
    for one in api.get("/api/v1/namespaces")["items"]:
        filters.set_namespace(one["metadata"]["name"], one["metadata"].get("labels", {}))
    for one in api.get("/api/v1/nodes")["items"]:
        filters.set_node(read_node(one))
    for one in api.get("/api/v1/pods?fieldSelector=spec.nodeName!=")["items"]:
        filters.set_pod(read_existing_pod(one))
    return filters


# ---- objects --------------------------------------------------------------------------------------------------------


def _create_existing(api: Api, pair: Pair) -> bool:
    """Create the pods on a pair's nodes; return False if the API server refuses one of them."""
    for pod in pair.existing:
        if not _created(api, pod):
            return False
        meta = pod["metadata"]
        status = pair.statuses.get(meta["name"])
        if status is not None:
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
            api.patch(path, {"status": status})
    return True


def _created(api: Api, pod: Json) -> bool:
    try:
        api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)
    except RefusedError as refused:
        if refused.status != 422:
            raise
        print(refused)
        return False
    return True


def _wait_for_scheduler(cluster: Cluster) -> None:
    """Wait until kube-scheduler has seen all nodes and pods: a pod created now is bound to a node created now."""
    labels = {_FINAL: "true"}
    cluster.api.create("/api/v1/nodes", node(_FINAL, {}, labels, []))
    container = {"name": "c", "image": "localhost/busybox:1"}
    spec = {"containers": [container], "nodeSelector": labels}
    cluster.api.create(f"/api/v1/namespaces/{_FINAL}/pods", {"metadata": {"name": "final"}, "spec": spec})
    path = f"/api/v1/namespaces/{_FINAL}/pods/final"
    cluster.wait_for(lambda: cluster.api.get(path)["spec"].get("nodeName"), "the last pod is bound")


def _decided_pods(cluster: Cluster, names: set[str]) -> dict[str, Json]:
    """Wait until kube-scheduler has bound each pod or found no node for it; return the pods by name."""

    def decided() -> dict[str, Json]:
        lists = [cluster.api.get(f"/api/v1/namespaces/{name}/pods")["items"] for name in NAMESPACES]
        found = {pod["metadata"]["name"]: pod for pods in lists for pod in pods if pod["metadata"]["name"] in names}
        return found if all(_is_decided(pod) for pod in found.values()) else {}

    return cluster.wait_for(decided, "all pods are bound or unschedulable", every_s=0.5) if names else {}


def _is_decided(pod: Json) -> bool:
    return any(
        c["type"] == "PodScheduled" and (c["status"] == "True" or c.get("reason") == "Unschedulable")
        for c in pod.get("status", {}).get("conditions", ())
    )


def _delete_pods(api: Api, namespace: str) -> None:
    api.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
