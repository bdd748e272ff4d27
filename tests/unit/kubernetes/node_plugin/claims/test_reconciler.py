"""What becomes of claims after they were prepared, and which door a node has: by what the API server says, when it says it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from tests.unit.kubernetes.claims.claims_world import card, share
from tests.unit.kubernetes.node_plugin.claim_desk import CLAIM_UID, REF, Desk

from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.adapters.kube.objects.core import NODE as NODES
from calabash.kubernetes.claims.device_names import card_names
from calabash.kubernetes.node_plugin.allocation_api import LOOK_S, Doorway
from calabash.kubernetes.node_plugin.claims.locks import ClaimTurns
from calabash.kubernetes.node_plugin.claims.reconciler import ClaimCare
from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.kubernetes.objects.names import DOOR
from calabash.model.errors import CalabashError, Reason
from calabash.node.membership.container import claim_allocation
from calabash_testing.api_server.client import MemoryKube

VGPU = f"{card_names([card(0)])[card(0).uuid]}-vgpu"


class Api:
    """Claims of a desk, as an API server has them; ``meanwhile`` happens between an answer and its arrival."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.meanwhile: Callable[[], object] = lambda: None
        self.down = False
        self.told: list[Any] = []

    def get(self, kind: object, name: str, namespace: str = "") -> ResourceClaim | None:
        if self.down:
            raise CalabashError("the API server is away", reason=Reason.API_DOWN)
        found = self.desk.claims.get((namespace, name))
        self.meanwhile()
        return found

    def patch(self, kind: object, name: str, namespace: str, *, body: Any, **how: Any) -> None:
        self.told += body["status"]["devices"]


class World:
    def __init__(self, home: Path) -> None:
        self.desk = Desk(home)
        self.api = Api(self.desk)
        self.care = ClaimCare(cast("Any", self.api), cast("Any", self.desk.agent), self.desk.desk)
        self.claim = self.desk.allocate(share(VGPU))

    def deallocate(self) -> None:
        free = structs.replace(self.claim.status, allocation=None)
        self.desk.claims["ml", "c"] = structs.replace(self.claim, status=free)

    def left(self) -> tuple[int, int]:
        return len(self.desk.desk.notes.all()), len(self.desk.specs())

    def kept(self) -> bool:
        return self.desk.book.holds(claim_allocation(CLAIM_UID))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.desk.preparer.prepare(REF)
    return made


def test_what_was_given_is_told_in_the_claims_status(world: World) -> None:
    world.care.round({CLAIM_UID: None})
    (told,) = world.api.told
    assert [(c["type"], c["status"]) for c in told["conditions"]] == [("Ready", "True")]
    assert (told["device"], told["data"]["mode"]) == (VGPU, "vgpu")


def test_what_was_just_prepared_is_told_as_it_was_fetched_without_asking_again(world: World) -> None:
    (prepared,) = world.desk.prepared
    world.api.meanwhile = lambda: pytest.fail("it was asked for")
    world.care.round({CLAIM_UID: prepared})
    assert [one["device"] for one in world.api.told] == [VGPU]


@pytest.mark.parametrize("how", ["deallocated", "deleted"])
def test_a_claim_that_lost_its_devices_by_force_leaves_neither_note_nor_spec_once_it_is_released(
    world: World, how: str
) -> None:
    if how == "deallocated":
        world.deallocate()
    else:
        world.desk.claims.clear()
    world.care.round()
    assert not world.kept(), "the agent may release it now"
    assert world.left() == (1, 1), "its containers run on until then"
    world.desk.agent.held.clear()
    world.care.round()
    assert world.left() == (0, 0)


def test_what_was_heard_before_the_claim_was_prepared_again_does_not_count(world: World) -> None:
    world.deallocate()
    world.api.meanwhile = lambda: (
        world.desk.claims.update({("ml", "c"): world.claim}),
        world.desk.preparer.prepare(REF),
    )
    world.care.round()
    assert world.kept()
    assert world.left() == (1, 1)


def test_a_claim_that_is_being_worked_on_is_left_alone(world: World) -> None:
    world.desk.claims.clear()
    with world.desk.desk.turns.work(CLAIM_UID):
        world.care.round()
    assert world.kept()
    world.care.round()
    assert not world.kept()


def test_an_api_server_that_is_away_takes_nothing_from_anybody(world: World) -> None:
    world.api.down = True
    world.care.round()
    assert world.kept()
    assert world.left() == (1, 1)


def test_a_change_of_a_cards_health_has_every_claim_looked_at(world: World) -> None:
    looked = threading.Event()
    world.api.meanwhile = looked.set
    well = {card(0).uuid: card(0).health}
    world.care.follow(well)
    world.care.start()
    try:
        world.care.follow({})
        assert looked.wait(60)
    finally:
        world.care.stop()


def test_whoever_works_on_a_claim_is_waited_for_and_other_claims_are_not() -> None:
    turns, order, second = ClaimTurns(), [], threading.Event()

    def work() -> None:
        with turns.work("a"):
            order.append("second")
        second.set()

    with turns.work("a"):
        thread = threading.Thread(target=work)
        thread.start()
        with turns.work("b"):
            order.append("first")
        assert not second.is_set()
    assert second.wait(60)
    thread.join()
    assert order == ["first", "second"]


def test_the_nodes_label_is_its_door_and_what_names_none_or_cannot_be_read_changes_nothing() -> None:
    kube = MemoryKube()
    doorway, now_s = Doorway(kube, "n", NodeDoor.TOKENS), 0.0
    assert doorway.look(now_s) is NodeDoor.TOKENS
    kube.create(NODES, {"metadata": {"name": "n", "labels": {DOOR: "claims"}}})
    assert doorway.look(now_s + LOOK_S / 2) is NodeDoor.TOKENS, "it is asked for now and then"
    assert doorway.look(now_s := now_s + LOOK_S) is NodeDoor.CLAIMS
    kube.faults.down = True
    assert doorway.look(now_s := now_s + LOOK_S) is NodeDoor.CLAIMS
    kube.faults.down = False
    kube.patch(NODES, "n", body={"metadata": {"labels": {DOOR: "window"}}})
    assert doorway.look(now_s + LOOK_S) is NodeDoor.TOKENS
    assert not doorway.claims
