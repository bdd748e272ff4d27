"""Tests of claims on a real scheduler, kubelet and containerd: a pod has exactly what is allocated to its claim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube import programs
from tests.kube.claim_node import CLAIMS, SLICES, ClaimNode
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, HOLD, KERNEL_NS, Containers, output_so_far, within
from tests.kube.gpu_node import PODS, sliced
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.native.simnode import simctl

from calabash.model.units import MIB

GIB_10 = 10 * 1024


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimNode]:
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        real = RealNode(cluster, runc=programs.runc_for_users(cluster.programs))
        yield ClaimNode(real, tmp_path_factory.mktemp("claims"))


@pytest.fixture(autouse=True)
def nothing_left(gpu_node: ClaimNode) -> Iterator[None]:
    """Delete the pods and claims that a test has left, so that a failed test does not make the next one fail."""
    yield
    for pod in gpu_node.cluster.api.get(PODS)["items"]:
        gpu_node.delete(pod["metadata"]["name"])
    for claim in gpu_node.cluster.api.get(CLAIMS)["items"]:
        gpu_node.cluster.kubectl("delete", "resourceclaim", claim["metadata"]["name"], "--ignore-not-found")


class TestContainers(Containers):
    """Tests of containers whose devices are allocated by claims."""


def test_pod_has_the_ten_gibibytes_of_its_claim_and_no_more_and_its_end_frees_them(gpu_node: ClaimNode) -> None:
    name = gpu_node.share(FILL, resourceClaimTemplateName=gpu_node.template(GIB_10))
    gpu_node.ends(name)
    assert within(gpu_node.got_mib(name), GIB_10)
    gpu_node.delete(name)
    gpu_node.free()
    gpu_node.cluster.wait_for(lambda: gpu_node.specs() == [], "the specs to be gone")
    assert [gpu_node.card(index)["used_bytes"] for index in (0, 1)] == [0, 0]
    gpu_node.cluster.wait_for(lambda: not gpu_node.cluster.api.get(CLAIMS)["items"], "no claim")


def test_second_pod_shares_the_claim_and_its_limit(gpu_node: ClaimNode) -> None:
    claim = gpu_node.claim(GIB_10)
    first = gpu_node.share(f"{FILL}; echo free; {HOLD}", HOLD, resourceClaimName=claim)
    gpu_node.cluster.wait_for(lambda: "free" in output_so_far(gpu_node, first, "c0"), "what it had to be free again")
    (slot,) = gpu_node.slots()
    second = gpu_node.share(FILL, resourceClaimName=claim)
    gpu_node.ends(second)
    assert gpu_node.slots() == [slot]
    gpu_node.delete(first)
    assert gpu_node.slots() == [slot], "the second pod has ended, and is still there"
    again = gpu_node.share(FILL, resourceClaimName=claim)
    gpu_node.ends(again)
    assert within(gpu_node.got_mib(again), GIB_10), "what the first pod had is free"
    gpu_node.delete(second)
    gpu_node.delete(again)
    gpu_node.free()


def test_what_a_later_pod_holds_of_a_claim_counts_before_anybody_has_told_the_agent_of_that_pod(
    gpu_node: ClaimNode,
) -> None:
    """The kubelet prepares a claim once. The agent reads only from time to time which pods use the claim."""
    claim = gpu_node.claim(GIB_10)
    first = gpu_node.share(HOLD, resourceClaimName=claim)
    gpu_node.wait(first, "Running")
    second = gpu_node.share(f"load tenant 1000 {KERNEL_NS}", resourceClaimName=claim)
    told = gpu_node.cluster.wait_for(
        lambda: output_so_far(gpu_node, second, "c0").split(), "what the second pod has got"
    )
    assert within(int(told[1]) // MIB, GIB_10)
    third = gpu_node.share("for i in 1 2 3 4 5 6; do load fill 2; done; echo 0", resourceClaimName=claim)
    gpu_node.ends(third)
    assert sum(map(int, re.findall(r"^(\d+)$", gpu_node.log(third, "c0"), re.MULTILINE))) == 0
    assert gpu_node.card()["used_bytes"] <= GIB_10 * MIB
    for name in (first, second, third):
        gpu_node.delete(name)
    gpu_node.free()


def test_container_that_names_a_request_sees_only_the_devices_of_that_request(gpu_node: ClaimNode) -> None:
    claim = gpu_node.claim(1024, 1024)
    show = 'env | grep -c CALABASH_REQUEST; echo "$CALABASH_REQUEST_0,$CALABASH_REQUEST_1"'
    name = gpu_node.share(show, show, requests=("r0", "r1"), resourceClaimName=claim)
    whole = gpu_node.share(show, resourceClaimName=claim)
    gpu_node.ends(name)
    gpu_node.ends(whole)
    assert gpu_node.log(name, "c0").split() == ["1", "0,"]
    assert gpu_node.log(name, "c1").split() == ["1", ",1"]
    assert gpu_node.log(whole, "c0").split() == ["2", "0,1"]


def test_claim_and_gpu_node_report_the_granted_slice(gpu_node: ClaimNode) -> None:
    claim = gpu_node.claim(1024)
    name = gpu_node.share(HOLD, resourceClaimName=claim)
    gpu_node.wait(name, "Running")

    def told() -> list[dict[str, Any]]:
        devices: list[dict[str, Any]] = gpu_node.cluster.api.get(f"{CLAIMS}/{claim}")["status"].get("devices", [])
        return devices

    (device,) = gpu_node.cluster.wait_for(told, "the claim's status")
    assert [(c["type"], c["status"]) for c in device["conditions"]] == [("Ready", "True")]
    assert (device["data"]["mode"], device["data"]["memoryMib"], device["data"]["corePercent"]) == ("vgpu", 1024, 30)
    listed = gpu_node.cluster.wait_for(
        lambda: [part for d in gpu_node.status()["devices"] for part in d.get("slices", [])], "the node's slice"
    )
    assert [part["pod"] for part in listed] == [f"default/{name}"]
    assert gpu_node.status()["door"] == "claims"
    assert gpu_node.device_id_count() == 0


def health_in_status(gpu_node: ClaimNode, name: str) -> list[str]:
    """Return the health of the devices of the claim ``main`` according to the status of the pod."""
    statuses = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", [])
    resources = [
        r for status in statuses for r in status.get("allocatedResourcesStatus", ()) if r["name"] == "claim:main"
    ]
    return [one["health"] for resource in resources for one in resource["resources"]]


def tainted(gpu_node: ClaimNode) -> set[str]:
    """Return the UUIDs of the cards that have a taint against new allocations in the node's ResourceSlices."""
    devices = [device for one in gpu_node.cluster.api.get(SLICES)["items"] for device in one["spec"].get("devices", ())]
    return {device["attributes"]["uuid"]["string"] for device in devices if device.get("taints")}


