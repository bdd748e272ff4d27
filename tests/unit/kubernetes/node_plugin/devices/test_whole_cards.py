"""Tests of whole devices under NVIDIA's name: only devices without an allocation or a plan are given and offered."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.kube.world import WAIT_S, until
from tests.unit.kubernetes.node_plugin.cards_world import CARDS, TOKENS, Cards
from tests.unit.kubernetes.node_plugin.node_world import NODE, OTHER, UID, GivenPods, SlotEdits, planned, pod

from calabash.adapters.host.processes import Process
from calabash.adapters.kube import Mirror, MirrorChange
from calabash.adapters.kube.objects.core import Container, ContainerResources, Pod
from calabash.adapters.kube.objects.resources import GPU_NODE, GpuNode
from calabash.adapters.kubelet.protocol import CheckpointEntry, PluginDevice
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.containers.device_id_owners import Claimant, Owners
from calabash.kubernetes.node_plugin.containers.prepare import Preparer
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.kubernetes.node_plugin.containers.slice_choice import ByPlan
from calabash.kubernetes.node_plugin.containers.specs import SlotSpecs
from calabash.kubernetes.node_plugin.devices.cordon import Cordon, bare
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens
from calabash.kubernetes.node_plugin.devices.nvidia_plugin import NvidiaNames, card_tokens
from calabash.kubernetes.node_plugin.devices.whole_devices import WholeCards, choose_whole, spare_cards
from calabash.kubernetes.objects.names import GPUS, SCHEDULER
from calabash.model.device import OUT_OF_SERVICE, DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import PodReference
from calabash.model.request import AllocationId
from calabash.node.membership.container import container_allocation
from calabash.node.processes.unmanaged import UnmanagedProcess
from calabash_testing.api_server.client import MemoryKube
from calabash_testing.clock import VirtualClock


class Node:
    """Kubelet that counts devices, and an agent that chooses them."""

    def __init__(self, specs: Path) -> None:
        self.entries: list[CheckpointEntry] = []
        self.agent = Cards()
        self.pods = GivenPods(complete=True)
        self.closed = ""
        self.prepared_count = 0
        clock = VirtualClock()
        by_plan = ByPlan(self.pods, NODE)
        self.cards = WholeCards(self.agent, self.pods, by_plan, closed=lambda: self.closed)
        self.preparer = Preparer(
            cast("Any", self.agent),
            Owners(lambda: self.entries, lambda: (), resource=GPU),
            clock,
            placing=self.cards,
            edits=SlotEdits(),
            specs=SlotSpecs(specs, lambda: self.entries),
            sandboxes=self,
            rules=self,
            patience=Patience(clock=clock, leaving=lambda: False),
        )

    def sandbox_since_s(self, pod_uid: str) -> float:
        return 0.0

    def sandbox(self, pod_uid: str) -> Process | None:
        return None

    def require(self) -> None:
        pass

    def prepared(self) -> None:
        self.prepared_count += 1

    def add(self, added: Pod) -> None:
        self.pods.changed(MirrorChange(before=None, after=added))

    def admit(self, uid: str, container: str, *tokens: str) -> None:
        answer = self.preparer.allocate(tokens)
        self.entries.append(
            CheckpointEntry(
                pod_uid=uid, container=container, resource=GPU, device_ids=tokens, cdi_names=answer.cdi_names
            )
        )

    def start(self, uid: str, container: str, *tokens: str) -> list[str]:
        """Start the container; return its devices."""
        self.admit(uid, container, *tokens)
        self.preparer.pre_start(tokens)
        return self.cards_of(uid, container)

    def cards_of(self, uid: str, container: str) -> list[str]:
        return [s.device for s in self.agent.held[container_allocation(uid, container)].placement.slices]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "cdi")


def asking(*containers: str, uid: str = UID, init: tuple[str, ...] = (), scheduler: str = "default-scheduler") -> Pod:
    """Return a pod that requests whole devices under NVIDIA's name, which admission has not translated."""
    made = pod(*(planned(c) for c in (*init, *containers)), uid=uid, init=init, plan="")
    metadata = msgspec.structs.replace(made.metadata, annotations={})
    return msgspec.structs.replace(
        made, metadata=metadata, spec=msgspec.structs.replace(made.spec, scheduler_name=scheduler)
    )


