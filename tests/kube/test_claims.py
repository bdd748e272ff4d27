"""Claims on a real scheduler, kubelet and containerd: a pod has what its claim was allocated, and no more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube import programs
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import CUDA, MIB, PODS, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FILL = "load fill 2"
HOLD = "sleep 1000"
GIB_10 = 10 * 1024
_numbers = itertools.count(1)


class ClaimNode:
    """A node whose door is that of claims."""

    def __init__(self, gpu: GpuNode) -> None:
        self.gpu = gpu
        self.cluster = gpu.cluster
        cel = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "vgpu"'
        self.create(
            "/apis/resource.k8s.io/v1/deviceclasses",
            "DeviceClass",
            {"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression": cel}}]}},
        )
        self.cluster.wait_for(lambda: self.cluster.api.get(SLICES)["items"], "slices of the node")

    def create(self, path: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        version = "v1" if path.startswith("/api/v1") else "resource.k8s.io/v1"
        made: dict[str, Any] = self.cluster.api.create(path, {"apiVersion": version, "kind": kind, **body})
        return made

    def spec(self, *sizes_mib: int, cores: int = 30) -> dict[str, Any]:
        """Of a claim with one request for each size."""
        requests = [
            {
                "name": f"r{number}",
                "exactly": {
                    "deviceClassName": "vgpu",
                    "capacity": {"requests": {"memory": f"{size}Mi", "cores": str(cores)}},
                },
            }
            for number, size in enumerate(sizes_mib)
        ]
        apart = {"constraints": [{"distinctAttribute": "calabash.dev/uuid"}]} if len(sizes_mib) > 1 else {}
        return {"devices": {"requests": requests, **apart}}

    def template(self, *sizes_mib: int) -> str:
        name = f"template{next(_numbers)}"
        body = {"metadata": {"name": name}, "spec": {"spec": self.spec(*sizes_mib)}}
        self.create("/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", "ResourceClaimTemplate", body)
        return name

    def claim(self, *sizes_mib: int) -> str:
        name = f"claim{next(_numbers)}"
        self.create(CLAIMS, "ResourceClaim", {"metadata": {"name": name}, "spec": self.spec(*sizes_mib)})
        return name

    def run(self, *scripts: str, requests: tuple[str, ...] = (), **source: str) -> str:
        """A pod with one claim, in a container for each script; ``requests``: which of the claim's each one names."""
        name = f"pod{next(_numbers)}"
        containers = [
            {
                "name": f"c{number}",
                "image": CUDA,
                "command": ["sh", "-c", script],
                "resources": {"claims": [{"name": "gpu"} | ({"request": requests[number]} if requests else {})]},
            }
            for number, script in enumerate(scripts)
        ]
        claims = [{"name": "gpu", **source}]
        spec = {"containers": containers, "resourceClaims": claims, "restartPolicy": "Never"}
        spec |= {"terminationGracePeriodSeconds": 0}
        self.create(PODS, "Pod", {"metadata": {"name": name}, "spec": spec})
        return name

    def ends(self, name: str) -> None:
        assert self.gpu.wait(name, "Succeeded", "Failed") == "Succeeded", self.gpu.log(name, "c0")

    def got_mib(self, name: str, container: str = "c0") -> int:
        return int(self.gpu.log(name, container).rsplit(maxsplit=1)[-1]) // MIB

    def delete(self, *names: str) -> None:
        for name in names:
            self.gpu.delete(name)

    def free(self) -> None:
        self.cluster.wait_for(lambda: self.gpu.slots() == [], "the slots to be gone")

    def specs(self) -> list[str]:
        listed: str = self.cluster.exec_inside("ls", "/run/cdi", beside=self.gpu.node.name)
        return listed.split()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimNode]:
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        real = RealNode(cluster, runc=programs.runc_for_users(cluster.programs))
        yield ClaimNode(GpuNode(real, tmp_path_factory.mktemp("claims"), words=["--door=claims"]))


@pytest.fixture(autouse=True)
def nothing_left(node: ClaimNode) -> Iterator[None]:
    """A test that fails does not make the next one fail."""
    yield
    for pod in node.cluster.api.get(PODS)["items"]:
        node.gpu.delete(pod["metadata"]["name"])
    for claim in node.cluster.api.get(CLAIMS)["items"]:
        node.cluster.kubectl("delete", "resourceclaim", claim["metadata"]["name"], "--ignore-not-found")


def within(got: int, limit_mib: int) -> bool:
    """A context takes a part of the limit; nothing is had beyond it."""
    return limit_mib - 200 <= got <= limit_mib


