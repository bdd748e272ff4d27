"""Tests that all pods run with their limits although admission and the planner are killed while pods start."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, within
from tests.kube.gpu_node import CUDA, MIB, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.planner_faults import over_committed, plan_of
from tests.kube.product import USERS, Product

SPACE = "team"
SHARE = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "10"}
SHARE_MIB = 1024
COUNT = 20
KILLS = 3


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    with (
        Cluster(lifecycle=True, users=USERS) as cluster,
        Product(GpuNode(RealNode(cluster), tmp_path_factory.mktemp("killed")), programs=True) as made,
    ):
        made.namespace(SPACE)
        yield made


def pods(product: Product) -> list[Json]:
    found: list[Json] = product.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    return found


def test_all_pods_run_though_admission_and_planner_are_killed_while_they_start(product: Product) -> None:
    """A ReplicaSet creates the pods. It retries a creation that fails while no admission server runs."""
    container = {"name": "main", "image": CUDA, "resources": {"limits": SHARE}}
    container["command"] = ["sh", "-c", f"{FILL}; exec sleep 1000"]
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    template = {"metadata": {"labels": {"app": "starts"}}, "spec": spec}
    whole = {"replicas": COUNT, "selector": {"matchLabels": {"app": "starts"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "starts"}, "spec": whole}
    product.cluster.kubectl("create", "-n", SPACE, "-f", "-", text=json.dumps(body))
    for _ in range(KILLS):
        for name in ("admission", "planner"):
            time.sleep(0.5)  # some pods are admitted and planned, others are not yet
            product.cluster.restart(name, signal.SIGKILL)
    began = time.monotonic()

    def running() -> list[Json]:
        return [pod for pod in pods(product) if pod["status"].get("phase") == "Running"]

    product.cluster.wait_for(lambda: len(running()) == COUNT, "all pods to run", 60)
    print(f"all run {time.monotonic() - began:.1f} s after the last program was killed")
    names = [pod["metadata"]["name"] for pod in running()]
    product.cluster.wait_for(lambda: all(logs(product, name) for name in names), "all to have filled their slices")
    assert all(within(int(logs(product, name).split()[0]) // MIB, SHARE_MIB) for name in names)
    assert over_committed(pods(product)) == []
    plans = [plan for pod in running() if (plan := plan_of(pod)) is not None]
    assert len({plan.id for plan in plans}) == COUNT
    assert len(product.gpu_node.slots()) == COUNT
    shares = [part for device in product.gpu_node.status()["devices"] for part in device.get("slices", ())]
    assert {(part["memoryMib"], part["corePercent"]) for part in shares} == {(SHARE_MIB, 10)}


def logs(product: Product, name: str) -> str:
    return product.log(SPACE, name)
