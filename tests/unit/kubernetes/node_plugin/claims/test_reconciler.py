"""Tests of the reconciler of prepared claims, and of the watch of the node's allocation API."""

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
from calabash.kubernetes.node_plugin.allocation_api import POLL_S, AllocationApiWatch
from calabash.kubernetes.node_plugin.claims.locks import ClaimLocks
from calabash.kubernetes.node_plugin.claims.reconciler import ClaimReconciler
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import ALLOCATION_API
from calabash.model.errors import CalabashError, Reason
from calabash.node.membership.container import claim_allocation
from calabash_testing.api_server.client import MemoryKube

VGPU = f"{card_names([card(0)])[card(0).uuid]}-vgpu"


class Api:
    """API server with the claims of a desk; ``meanwhile`` is called before an answer arrives."""

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
        self.reconciler = ClaimReconciler(cast("Any", self.api), cast("Any", self.desk.agent), self.desk.desk)
        self.claim = self.desk.allocate(share(VGPU))

    def deallocate(self) -> None:
        free = structs.replace(self.claim.status, allocation=None)
        self.desk.claims["ml", "c"] = structs.replace(self.claim, status=free)

    def left(self) -> tuple[int, int]:
        return len(self.desk.desk.notes.all()), len(self.desk.specs())

    def kept(self) -> bool:
        return self.desk.store.holds(claim_allocation(CLAIM_UID))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.desk.preparer.prepare(REF)
    return made


def test_what_was_given_is_told_in_the_claims_status(world: World) -> None:
    world.reconciler.round({CLAIM_UID: None})
    (told,) = world.api.told
    assert [(c["type"], c["status"]) for c in told["conditions"]] == [("Ready", "True")]
    assert (told["device"], told["data"]["mode"]) == (VGPU, "vgpu")


def test_what_was_just_prepared_is_told_as_it_was_fetched_without_asking_again(world: World) -> None:
    (prepared,) = world.desk.reported
    world.api.meanwhile = lambda: pytest.fail("it was asked for")
    world.reconciler.round({CLAIM_UID: prepared})
    assert [one["device"] for one in world.api.told] == [VGPU]


@pytest.mark.parametrize("how", ["deallocated", "deleted"])
def test_a_claim_that_lost_its_devices_by_force_leaves_neither_note_nor_spec_once_it_is_released(
    world: World, how: str
) -> None:
    if how == "deallocated":
        world.deallocate()
    else:
        world.desk.claims.clear()
    world.reconciler.round()
    assert not world.kept(), "the agent may release it now"
    assert world.left() == (1, 1), "its containers run on until then"
    world.desk.agent.held.clear()
    world.reconciler.round()
    assert world.left() == (0, 0)


def test_what_was_heard_before_the_claim_was_prepared_again_does_not_count(world: World) -> None:
    world.deallocate()
    world.api.meanwhile = lambda: (
        world.desk.claims.update({("ml", "c"): world.claim}),
        world.desk.preparer.prepare(REF),
    )
    world.reconciler.round()
    assert world.kept()
    assert world.left() == (1, 1)


def test_a_claim_that_is_being_worked_on_is_left_alone(world: World) -> None:
    world.desk.claims.clear()
    with world.desk.desk.locks.work(CLAIM_UID):
        world.reconciler.round()
    assert world.kept()
    world.reconciler.round()
    assert not world.kept()


def test_an_api_server_that_is_away_takes_nothing_from_anybody(world: World) -> None:
    world.api.down = True
    world.reconciler.round()
    assert world.kept()
    assert world.left() == (1, 1)


def test_a_change_of_a_cards_health_has_every_claim_looked_at(world: World) -> None:
    looked = threading.Event()
    world.api.meanwhile = looked.set
    healthy = {card(0).uuid: card(0).health}
    world.reconciler.follow(healthy)
    world.reconciler.start()
    try:
        world.reconciler.follow({})
        assert looked.wait(60)
    finally:
        world.reconciler.stop()


def test_lock_of_a_claim_waits_for_its_holder_and_not_for_other_claims() -> None:
    locks, order, second = ClaimLocks(), [], threading.Event()

    def work() -> None:
        with locks.work("a"):
            order.append("second")
        second.set()

    with locks.work("a"):
        thread = threading.Thread(target=work)
        thread.start()
        with locks.work("b"):
            order.append("first")
        assert not second.is_set()
    assert second.wait(60)
    thread.join()
    assert order == ["first", "second"]


def test_claim_ends_only_while_the_lock_is_held_to_unprepare_it() -> None:
    locks = ClaimLocks()
    with locks.work("a"):
        assert not locks.any_ends()
        with locks.work("b", ends=True):
            assert locks.any_ends()
        assert not locks.any_ends()
    with locks.work("b"):
        assert not locks.any_ends()


def test_label_of_the_node_selects_its_allocation_api_and_an_unreadable_node_changes_nothing() -> None:
    kube = MemoryKube()
    api_watch, now_s = AllocationApiWatch(kube, "n", AllocationApi.TOKENS), 0.0
    assert api_watch.poll(now_s) is AllocationApi.TOKENS
    kube.create(NODES, {"metadata": {"name": "n", "labels": {ALLOCATION_API: "claims"}}})
    assert api_watch.poll(now_s + POLL_S / 2) is AllocationApi.TOKENS, "it is asked for now and then"
    assert api_watch.poll(now_s := now_s + POLL_S) is AllocationApi.CLAIMS
    kube.faults.down = True
    assert api_watch.poll(now_s := now_s + POLL_S) is AllocationApi.CLAIMS
    kube.faults.down = False
    kube.patch(NODES, "n", body={"metadata": {"labels": {ALLOCATION_API: "window"}}})
    assert api_watch.poll(now_s + POLL_S) is AllocationApi.TOKENS
    assert not api_watch.claims
