"""Tests of attacks by a service account with the role ``edit`` in one namespace on the queues of other tenants.

Whatever the account creates there, its pods keep to the limit of its queue, its queue gives back the devices that it
borrowed, and its tiny slices do not prevent other queues from getting whole devices.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import CUDA, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

from calabash.kubernetes.node_plugin.deleted_pods import GONE_S
from calabash.kubernetes.objects.names import PLANNED

STUBBORN = "trap '' TERM; while true; do sleep 1; done"
FOREVER_S = 1_000_000_000
SETTLED_S = 20.0
DEVICE = {"calabash.dev/gpus": "1"}
QUEUES = {
    "none": {"limit": 0},
    "lent": {"evictionGraceSeconds": 3},
    "prod": {"deserved": 2},
}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    with (
        Cluster(lifecycle=True, users=USERS) as cluster,
        Product(GpuNode(RealNode(cluster), tmp_path_factory.mktemp("bounds"))) as made,
    ):
        for name, spec in QUEUES.items():
            kind = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
            cluster.kubectl("create", "-f", "-", text=json.dumps(kind))
            made.namespace(name, **{"calabash.dev/queue": name})
        made.namespace("open")
        for namespace in ("none", "lent", "open"):
            cluster.kubectl("create", "serviceaccount", "mallory", "-n", namespace)
            words = ("--clusterrole=edit", f"--serviceaccount={namespace}:mallory", "-n", namespace)
            cluster.kubectl("create", "rolebinding", "mallory", *words)
        yield made


@pytest.fixture(autouse=True)
def nothing_left(product: Product) -> Iterator[None]:
    yield
    for namespace in ("none", "lent", "open", "prod"):
        for kind in ("daemonsets", "poddisruptionbudgets"):
            product.cluster.kubectl("delete", kind, "--all", "-n", namespace)
        product.cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
    product.cluster.wait_for(lambda: not held(product), "the end of all that was given", timeout_s=180)


def held(product: Product) -> list[Any]:
    """Return the slices that the node's agent reports."""
    nodes = json.loads(product.cluster.kubectl("get", "gpunodes", "-o", "json"))["items"]
    return [part for node in nodes for device in node["status"]["devices"] for part in device.get("slices", ())]


def mallory(product: Product, namespace: str, *words: str, text: dict[str, Any] | None = None) -> str:
    """Run kubectl as the service account of a namespace."""
    account = f"--as=system:serviceaccount:{namespace}:mallory"
    body = json.dumps(text) if text is not None else None
    return product.cluster.kubectl(*words, account, "-n", namespace, text=body)


def create(product: Product, namespace: str, pod: dict[str, Any]) -> None:
    mallory(product, namespace, "create", "-f", "-", text=pod)


