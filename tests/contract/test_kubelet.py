"""Device plug-in with a kubelet over real sockets, and the two sources of the owner of a device ID."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.contract.fake_kubelet import WAIT_S, FakeKubelet, find_in_registry, serve_pod_resources

from calabash.adapters.kubelet import (
    Allocated,
    Checkpoint,
    CheckpointEntry,
    DevicePluginServer,
    PluginDevice,
    PodResources,
    TokenOwner,
)
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.adapters.kubelet.stubs import podresources_pb2 as resources_pb
from calabash.model.errors import CalabashError, Reason

RESOURCE = "calabash.dev/gpus"


class Handler:
    """Handler of the plug-in; ``gate`` holds starts, ``error`` is raised by them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.started: list[tuple[str, ...]] = []

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        if device_ids == ("bad",):
            raise KeyError("bad")
        return Allocated(cdi_names=tuple(f"calabash.dev/slot={one}" for one in device_ids), environment=(("K", "v"),))

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...] = ()) -> None:
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.started.append(device_ids)

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        return [*must, *(one for one in available if one not in must)][:size]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def kubelet(directory: Path) -> Iterator[FakeKubelet]:
    one = FakeKubelet(directory)
    one.start()
    yield one
    one.stop()


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def errors() -> list[Exception]:
    return []


@pytest.fixture
def plugin(
    directory: Path, kubelet: FakeKubelet, handler: Handler, errors: list[Exception]
) -> Iterator[DevicePluginServer]:
    server = DevicePluginServer(RESOURCE, handler, directory=directory, on_error=errors.append)
    server.set_devices([PluginDevice(id="t0"), PluginDevice(id="t1", healthy=False, numa_node=1)])
    server.start()
    yield server
    handler.gate.set()
    server.stop()


def both(kubelet: FakeKubelet) -> bool:
    return kubelet.devices == {"t0": "Healthy", "t1": "Unhealthy"}


def test_kubelet_gets_the_resource_and_its_devices(plugin: DevicePluginServer, kubelet: FakeKubelet) -> None:
    kubelet.wait(lambda: both(kubelet))
    (request,) = kubelet.registered
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
    assert request.options.pre_start_required
    assert "/" not in request.endpoint
    assert plugin.registered


def test_a_new_list_of_devices_is_pushed_and_the_same_one_is_not(
    plugin: DevicePluginServer, kubelet: FakeKubelet
) -> None:
    kubelet.wait(lambda: both(kubelet))
    plugin.set_devices([PluginDevice(id="t0"), PluginDevice(id="t1", healthy=False, numa_node=1)])
    plugin.set_devices([PluginDevice(id="t0")])
    kubelet.wait(lambda: kubelet.devices == {"t0": "Healthy"})
    assert kubelet.updates == 2


@pytest.mark.parametrize(
    "devices",
    [[PluginDevice(id="x" * 64)], [PluginDevice(id="")], [PluginDevice(id="a"), PluginDevice(id="a")]],
    ids=["long", "empty", "twice"],
)
def test_a_list_that_no_kubelet_takes_is_refused_here(handler: Handler, devices: list[PluginDevice]) -> None:
    with pytest.raises(ValueError, match="device ID"):
        DevicePluginServer(RESOURCE, handler).set_devices(devices)


def test_a_list_that_exceeds_the_kubelets_message_size_is_refused_here(handler: Handler) -> None:
    with pytest.raises(ValueError, match="bytes"):
        DevicePluginServer(RESOURCE, handler).set_devices([PluginDevice(id=f"{n:060}") for n in range(50_000)])


def test_allocate_and_preferred_answer_what_the_handler_says(plugin: DevicePluginServer, kubelet: FakeKubelet) -> None:
    kubelet.wait(lambda: both(kubelet))
    (answer,) = kubelet.allocate("t0", "t1").container_responses
    assert [device.name for device in answer.cdi_devices] == ["calabash.dev/slot=t0", "calabash.dev/slot=t1"]
    assert dict(answer.envs) == {"K": "v"}
    assert kubelet.preferred(["a", "b", "c"], ["c"], 2) == ["c", "a"]


def test_the_text_of_a_refused_start_reaches_the_kubelet_with_its_hint(
    plugin: DevicePluginServer, kubelet: FakeKubelet, handler: Handler
) -> None:
    kubelet.wait(lambda: both(kubelet))
    handler.error = CalabashError("ns/pod: 8 GiB of 4 free: waits", reason=Reason.NO_MEMORY, hint="free some")
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.pre_start("t0")
    call: Any = caught.value
    assert call.details() == "ns/pod: 8 GiB of 4 free: waits; hint: free some"
    handler.error = None
    kubelet.pre_start("t0")
    assert handler.started == [("t0",)]


