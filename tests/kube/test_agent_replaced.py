"""Pods run and wait while the agent of their node goes away with its relay, as with its DaemonSet, and comes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, within
from tests.kube.gpu_node import MIB, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

SPACE = "team"
SHARE = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "10"}
SHARE_MIB = 1024
AGAIN = f"while true; do {FILL}; sleep 0.3; done"
FOREVER = f"{FILL}; exec sleep 1000"


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
    product.cluster.kubectl("delete", "pods", "--all", "-n", SPACE, "--grace-period=0", "--force")
    product.cluster.wait_for(lambda: product.gpu_node.slots() == [], "the slots to be gone")


def take_away(product: Product) -> None:
    """End the agent and its relay, as the deletion of their pod does."""
    node = product.gpu_node
    for name in (node.agent, node.relay):
        product.cluster.kill(name, signal.SIGTERM)


def bring_back(product: Product) -> None:
    node = product.gpu_node
    for name in (node.relay, node.agent):
        product.cluster.start(name)


def identity(product: Product, name: str) -> tuple[str, int]:
    """Return the container of a pod and how often it was restarted."""
    (status,) = product.pod(SPACE, name)["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


def got_mib(product: Product, name: str) -> list[int]:
    """Return what each program of a pod has got of its device."""
    return [int(word) // MIB for word in product.log(SPACE, name).split()]


def test_running_pods_keep_their_slices_when_the_daemon_set_is_deleted_and_made_again(product: Product) -> None:
    cluster, node = product.cluster, product.gpu_node
    running = [product.create(SPACE, user_pod(f"runs{number}", SHARE, AGAIN)) for number in range(3)]
    for name in running:
        product.wait(SPACE, name, "Running")
    before = {name: identity(product, name) for name in running}
    slots = node.slots()
    take_away(product)
    cluster.wait_for(lambda: node.tokens() == 0, "the devices to be gone from the node")
    product.create(SPACE, user_pod("meanwhile", SHARE, FOREVER))
    already = {name: len(got_mib(product, name)) for name in running}
    time.sleep(4)  # nobody serves the node for this long at least
    assert product.pod(SPACE, "meanwhile")["status"]["phase"] == "Pending"
    bring_back(product)
    began = time.monotonic()
    node.wait_for_tokens()
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
