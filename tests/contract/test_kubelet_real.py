"""Device plug-in with a real kubelet and containerd: a late-bound CDI name reaches its container across restarts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.kube.images import BUSYBOX
from tests.kube.node import RealNode

from calabash.adapters.cdi import ContainerEdits, write_spec
from calabash.adapters.kube import HttpKubeClient, load_client
from calabash.adapters.kube.objects.core import EVENT, NODE, POD, Pod
from calabash.adapters.kubelet import Allocated, Checkpoint, DevicePluginServer, PluginDevice, PodResources, TokenOwner
from calabash.model.errors import CalabashError, Reason

RESOURCE = "slots.example.dev/token"
KIND = "example.dev/slot"
TOKENS = [PluginDevice(id=f"t{n}") for n in range(4)]
pytestmark = pytest.mark.slow
WAIT_S = 60.0
V = TypeVar("V")


def until(check: Callable[[], V]) -> V:
    end = time.monotonic() + WAIT_S
    while not (answer := check()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return answer


class LateBound:
    """Handler that answers Allocate with an undefined CDI name, and defines it in PreStart with the name of the owner."""

    def __init__(self, node: RealNode) -> None:
        plugins = node.outside("/var/lib/kubelet/device-plugins")
        self.directory = plugins
        self.registry = node.outside("/var/lib/kubelet/plugins_registry")
        self.checkpoint = Checkpoint(plugins / "kubelet_internal_checkpoint")
        self.resources = PodResources(node.outside("/var/lib/kubelet/pod-resources/kubelet.sock"))
        self.specs = node.outside("/var/run/cdi")
        self.refusal: CalabashError | None = None
        self.named_by_pod_resources: set[str] = set()
        self._count = itertools.count()
        self._lock = threading.Lock()

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        return Allocated(cdi_names=tuple(f"{KIND}={one}-{next(self._count)}" for one in device_ids))

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...] = ()) -> None:
        if self.refusal is not None:
            raise self.refusal
        with self._lock:
            self.named_by_pod_resources |= {owner.container for owner in self.resources.list(RESOURCE)}
            for token in device_ids:
                mine = [entry for entry in self.checkpoint.read(RESOURCE) if token in entry.device_ids]
                edits = {
                    name.partition("=")[2]: ContainerEdits(env=(("OWNER", f"{entry.pod_uid}/{entry.container}"),))
                    for entry in mine
                    for name in entry.cdi_names
                    if name.startswith(f"{KIND}={token}-")
                }
                write_spec(self.specs, f"example-{token}", KIND, edits)

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        return [*must, *(one for one in available if one not in must)][:size]


class World:
    """A node, a client of its API server, a handler."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.handler = LateBound(node)
        self.kube: HttpKubeClient = load_client(node.cluster.kubeconfig)
        self.errors: list[Exception] = []

    def server(self, way: Any = "register") -> DevicePluginServer:
        one = DevicePluginServer(
            RESOURCE,
            self.handler,
            directory=self.handler.directory,
            registry=self.handler.registry,
            way=way,
            on_error=self.errors.append,
        )
        one.set_devices(TOKENS)
        return one

    def allocatable(self) -> str:
        node = self.kube.get(NODE, self.node.name)
        return "" if node is None else node.status.allocatable.get(RESOURCE, "0")

    def run(self, name: str, *, init: bool = False, script: str = "echo $OWNER") -> Pod:
        def container(what: str) -> dict[str, Any]:
            limits = {"limits": {RESOURCE: "1"}}
            return {"name": what, "image": BUSYBOX, "command": ["sh", "-c", script], "resources": limits}

        spec: dict[str, Any] = {
            "containers": [container("main")],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
        }
        if init:
            spec["initContainers"] = [container("first")]
        return self.kube.create(POD, {"metadata": {"name": name}, "spec": spec}, "default")

    def phase(self, name: str) -> str:
        pod = self.kube.get(POD, name, "default")
        return "" if pod is None else pod.status.phase

    def ended(self, name: str) -> bool:
        return self.phase(name) in {"Succeeded", "Failed"}

    def succeeds(self, name: str, *, init: bool = False) -> None:
        """Run a pod to its end and check that each container saw its own name."""
        uid = self.run(name, init=init).metadata.uid
        until(partial(self.ended, name))
        for container in ("first", "main") if init else ("main",):
            assert self.node.cluster.kubectl("logs", name, "-c", container) == f"{uid}/{container}\n"
        self.kube.delete(POD, name, "default")