def test_a_fault_of_the_handler_is_an_error_of_that_call_alone(
    plugin: DevicePluginServer, kubelet: FakeKubelet, errors: list[Exception]
) -> None:
    kubelet.wait(lambda: both(kubelet))
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.allocate("bad")
    call: Any = caught.value
    assert "KeyError" in call.details()
    assert [type(error) for error in errors] == [KeyError]
    assert kubelet.allocate("t0").container_responses


def test_two_hundred_starts_that_hang_do_not_keep_an_admission_waiting(
    plugin: DevicePluginServer, kubelet: FakeKubelet, handler: Handler
) -> None:
    kubelet.wait(lambda: both(kubelet))
    handler.gate.clear()
    assert kubelet.channel is not None
    start = kubelet.channel.unary_unary(
        "/v1beta1.DevicePlugin/PreStartContainer",
        request_serializer=pb.PreStartContainerRequest.SerializeToString,
        response_deserializer=pb.PreStartContainerResponse.FromString,
    )
    waiting = [start.future(pb.PreStartContainerRequest(devices_ids=[f"t{n}"])) for n in range(200)]
    for _ in range(20):
        assert kubelet.allocate("t0").container_responses
    assert not any(one.done() for one in waiting)
    handler.gate.set()
    for one in waiting:
        one.result(WAIT_S)
    assert len(handler.started) == 200


def test_a_kubelet_that_restarts_is_registered_with_again(plugin: DevicePluginServer, kubelet: FakeKubelet) -> None:
    kubelet.wait(lambda: both(kubelet))
    endpoints = {kubelet.registered[0].endpoint}
    for _ in range(2):
        kubelet.stop()
        count = len(kubelet.registered)
        kubelet.start()
        kubelet.wait(lambda count=count: both(kubelet) and len(kubelet.registered) > count)  # type: ignore[misc]
        endpoints.add(kubelet.registered[count].endpoint)
    assert len(endpoints) == 3
    assert kubelet.allocate("t0").container_responses


def test_a_kubelet_that_drops_the_plug_in_without_restarting_is_registered_with_again(
    plugin: DevicePluginServer, kubelet: FakeKubelet
) -> None:
    """Kubelets up to 1.36 do this to a new plug-in when the connection of an older one ends."""
    kubelet.wait(lambda: both(kubelet))
    kubelet.drop_plugin()
    kubelet.wait(lambda: both(kubelet) and len(kubelet.registered) >= 2)
    assert kubelet.allocate("t0").container_responses


def test_a_kubelet_that_comes_later_or_refuses_at_first_is_registered_with(
    directory: Path, handler: Handler, errors: list[Exception]
) -> None:
    server = DevicePluginServer(RESOURCE, handler, directory=directory, on_error=errors.append)
    server.set_devices([PluginDevice(id="t0")])
    server.start()
    kubelet = FakeKubelet(directory)
    kubelet.refuse = "not today"
    try:
        assert not server.registered
        kubelet.start()
        end = time.monotonic() + WAIT_S
        while not errors and time.monotonic() < end:
            threading.Event().wait(0.02)
        assert "not today" in str(errors[0])
        kubelet.refuse = ""
        kubelet.wait(lambda: kubelet.devices == {"t0": "Healthy"})
        assert len(errors) == 1
    finally:
        server.stop()
        kubelet.stop()


def test_a_plug_in_that_stops_leaves_no_socket(plugin: DevicePluginServer, kubelet: FakeKubelet) -> None:
    kubelet.wait(lambda: both(kubelet))
    plugin.stop()
    kubelet.wait(lambda: kubelet.devices == {})
    assert [path.name for path in kubelet.directory.iterdir()] == ["kubelet.sock"]


def test_a_kubelet_finds_the_plug_in_by_its_socket_in_the_registry(
    directory: Path, kubelet: FakeKubelet, handler: Handler
) -> None:
    registry = directory / "r"
    registry.mkdir()
    server = DevicePluginServer(RESOURCE, handler, directory=directory, registry=registry, way="registry")
    server.set_devices([PluginDevice(id="t0")])
    server.start()
    try:
        seen: set[Path] = set()
        for _ in range(2):
            info = find_in_registry(kubelet, registry, seen)
            assert (info.type, info.name, list(info.supported_versions)) == ("DevicePlugin", RESOURCE, ["v1beta1"])
            kubelet.wait(lambda: kubelet.devices == {"t0": "Healthy"})
            assert kubelet.allocate("t0").container_responses
            kubelet.drop_plugin()
        assert kubelet.registered == []
    finally:
        server.stop()
    assert list(registry.iterdir()) == []


