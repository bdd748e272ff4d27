"""Tests of reported device IDs: they are as healthy as their device, and as many as the healthy devices can serve."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.node_plugin.node_world import OTHER, UID

from calabash.adapters.kubelet.protocol import CheckpointEntry, PluginDevice
from calabash.kubernetes.node_plugin.containers.device_ids import card_ids, token_ids
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens, token_health
from calabash.kubernetes.node_plugin.devices.offering import GrantGate
from calabash.kubernetes.node_plugin.devices.other_plugins import QUIET_S, ForeignPlugins, gives_cards
from calabash.kubernetes.objects.names import GPUS
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import OUT_OF_SERVICE, Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.membership.container import container_allocation
from calabash.sharing.vgpu import SLICES_MAX

CARDS = tuple(
    Device(uuid=DeviceUuid(f"GPU-{i}"), index=i, vendor="nvidia", model="T4", memory_mib=15360) for i in range(3)
)

THEIRS: dict[str, tuple[str, ...]] = {"nvidia.com/gpu": ("GPU-0", "GPU-1")}


def cards(*health: Health) -> tuple[Device, ...]:
    return tuple(replace(card, health=h) for card, h in zip(CARDS, health, strict=False))


def healthy(tokens: list[PluginDevice]) -> set[str]:
    return {token.id for token in tokens if token.healthy}


class Kubelet:
    """State of a kubelet, and an agent that has granted the devices of its checkpoint."""

    def __init__(self) -> None:
        self.registered: dict[str, tuple[str, ...]] = {GPUS: ("slot-0000",)}
        self.offered: dict[str, tuple[str, ...]] = {}
        self.checkpoint: list[CheckpointEntry] = []
        self.records: dict[AllocationId, AllocationRecord] = {}
        self.down = False
        self.parts: dict[AllocationId, frozenset[int]] = {}
        foreign = ForeignPlugins(lambda: self.registered, self.answer)
        self.gate = GrantGate(foreign, self)

    def entries(self) -> list[CheckpointEntry]:
        return self.checkpoint

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        return self.records.get(allocation)

    def unhealthy_partitions(self) -> dict[AllocationId, frozenset[int]]:
        return self.parts

    def full(self) -> None:
        return None

    def devices_apart(self) -> frozenset[DeviceUuid]:
        return frozenset()

    def answer(self) -> dict[str, tuple[str, ...]]:
        if self.down:
            raise CalabashError("the kubelet is down", reason=Reason.KUBELET_DOWN)
        return self.offered

    def run(self, uid: str, *tokens: str, devices: tuple[str, ...] = ()) -> None:
        """Give device IDs to a container of a pod; with ``devices`` it has started."""
        self.checkpoint.append(
            CheckpointEntry(pod_uid=uid, container="main", resource=GPUS, device_ids=tokens, cdi_names=())
        )
        if devices:
            name = container_allocation(uid, "main")
            slices = tuple(Slice(device=DeviceUuid(d), memory_mib=1, core_percent=1) for d in devices)
            self.records[name] = AllocationRecord(
                id=name,
                state=AllocationState.RUNNING,
                request=GpuRequest(),
                placement=Placement(node=NodeName("n1"), mode=ModeName("vgpu"), slices=slices),
            )


def test_while_all_cards_are_well_every_token_is() -> None:
    tokens = token_health(CARDS, ())
    assert [token.id for token in tokens] == list(token_ids(3))
    assert len(healthy(tokens)) == 3 * SLICES_MAX


def test_a_token_in_use_is_as_unhealthy_as_its_device_and_recovers_with_it() -> None:
    kubelet = Kubelet()
    kubelet.run(UID, "slot-0001", devices=("GPU-0",))
    kubelet.run(OTHER, "slot-0002", devices=("GPU-1",))
    told = healthy(kubelet.gate.tokens(cards(Health.LOST, Health.HEALTHY)))
    assert "slot-0001" not in told
    assert "slot-0002" in told
    assert "slot-0001" in healthy(kubelet.gate.tokens(cards(Health.HEALTHY, Health.HEALTHY)))


def test_of_a_container_with_several_devices_the_tokens_of_the_unhealthy_one_are_unhealthy() -> None:
    kubelet = Kubelet()
    kubelet.run(UID, "slot-0007", "slot-0003", "slot-0005", devices=("GPU-0", "GPU-1", "GPU-2"))
    told = healthy(kubelet.gate.tokens(cards(Health.HEALTHY, Health.DRAINING, Health.HEALTHY)))
    assert {"slot-0003", "slot-0007"} <= told
    assert "slot-0005" not in told


def test_a_token_whose_container_has_not_started_is_healthy() -> None:
    kubelet = Kubelet()
    kubelet.run(UID, "slot-0127")
    assert "slot-0127" in healthy(kubelet.gate.tokens(cards(Health.LOST, Health.HEALTHY)))


def test_one_missed_health_check_makes_no_token_unhealthy() -> None:
    kubelet = Kubelet()
    kubelet.run(UID, "slot-0001", devices=("GPU-0",))
    assert len(healthy(kubelet.gate.tokens(cards(Health.SUSPECT, Health.HEALTHY)))) == 2 * SLICES_MAX


def test_nothing_is_offered_when_every_card_is_unhealthy() -> None:
    kubelet = Kubelet()
    kubelet.run(UID, "slot-0001", devices=("GPU-0",))
    assert healthy(kubelet.gate.tokens(cards(Health.LOST, Health.RECOVERING))) == set()


def test_the_kubelet_is_told_of_tokens_when_they_have_changed_and_not_otherwise() -> None:
    kubelet = Kubelet()
    told: list[list[PluginDevice]] = []
    for _ in range(3):
        kubelet.gate.report(CARDS[:2], told.append)
    assert [(len(tokens), len(healthy(tokens))) for tokens in told] == [(128, 128)]
    kubelet.gate.report(cards(Health.LOST, Health.HEALTHY), told.append)
    assert len(healthy(told[-1])) == 64
    kubelet.gate.report(CARDS[:2], told.append)
    assert len(healthy(told[-1])) == 128
    kubelet.gate.report(CARDS, told.append)
    assert len(told[-1]) == 192


@given(
    st.lists(st.sampled_from(list(Health)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3 * SLICES_MAX - 1), st.integers(-1, 2)), max_size=30, unique_by=lambda t: t[0]),
)
def test_schedulers_find_as_much_room_as_the_healthy_cards_have(
    health: list[Health], taken: list[tuple[int, int]]
) -> None:
    """Schedulers subtract every pod of the node, even one on an unhealthy card, from the healthy device IDs."""
    devices = cards(*health)
    names = token_ids(len(devices))
    held = [
        HeldTokens(tokens=(names[i],), devices=(devices[d].uuid,) if 0 <= d < len(devices) else ())
        for i, d in taken
        if i < len(names)
    ]
    unhealthy = {device.uuid for device in devices if device.health in OUT_OF_SERVICE}
    on_unhealthy = [one for one in held if unhealthy.intersection(one.devices)]
    told = healthy(token_health(devices, held))
    usable = len(devices) - len(unhealthy)
    assert told.isdisjoint(token for one in on_unhealthy for token in one.tokens)
    assert {token for one in held if one not in on_unhealthy for token in one.tokens} <= told
    room = usable * SLICES_MAX - (len(held) - len(on_unhealthy)) if usable else 0
    assert len(told) - len(held) == (max(0, room) if usable else -len(on_unhealthy))


@pytest.mark.parametrize(
    ("resource", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/hostdev", False),
        ("calabash.dev/gpus", False),
        ("example.com/nvidia.com/gpu", False),
    ],
)
def test_plug_ins_that_give_out_nvidias_cards_are_known_by_their_names(resource: str, counts: bool) -> None:
    assert gives_cards(resource) is counts


def test_beside_another_plug_in_nothing_is_given_out_and_what_runs_stays_well() -> None:
    kubelet = Kubelet()
    kubelet.run(UID, "slot-0001", devices=("GPU-0",))
    kubelet.registered |= THEIRS
    kubelet.offered = {**THEIRS, GPUS: tuple(token_ids(2))}
    refusal = kubelet.gate.poll(0.0)
    assert refusal is not None
    assert refusal.reason is Reason.FOREIGN_PLUGIN
    assert "2 of nvidia.com/gpu" in refusal.message
    assert refusal.hint
    assert healthy(kubelet.gate.tokens(CARDS)) == {"slot-0001"}
    with pytest.raises(CalabashError, match="another device plug-in"):
        kubelet.gate.require()


def test_what_the_agent_itself_offers_under_nvidias_name_is_no_other_plug_in() -> None:
    kubelet = Kubelet()
    own = {GPUS: ("slot-0000",), "nvidia.com/gpu": tuple(itertools.islice(card_ids(), 2))}
    kubelet.registered = kubelet.offered = own
    assert kubelet.gate.poll(0.0) is None
    kubelet.registered = kubelet.offered = own | THEIRS
    refusal = kubelet.gate.poll(1.0)
    assert refusal is not None
    assert "2 of nvidia.com/gpu" in refusal.message


def test_when_the_other_plug_in_has_been_gone_for_a_while_all_is_given_out_again() -> None:
    kubelet = Kubelet()
    kubelet.registered |= THEIRS
    kubelet.offered = THEIRS
    assert kubelet.gate.poll(0.0) is not None
    kubelet.offered = {}  # its name stays in the checkpoint
    assert kubelet.gate.poll(QUIET_S - 1) is not None, "it may just be restarted"
    assert kubelet.gate.poll(QUIET_S + 1) is None
    kubelet.gate.require()
    assert len(healthy(kubelet.gate.tokens(CARDS))) == 3 * SLICES_MAX


def test_while_the_kubelet_does_not_answer_it_stays_as_it_was() -> None:
    kubelet = Kubelet()
    kubelet.registered |= THEIRS
    kubelet.down = True
    assert kubelet.gate.poll(0.0) is None
    kubelet.down, kubelet.offered = False, THEIRS
    assert kubelet.gate.poll(1.0) is not None
    kubelet.down = True
    assert kubelet.gate.poll(100.0) is not None


def test_the_kubelet_is_not_asked_while_its_checkpoint_names_nobody_else() -> None:
    asked: Counter[str] = Counter()

    def offered() -> dict[str, tuple[str, ...]]:
        asked["offered"] += 1
        return {}

    plugins = ForeignPlugins(lambda: {GPUS: ("slot-0000",), "example.com/nic": ("0",)}, offered)
    assert [plugins.poll(float(i)) for i in range(5)] == [None] * 5
    assert not asked


def test_token_of_an_unhealthy_partition_is_unhealthy_although_the_card_and_other_partitions_are_healthy() -> None:
    kubelet = Kubelet()
    for uid, token in ((UID, "slot-0000"), (OTHER, "slot-0001")):
        kubelet.run(uid, token, devices=("GPU-0",))
    before = healthy(kubelet.gate.tokens(CARDS))
    kubelet.parts = {container_allocation(UID, "main"): frozenset({0})}
    after = healthy(kubelet.gate.tokens(CARDS))
    assert before - after == {"slot-0000"}
    told: list[list[PluginDevice]] = []
    for parts in ({}, kubelet.parts, kubelet.parts, {}):
        kubelet.parts = parts
        kubelet.gate.report(CARDS, told.append)
    assert [len(healthy(tokens) ^ before) for tokens in told] == [0, 1, 1, 0], "it is told, and that it is over as well"
