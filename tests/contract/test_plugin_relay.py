"""Relay between a kubelet and the agent's device plug-in, over real sockets, with agents that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.contract.fake_kubelet import WAIT_S, FakeKubelet

from calabash.adapters.kubelet import PluginRelay
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.kubernetes.node_plugin.devices.relay import answer

RESOURCE = "calabash.dev/gpus"
HOLD_S = 2.0  # of the tests about an agent that does not come back
AGENT = """
import json, sys, time
from pathlib import Path
from calabash.model.errors import CalabashError, Reason
from calabash.adapters.kubelet import Allocated, DevicePluginServer, PluginDevice

directory, record, devices = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")

class Handler:
    def allocate(self, device_ids):
        raise AssertionError("the relay answers Allocate")
    def preferred(self, available, must, size):
        raise AssertionError("the relay answers GetPreferredAllocation")
    def pre_start(self, device_ids, answered):
        if device_ids == ("refused",):
            raise CalabashError("pod ns/p has no plan", reason=Reason.NOT_FOUND, hint="it is planned soon")
        with record.open("a") as out:
            out.write(json.dumps([device_ids, answered]) + "\\n")

server = DevicePluginServer("calabash.dev/gpus", Handler(), directory=directory)
server.set_devices([PluginDevice(id=one) for one in devices])
server.start()
for line in sys.stdin:
    print(server.registered, flush=True)
server.stop()
"""


class Agent:
    """A process that serves the device plug-in of an agent to the relay."""

    def __init__(self, directory: Path, record: Path, *devices: str) -> None:
        self._record = record
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(directory), str(record), ",".join(devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def registered(self) -> bool:
        """Return True if the agent's plug-in is followed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline() == "True\n"

    def starts(self) -> list[Any]:
        """Return the starts of containers that agents with this record have seen: device IDs, and the answered CDI names."""
        return [json.loads(line) for line in self._record.read_text().splitlines()] if self._record.exists() else []

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def stop(self) -> None:
        """Stop the plug-in normally."""
        if self._process.poll() is None:
            self._process.communicate("")


class Node:
    """A kubelet, a relay and agents of one node."""

    def __init__(self, root: Path, *, hold_s: float = 600.0, wait_s: float = WAIT_S) -> None:
        self.agents, self._record = root / "agents", root / "record"
        for directory in (root / "kubelet", self.agents):
            directory.mkdir()
        self.kubelet = FakeKubelet(root / "kubelet")
        self.kubelet.start()
        self.relay = PluginRelay(
            agents=self.agents, kubelet=root / "kubelet", answer=answer, hold_s=hold_s, wait_s=wait_s
        )
        self.relay.start()
        self._started: list[Agent] = []

    def agent(self, *devices: str) -> Agent:
        self._started.append(Agent(self.agents, self._record, *devices))
        return self._started[-1]

    def offered(self, **devices: str) -> None:
        """Wait until the kubelet has exactly these devices."""
        self.kubelet.wait(lambda: self.kubelet.devices == devices)

    def close(self) -> None:
        for agent in self._started:
            agent.stop()
        self.relay.stop()
        self.kubelet.stop()


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def node(root: Path) -> Iterator[Node]:
    one = Node(root)
    yield one
    one.close()


@pytest.fixture
def impatient(root: Path) -> Iterator[Node]:
    """Yield a node whose relay waits for agents for a short time only."""
    one = Node(root, hold_s=HOLD_S, wait_s=0.5)
    yield one
    one.close()


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_devices_and_starts_of_an_agent_pass_the_relay(node: Node) -> None:
    agent = node.agent("t0", "t1")
    node.offered(t0="Healthy", t1="Healthy")
    (request,) = node.kubelet.registered
    assert request.resource_name == RESOURCE
    until(agent.registered)
    (container,) = node.kubelet.allocate("t0").container_responses
    (device,) = container.cdi_devices
    assert device.name.startswith("calabash.dev/slot=t0-")
    assert node.kubelet.preferred(["t2", "t1", "t0"], ["t2"], 2) == ["t2", "t0"]
    node.kubelet.pre_start("t0")
    assert agent.starts() == [[["t0"], [device.name]]]


