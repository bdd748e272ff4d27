"""Two device plug-ins of one agent before a kubelet, over real sockets: the product's, and the one with NVIDIA's name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.contract.fake_kubelet import FakeKubelet
from tests.unit.kubernetes.node_plugin.cards_world import CARDS, TOKENS, Cards

from calabash.adapters.kubelet import Allocated, DevicePluginServer, PluginDevice
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens
from calabash.kubernetes.node_plugin.devices.nvidia_plugin import NvidiaNames
from calabash.kubernetes.objects.names import GPUS
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError


class Handler:
    """Handler that refuses every start, as without a free card."""

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        return Allocated(cdi_names=(f"calabash.dev/slot={device_ids[0]}-1",))

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...] = ()) -> None:
        raise CalabashError(f"{len(device_ids)} asked, none has nobody", hint="it is asked again")

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        return [*must, *available][:size]


class Agent:
    """The second plug-in of an agent, whose spare cards become fewer and more."""

    def __init__(self, directory: Path) -> None:
        self.spares = len(CARDS)
        self.tokens: list[HeldTokens] = []
        self.directory = directory
        self.names = NvidiaNames(self.make, self)

    def held(self) -> list[HeldTokens]:
        return self.tokens

    def spare(self) -> int:
        return self.spares

    def make(self) -> DevicePluginServer:
        return DevicePluginServer(GPU, Handler(), directory=self.directory)

    def update(self, *, disputed: bool = False) -> None:
        self.names.reconcile(Cards().devices(), gives=not disputed, disputed=disputed)


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as path:
        one = FakeKubelet(Path(path))
        one.start()
        yield one
        one.stop()


@pytest.fixture
def agent(kubelet: FakeKubelet) -> Iterator[Agent]:
    made = Agent(kubelet.directory)
    yield made
    made.names.stop()


def offered(kubelet: FakeKubelet) -> list[str]:
    return sorted(name for name, health in kubelet.devices.items() if health == "Healthy")


def test_both_names_are_registered_each_with_a_socket_of_its_own(kubelet: FakeKubelet, agent: Agent) -> None:
    ours = DevicePluginServer(GPUS, Handler(), directory=kubelet.directory)
    ours.set_devices([PluginDevice(id="slot-0000")])
    ours.start()
    try:
        kubelet.wait(lambda: len(kubelet.registered) == 1)
        agent.update()
        kubelet.wait(lambda: offered(kubelet) == list(TOKENS[:4]))
        assert [request.resource_name for request in kubelet.registered] == [GPUS, GPU]
        assert len({request.endpoint for request in kubelet.registered}) == 2
        assert ours.registered
    finally:
        ours.stop()


def test_kubelet_gets_the_devices_after_every_taken_or_released_card(kubelet: FakeKubelet, agent: Agent) -> None:
    agent.update()
    kubelet.wait(lambda: len(offered(kubelet)) == 4)
    agent.spares = 2  # slices came onto two
    agent.update()
    kubelet.wait(lambda: len(offered(kubelet)) == 2)
    assert len(kubelet.devices) == 4
    agent.tokens = [HeldTokens(tokens=(TOKENS[3],), devices=(DeviceUuid("GPU-0"),))]
    agent.spares = 1
    agent.update()
    kubelet.wait(lambda: TOKENS[3] in offered(kubelet) and len(offered(kubelet)) == 2)
    agent.tokens, agent.spares = [], 4
    agent.update()
    kubelet.wait(lambda: len(offered(kubelet)) == 4)


def test_refused_start_has_the_agents_reason_verbatim(kubelet: FakeKubelet, agent: Agent) -> None:
    agent.update()
    kubelet.wait(lambda: len(offered(kubelet)) == 4)
    assert kubelet.allocate(TOKENS[0]).container_responses[0].cdi_devices[0].name.startswith("calabash.dev/slot=")
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.pre_start(TOKENS[0])
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.details() == "1 asked, none has nobody; hint: it is asked again"


def test_after_a_dispute_the_name_is_registered_anew(kubelet: FakeKubelet, agent: Agent) -> None:
    agent.update()
    kubelet.wait(lambda: len(offered(kubelet)) == 4)
    before, agent.spares = kubelet.updates, 0
    agent.update(disputed=True)
    assert kubelet.updates == before, "the list is the other's now"
    agent.spares = 3
    agent.update()
    kubelet.wait(lambda: len(kubelet.registered) == 2 and len(offered(kubelet)) == 3)
