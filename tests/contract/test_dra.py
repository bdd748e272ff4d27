"""DRA driver with a kubelet over real sockets, in both versions of the service."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.fake_dra_kubelet import WAIT_S, FakeDraKubelet, until
from tests.examples import examples

from calabash.adapters.kubelet import ClaimRef, DeviceHealth, DeviceState, DraServer, PreparedDevice
from calabash.adapters.kubelet.claim_service import CLAIM_MESSAGE_BYTES_MAX, ClaimService
from calabash.adapters.kubelet.stubs import dra_pb2 as pb
from calabash.model.errors import CalabashError, Reason

DRIVER = "calabash.dev"
ONE, TWO = ("team", "uid-1", "one"), ("team", "uid-2", "two")


class Handler:
    """Handler of claims; ``held`` claims wait for ``gate``, those in ``errors`` are refused."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.held: set[str] = set()
        self.errors: dict[str, Exception] = {}
        self.calls: list[tuple[str, str]] = []

    def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        self._work("prepare", claim)
        device = PreparedDevice(
            requests=("gpu",), pool="n1", device="gpu-1-vgpu", cdi_names=(f"k/c={claim.uid}",), share_id="s-1"
        )
        return (device, PreparedDevice(requests=(), pool="n1", device="gpu-2", cdi_names=()))

    def unprepare(self, claim: ClaimRef) -> None:
        self._work("unprepare", claim)

    def _work(self, what: str, claim: ClaimRef) -> None:
        self.calls.append((what, claim.uid))
        if claim.uid in self.held:
            assert self.gate.wait(WAIT_S)
        if claim.uid in self.errors:
            raise self.errors[claim.uid]


class World:
    """A driver and a kubelet."""

    def __init__(self, root: Path) -> None:
        self.handler = Handler()
        self.kubelet = FakeDraKubelet(root)
        self.errors: list[Exception] = []

    def server(self) -> DraServer:
        return DraServer(
            DRIVER,
            self.handler,
            plugins=self.kubelet.plugins,
            registry=self.kubelet.registry,
            on_error=self.errors.append,
        )

    def files(self) -> list[str]:
        return sorted(path.name for path in self.kubelet.plugins.parent.rglob("*.sock"))


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a driver and a kubelet in a directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as path:
        yield World(Path(path))


@pytest.fixture
def server(world: World) -> Iterator[DraServer]:
    one = world.server()
    one.start()
    world.kubelet.wait_for(1)
    yield one
    world.handler.gate.set()
    one.stop()