def test_pod_resources_names_the_owners_of_our_device_ids(directory: Path) -> None:
    devices = [
        resources_pb.ContainerDevices(resource_name=RESOURCE, device_ids=["t0"]),
        resources_pb.ContainerDevices(resource_name=RESOURCE, device_ids=["t5"]),
        resources_pb.ContainerDevices(resource_name="x/y", device_ids=["z"]),
    ]
    main = resources_pb.ContainerResources(name="main", devices=devices)
    pod = resources_pb.PodResources(
        name="p", namespace="ns", containers=[main, resources_pb.ContainerResources(name="plain")]
    )
    reply = resources_pb.ListPodResourcesResponse(pod_resources=[pod])
    server = serve_pod_resources(directory / "s", reply)
    asked = PodResources(directory / "s")
    owner = TokenOwner(namespace="ns", pod="p", container="main", resource=RESOURCE, device_ids=("t0", "t5"))
    try:
        assert asked.list(RESOURCE) == (owner,)
        server.stop(0).wait()
        with pytest.raises(CalabashError) as caught:
            asked.list(RESOURCE)
        assert caught.value.reason is Reason.KUBELET_DOWN
        server = serve_pod_resources(directory / "s", reply)
        assert asked.list(RESOURCE) == (owner,)
    finally:
        asked.close()
        server.stop(0).wait()


def test_pod_resources_counts_what_plug_ins_offer_now(directory: Path) -> None:
    devices = [
        resources_pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["a", "b"]),
        resources_pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["c"]),
        resources_pb.ContainerDevices(resource_name="gone.example/x", device_ids=[]),
    ]
    allocatable = resources_pb.AllocatableResourcesResponse(devices=devices)
    server = serve_pod_resources(directory / "s", resources_pb.ListPodResourcesResponse(), allocatable)
    asked = PodResources(directory / "s")
    try:
        assert {name: len(ids) for name, ids in asked.offered().items()} == {"nvidia.com/gpu": 3}
    finally:
        asked.close()
        server.stop(0).wait()


def checkpoint(**changes: Any) -> dict[str, Any]:
    """Return a checkpoint as the kubelet of Kubernetes 1.36 writes it."""
    answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="calabash.dev/slot=t0-1")])
    entry = {
        "PodUID": "u1",
        "ContainerName": "init",
        "ResourceName": RESOURCE,
        "DeviceIDs": {"-1": ["t0"], "1": ["t7"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }
    other = entry | {"ResourceName": "x/y", "AllocResp": None, "DeviceIDs": None}
    data = {"PodDeviceEntries": [entry | changes, other], "RegisteredDevices": {RESOURCE: ["t0", "t7"], "x/y": None}}
    return {"Data": data, "Checksum": 3906446445}


def test_the_checkpoint_names_init_containers_and_the_answer_they_got(tmp_path: Path) -> None:
    path = tmp_path / "c"
    assert Checkpoint(path).read(RESOURCE) == ()
    path.write_text(json.dumps(checkpoint()))
    assert Checkpoint(path).read(RESOURCE) == (
        CheckpointEntry(
            pod_uid="u1",
            container="init",
            resource=RESOURCE,
            device_ids=("t0", "t7"),
            cdi_names=("calabash.dev/slot=t0-1",),
        ),
    )
    path.write_text('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
    assert Checkpoint(path).read(RESOURCE) == ()


def test_the_checkpoint_names_the_resources_that_had_healthy_devices_and_is_read_anew_when_it_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c"
    seen = Checkpoint(path)
    assert seen.registered() == {}
    path.write_text(json.dumps(checkpoint()))
    assert set(seen.registered()) == {RESOURCE}
    with_another = checkpoint()
    with_another["Data"]["RegisteredDevices"] |= {"nvidia.com/gpu": ["GPU-0"]}
    (tmp_path / "new").write_text(json.dumps(with_another))
    (tmp_path / "new").rename(path)
    assert set(seen.registered()) == {RESOURCE, "nvidia.com/gpu"}
    assert seen.registered()["nvidia.com/gpu"] == ("GPU-0",)
    path.unlink()
    assert seen.registered() == {}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(checkpoint() | {"Version": 3}),
        json.dumps(checkpoint(New="x")),
        json.dumps(checkpoint(DeviceIDs=["t0"])),
        json.dumps(checkpoint(AllocResp="!")),
        json.dumps(checkpoint(AllocResp=base64.b64encode(b"\xff\xff\xff").decode())),
        json.dumps(checkpoint(PodUID="x" * 600)),
        "{",
        "",
        "[" * 100_000,
    ],
    ids=["version", "field", "ids", "base64", "answer", "long", "half", "empty", "deep"],
)
def test_a_checkpoint_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c"
    path.write_text(text)
    with pytest.raises(CalabashError) as caught:
        Checkpoint(path).read(RESOURCE)
    assert caught.value.reason is Reason.BAD_FILE
    assert "1.34" in caught.value.hint


def test_a_checkpoint_that_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(json.dumps(checkpoint()))
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 17 << 20)
    for name in ("link", "pipe", "huge"):
        with pytest.raises(CalabashError) as caught:
            Checkpoint(tmp_path / name).read(RESOURCE)
        assert caught.value.reason is Reason.BAD_FILE


def test_grpc_messages_are_current() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.stubs", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
