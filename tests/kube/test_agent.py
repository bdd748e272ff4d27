"""Tests of the agent on a real kubelet and containerd: containers have exactly the slices of their plan.

This must also hold after crashes of the agent and of the kubelet.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.contract.go_programs import BUILD_S, program
from tests.kube import programs
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, HOLD, Containers
from tests.kube.gpu_node import CUDA, PODS, GpuNode, sliced
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.native.simnode import simctl

from calabash.adapters.gpu.library import simulated_library_dir
from calabash.adapters.host.cgroups.container_groups import ContainerHierarchy, find_container_hierarchy, pod_groups
from calabash.adapters.host.cgroups.device_access import find_device_hierarchy, majors_of
from calabash.adapters.kube.http.wire import decode_object
from calabash.adapters.kube.objects.core import POD, Pod
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.devices.device_guard import DeviceGuard, GuardSettings
from calabash.kubernetes.objects.names import GPUS, PLAN, STARTUP_TAINT
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId
from calabash.node.membership.container import pod_digits

ZERO_MINOR = 5  # minor number of /dev/zero


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        runc = programs.runc_for_users(cluster.programs)
        node = RealNode(cluster, runc=runc)
        yield GpuNode(node, tmp_path_factory.mktemp("gpu_node"), words=["--serve-nvidia-names"])


@pytest.fixture(autouse=True)
def no_pods_left(gpu_node: GpuNode) -> Iterator[None]:
    """Delete the pods that a test has left, so that a failed test does not make the next one fail."""
    yield
    for pod in gpu_node.cluster.api.get(PODS)["items"]:
        gpu_node.delete(pod["metadata"]["name"])


def test_pod_without_a_plan_gets_an_event_with_the_reason(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    asking = {"image": CUDA, "command": ["sh", "-c", HOLD], "resources": {"limits": {GPUS: "1"}}}
    name = gpu_node.run([], {"main": asking})

    def told() -> str:
        statuses = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", [])
        waiting = statuses[0]["state"].get("waiting", {}) if statuses else {}
        return str(waiting.get("message", ""))

    message = gpu_node.cluster.wait_for(told, "the reason")
    assert "has no plan" in message
    assert "hint" in message
    assert gpu_node.slots() == []
    gpu_node.delete(name)
    assert gpu_node.run([sliced("main", memory_mib=64, devices=[device])], {"main": "true"})


def test_gpu_node_reports_the_pods_of_each_device(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[1]
    name = gpu_node.run([sliced("main", memory_mib=320, cores=40, devices=[device])], {"main": HOLD})
    gpu_node.wait(name, "Running")

    def told() -> list[dict[str, object]]:
        found = next(d for d in gpu_node.status()["devices"] if d["uuid"] == device)
        slices: list[dict[str, object]] = found.get("slices", [])
        return slices

    slices = gpu_node.cluster.wait_for(told, "the slice in the node's status")
    assert len(slices) == 1
    assert slices[0]["pod"] == f"default/{name}"
    assert (slices[0]["container"], slices[0]["memoryMib"], slices[0]["corePercent"]) == ("main", 320, 40)
    condition = gpu_node.status()["conditions"][0]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    gpu_node.delete(name)
    gpu_node.cluster.wait_for(lambda: not told(), "the slice to be gone")


class TestContainers(Containers):
    """Tests of containers whose devices are allocated by device IDs."""


def test_stopped_agent_reports_unhealthy_devices_until_the_kubelet_registers_the_next_agent(
    gpu_node: GpuNode,
) -> None:
    cluster, states = gpu_node.cluster, []

    def told(*reasons: str) -> bool:
        status = gpu_node.status()
        (ready,) = (one for one in status["conditions"] if one["type"] == "Ready")
        states.append((ready["reason"], ready["status"], *sorted({device["health"] for device in status["devices"]})))
        return ready["reason"] in reasons

    assert cluster.kill("agent", signal.SIGTERM) == 0
    assert told("Stopping"), states
    cluster.kill(gpu_node.node.kubelet)
    try:
        cluster.start("agent")
        cluster.wait_for(lambda: told("Starting"), "the new agent to tell of itself")
    finally:
        cluster.start(gpu_node.node.kubelet)
    cluster.wait_for(lambda: told("Serving"), "a kubelet to follow it")
    assert set(states) == {
        ("Stopping", "False", "unhealthy"),
        ("Starting", "False", "unhealthy"),
        ("Serving", "True", "healthy"),
    }
    gpu_node.wait_for_device_ids()


def test_agent_keeps_less_than_60_mib_of_its_own_after_all_tests_before(gpu_node: GpuNode) -> None:
    """Anonymous memory is counted, which belongs to the agent alone.

    Mapped files, about 28 MiB, are shared with other Python programs, and the resident part of them depends on what
    else runs on the machine.
    """
    found = gpu_node.cluster.exec_inside(
        "pgrep", "-f", "calabash.kubernetes.node_plugin.daemon", beside=gpu_node.node.name
    )
    status = gpu_node.cluster.exec_inside("cat", f"/proc/{found.split()[0]}/status", beside=gpu_node.node.name)
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    print(f"resident, not of files: {own_kib / 1024:.1f} MiB")
    assert own_kib <= 60 * 1024


def test_agent_removes_the_startup_taint_and_no_other(gpu_node: GpuNode) -> None:
    node = f"/api/v1/nodes/{gpu_node.node.name}"
    gpu_node.cluster.kill("agent")
    for taint in (f"{STARTUP_TAINT}:NoSchedule", "example.com/theirs:PreferNoSchedule"):
        gpu_node.cluster.kubectl("taint", "nodes", gpu_node.node.name, taint)
    gpu_node.cluster.start("agent")

    def keys() -> set[str]:
        return {taint["key"] for taint in gpu_node.cluster.api.get(node)["spec"].get("taints", [])}

    try:
        gpu_node.cluster.wait_for(lambda: STARTUP_TAINT not in keys(), "the startup taint to be gone")
        assert "example.com/theirs" in keys()
    finally:
        gpu_node.cluster.kubectl("taint", "nodes", gpu_node.node.name, "example.com/theirs-")


def health_in_status(gpu_node: GpuNode, name: str) -> list[str]:
    """Return the health of the devices of the pod's containers according to the status of the pod."""
    statuses = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", [])
    resources = [r for status in statuses for r in status.get("allocatedResourcesStatus", ()) if r["name"] == GPUS]
    return [one["health"] for resource in resources for one in resource["resources"]]