def test_a_pod_has_the_ten_gibibytes_of_its_claim_and_no_more_and_its_end_frees_them(node: ClaimNode) -> None:
    name = node.run(FILL, resourceClaimTemplateName=node.template(GIB_10))
    node.ends(name)
    assert within(node.got_mib(name), GIB_10)
    node.delete(name)
    node.free()
    node.cluster.wait_for(lambda: node.specs() == [], "the specs to be gone")
    assert [node.gpu.card(index)["used_bytes"] for index in (0, 1)] == [0, 0]
    node.cluster.wait_for(lambda: not node.cluster.api.get(CLAIMS)["items"], "no claim")


def test_a_second_pod_shares_the_claim_and_its_limit(node: ClaimNode) -> None:
    claim = node.claim(GIB_10)
    first = node.run(f"{FILL}; {HOLD}", HOLD, resourceClaimName=claim)
    node.cluster.wait_for(lambda: _said(node, first), "its memory")
    (slot,) = node.gpu.slots()
    second = node.run(FILL, resourceClaimName=claim)
    node.ends(second)
    assert node.gpu.slots() == [slot]
    node.delete(first)
    assert node.gpu.slots() == [slot], "the second pod has ended, and is still there"
    again = node.run(FILL, resourceClaimName=claim)
    node.ends(again)
    assert within(node.got_mib(again), GIB_10), "what the first pod had is free"
    node.delete(second, again)
    node.free()


def _said(node: ClaimNode, name: str) -> str:
    try:
        return node.gpu.log(name, "c0")
    except RuntimeError:
        return ""


def test_a_container_that_names_a_request_sees_the_devices_of_that_request_alone(node: ClaimNode) -> None:
    claim = node.claim(1024, 1024)
    show = 'env | grep -c CALABASH_REQUEST; echo "$CALABASH_REQUEST_0,$CALABASH_REQUEST_1"'
    name = node.run(show, show, requests=("r0", "r1"), resourceClaimName=claim)
    whole = node.run(show, resourceClaimName=claim)
    node.ends(name)
    node.ends(whole)
    assert node.gpu.log(name, "c0").split() == ["1", "0,"]
    assert node.gpu.log(name, "c1").split() == ["1", ",1"]
    assert node.gpu.log(whole, "c0").split() == ["2", "0,1"]


def test_restarts_of_agent_and_kubelet_leave_a_running_pod_what_it_has(node: ClaimNode) -> None:
    claim = node.claim(1024)
    script = "while [ ! -e /tmp/go ]; do sleep 0.1; done; exec load fill 2"
    name = node.run(script, resourceClaimName=claim)
    node.gpu.wait(name, "Running")
    before = node.gpu.slots()
    node.cluster.restart("agent")
    node.cluster.restart(node.gpu.node.kubelet)
    node.gpu.node.wait_until_ready()
    assert node.gpu.slots() == before
    node.gpu.let_go(name)
    node.ends(name)
    assert within(node.got_mib(name), 1024)
    again = node.run(FILL, resourceClaimName=claim)
    node.ends(again)
    assert within(node.got_mib(again), 1024)


def test_the_claim_and_the_node_tell_what_was_given(node: ClaimNode) -> None:
    claim = node.claim(1024)
    name = node.run(HOLD, resourceClaimName=claim)
    node.gpu.wait(name, "Running")

    def told() -> list[dict[str, Any]]:
        devices: list[dict[str, Any]] = node.cluster.api.get(f"{CLAIMS}/{claim}")["status"].get("devices", [])
        return devices

    (device,) = node.cluster.wait_for(told, "the claim's status")
    assert [(c["type"], c["status"]) for c in device["conditions"]] == [("Ready", "True")]
    assert (device["data"]["mode"], device["data"]["memoryMib"], device["data"]["corePercent"]) == ("vgpu", 1024, 30)
    listed = node.cluster.wait_for(
        lambda: [part for d in node.gpu.status()["devices"] for part in d.get("slices", [])], "the node's slice"
    )
    assert [part["pod"] for part in listed] == [f"default/{name}"]
    assert node.gpu.status()["door"] == "claims"
    assert node.gpu.tokens() == 0


def test_what_cannot_be_granted_is_told_in_the_pods_events(node: ClaimNode) -> None:
    bad = {"devices": node.spec(1024)["devices"]}
    parameters = {"apiVersion": "calabash.dev/v1", "kind": "SliceConfig", "policy": "generous"}
    bad["devices"]["config"] = [{"opaque": {"driver": "calabash.dev", "parameters": parameters}}]
    node.create(CLAIMS, "ResourceClaim", {"metadata": {"name": "bad"}, "spec": bad})
    name = node.run(HOLD, resourceClaimName="bad")

    def told() -> str:
        found = node.cluster.kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "yaml")
        return found if "generous" in found else ""

    assert "hint" in node.cluster.wait_for(told, "the reason in an event")
    node.gpu.cluster.wait_for(lambda: node.gpu.slots() == [], "no slot to be there")