@pytest.fixture(scope="module")
def world(real_node: RealNode) -> Iterator[World]:
    one = World(real_node)
    yield one
    one.handler.resources.close()


@pytest.fixture
def server(world: World) -> Iterator[DevicePluginServer]:
    one = world.server()
    one.start()
    until(lambda: one.registered and world.allocatable() == "4")
    yield one
    one.stop()


def test_containers_see_the_name_that_was_bound_to_their_device_id_at_their_start(
    world: World, server: DevicePluginServer
) -> None:
    for number in range(3):
        world.succeeds(f"plain-{number}", init=True)
    assert world.handler.named_by_pod_resources == {"main"}  # pod-resources has no init containers; the checkpoint has
    assert world.errors == []


def test_twelve_pods_at_once_each_see_their_own(world: World, server: DevicePluginServer) -> None:
    """Four device IDs for twelve pods: each ID is used again and again, and no pod ever sees another's name."""
    uids = {name: world.run(name).metadata.uid for name in (f"many-{number}" for number in range(12))}
    for name, uid in uids.items():
        until(partial(world.ended, name))
        assert world.node.cluster.kubectl("logs", name) == f"{uid}/main\n"
        world.kube.delete(POD, name, "default")


def test_refusal_of_a_start_is_in_the_pods_event_verbatim(world: World, server: DevicePluginServer) -> None:
    world.handler.refusal = CalabashError("8 GiB of 4 are free", reason=Reason.NO_MEMORY, hint="ask for less")
    world.run("refused")
    try:
        said = until(
            lambda: [
                event.message
                for event in world.kube.list(EVENT, "default", field_selector="involvedObject.name=refused").items
                if "8 GiB" in event.message
            ]
        )
    finally:
        world.handler.refusal = None
    assert "8 GiB of 4 are free; hint: ask for less" in said[0]
    until(lambda: world.phase("refused") == "Succeeded")
    world.kube.delete(POD, "refused", "default")


def test_restarted_kubelet_has_the_plug_in_again_and_leaves_containers_alone(
    world: World, server: DevicePluginServer
) -> None:
    cluster = world.node.cluster
    before = _birth(world)
    count = server.registrations
    uid = world.run("lasting", script="sleep 100000").metadata.uid
    until(lambda: world.phase("lasting") == "Running")
    owners = world.handler.resources.list(RESOURCE)
    (held,) = (entry.device_ids for entry in world.handler.checkpoint.read(RESOURCE) if entry.pod_uid == uid)
    assert (
        TokenOwner(namespace="default", pod="lasting", container="main", resource=RESOURCE, device_ids=held) in owners
    )
    cluster.restart(world.node.kubelet)
    until(lambda: _birth(world) not in {(0, 0), before})
    until(lambda: server.registered and server.registrations > count)
    until(lambda: world.allocatable() == "4")
    world.succeeds("after-restart", init=True)
    lasting = world.kube.get(POD, "lasting", "default")
    assert lasting is not None
    assert (lasting.status.phase, lasting.status.container_statuses[0].restart_count) == ("Running", 0)
    world.kube.delete(POD, "lasting", "default")


def _birth(world: World) -> tuple[int, int]:
    try:
        found = (world.handler.directory / "kubelet.sock").stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns  # inode numbers are used again


def test_a_newer_instance_takes_over_and_outlives_the_older_one(world: World, server: DevicePluginServer) -> None:
    newer = world.server()
    newer.start()
    try:
        until(lambda: newer.registered)
        server.stop()
        # Kubelets up to 1.36 drop the newer one with the older one; it registers again.
        until(lambda: newer.registered and newer.registrations > 1)
        until(lambda: world.allocatable() == "4")
        world.succeeds("taken-over")
    finally:
        newer.stop()


def test_the_kubelet_finds_the_plug_in_in_its_registry(world: World) -> None:
    one = world.server("registry")
    one.start()
    try:
        until(lambda: one.registered and world.allocatable() == "4")
        world.succeeds("found")
        world.node.cluster.restart(world.node.kubelet)
        until(lambda: one.registered and world.allocatable() == "4")
        world.succeeds("found-again")
    finally:
        one.stop()
