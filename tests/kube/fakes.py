"""Fake nodes: Node objects without a machine, for tests of schedulers and planners with thousands of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.kube.api import Api, Json

_ROOMY = {"cpu": "64", "memory": "512Gi", "pods": "1000", "ephemeral-storage": "1Ti"}
_LONG_AGO = "2026-01-01T00:00:00Z"


def node(name: str, allocatable: Mapping[str, str], labels: Mapping[str, str], taints: list[Json]) -> Json:
    """Return a Node object that is ready, as its kubelet would have reported it."""
    room = {**_ROOMY, **allocatable}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastHeartbeatTime": _LONG_AGO,
        "lastTransitionTime": _LONG_AGO,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}},
        "spec": {"taints": taints},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def fake_nodes(
    api: Api,
    count: int,
    allocatable: Mapping[str, str],
    *,
    prefix: str = "fake",
    labels: Callable[[int], Mapping[str, str]] = lambda number: {},
    taints: list[Json] | None = None,
) -> list[str]:
    """Create ``count`` ready nodes named ``<prefix>-<number>`` and return their names.

    ``labels`` returns the labels of a node by its number. Use fake nodes only on a cluster without the node lifecycle
    controller: it would taint them after a while, because no kubelet renews their leases.
    """
    names = [f"{prefix}-{number}" for number in range(count)]
    nodes = [node(name, allocatable, labels(number), taints or []) for number, name in enumerate(names)]
    with ThreadPoolExecutor(8) as several:
        for _ in several.map(lambda body: api.create("/api/v1/nodes", body), nodes):
            pass
    return names


def remove_nodes(api: Api, names: list[str]) -> None:
    """Delete the nodes concurrently, which is much faster than ``kubectl delete``."""
    with ThreadPoolExecutor(8) as several:
        for _ in several.map(lambda name: api.delete(f"/api/v1/nodes/{name}"), names):
            pass