def test_a_container_gets_a_whole_card_that_nobody_has(node: Node) -> None:
    node.agent.hold("a", "GPU-0")
    node.add(asking("main"))
    (card,) = node.start(UID, "main", TOKENS[0])
    assert card != "GPU-0"
    record = node.agent.held[container_allocation(UID, "main")]
    assert (record.placement.mode, record.request.memory_mib, record.request.tenant) == ("exclusive", None, "team")
    assert node.prepared_count == 1, "the planner hears of it soon"


def test_several_cards_are_those_that_the_planner_would_choose(node: Node) -> None:
    node.agent.hold("a", "GPU-0")
    node.add(asking("main"))
    chosen = node.start(UID, "main", *TOKENS[:2])
    assert set(chosen) <= {"GPU-1", "GPU-2", "GPU-3"}
    assert len(set(chosen)) == 2


def test_a_container_that_starts_again_has_the_same_cards_also_by_an_agent_that_starts_again(node: Node) -> None:
    node.add(asking("main"))
    before = node.start(UID, "main", TOKENS[0])
    for device in {"GPU-0", "GPU-1", "GPU-2", "GPU-3"} - set(before):
        node.agent.hold(f"on-{device}", device)
    node.closed = "has not been read yet"
    node.preparer.pre_start(TOKENS[:1])
    assert node.cards_of(UID, "main") == before


def test_what_the_planner_has_promised_on_this_node_is_never_given(node: Node) -> None:
    node.add(pod(planned("main", devices=3), uid=OTHER, name="p2"))
    node.add(asking("main"))
    assert node.start(UID, "main", TOKENS[0]) == ["GPU-3"]
    assert node.cards.spare() == ()


def test_a_plan_of_a_pod_that_has_ended_promises_nothing(node: Node) -> None:
    node.add(pod(planned("main", devices=3), uid=OTHER, name="p2", phase="Succeeded"))
    assert len(node.cards.spare()) == 4


def test_when_no_card_is_free_the_pods_events_say_of_each_why_and_it_is_tried_again(node: Node) -> None:
    node.agent.hold("a", "GPU-0")
    node.agent.hold("b", "GPU-1", "exclusive")
    node.agent.health["GPU-2"] = Health.LOST
    node.add(pod(planned("main"), uid=OTHER, name="p2", plan=None))
    node.agent.orphans["GPU-3"] = AllocationId("x")
    node.add(asking("main"))
    node.admit(UID, "main", TOKENS[0])
    with pytest.raises(CalabashError) as refused:
        node.preparer.pre_start(TOKENS[:1])
    assert refused.value.reason is Reason.NO_CAPACITY
    message = refused.value.message
    assert "asks for 1 whole devices, 0 of 4 are free" in message
    assert "device 0 has 1 of others on it (vgpu)" in message
    assert "device 1 is held whole" in message
    assert "device 2 is lost" in message
    assert "device 3 is used by (another's), which the journal does not know" in message
    assert refused.value.hint
    del node.agent.orphans["GPU-3"]
    node.preparer.pre_start(TOKENS[:1])
    assert node.cards_of(UID, "main") == ["GPU-3"]


def test_a_card_with_an_unmanaged_process_is_not_given_whole(node: Node) -> None:
    for card in CARDS[:3]:
        node.agent.unmanaged[card.uuid] = UnmanagedProcess(
            device=card.uuid, process=Process(pid=7, start_time=1), command="xorg", uid=0, used_mib=1
        )
    assert [device.uuid for device in node.cards.spare()] == ["GPU-3"]


def test_a_cordoned_node_gives_no_card(node: Node) -> None:
    kube = MemoryKube()
    mirror: Mirror[GpuNode] = Mirror(kube, GPU_NODE, keep=bare)
    cordon = Cordon(mirror, NODE)
    node.add(asking("main"))
    node.admit(UID, "main", TOKENS[0])
    kube.create(GPU_NODE, {"metadata": {"name": NODE}, "spec": {"unschedulable": True}})
    node.closed = cordon.closed_reason()
    assert "has not been read yet" in node.closed
    mirror.start()
    assert mirror.synced(WAIT_S)
    node.closed = cordon.closed_reason()
    assert node.cards.spare() == ()
    with pytest.raises(CalabashError, match="cordoned"):
        node.preparer.pre_start(TOKENS[:1])
    kube.patch(GPU_NODE, NODE, body={"spec": {"unschedulable": False}})
    until(lambda: cordon.closed_reason() == "")
    mirror.stop()
    node.closed = cordon.closed_reason()
    node.preparer.pre_start(TOKENS[:1])
    assert len(node.cards.spare()) == 3