def test_unhealthy_card_is_reported_to_its_pods_only_and_allocated_again_when_healthy(
    gpu_node: ClaimNode,
) -> None:
    cluster, (broken, healthy) = gpu_node.cluster, gpu_node.devices()
    pods = [
        gpu_node.run([sliced("main", memory_mib=256, devices=[device])], {"main": HOLD}) for device in (broken, healthy)
    ]
    for name in pods:
        gpu_node.wait(name, "Running")
    cluster.wait_for(
        lambda: all(health_in_status(gpu_node, name) == ["Healthy"] for name in pods), "the pods' devices to be well"
    )
    assert simctl("inject", gpu_node.state, "--gpu", broken, "xid", 48).returncode == 0
    cluster.wait_for(lambda: health_in_status(gpu_node, pods[0]) == ["Unhealthy"], "the pod's device to be ill")
    assert health_in_status(gpu_node, pods[1]) == ["Healthy"]
    cluster.wait_for(lambda: tainted(gpu_node) == {broken}, "the card to be offered no more")
    waiting = gpu_node.run([sliced("main", memory_mib=256, devices=[broken])], {"main": FILL})
    gpu_node.delete(pods[0])
    cluster.wait_for(lambda: not tainted(gpu_node), "no card is ill, for it is idle and answers")
    gpu_node.wait_for_success(waiting)
    assert health_in_status(gpu_node, pods[1]) == ["Healthy"]


def test_what_cannot_be_granted_is_told_in_the_pods_events(gpu_node: ClaimNode) -> None:
    bad = {"devices": gpu_node.spec(1024)["devices"]}
    parameters = {"apiVersion": "calabash.dev/v1", "kind": "SliceConfig", "policy": "generous"}
    bad["devices"]["config"] = [{"opaque": {"driver": "calabash.dev", "parameters": parameters}}]
    gpu_node.create(CLAIMS, "ResourceClaim", {"metadata": {"name": "bad"}, "spec": bad})
    name = gpu_node.share(HOLD, resourceClaimName="bad")

    def told() -> str:
        found = gpu_node.cluster.kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "yaml")
        return found if "generous" in found else ""

    assert "hint" in gpu_node.cluster.wait_for(told, "the reason in an event")
    gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "no slot to be there")
