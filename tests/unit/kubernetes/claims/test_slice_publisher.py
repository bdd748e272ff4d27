"""Tests of the publisher of ResourceSlices: changes by other clients are reverted, and dropped fields are handled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.unit.adapters.kube.world import until
from tests.unit.kubernetes.claims.claims_world import NODE, card, snapshot

from calabash.adapters.kube import KubeError
from calabash.adapters.kube.objects.claims import RESOURCE_SLICE, ResourceSlice
from calabash.adapters.kube.objects.core import NODE as NODE_KIND
from calabash.kubernetes.claims.slice_publisher import SlicePublisher
from calabash.kubernetes.claims.slices import SliceFacts
from calabash.model.device import Health
from calabash.model.errors import CalabashError, Reason
from calabash.node.snapshot import NodeSnapshot
from calabash_testing.api_server.client import MemoryKube

FACTS = SliceFacts(driver_version="570.86.10")
BOTH = snapshot(card(0), card(1))
FOUR = snapshot(*(card(i) for i in range(4)))
OTHERS = {
    "metadata": {"name": "nics"},
    "spec": {"driver": "nics.example.com", "nodeName": NODE, "pool": {"name": NODE}},
}


class OlderKube(MemoryKube):
    """API server that drops fields, or refuses counters in separate slices."""

    def __init__(self) -> None:
        super().__init__()
        self.drops: tuple[str, ...] = ()
        self.refuses = False

    def create(self, kind: Any, obj: Any, namespace: str = "") -> Any:
        return super().create(kind, self._seen(obj) if kind is RESOURCE_SLICE else obj, namespace)

    def patch(self, kind: Any, name: str, namespace: str = "", *, body: Any, **more: Any) -> Any:
        return super().patch(kind, name, namespace, body=self._seen(body) if kind is RESOURCE_SLICE else body, **more)

    def _seen(self, obj: Mapping[str, Any]) -> Mapping[str, Any]:
        spec = {key: value for key, value in obj["spec"].items() if key not in self.drops}
        if self.refuses and spec.get("sharedCounters") and not spec.get("devices"):
            raise KubeError("counters without devices", reason=Reason.BAD_REQUEST, status=422)
        devices = [{k: v for k, v in d.items() if k not in self.drops} for d in spec.get("devices") or ()]
        return {**obj, "spec": spec | {"devices": devices}}


class World:
    """A node with a publisher."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        kube.create(NODE_KIND, {"metadata": {"name": NODE}})
        self.publisher = SlicePublisher(kube, NODE)

    def settle(self, state: NodeSnapshot = BOTH) -> None:
        """Publish until there is nothing more to write."""
        until(lambda: self.publisher.publish(state, FACTS))
        self.rest(state)

    def rest(self, state: NodeSnapshot = BOTH) -> None:
        """Wait until the mirror has received all writes, and nothing more is written."""
        until(lambda: self.publisher._mirror.renewed() and not self.publisher.publish(state, FACTS))

    def slices(self) -> dict[str, ResourceSlice]:
        found = self.kube.list(RESOURCE_SLICE).items
        return {one.metadata.name: one for one in found if one.spec.driver == "calabash.dev"}

    def generations(self) -> set[int]:
        return {one.spec.pool.generation for one in self.slices().values()}


@pytest.fixture
def older() -> OlderKube:
    return OlderKube()


@pytest.fixture
def world(older: OlderKube) -> Iterator[World]:
    made = World(older)
    yield made
    made.publisher.stop()


def test_slices_are_written_once_and_belong_to_their_node(world: World) -> None:
    world.settle()
    found = world.slices()
    assert len(found) == 2
    node = world.kube.get(NODE_KIND, NODE)
    assert node is not None
    assert {owner.uid for one in found.values() for owner in one.metadata.owner_references} == {node.metadata.uid}
    assert world.generations() == {1}
    assert world.publisher.degraded == ""