def test_a_main_container_has_the_card_of_the_init_container_before_it(node: Node) -> None:
    node.add(asking("main", init=("first",)))
    node.admit(UID, "first", TOKENS[0])
    node.admit(UID, "main", TOKENS[0])
    node.preparer.pre_start(TOKENS[:1])
    first = node.cards_of(UID, "first")
    node.preparer.pre_start(TOKENS[:1])
    assert node.cards_of(UID, "main") == first


def test_a_container_that_asks_in_two_languages_is_refused(node: Node) -> None:
    made = asking("main")
    limits = ContainerResources(limits={GPU: "1", GPUS: "1"})
    spec = msgspec.structs.replace(made.spec, containers=(Container(name="main", resources=limits),))
    node.add(msgspec.structs.replace(made, spec=spec))
    node.admit(UID, "main", TOKENS[0])
    with pytest.raises(CalabashError, match=f"asks for {GPU} and for {GPUS}"):
        node.preparer.pre_start(TOKENS[:1])
    assert node.agent.held == {}


def test_a_pod_of_the_planners_scheduler_has_what_its_plan_says_and_nothing_without(node: Node) -> None:
    made = asking("main", scheduler=SCHEDULER)
    node.add(made)
    node.admit(UID, "main", TOKENS[0])
    with pytest.raises(CalabashError, match="has no plan"):
        node.preparer.pre_start(TOKENS[:1])
    with_plan = pod(planned("main", mode="exclusive", memory_mib=15360)).metadata.annotations
    node.add(
        msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=dict(with_plan)))
    )
    node.preparer.pre_start(TOKENS[:1])
    assert node.cards_of(UID, "main") == ["GPU-0"]


def test_tokens_of_another_resource_lead_to_nobody(node: Node) -> None:
    node.add(asking("main"))
    node.entries = [CheckpointEntry(pod_uid=UID, container="main", resource=GPUS, device_ids=TOKENS[:1], cdi_names=())]
    with pytest.raises(CalabashError, match=rf"no container with these device IDs \(1 of {GPU}\)"):
        node.preparer.pre_start(TOKENS[:1])


def test_a_claimant_that_is_known_by_its_name_is_found(node: Node) -> None:
    node.add(asking("main"))
    assert node.cards.pod(Claimant(pod="team/p1", container="main", names=())).metadata.uid == UID


@given(
    st.lists(st.sampled_from(["idle", "slice", "whole", "ill", "promised"]), min_size=4, max_size=4),
    st.integers(1, 4),
)
def test_cards_that_are_chosen_are_so_many_and_had_nobody(uses: list[str], count: int) -> None:
    agent = Cards()
    for card, use in zip(CARDS, uses, strict=True):
        if use in {"slice", "whole"}:
            agent.hold(f"on-{card.uuid}", card.uuid, "vgpu" if use == "slice" else "exclusive")
        elif use == "ill":
            agent.health[card.uuid] = Health.SUSPECT
    promised = {card.uuid: PodReference("team/p") for card, use in zip(CARDS, uses, strict=True) if use == "promised"}
    states = agent.devices()
    spare = spare_cards(states, promised).devices
    idle = [card.uuid for card, use in zip(CARDS, uses, strict=True) if use == "idle"]
    assert [device.uuid for device in spare] == idle
    chosen = choose_whole(NODE, states, spare, count)
    if count > len(idle):
        assert chosen is None
    else:
        assert chosen is not None
        assert len({device.uuid for device in chosen}) == count
        assert {device.uuid for device in chosen} <= set(idle)


# ---- what the kubelet is told ---------------------------------------------------------------------------------------


def healthy(tokens: Iterable[PluginDevice]) -> list[str]:
    return [token.id for token in tokens if token.healthy]


