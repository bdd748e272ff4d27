"""Held cards: a card is granted to another tenant only after a report that it left the former tenant's fabric partition.

This holds also if reports are delayed, lost or repeated.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.adapters.pool.client import ApiClient
from calabash.controllers.fabric.controller import FabricController
from calabash.controllers.fabric.simulated import SimulatedFabric
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricCondition, FabricEndpoint, FabricPlane, FabricState
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.pool.networks.fabric import FabricHolds, FabricMoment

CARDS = ("GPU-1", "GPU-2")
PLANE = FabricPlane.NVLINK
ENDPOINTS = tuple(FabricEndpoint(plane=PLANE, device=DeviceUuid(card), address=card) for card in CARDS)


def record(name: str, tenant: str, card: str) -> AllocationRecord:
    part = Slice(device=DeviceUuid(card), memory_mib=0, core_percent=100)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(tenant=tenant),
        placement=Placement(node=NodeName("n"), mode=ModeName("exclusive"), slices=(part,)),
    )


class HeldPool(ApiClient):
    """Pool with held allocations and its API for the fabric controller; a test can delay the controller's reports."""

    def __init__(self, *, hold: bool = True) -> None:
        self.records: dict[str, AllocationRecord] = {}
        self.holds = FabricHolds(lambda: list(self.records.values()))
        self.holds.hold = hold
        self.kept_back: list[Any] = []
        self.late = False

    def grant(self, name: str, tenant: str, card: str) -> None:
        wanted = record(name, tenant, card)
        with self.holds.granting(wanted):
            self.records[name] = wanted

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        if (method, path) == ("GET", "/v1/fabric/uses"):
            moment = self.holds.moment()
            uses = [{"device": use.device, "tenant": use.tenant} for use in moment.uses]
            return {"pool": moment.pool, "number": moment.number, "uses": uses}
        assert (method, path) == ("PUT", "/v1/fabric/status")
        if self.late:
            self.kept_back.append(body)
        else:
            self.take(body)
        return {}

    def take(self, body: Any) -> None:
        cards = [
            FabricCondition(
                plane=FabricPlane(card["plane"]),
                device=DeviceUuid(card["device"]),
                state=FabricState(card["state"]),
                standing=None if card["standing"] is None else tuple(card["standing"]),
            )
            for card in body["cards"]
        ]
        self.holds.report(body["pool"], body["number"], cards, now_s=1.0)


def condition(standing: tuple[str, ...] | None, card: str = "GPU-1") -> FabricCondition:
    return FabricCondition(plane=PLANE, device=DeviceUuid(card), state=FabricState.CLEAR, standing=standing)


def report(pool: HeldPool, moment: FabricMoment, standing: tuple[str, ...] | None) -> None:
    pool.holds.report(moment.pool, moment.number, [condition(standing)], now_s=1.0)


def refused(pool: HeldPool, tenant: str, card: str = "GPU-1") -> str:
    with pytest.raises(CalabashError) as caught:
        pool.grant("refused", tenant, card)
    assert caught.value.reason is Reason.FABRIC_HELD
    assert caught.value.hint
    return caught.value.message


def test_before_anything_was_told_no_card_is_granted() -> None:
    assert "has told nothing yet" in refused(HeldPool(), "red")


def test_who_does_not_hold_cards_grants_them_at_once() -> None:
    pool = HeldPool(hold=False)
    pool.grant("a", "red", "GPU-1")
    assert [use.tenant for use in pool.holds.moment().uses] == ["red"]


def test_a_card_that_is_on_no_fabric_is_granted() -> None:
    pool = HeldPool()
    report(pool, pool.holds.moment(), ())
    pool.grant("a", "red", "GPU-9")


def test_a_card_is_its_last_tenants_until_it_was_seen_to_have_left() -> None:
    pool = HeldPool()
    report(pool, pool.holds.moment(), ())
    pool.grant("a", "red", "GPU-1")
    del pool.records["a"]
    assert "another tenant's on its fabric: red" in refused(pool, "blue")
    pool.grant("b", "red", "GPU-1")  # its own it may have again
    del pool.records["b"]
    moment = pool.holds.moment()
    report(pool, moment, ("red",))
    refused(pool, "blue")
    report(pool, moment, ())
    pool.grant("c", "blue", "GPU-1")


