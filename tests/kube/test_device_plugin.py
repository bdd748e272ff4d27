"""The seams of a node against a real kubelet and containerd: a token becomes what a CDI file says, at the last moment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from tests.kube.images import BUSYBOX
from tests.kube.node import RealNode
from tests.kube.test_node import PODS, wait_for_phase

from calabash.model.errors import CalabashError, Reason
from calabash.seams.cdi import ContainerEdits, write_spec
from calabash.seams.kubelet import Allocated, Checkpoint, DevicePluginServer, PluginDevice, PodResources, TokenOwner

RESOURCE = "example.com/slices"
KIND = "example.com/slot"
TOKENS = [PluginDevice(id=f"token{number}") for number in range(4)]


class LateBound:
    """Gives each allocation a name that never was, and writes what it means when the container is about to start."""

    def __init__(self, node: RealNode, resource: str = RESOURCE) -> None:
        self.resource = resource
        self.checkpoint = Checkpoint(node.outside("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"))
        self.specs = node.outside("/run/cdi")
        self.refused: CalabashError | None = None
        self.begun: list[tuple[str, str]] = []
        self._count = itertools.count()

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        return Allocated(cdi_names=tuple(f"{KIND}={one}-{next(self._count)}" for one in device_ids))

    def pre_start(self, device_ids: tuple[str, ...]) -> None:
        if self.refused is not None:
            raise self.refused
        (entry,) = (one for one in self.checkpoint.read(self.resource) if one.device_ids == device_ids)
        self.begun.append((entry.pod_uid, entry.container))
        edits = ContainerEdits(env=(("SLICE_OF", entry.pod_uid), ("TOKENS", " ".join(device_ids))))
        names = {name.partition("=")[2]: edits for name in entry.cdi_names}
        write_spec(self.specs, device_ids[0], KIND, names)

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        return list(available)[:size]


@pytest.fixture(scope="module")
def handler(real_node: RealNode) -> LateBound:
    return LateBound(real_node)


@pytest.fixture(scope="module")
def plugin(real_node: RealNode, handler: LateBound) -> Iterator[DevicePluginServer]:
    """The plug-in in the test process, known to the kubelet."""
    with serving(real_node, handler, "register") as server:
        yield server


@contextmanager
def serving(node: RealNode, handler: LateBound, way: Literal["register", "registry"]) -> Iterator[DevicePluginServer]:
    server = DevicePluginServer(
        handler.resource,
        handler,
        directory=node.outside("/var/lib/kubelet/device-plugins"),
        registry=node.outside("/var/lib/kubelet/plugins_registry"),
        way=way,
    )
    server.set_devices(TOKENS)
    server.start()
    try:
        wait_for_tokens(node, handler.resource)
        yield server
    finally:
        server.stop()


def wait_for_tokens(node: RealNode, resource: str) -> None:
    def there() -> bool:
        status = node.cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]
        return bool(status["allocatable"].get(resource) == str(len(TOKENS)))

    node.cluster.wait_for(there, f"the node's {resource}", 30)


def create(node: RealNode, name: str, script: str, resource: str = RESOURCE) -> str:
    """A pod whose container takes a token; its name."""
    limits = {"limits": {resource: "1"}}
    main = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script], "resources": limits}
    spec = {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    made = node.cluster.api.create(PODS, {"metadata": {"generateName": f"{name}-"}, "spec": spec})
    return str(made["metadata"]["name"])


def uid(node: RealNode, name: str) -> str:
    return str(node.cluster.api.get(f"{PODS}/{name}")["metadata"]["uid"])


def test_a_container_gets_what_was_written_just_before_it_starts(
    real_node: RealNode, plugin: DevicePluginServer, handler: LateBound
) -> None:
    name = create(real_node, "told", "echo $SLICE_OF $TOKENS")
    assert wait_for_phase(real_node.cluster, name, "Succeeded", "Failed") == "Succeeded"
    pod_uid, token = real_node.cluster.kubectl("logs", name).split()
    assert pod_uid == uid(real_node, name)
    assert token in [device.id for device in TOKENS]
    assert handler.begun[-1] == (pod_uid, "main")


def test_a_plug_in_is_found_in_the_registry_as_well(real_node: RealNode) -> None:
    found = "example.com/found"
    with serving(real_node, LateBound(real_node, found), "registry"):
        name = create(real_node, "found", "echo $SLICE_OF", found)
        assert wait_for_phase(real_node.cluster, name, "Succeeded", "Failed") == "Succeeded"
        assert real_node.cluster.kubectl("logs", name).strip() == uid(real_node, name)


def test_the_kubelet_says_who_holds_a_token(
    real_node: RealNode, plugin: DevicePluginServer, handler: LateBound
) -> None:
    name = create(real_node, "holder", "sleep 100000")
    wait_for_phase(real_node.cluster, name, "Running")
    resources = PodResources(real_node.outside("/var/lib/kubelet/pod-resources/kubelet.sock"))
    try:
        owners = {owner.pod: owner for owner in resources.list(RESOURCE)}
    finally:
        resources.close()
    entries = {entry.pod_uid: entry for entry in handler.checkpoint.read(RESOURCE)}
    held = entries[uid(real_node, name)]
    assert owners[name] == TokenOwner(
        namespace="default", pod=name, container="main", resource=RESOURCE, device_ids=held.device_ids
    )
    real_node.cluster.api.delete(f"{PODS}/{name}")


@pytest.mark.slow
def test_a_refusal_is_read_in_the_pods_status_and_ends_when_it_is_taken_back(
    real_node: RealNode, plugin: DevicePluginServer, handler: LateBound
) -> None:
    cluster = real_node.cluster
    handler.refused = CalabashError("8 GiB asked, 4 GiB free", reason=Reason.NO_MEMORY, hint="wait or ask for less")
    try:
        name = create(real_node, "refused", "true")

        def told() -> str:
            for container in cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", ()):
                if "GiB" in container["state"].get("waiting", {}).get("message", ""):
                    return str(container["state"]["waiting"]["message"])
            return ""

        assert "8 GiB asked, 4 GiB free; hint: wait or ask for less" in cluster.wait_for(told, "the refusal")
    finally:
        handler.refused = None
    assert wait_for_phase(cluster, name, "Succeeded", "Failed") == "Succeeded"


def test_a_restarted_kubelet_knows_the_tokens_again_and_leaves_containers_alone(
    real_node: RealNode, plugin: DevicePluginServer
) -> None:
    cluster = real_node.cluster
    name = create(real_node, "lasting", "sleep 100000")
    wait_for_phase(cluster, name, "Running")
    before = plugin.registrations
    cluster.restart(real_node.kubelet)
    cluster.wait_for(lambda: plugin.registrations > before and plugin.registered, "the plug-in registered again", 20)
    real_node.wait_until_ready()
    wait_for_tokens(real_node, RESOURCE)
    after = create(real_node, "later", "echo $TOKENS")
    assert wait_for_phase(cluster, after, "Succeeded", "Failed") == "Succeeded"
    status = cluster.api.get(f"{PODS}/{name}")["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
    cluster.api.delete(f"{PODS}/{name}")


@pytest.mark.slow
def test_twelve_containers_at_once_each_get_their_own(real_node: RealNode, plugin: DevicePluginServer) -> None:
    """Four tokens for twelve pods: each token is used again and again, and no pod ever sees what was another's."""
    names = [create(real_node, "many", "echo $SLICE_OF") for _ in range(12)]
    for name in names:
        assert wait_for_phase(real_node.cluster, name, "Succeeded", "Failed") == "Succeeded"
        assert real_node.cluster.kubectl("logs", name).strip() == uid(real_node, name)