def daemon_set(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": CUDA, "command": ["sh", "-c", "sleep 1000"], "resources": {"limits": DEVICE}}
    labels = {"app": name}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def pods(product: Product, namespace: str) -> dict[str, dict[str, Any]]:
    """Return the pods of a namespace by UID."""
    found = product.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {pod["metadata"]["uid"]: pod for pod in found}


def unplanned_message(pod: dict[str, Any]) -> str:
    """Return the message of the condition that says why the pod has no plan; "" if there is no such condition."""
    conditions = pod["status"].get("conditions", ())
    return next((c["message"] for c in conditions if c["type"] == PLANNED and c["status"] == "False"), "")


def assert_not_evicted(product: Product, namespace: str, waiting: set[str]) -> None:
    """Assert for ``SETTLED_S`` seconds that none of these pods is evicted."""
    end_s = time.monotonic() + SETTLED_S
    while time.monotonic() < end_s:
        assert waiting <= pods(product, namespace).keys()
        time.sleep(0.5)


def test_daemon_sets_of_a_tenant_keep_to_the_limit_of_its_queue(product: Product) -> None:
    for name in ("one", "two"):
        create(product, "none", daemon_set(name))

    def told() -> bool:
        found = pods(product, "none").values()
        return len(found) == 2 and all(
            "queue none has 0 of at most 0 devices in use" in unplanned_message(p) for p in found
        )

    product.cluster.wait_for(told, "both are told that their queue has no devices")
    assert_not_evicted(product, "none", set(pods(product, "none")))
    assert not held(product)


def test_pod_of_a_daemon_set_without_room_waits_on_its_node(product: Product) -> None:
    for name in ("one", "two", "three"):
        create(product, "open", daemon_set(name))

    def phases() -> list[str]:
        return sorted(pod["status"]["phase"] for pod in pods(product, "open").values())

    product.cluster.wait_for(lambda: phases() == ["Pending", "Running", "Running"], "two of three run")
    waiting = {uid for uid, pod in pods(product, "open").items() if pod["status"]["phase"] == "Pending"}
    product.cluster.wait_for(
        lambda: all(unplanned_message(pods(product, "open")[uid]) for uid in waiting), "the third is told"
    )
    assert_not_evicted(product, "open", waiting)
    mallory(product, "open", "delete", "daemonset", pods_of_running(product))
    product.cluster.wait_for(lambda: phases() == ["Running", "Running"], "the third starts when there is room")


def pods_of_running(product: Product) -> str:
    """Return the name of a DaemonSet whose pod runs."""
    running = next(p for p in pods(product, "open").values() if p["status"]["phase"] == "Running")
    return str(running["metadata"]["labels"]["app"])


def test_borrower_gives_back_whatever_it_sets(product: Product) -> None:
    """The borrower must be evicted although it does everything to prevent that.

    It has a disruption budget that allows no eviction, a system priority, a grace period of thirty years, and a program
    that ignores SIGTERM.
    """
    more = {"terminationGracePeriodSeconds": FOREVER_S, "priorityClassName": "system-node-critical"}
    pod = user_pod("borrower", {"calabash.dev/gpus": "2"}, STUBBORN, **more)
    pod["metadata"]["labels"] = {"app": "borrower"}
    create(product, "lent", pod)
    product.wait("lent", "borrower", "Running")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "borrower"}}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "mine"}, "spec": budget}
    mallory(product, "lent", "create", "-f", "-", text=kind)
    path = "/apis/policy/v1/namespaces/lent/poddisruptionbudgets/mine"
    product.cluster.wait_for(lambda: product.api.get(path).get("status", {}).get("expectedPods"), "the budget counts")
    product.create("prod", user_pod("owner", {"calabash.dev/gpus": "2"}, "sleep 1000"))
    product.wait("prod", "owner", "Running")
    events = json.loads(product.cluster.kubectl("get", "events", "-n", "lent", "-o", "json"))["items"]
    assert [e for e in events if e["reason"] == "BudgetOverruled"]


def test_pod_that_is_deleted_by_force_does_not_keep_its_devices(product: Product) -> None:
    pod = user_pod("ghost", {"calabash.dev/gpus": "2"}, STUBBORN, terminationGracePeriodSeconds=FOREVER_S)
    create(product, "lent", pod)
    product.wait("lent", "ghost", "Running")
    mallory(product, "lent", "delete", "pod", "ghost", "--wait=false")
    time.sleep(2)  # the kubelet has begun the long grace period
    mallory(product, "lent", "delete", "pod", "ghost", "--grace-period=0", "--force", "--wait=false")
    product.create("prod", user_pod("next", {"calabash.dev/gpus": "2"}, "sleep 1000"))
    product.wait("prod", "next", "Running")


def test_pod_that_a_finalizer_kept_after_a_forced_deletion_does_not_keep_its_devices_when_it_is_removed(
    product: Product,
) -> None:
    pod = user_pod("kept", {"calabash.dev/gpus": "2"}, STUBBORN, terminationGracePeriodSeconds=FOREVER_S)
    pod["metadata"]["finalizers"] = ["example.org/keep"]
    create(product, "lent", pod)
    product.wait("lent", "kept", "Running")
    mallory(product, "lent", "delete", "pod", "kept", "--wait=false")
    time.sleep(2)  # the kubelet has begun the long grace period
    mallory(product, "lent", "delete", "pod", "kept", "--grace-period=0", "--force", "--wait=false")
    time.sleep(GONE_S + 2)
    assert held(product), "the object is there, and its queue is charged"
    mallory(product, "lent", "patch", "pod", "kept", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    removed_s = time.monotonic()
    product.cluster.wait_for(lambda: not held(product), "the devices to be free", timeout_s=120)
    assert time.monotonic() - removed_s < GONE_S / 2


def test_dust_on_every_device_keeps_no_owner_from_whole_ones(product: Product) -> None:
    create(product, "lent", user_pod("dust", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1"}, "sleep 1000"))
    product.wait("lent", "dust", "Running")
    path = "/apis/calabash.dev/v1alpha1/queues/lent"

    def allocated() -> float:
        return float(product.api.get(path).get("status", {}).get("allocated", 0))

    product.cluster.wait_for(lambda: allocated() >= 2 / 64 - 0.001, "two slices are charged a part of a device each")
    product.create("prod", user_pod("owner", {"calabash.dev/gpus": "2"}, "sleep 1000"))
    product.wait("prod", "owner", "Running")