def test_what_was_seen_before_a_tenant_left_says_nothing_of_what_it_left() -> None:
    pool = HeldPool()
    before = pool.holds.moment()
    report(pool, before, ())
    pool.grant("a", "red", "GPU-1")
    during = pool.holds.moment()
    del pool.records["a"]
    report(pool, before, ())  # told late, of a moment at which red was not there yet
    refused(pool, "blue")
    report(pool, during, ())  # and of one at which it still was: it may join after that look
    refused(pool, "blue")
    report(pool, pool.holds.moment(), ())
    pool.grant("b", "blue", "GPU-1")


def test_not_known_holds_the_card() -> None:
    pool = HeldPool()
    report(pool, pool.holds.moment(), None)
    assert "not known" in refused(pool, "red")


def test_a_grant_that_fails_leaves_the_card_held_until_it_was_looked_at() -> None:
    pool = HeldPool()
    report(pool, pool.holds.moment(), ())
    with pool.holds.granting(record("a", "red", "GPU-1")):
        joined = pool.holds.moment()  # the controller has seen red there, and nothing of it is held afterwards
    assert [use.tenant for use in joined.uses] == ["red"]
    refused(pool, "blue")
    report(pool, pool.holds.moment(), ())
    pool.grant("b", "blue", "GPU-1")


def test_two_that_are_granted_at_once_do_not_get_one_card() -> None:
    pool = HeldPool()
    report(pool, pool.holds.moment(), ())
    with pool.holds.granting(record("a", "red", "GPU-1")):
        refused(pool, "blue")


def test_moments_of_an_earlier_pool_are_refused() -> None:
    pool = HeldPool()
    old = HeldPool().holds.moment()
    with pytest.raises(CalabashError, match="not of this pool"):
        report(pool, old, ())
    with pytest.raises(CalabashError, match="not of this pool"):
        report(pool, FabricMoment(pool=pool.holds.moment().pool, number=99, uses=()), ())


class Losing(SimulatedFabric):
    """Fabric manager that accepts orders and, while ``loses`` is true, does not carry them out."""

    loses = False

    def attach(self, number: int, addresses: Any) -> None:
        if not self.loses:
            super().attach(number, addresses)

    def release(self, number: int, addresses: Any) -> None:
        if not self.loses:
            super().release(number, addresses)


actions = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(("red", "blue")), st.sampled_from(CARDS)),
    st.tuples(st.sampled_from(("end", "step", "step", "late", "lose", "restart")), st.just(""), st.sampled_from(CARDS)),
)


@settings(max_examples=examples(60))
@given(st.lists(actions, max_size=25))
def test_nobody_has_a_card_that_is_in_anothers_partition(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, str, str]]
) -> None:
    """Run controller, holds and fabric together, with late reports, lost orders and restarts of the controller."""
    directory: Path = tmp_path_factory.mktemp("fabric")
    fabric = Losing(PLANE, directory / "fabric.json", first=1, last=9)
    pool, clock = HeldPool(), iter(range(0, 10**9, 100))

    def controller() -> FabricController:
        return FabricController(pool, [fabric], ENDPOINTS, every_s=1, now_s=lambda: float(next(clock)))

    running = controller()
    for action, tenant, card in history:
        if action == "grant" and card not in pool.records:
            with suppress(CalabashError):
                pool.grant(card, tenant, card)
        elif action == "end":
            pool.records.pop(card, None)
        elif action == "step":
            running.step()
        elif action == "late":
            pool.late = not pool.late
            while not pool.late and pool.kept_back:
                pool.take(pool.kept_back.pop())
        elif action == "lose":
            fabric.loses = not fabric.loses
        elif action == "restart":
            running = controller()
        for partition in fabric.observe().partitions:
            for member in partition.members & pool.records.keys():
                assert pool.records[member].request.tenant == partition.tenant
    fabric.loses = pool.late = False
    while pool.kept_back:  # a report is late and not lost: the controller does not repeat one that was taken
        pool.take(pool.kept_back.pop())
    pool.records.clear()
    for _ in range(3):
        running.step()
    assert fabric.observe().partitions == ()
    pool.grant("last", "green", CARDS[0])
