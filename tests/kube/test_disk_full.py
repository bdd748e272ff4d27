"""Tests of a full disk below the agent's directory: running pods continue, new pods get an event and start later."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, within
from tests.kube.gpu_node import CUDA, MIB, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

SPACE = "team"
HOME = "/var/lib/calabash"
SHARE = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "10"}
SHARE_MIB = 1024
AGAIN = f"while true; do {FILL}; sleep 0.3; done"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    with Cluster(lifecycle=True, users=USERS) as cluster:
        node = RealNode(cluster)
        disk = f"mkdir -p {HOME} && mount -t tmpfs -o size=32m,mode=711 tmpfs {HOME}"
        cluster.exec_inside("sh", "-c", disk, beside=node.name)
        with Product(GpuNode(node, tmp_path_factory.mktemp("full"))) as made:
            made.namespace(SPACE)
            yield made


def on_disk(product: Product, command: str) -> str:
    return product.cluster.exec_inside("sh", "-c", command, beside=product.gpu_node.node.name, check=False)


def event_messages(product: Product, name: str) -> str:
    """Return the messages of a pod's events, one a line."""
    found = product.api.get(f"/api/v1/namespaces/{SPACE}/events")["items"]
    return "\n".join(event["message"] for event in found if event["involvedObject"]["name"] == name)


def ready(product: Product) -> tuple[str, str]:
    """Return the status and the reason of the GpuNode's condition ``Ready``; both are "" if there is none yet."""
    found = [c for c in product.gpu_node.status().get("conditions", []) if c["type"] == "Ready"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def of_node(product: Product) -> str:
    """Return the messages of the node's events, one a line."""
    events = product.api.get("/api/v1/namespaces/default/events")["items"]
    return "\n".join(event["message"] for event in events if event["involvedObject"]["kind"] == "Node")


def early_runs(product: Product, name: str) -> bool:
    statuses = product.pod(SPACE, name)["status"].get("initContainerStatuses", [])
    return any("running" in status["state"] for status in statuses)


def got_mib(product: Product, name: str) -> list[int]:
    return [int(word) // MIB for word in product.log(SPACE, name).split()]


def test_starts_fail_with_the_reason_while_the_disk_is_full_and_succeed_afterwards(product: Product) -> None:
    cluster = product.cluster
    product.create(SPACE, user_pod("runs", SHARE, AGAIN))
    product.wait(SPACE, "runs", "Running")
    early = {"name": "early", "image": CUDA, "command": ["sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.2; done"]}
    forever = f"{FILL}; exec sleep 1000"
    product.create(SPACE, user_pod("starts", SHARE, forever, initContainers=[early]))
    cluster.wait_for(lambda: early_runs(product, "starts"), "the container before the one with the device")
    on_disk(
        product,
        f"head -c 64M /dev/zero > {HOME}/filler; for i in $(seq 9); do head -c 4k /dev/zero >> {HOME}/f$i; done",
    )
    cluster.kubectl("exec", "-n", SPACE, "starts", "-c", "early", "--", "touch", "/tmp/go")
    already = len(got_mib(product, "runs"))
    cluster.wait_for(lambda: "is full" in event_messages(product, "starts"), "why the pod does not start", 60)
    assert "hint: free some space" in event_messages(product, "starts")
    cluster.wait_for(lambda: ready(product) == ("False", "disk_full"), "the GpuNode to say so")
    cluster.wait_for(lambda: "the disk of /var/lib/calabash is full" in of_node(product), "an event of the node")
    cluster.wait_for(lambda: product.gpu_node.device_id_count() < 8, "no more devices to be offered than are in use")
    product.create(SPACE, user_pod("waits", SHARE, forever))
    time.sleep(3)  # the disk is full for this long at least
    amounts = got_mib(product, "runs")
    assert len(amounts) > already + 3
    assert all(within(amount, SHARE_MIB) for amount in amounts), amounts
    assert product.pod(SPACE, "starts")["status"]["phase"] == "Pending"
    on_disk(product, f"rm {HOME}/filler {HOME}/f?")
    began = time.monotonic()
    product.wait(SPACE, "starts", "Running", timeout_s=60)
    print(f"the pod runs {time.monotonic() - began:.1f} s after there was room")
    product.wait(SPACE, "waits", "Running", timeout_s=30)
    cluster.wait_for(lambda: all(got_mib(product, name) for name in ("starts", "waits")), "both to have filled")
    assert all(within(amount, SHARE_MIB) for name in ("starts", "waits") for amount in got_mib(product, name))
    (status,) = product.pod(SPACE, "runs")["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert ready(product)[0] == "True"
