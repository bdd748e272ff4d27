"""Tests of the guard of device access, with real control groups and harmless devices in place of GPUs."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from calabash.adapters.host.cgroups.device_access import DeviceHierarchy
from calabash.adapters.host.mounts import mounts
from calabash.adapters.kube.http.wire import decode_object
from calabash.adapters.kube.objects.core import POD, Pod
from calabash.kubernetes.node_plugin.devices.device_guard import CONTROL_MINORS, DeviceGuard, GuardSettings
from calabash.kubernetes.objects.names import GPUS, PLAN
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId
from calabash.node.membership.container import container_allocation, pod_digits

MAJOR = 1  # of /dev/zero (5), /dev/full (7), /dev/urandom (9)
ZERO, FULL = "/dev/zero", "/dev/full"
GRANTED = 5
EXEMPT = "kube-system"
OPEN = """
import os, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
for path in sys.argv[2:]:
    try:
        os.open(path, os.O_RDONLY)
        print(path, flush=True)
    except PermissionError:
        pass
print("end", flush=True)
sys.stdin.read()
"""


def pod_of(name: str, *, namespace: str = "team", **spec: Any) -> Pod:
    """Return a pod with the containers ``main`` and ``side``; ``asks`` names those that request a device."""
    asks, annotations = spec.pop("asks", ()), spec.pop("annotations", {})
    containers = [
        {"name": one, "resources": {"limits": {GPUS: "1"} if one in asks else {}}} for one in ("main", "side")
    ]
    statuses = [{"name": one, "containerID": f"containerd://{name}-{one}"} for one in ("main", "side")]
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
            "annotations": annotations,
        },
        "spec": {"containers": containers, **spec},
        "status": {"containerStatuses": statuses},
    }
    return decode_object(POD, msgspec.json.encode(body), "a pod")


class Node:
    """Control groups of pods, and the guard."""

    def __init__(self, hierarchy: DeviceHierarchy) -> None:
        self.root = hierarchy.directory / f"calabash-test-{secrets.token_hex(4)}"
        self.root.mkdir()
        self.pods: dict[str, Pod] = {}
        self.groups: dict[str, Path] = {}
        self.drivers = {"nvidia": MAJOR}
        self.held: set[AllocationId] = set()
        self.processes: list[subprocess.Popen[str]] = []
        self.guard = DeviceGuard(
            GuardSettings(hierarchy=hierarchy, groups=hierarchy.directory, exempt=frozenset({EXEMPT})), self
        )

    def pod_groups(self) -> dict[str, Path]:
        return self.groups

    def pod(self, digits: str) -> Pod | None:
        return self.pods.get(digits)

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        return cast("AllocationRecord", SimpleNamespace()) if allocation in self.held else None

    def minors(self, record: AllocationRecord) -> list[int]:
        return [GRANTED]

    def majors(self) -> dict[str, int]:
        return self.drivers

    def add(self, pod: Pod, *, granted: tuple[str, ...] = (), known: bool = True) -> Path:
        """Create the control groups of a pod; ``granted``: containers with a slice."""
        digits = pod_digits(pod.metadata.uid)
        group = self.root / f"pod{pod.metadata.uid}"
        for container in ("main", "side"):
            (group / f"{pod.metadata.name}-{container}").mkdir(parents=True)
        if known:
            self.pods[digits] = pod
        self.groups[digits] = group
        self.held |= {container_allocation(pod.metadata.uid, name) for name in granted}
        return group

    def opened(self, group: Path, container: str) -> set[str]:
        """Return the devices that a process of the container can open; the process keeps running."""
        (directory,) = (path for path in group.iterdir() if path.name.endswith(f"-{container}"))
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", OPEN, str(directory / "cgroup.procs"), ZERO, FULL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        return {line.strip() for line in iter(process.stdout.readline, "end\n")}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for directory in sorted(self.root.rglob("*"), reverse=True):
            with suppress(OSError):
                directory.rmdir()
        with suppress(OSError):
            self.root.rmdir()


@pytest.fixture
def node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("control groups are root's to make")
    found = [DeviceHierarchy(m.directory, 2) for m in mounts() if m.kind == "cgroup2" and m.root == "/"]
    if not found:
        pytest.skip("no control groups of version 2")
    one = Node(found[0])
    yield one
    one.close()


def test_pod_that_asks_for_no_devices_can_open_none(node: Node) -> None:
    group = node.add(pod_of("plain"))
    node.guard.reconcile()
    assert node.opened(group, "main") == set()


def test_container_opens_what_it_was_granted_and_its_siblings_nothing(node: Node) -> None:
    group = node.add(pod_of("holds", asks=("main",)), granted=("main",))
    node.guard.reconcile()
    assert node.opened(group, "main") == {ZERO}
    assert node.opened(group, "side") == set()


def test_control_devices_stay_open_to_a_container_that_holds_a_slice(node: Node) -> None:
    group = node.add(pod_of("control", asks=("main",)), granted=("main",))
    (_, rule), *_ = node.guard._rules(next(iter(node.pods.values())), group, {"nvidia": MAJOR, "nvidia-uvm": 510})
    assert rule == {MAJOR: CONTROL_MINORS | {GRANTED}}, "the memory manager's device is every holder's"


@pytest.mark.parametrize(
    "pod",
    [
        pod_of("exempt", namespace=EXEMPT),
        pod_of("claims", resourceClaims=[{"name": "one", "resourceClaimName": "one"}]),
    ],
    ids=["exempt", "claims"],
)
def test_pods_of_exempt_namespaces_and_with_claims_are_left_alone(node: Node, pod: Pod) -> None:
    group = node.add(pod)
    node.guard.reconcile()
    assert node.opened(group, "main") == {ZERO, FULL}


def test_pod_that_the_api_server_has_not_told_of_is_left_alone_until_it_has(node: Node) -> None:
    pod = pod_of("late")
    group = node.add(pod, known=False)
    node.guard.reconcile()
    assert node.opened(group, "main") == {ZERO, FULL}
    node.pods[pod_digits(pod.metadata.uid)] = pod
    assert node.guard.reconcile() == 1, "the process that has the devices open is ended"
    assert node.processes[0].wait(60) == -9
    assert node.opened(group, "main") == set()
    assert node.guard.reconcile() == 0


def test_process_with_a_granted_device_open_is_not_ended(node: Node) -> None:
    group = node.add(pod_of("lives", asks=("main",)), granted=("main",))
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", OPEN, str(group / "lives-main" / "cgroup.procs"), ZERO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    node.processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{ZERO}\n"
    assert node.guard.reconcile() == 0
    assert process.poll() is None


def test_planned_pod_whose_container_was_not_granted_yet_is_left_alone(node: Node) -> None:
    group = node.add(pod_of("planned", asks=("main",), annotations={PLAN: "{}"}))
    node.guard.reconcile()
    assert node.opened(group, "main") == {ZERO, FULL}
    node.held.add(container_allocation(next(iter(node.pods.values())).metadata.uid, "main"))
    assert node.guard.reconcile() == 1, "it had a device open that it was not granted"
    assert node.opened(group, "main") == {ZERO}


def test_nothing_is_denied_without_a_driver(node: Node) -> None:
    group = node.add(pod_of("no-driver"))
    node.drivers = {}
    assert node.guard.reconcile() == 0
    assert node.opened(group, "main") == {ZERO, FULL}