def ready(gpu_node: GpuNode) -> dict[str, Any]:
    found: dict[str, Any] = gpu_node.status()["conditions"][0]
    return found


def test_unhealthy_card_is_reported_to_its_pods_only_and_offered_again_when_healthy(
    gpu_node: GpuNode,
) -> None:
    broken, healthy = gpu_node.devices()
    gpu_node.wait_for_device_ids()
    cluster, before = gpu_node.cluster, gpu_node.device_id_count()
    pods = [
        gpu_node.run([sliced("main", memory_mib=256, devices=[device])], {"main": HOLD}) for device in (broken, healthy)
    ]
    for name in pods:
        gpu_node.wait(name, "Running")
    assert simctl("inject", gpu_node.state, "--gpu", broken, "xid", 48).returncode == 0
    cluster.wait_for(lambda: health_in_status(gpu_node, pods[0]) == ["Unhealthy"], "the pod's device to be ill")
    assert health_in_status(gpu_node, pods[1]) == ["Healthy"]
    assert {d["uuid"]: d["health"] for d in gpu_node.status()["devices"]} == {broken: "unhealthy", healthy: "healthy"}
    cluster.wait_for(
        lambda: gpu_node.device_id_count() == before // 2 + 1, "the tokens of one card, and that of the ill pod"
    )
    gpu_node.delete(pods[0])
    cluster.wait_for(lambda: gpu_node.device_id_count() == before, "all tokens, for the card is idle and answers")
    assert health_in_status(gpu_node, pods[1]) == ["Healthy"]


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 120)
@pytest.mark.skipif(shutil.which("go") is None, reason="no Go to build NVIDIA's device plug-in with")
def test_nvidias_own_device_plug_in_is_told_of_and_nothing_is_given_out_until_it_goes(gpu_node: GpuNode) -> None:
    cluster, device = gpu_node.cluster, gpu_node.devices()[0]
    gpu_node.wait_for_device_ids()
    before = gpu_node.device_id_count()
    name = gpu_node.run([sliced("main", memory_mib=256, devices=[device])], {"main": HOLD})
    gpu_node.wait(name, "Running")
    cluster.wait_for(
        lambda: gpu_node.device_id_count(GPU) == 1, "the other card, which the agent offers under NVIDIA's name"
    )
    environment = [f"CALABASH_SIM={gpu_node.inside_state}", f"LD_LIBRARY_PATH={simulated_library_dir()}"]
    command = [str(program("device-plugin")), "--device-discovery-strategy=nvml"]
    cluster.start_program("nvidia-plugin", ["env", *environment, *command], beside=gpu_node.node.name)
    cluster.wait_for(lambda: ready(gpu_node)["reason"] == "foreign_plugin", "the node to say that it is not alone")
    assert ready(gpu_node)["status"] == "False"
    assert "2 of nvidia.com/gpu" in ready(gpu_node)["message"]
    assert {d["health"] for d in gpu_node.status()["devices"]} == {"unhealthy"}
    cluster.wait_for(lambda: gpu_node.device_id_count() == 1, "the token of the pod that runs alone")
    assert gpu_node.device_id_count(GPU) == 2, "the other's, under a name that was ours before"
    assert health_in_status(gpu_node, name) == ["Healthy"]
    events = cluster.kubectl("get", "events", "-n", "default", "--field-selector", "reason=ForeignPlugin", "-o", "name")
    assert len(events.split()) == 1
    cluster.kill("nvidia-plugin")
    cluster.wait_for(lambda: ready(gpu_node)["status"] == "True", "the node to serve again")
    cluster.wait_for(lambda: gpu_node.device_id_count() == before, "all tokens")
    cluster.wait_for(lambda: gpu_node.device_id_count(GPU) == 1, "the card without a slice, under that name again")
    after = gpu_node.run([sliced("main", memory_mib=256, devices=[device])], {"main": FILL})
    gpu_node.wait_for_success(after)
    status = cluster.api.get(f"{PODS}/{name}")["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)


class NodeWithPod:
    """Node that has granted one pod all devices of the driver ``mem`` except ``/dev/zero``."""

    def __init__(self, pod: Pod, groups: ContainerHierarchy) -> None:
        self._pod, self._groups = pod, groups

    def pod_groups(self) -> Mapping[str, Path]:
        return pod_groups(self._groups)

    def pod(self, digits: str) -> Pod | None:
        return self._pod if digits == pod_digits(self._pod.metadata.uid) else None

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        return cast("AllocationRecord", object())

    def minors(self, record: AllocationRecord) -> set[int]:
        return set(range(256)) - {ZERO_MINOR}

    def majors(self) -> Mapping[str, int]:
        return {"nvidia": majors_of({"mem"})["mem"]}


def test_container_of_a_real_pod_can_open_no_device_that_is_denied(gpu_node: GpuNode) -> None:
    """``/dev/zero`` takes the place of a card, because machines without cards must be able to run this test."""
    script = "while head -c 1 /dev/zero > /tmp/read; do sleep 0.1; done"
    name = gpu_node.run([], {"main": script})
    gpu_node.wait(name, "Running")
    told = gpu_node.cluster.api.get(f"{PODS}/{name}")
    told["metadata"]["annotations"] = {PLAN: "{}"}
    pod = decode_object(POD, msgspec.json.encode(told), "a pod")
    groups, devices = find_container_hierarchy(), find_device_hierarchy()
    assert groups is not None
    assert devices is not None
    settings = GuardSettings(hierarchy=devices, groups=groups.directory, exempt=frozenset())
    DeviceGuard(settings, NodeWithPod(pod, groups)).reconcile()
    gpu_node.wait_for_success(name)
    gpu_node.delete(name)


def test_purge_removes_everything_of_the_agent_from_a_node(gpu_node: GpuNode) -> None:
    """The last test of the module, because no agent serves the node afterwards."""
    cluster, device = gpu_node.cluster, gpu_node.devices()[0]
    gpu_node.wait_until_served()
    name = gpu_node.run([sliced("main", memory_mib=256, devices=[device])], {"main": HOLD})
    gpu_node.wait(name, "Running")
    purge = [str(Path(sys.executable).with_name("calabash")), "uninstall", "node"]
    with pytest.raises(RuntimeError, match="the agent of this node is running"):
        cluster.exec_inside(*purge, beside=gpu_node.node.name)
    for program_name in (gpu_node.agent, gpu_node.relay):
        cluster.kill(program_name)
    with pytest.raises(RuntimeError, match="processes of containers still use slices"):
        cluster.exec_inside(*purge, beside=gpu_node.node.name)
    gpu_node.delete(name)

    def purged() -> bool:
        """Purge the node as soon as the kubelet has ended the container."""
        said = cluster.exec_inside("sh", "-c", f"{' '.join(purge)} 2>&1; true", beside=gpu_node.node.name)
        return "/var/lib/calabash: removed" in said

    cluster.wait_for(purged, "the node to be purged", every_s=0.5)
    left = cluster.exec_inside(
        "sh",
        "-c",
        "grep ' /var/lib/calabash' /proc/mounts; ls -d /var/lib/calabash /var/run/cdi/* /var/lib/kubelet/*/calabash*; true",
        beside=gpu_node.node.name,
    )
    assert left == ""