def test_as_many_cards_are_offered_as_nobody_has() -> None:
    states = Cards().devices()
    assert healthy(card_tokens(states, (), 4)) == list(TOKENS[:4])
    assert healthy(card_tokens(states, (), 1)) == [TOKENS[0]]
    assert len(card_tokens(states, (), 1)) == 4


def test_a_token_in_use_is_as_unhealthy_as_its_card() -> None:
    agent = Cards()
    agent.health["GPU-1"] = Health.DRAINING
    held = [
        HeldTokens(tokens=(TOKENS[0],), devices=(DeviceUuid("GPU-1"),)),
        HeldTokens(tokens=(TOKENS[1],), devices=(DeviceUuid("GPU-0"),)),
    ]
    told = card_tokens(agent.devices(), held, 2)
    assert TOKENS[0] not in healthy(told)
    assert len(healthy(told)) == 4, "one in use and well, two cards, and one that makes up for the ill one"


@given(
    st.lists(st.sampled_from(list(Health)), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 3),
)
def test_schedulers_find_as_many_cards_as_nobody_has(health: list[Health], taken: list[bool], coming: int) -> None:
    """Schedulers subtract every pod with device IDs, even one on an unhealthy card, from the healthy device IDs."""
    agent = Cards()
    agent.health = {card.uuid: h for card, h in zip(CARDS, health, strict=True)}
    on = [card for card, yes in zip(CARDS, taken, strict=True) if yes]
    held = [HeldTokens(tokens=(TOKENS[i],), devices=(card.uuid,)) for i, card in enumerate(on)]
    held += [HeldTokens(tokens=(f"calabash-card-1{i:03}",)) for i in range(coming)]
    spare = sum(not yes and h is Health.HEALTHY for yes, h in zip(taken, health, strict=True))
    told = healthy(card_tokens(agent.devices(), held, spare))
    found = len(told) - len(held)
    unhealthy = sum(yes and h in OUT_OF_SERVICE for yes, h in zip(taken, health, strict=True))
    assert found == (spare - coming if spare > coming else -unhealthy)


class Plugin:
    """Substitute of a device plug-in that records what a kubelet would receive."""

    made: list[Plugin]

    def __init__(self) -> None:
        self.told: list[list[PluginDevice]] = []
        self.running = False

    def set_devices(self, devices: list[PluginDevice]) -> None:
        self.told.append(devices)

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


class Offered:
    """The device plug-in for NVIDIA's name, with a recording kubelet."""

    def __init__(self) -> None:
        self.made: list[Plugin] = []
        self.spares = 4
        self.unknown = False
        self.names = NvidiaNames(self.make, self)

    def make(self) -> Any:
        self.made.append(Plugin())
        return self.made[-1]

    def held(self) -> list[HeldTokens]:
        if self.unknown:
            raise CalabashError("the checkpoint cannot be read")
        return []

    def spare(self) -> int:
        return self.spares

    def reconcile(self, *, gives: bool = True, disputed: bool = False) -> None:
        self.names.reconcile(Cards().devices(), gives=gives, disputed=disputed)


def test_while_another_plug_in_has_the_name_ours_is_not_begun() -> None:
    offered = Offered()
    offered.reconcile(gives=False, disputed=True)
    assert offered.made == []
    offered.reconcile()
    (plugin,) = offered.made
    assert plugin.running
    assert len(healthy(plugin.told[-1])) == 4


def test_when_another_comes_ours_says_and_ends_nothing_and_is_begun_anew_when_the_other_has_gone() -> None:
    offered = Offered()
    offered.reconcile()
    (first,) = offered.made
    said = len(first.told)
    offered.reconcile(gives=False, disputed=True)
    assert first.running, "its end would have the kubelet drop the other"
    assert len(first.told) == said
    offered.reconcile()
    assert not first.running
    assert offered.made[-1].running
    assert len(offered.made) == 2


def test_beside_a_plug_in_of_another_name_for_the_same_cards_none_is_offered() -> None:
    offered = Offered()
    offered.reconcile(gives=False)
    assert healthy(offered.made[-1].told[-1]) == []


def test_what_is_not_known_is_not_told() -> None:
    offered = Offered()
    offered.reconcile()
    offered.unknown, offered.spares = True, 1
    offered.reconcile()
    assert len(healthy(offered.made[0].told[-1])) == 4
    offered.names.stop()
    assert not offered.made[0].running