def test_the_health_of_a_card_is_a_change_of_one_slice_in_its_generation(world: World) -> None:
    world.settle(FOUR)
    before = world.slices()
    world.settle(snapshot(card(0), card(1), card(2), card(3, health=Health.LOST)))
    after = world.slices()
    changed = [n for n in after if before[n].metadata.resource_version != after[n].metadata.resource_version]
    assert (len(after), len(changed), world.generations()) == (3, 1, {1})
    assert {d.taints[0].value for d in after[changed[0]].spec.devices if d.taints} == {"lost"}


def test_what_changes_several_slices_is_a_new_generation_of_all(world: World) -> None:
    world.settle(FOUR)
    unhealthy = (card(0, health=Health.LOST), card(1), card(2), card(3, health=Health.LOST))
    world.settle(snapshot(*unhealthy))
    assert world.generations() == {2}
    taints = {taint.value for one in world.slices().values() for d in one.spec.devices for taint in d.taints}
    assert taints == {"lost"}


@pytest.mark.parametrize("all_of_them", [True, False])
def test_what_the_kubelet_deleted_is_written_again(world: World, all_of_them: bool) -> None:
    world.settle()
    for name in list(world.slices())[: None if all_of_them else 1]:
        world.kube.delete(RESOURCE_SLICE, name)
    world.settle()
    assert (len(world.slices()), world.generations()) == (2, {2})


def test_slice_that_another_client_changed_is_restored(world: World) -> None:
    world.settle()
    name = sorted(world.slices())[1]
    world.kube.patch(RESOURCE_SLICE, name, body={"spec": {"devices": []}})
    world.settle()
    assert len(world.slices()[name].spec.devices) > 1


def test_slices_that_are_no_longer_needed_go(world: World) -> None:
    world.settle(FOUR)
    before = len(world.slices())
    world.settle(snapshot(card(0)))
    assert len(world.slices()) == 2 < before
    assert {one.spec.pool.resource_slice_count for one in world.slices().values()} == {2}


def test_slices_of_other_drivers_are_theirs(world: World) -> None:
    world.kube.create(RESOURCE_SLICE, OTHERS)
    world.settle()
    world.publisher.withdraw()
    assert [one.metadata.name for one in world.kube.list(RESOURCE_SLICE).items] == ["nics"]


def test_after_a_withdrawal_they_can_be_published_again(world: World) -> None:
    world.settle()
    world.publisher.withdraw()
    assert not world.slices()
    world.settle()
    assert world.generations() == {2}


def test_counters_stand_beside_devices_where_the_server_wants_that(world: World, older: OlderKube) -> None:
    older.refuses = True
    world.settle()
    (one,) = world.slices().values()
    assert (len(one.spec.shared_counters), len(one.spec.devices) > 30) == (2, True)
    assert world.publisher.degraded == ""


@pytest.mark.parametrize(
    ("drops", "devices", "why"),
    [
        (("sharedCounters", "consumesCounters"), 2, "DRAPartitionableDevices"),
        (("sharedCounters", "consumesCounters", "allowMultipleAllocations"), 2, "whole cards only"),
        (("allowMultipleAllocations",), 56, "DRAConsumableCapacity"),
    ],
)
def test_what_the_server_drops_is_not_offered_and_told(
    world: World, older: OlderKube, drops: tuple[str, ...], devices: int, why: str
) -> None:
    older.drops = drops
    world.settle()
    found = [device for one in world.slices().values() for device in one.spec.devices]
    assert len(found) == devices
    assert why in world.publisher.degraded


def test_what_the_server_can_keep_is_learned_again_when_the_slices_are_gone(world: World, older: OlderKube) -> None:
    older.drops = ("sharedCounters", "consumesCounters")
    world.settle()
    older.drops = ()
    world.rest()
    for name in world.slices():
        world.kube.delete(RESOURCE_SLICE, name)
    world.settle()
    assert world.publisher.degraded == ""


def test_a_server_that_is_away_is_tried_again_with_all(world: World) -> None:
    world.settle()
    world.kube.faults.down = True
    with pytest.raises(CalabashError):
        world.publisher.publish(snapshot(card(0, health=Health.LOST), card(1)), FACTS)
    world.kube.faults.down = False
    world.settle(snapshot(card(0, health=Health.LOST), card(1)))
    assert len(world.generations()) == 1