def test_the_kubelet_finds_the_driver_and_what_it_serves(world: World, server: DraServer) -> None:
    (info,) = world.kubelet.poll_registry()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert list(info.supported_versions)[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert Path(info.endpoint).parent == world.kubelet.plugins / DRIVER
    assert server.registered
    assert server.registrations == 1


def test_a_claim_is_answered_device_by_device(world: World, server: DraServer) -> None:
    reply = world.kubelet.prepare(ONE)
    first, second = reply.claims["uid-1"].devices
    assert reply.claims["uid-1"].error == ""
    assert (list(first.request_names), first.pool_name, first.device_name) == (["gpu"], "n1", "gpu-1-vgpu")
    assert (list(first.cdi_device_ids), first.share_id) == (["k/c=uid-1"], "s-1")
    assert not second.HasField("share_id")
    assert world.kubelet.unprepare(ONE).claims["uid-1"].error == ""


def test_an_older_kubelet_is_answered_in_its_version(world: World, server: DraServer) -> None:
    world.kubelet.known = ("v1beta1.DRAPlugin",)
    first, _ = world.kubelet.prepare(ONE).claims["uid-1"].devices
    assert first.device_name == "gpu-1-vgpu"
    assert not first.HasField("share_id")
    assert world.kubelet.unprepare(ONE).claims["uid-1"].error == ""


def test_refused_claim_has_an_error_and_others_are_prepared(world: World, server: DraServer) -> None:
    world.handler.errors["uid-1"] = CalabashError("8 GiB of 4 free", reason=Reason.NO_MEMORY, hint="free some")
    world.handler.errors["uid-3"] = KeyError("odd")
    reply = world.kubelet.prepare(ONE, TWO, ("team", "uid-3", "three"))
    assert reply.claims["uid-1"].error == "8 GiB of 4 free; hint: free some"
    assert reply.claims["uid-2"].devices
    assert "KeyError" in reply.claims["uid-3"].error
    assert [type(error) for error in world.errors] == [KeyError]


def test_a_claim_without_a_name_or_with_one_too_long_is_refused_unasked(world: World, server: DraServer) -> None:
    reply = world.kubelet.prepare(("", "uid-1", "one"), ("team", "uid-2", "n" * 300), ("team", "", "one"))
    assert {uid: bool(one.error) for uid, one in reply.claims.items()} == {"uid-1": True, "uid-2": True, "": True}
    assert world.handler.calls == []


def test_hanging_claims_do_not_delay_others(world: World, server: DraServer) -> None:
    world.handler.held = {f"slow-{n}" for n in range(8)}
    slow = [
        threading.Thread(target=world.kubelet.prepare, args=(("team", uid, uid),)) for uid in sorted(world.handler.held)
    ]
    for one in slow:
        one.start()
    until(lambda: len(world.handler.calls) == 8)
    assert world.kubelet.prepare(TWO).claims["uid-2"].devices
    world.handler.gate.set()
    for one in slow:
        one.join()


def test_slow_claim_is_answered_at_the_deadline_and_prepared_once(world: World) -> None:
    world.handler.held = {"uid-1"}
    server = world.server()
    server._service = ClaimService(world.handler, world.errors.append, answer_s=0.3)
    server.start()
    try:
        world.kubelet.wait_for(1)
        for _ in range(3):
            reply = world.kubelet.prepare(ONE, TWO)
            assert "still being prepared or released" in reply.claims["uid-1"].error
            assert reply.claims["uid-2"].devices
        assert world.handler.calls.count(("prepare", "uid-1")) == 1
        assert "still being prepared or released" in world.kubelet.unprepare(ONE).claims["uid-1"].error
        assert ("unprepare", "uid-1") not in world.handler.calls, "it is not undone while it is being done"
        world.handler.gate.set()
        until(lambda: world.handler.calls.count(("unprepare", "uid-1")) == 1)
    finally:
        world.handler.gate.set()
        server.stop()


def test_a_kubelet_that_restarts_finds_the_same_sockets(world: World, server: DraServer) -> None:
    files = world.files()
    world.kubelet.restart()
    world.kubelet.wait_for(1)
    assert world.files() == files
    assert server.registrations == 2
    assert world.kubelet.prepare(ONE).claims["uid-1"].devices


def test_two_instances_serve_at_once_and_the_older_one_goes_without_a_gap(world: World, server: DraServer) -> None:
    newer = world.server()
    newer.start()
    try:
        world.kubelet.wait_for(2)
        endpoints = {info.endpoint for info in world.kubelet.poll_registry()}
        assert len(endpoints) == 2
        server.stop()
        world.kubelet.wait_for(1)
        assert {info.endpoint for info in world.kubelet.poll_registry()} < endpoints
        assert world.kubelet.prepare(ONE).claims["uid-1"].devices
    finally:
        newer.stop()
    assert world.files() == []


@pytest.mark.parametrize("which", ["plugins", "plugins_registry"])
def test_removed_socket_is_created_again(world: World, server: DraServer, which: str) -> None:
    before = world.files()
    for path in (world.kubelet.plugins.parent / which).rglob("*.sock"):
        path.unlink()
    until(lambda: len(world.files()) == 2 and not set(world.files()) & set(before))
    world.kubelet.wait_for(1)
    assert world.kubelet.prepare(ONE).claims["uid-1"].devices


def test_sockets_of_an_instance_that_was_killed_are_removed(world: World) -> None:
    (world.kubelet.plugins / DRIVER).mkdir()
    for left in (world.kubelet.plugins / DRIVER / "dra-1-aa.sock", world.kubelet.registry / f"{DRIVER}-1-aa-reg.sock"):
        with closing(socket.socket(socket.AF_UNIX)) as dead:
            dead.bind(str(left))
    server = world.server()
    server.start()
    try:
        assert len(world.files()) == 2
        assert not any("-1-aa" in name for name in world.files())
    finally:
        server.stop()


def test_refusal_of_a_kubelet_is_reported_once(world: World) -> None:
    server = world.server()
    server.start()
    try:
        for _ in range(2):
            until(lambda: bool(world.kubelet.poll_registry("not today")))
            world.kubelet.restart()
        assert not server.registered
        assert [str(error) for error in world.errors] == ["the kubelet refuses the driver calabash.dev: not today"]
    finally:
        server.stop()


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_health_is_sent_at_once_and_at_every_change(world: World, server: DraServer, version: str) -> None:
    healthy = DeviceHealth(pool="n1", device="gpu-1", state=DeviceState.HEALTHY)
    server.set_health([healthy])
    with world.kubelet.health(version) as stream:
        (told,) = next(stream).devices
        assert (told.device.pool_name, told.device.device_name, told.health) == ("n1", "gpu-1", 1)
        assert told.last_updated_time > 0
        server.set_health([healthy])
        server.set_health([DeviceHealth(pool="n1", device="gpu-1", state=DeviceState.UNHEALTHY, message="m" * 2000)])
        (told,) = next(stream).devices
        assert (told.health, len(told.message)) == (2, 1024)
        server.stop()
        assert list(stream) == []


def test_a_request_that_is_too_large_is_refused(world: World, server: DraServer) -> None:
    with pytest.raises(grpc.RpcError):
        world.kubelet.raw("NodePrepareResources", b"\0" * (CLAIM_MESSAGE_BYTES_MAX + 1))
    with pytest.raises(grpc.RpcError) as caught:
        world.kubelet.prepare(*(("team", f"uid-{n}", "x") for n in range(1025)))
    assert "at most 1024" in str(caught.value)
    assert world.kubelet.prepare(ONE).claims["uid-1"].devices


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200), method=st.sampled_from(["NodePrepareResources", "NodeUnprepareResources"]))
def test_any_bytes_are_answered_or_refused_and_the_next_claim_is_served(
    world: World, server: DraServer, body: bytes, method: str
) -> None:
    with suppress(grpc.RpcError):
        world.kubelet.raw(method, body)
    known = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="team", uid="uid-1", name="one")])
    with suppress(grpc.RpcError):
        world.kubelet.raw(method, known.SerializeToString() + body)
    assert world.kubelet.prepare(TWO).claims["uid-2"].devices
