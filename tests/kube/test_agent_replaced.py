"""Tests of pods that run and start while the agent and its relay are replaced, as by an upgrade of the DaemonSet."""

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
from tests.kube.product import USERS, Product, user_pod

SPACE = "team"
SHARE = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "10"}
SHARE_MIB = 1024
AGAIN = f"while true; do {FILL}; sleep 0.3; done"
FOREVER = f"{FILL}; exec sleep 1000"
REPLICAS = 8
KUBE_SCHEDULER = "calabash-scheduler"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    with (
        Cluster(lifecycle=True, users=USERS) as cluster,
        Product(GpuNode(RealNode(cluster), tmp_path_factory.mktemp("replaced"))) as made,
    ):
        made.namespace(SPACE)
        yield made


@pytest.fixture(autouse=True)
def nothing_left(product: Product) -> Iterator[None]:
    yield
    product.cluster.kubectl("delete", "replicasets", "--all", "-n", SPACE)
    product.cluster.kubectl("delete", "pods", "--all", "-n", SPACE, "--grace-period=0", "--force")
    product.cluster.wait_for(lambda: product.gpu_node.slots() == [], "the slots to be gone")


def take_away(product: Product, number: int = signal.SIGTERM) -> None:
    """End the agent and its relay, as the deletion of their pod does."""
    node = product.gpu_node
    for name in (node.agent, node.relay):
        product.cluster.kill(name, number)


def bring_back(product: Product) -> None:
    node = product.gpu_node
    for name in (node.relay, node.agent):
        product.cluster.start(name)


def pods(product: Product) -> list[Json]:
    found: list[Json] = product.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    return found


def identity(product: Product, name: str) -> tuple[str, int]:
    """Return the ID of a pod's container and the number of its restarts."""
    (status,) = product.pod(SPACE, name)["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


def got_mib(product: Product, name: str) -> list[int]:
    """Return the MiB of device memory that each run of a pod's program could allocate, from the pod's output."""
    return [int(word) // MIB for word in product.log(SPACE, name).split()]


def test_running_pods_keep_their_slices_when_the_daemon_set_is_deleted_and_made_again(product: Product) -> None:
    cluster, node = product.cluster, product.gpu_node
    running = [product.create(SPACE, user_pod(f"runs{number}", SHARE, AGAIN)) for number in range(3)]
    for name in running:
        product.wait(SPACE, name, "Running")
    before = {name: identity(product, name) for name in running}
    slots = node.slots()
    take_away(product)
    cluster.wait_for(lambda: node.device_id_count() == 0, "the devices to be gone from the node")
    product.create(SPACE, user_pod("meanwhile", SHARE, FOREVER))
    already = {name: len(got_mib(product, name)) for name in running}
    time.sleep(4)  # no agent serves the node for at least this time
    assert product.pod(SPACE, "meanwhile")["status"]["phase"] == "Pending"
    bring_back(product)
    began = time.monotonic()
    node.wait_for_device_ids()
    product.wait(SPACE, "meanwhile", "Running", timeout_s=60)
    print(f"the waiting pod runs {time.monotonic() - began:.1f} s after the agent was started")
    assert {name: identity(product, name) for name in running} == before
    assert set(slots) < set(node.slots())
    assert len(node.slots()) == len(running) + 1
    for name in running:
        amounts = got_mib(product, name)
        assert len(amounts) > already[name] + 3
        assert all(within(amount, SHARE_MIB) for amount in amounts), amounts
    assert within(got_mib(product, "meanwhile")[0], SHARE_MIB)
    product.create(SPACE, user_pod("whole", {"calabash.dev/gpus": "2"}, FOREVER))
    reasons = ("NoCapacity", "Fragmented", "Reserved", "ModeConflict")
    cluster.wait_for(lambda: product.condition(SPACE, "whole").get("reason") in reasons, "why the next pod waits")
    assert "nodeName" not in product.pod(SPACE, "whole")["spec"]
    told = [part["pod"] for device in node.status()["devices"] for part in device.get("slices", ())]
    assert sorted(told) == sorted(f"{SPACE}/{name}" for name in (*running, "meanwhile"))


def test_pods_that_start_while_the_agent_is_replaced_all_run_with_their_limits(product: Product) -> None:
    """Simulate two upgrades while a ReplicaSet starts its pods: each agent starts a second after the last has ended."""
    running = product.create(SPACE, user_pod("runs", SHARE, AGAIN))
    product.wait(SPACE, running, "Running")
    before = identity(product, running)
    container = {"name": "main", "image": CUDA, "command": ["sh", "-c", FOREVER], "resources": {"limits": SHARE}}
    template = {
        "metadata": {"labels": {"app": "starts"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "starts"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "starts"}, "spec": spec}
    product.cluster.kubectl("create", "-n", SPACE, "-f", "-", text=json.dumps(body))
    for pause_s in (0.7, 1.5):
        time.sleep(pause_s)  # some pods have started, others are about to
        take_away(product)
        time.sleep(1)  # as a DaemonSet takes
        bring_back(product)
    began = time.monotonic()

    def ready() -> list[str]:
        found = [pod for pod in pods(product) if pod["status"].get("phase") == "Running"]
        return [pod["metadata"]["name"] for pod in found if pod["metadata"].get("labels", {}).get("app") == "starts"]

    product.cluster.wait_for(lambda: len(ready()) == REPLICAS, "all replicas run", 60)
    print(f"all run {time.monotonic() - began:.1f} s after the last agent was started; {len(pods(product))} pods")
    product.cluster.wait_for(lambda: all(got_mib(product, name) for name in ready()), "all to have filled their slices")
    for name in (running, *ready()):
        assert all(within(amount, SHARE_MIB) for amount in got_mib(product, name)), name
    assert identity(product, running) == before
    product.cluster.wait_for(lambda: len(product.gpu_node.slots()) == REPLICAS + 1, "one slot for each")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_pods_planned_before_the_agent_went_and_refused_by_kube_scheduler_start_when_it_is_back(
    product: Product, number: int
) -> None:
    """kube-scheduler is started only while the node has no device IDs, so that it refuses the planned pods."""
    cluster, node = product.cluster, product.gpu_node
    node.wait_for_device_ids()
    cluster.kill(KUBE_SCHEDULER)
    names = [product.create(SPACE, user_pod(f"planned{i}", SHARE, FOREVER)) for i in range(3)]

    def gated() -> list[str]:
        return [name for name in names if product.pod(SPACE, name)["spec"].get("schedulingGates")]

    def refused() -> list[str]:
        return [name for name in names if product.condition(SPACE, name).get("reason") == "Unschedulable"]

    cluster.wait_for(lambda: not gated(), "the plans of all pods")
    take_away(product, number)
    cluster.wait_for(lambda: node.device_id_count() == 0, "the devices to be gone from the node")
    cluster.start(KUBE_SCHEDULER)
    cluster.wait_for(lambda: refused() == names, "all pods to be refused")
    print(product.condition(SPACE, names[0])["message"])
    bring_back(product)
    node.wait_for_device_ids()
    began = time.monotonic()
    for name in names:
        product.wait(SPACE, name, "Running", timeout_s=30)
    print(f"all run {time.monotonic() - began:.1f} s after the devices were back")