def test_a_killed_agent_costs_the_kubelet_no_device_and_no_admission(node: Node) -> None:
    agent = node.agent("t0", "t1")
    node.offered(t0="Healthy", t1="Healthy")
    until(agent.registered)
    updates = node.kubelet.updates
    agent.kill()
    names = {node.kubelet.allocate("t0").container_responses[0].cdi_devices[0].name for _ in range(3)}
    assert len(names) == 3, "each answer names a device of its own"
    start = threading.Thread(target=node.kubelet.pre_start, args=("t0",))
    start.start()
    start.join(1.0)
    assert start.is_alive(), "the start waits for an agent"
    again = node.agent("t0", "t1")
    start.join(WAIT_S)
    assert not start.is_alive()
    ((ids, answered),) = again.starts()
    assert ids == ["t0"]
    assert answered[0] in names
    assert (len(node.kubelet.registered), node.kubelet.updates) == (1, updates), "the kubelet saw no change"


def test_a_start_without_an_agent_is_refused_with_a_hint_after_the_wait(impatient: Node) -> None:
    agent = impatient.agent("t0")
    impatient.offered(t0="Healthy")
    until(agent.registered)
    agent.kill()
    with pytest.raises(grpc.RpcError) as caught:
        impatient.kubelet.pre_start("t0")
    call: Any = caught.value
    assert "agent of this node has not answered for 0.5 s" in call.details()
    assert "hint: " in call.details()


def test_the_refusal_of_an_agent_reaches_the_kubelet_word_for_word(node: Node) -> None:
    until(node.agent("t0").registered)
    with pytest.raises(grpc.RpcError) as caught:
        node.kubelet.pre_start("refused")
    call: Any = caught.value
    assert call.details() == "pod ns/p has no plan; hint: it is planned soon"


def test_devices_of_an_agent_that_does_not_come_back_become_unhealthy_until_the_next(impatient: Node) -> None:
    agent = impatient.agent("t0", "t1")
    impatient.offered(t0="Healthy", t1="Healthy")
    until(agent.registered)
    agent.kill()
    impatient.offered(t0="Unhealthy", t1="Unhealthy")
    assert impatient.kubelet.allocate("t0").container_responses, "pods that are admitted now still wait"
    impatient.agent("t0", "t1")
    impatient.offered(t0="Healthy", t1="Healthy")
    assert len(impatient.kubelet.registered) == 1


def test_a_resource_that_the_agent_withdraws_is_withdrawn_from_the_kubelet(node: Node) -> None:
    agent = node.agent("t0")
    until(agent.registered)
    node.offered(t0="Healthy")
    agent.stop()
    node.kubelet.wait(lambda: node.kubelet.devices == {})
    sockets = [path for path in node.kubelet.directory.glob("*.sock") if path.name != "kubelet.sock"]
    until(lambda: not any(path.exists() for path in sockets))
    node.agent("t1")
    node.offered(t1="Healthy")


def test_an_agent_counts_as_registered_only_while_a_kubelet_follows_the_relay(node: Node) -> None:
    agent = node.agent("t0")
    until(agent.registered)
    node.kubelet.stop()
    until(lambda: not agent.registered())
    node.kubelet.start()
    until(agent.registered)
    node.offered(t0="Healthy")
    assert node.kubelet.allocate("t0").container_responses


def test_a_relay_that_starts_again_is_registered_with_again(root: Path) -> None:
    node = Node(root)
    agent = node.agent("t0")
    until(agent.registered)
    node.relay.stop()
    node.kubelet.wait(lambda: node.kubelet.devices == {})
    node.relay = PluginRelay(agents=node.agents, kubelet=node.kubelet.directory, answer=answer)
    node.relay.start()
    try:
        node.offered(t0="Healthy")
        until(agent.registered)
        node.kubelet.pre_start("t0")
        assert agent.starts() == [[["t0"], []]]
    finally:
        node.close()


@pytest.mark.parametrize("endpoint", ["", "../kubelet.sock", "/etc/x.sock", "a/b.sock"])
def test_an_endpoint_outside_of_the_directory_is_refused(node: Node, endpoint: str) -> None:
    with grpc.insecure_channel(f"unix:{node.agents / 'kubelet.sock'}") as channel:
        register = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            register(pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=RESOURCE), timeout=WAIT_S)
    call: Any = caught.value
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert node.kubelet.registered == []
