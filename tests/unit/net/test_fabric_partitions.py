"""Fabric partitions follow the use of devices; no endpoint is in the partitions of two tenants, whatever fails."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricEndpoint, FabricPlane, FabricState, FabricUse
from calabash.model.request import DEFAULT_TENANT
from calabash.net.fabric_partitions import (
    FabricPartition,
    FabricStepKind,
    check_endpoints,
    conditions,
    fabric_steps,
    free_number,
    may_grant,
    memberships,
    read_address,
)

PLANE = FabricPlane.INFINIBAND
TENANTS = ("red", "blue", "green", DEFAULT_TENANT)
CARDS = tuple(DeviceUuid(f"GPU-{n}") for n in range(6))
ENDPOINTS = tuple(
    FabricEndpoint(plane=PLANE, device=card, address=f"{16 * n + port + 1:016x}")
    for n, card in enumerate(CARDS)
    for port in range(2)
)

uses = st.sets(st.tuples(st.sampled_from(CARDS), st.sampled_from(TENANTS)), max_size=8).map(
    lambda pairs: tuple(FabricUse(device=device, tenant=tenant) for device, tenant in sorted(pairs))
)


class Switch:
    """Fabric manager that may lose orders."""

    def __init__(self, partitions: Iterable[FabricPartition] = ()) -> None:
        self.members: dict[int, tuple[str, set[str]]] = {p.number: (p.tenant, set(p.members)) for p in partitions}

    def partitions_seen(self) -> tuple[FabricPartition, ...]:
        return tuple(
            FabricPartition(tenant=tenant, number=number, members=frozenset(members))
            for number, (tenant, members) in self.members.items()
        )

    def check_no_endpoint_is_in_two_partitions(self) -> None:
        everything = [(address, tenant) for tenant, members in self.members.values() for address in members]
        for address in {address for address, _ in everything}:
            assert len({tenant for a, tenant in everything if a == address}) == 1

    def follow(self, wanted: dict[str, frozenset[str]], lost: Iterable[bool]) -> None:
        """Carry out one round, in which addresses of an order may be lost."""
        losses = iter(lost)
        for step in fabric_steps(wanted, self.partitions_seen()):
            if step.kind is FabricStepKind.DROP:
                assert not self.members[step.number][1], "a partition with members was dropped"
                del self.members[step.number]
                continue
            number = step.number or free_number(1, 99, self.members)
            _, members = self.members.setdefault(number, (step.tenant, set()))
            for address in sorted(step.addresses):
                if next(losses, False):
                    continue
                if step.kind is FabricStepKind.RELEASE:
                    members.discard(address)
                else:
                    members.add(address)
                self.check_no_endpoint_is_in_two_partitions()


@given(st.lists(st.tuples(uses, st.lists(st.booleans(), max_size=30)), max_size=8), uses)
def test_endpoint_is_never_in_two_partitions_and_members_converge(
    history: list[tuple[tuple[FabricUse, ...], list[bool]]], final: tuple[FabricUse, ...]
) -> None:
    switch = Switch()
    for moment, lost in history:
        switch.follow(memberships(ENDPOINTS, moment, PLANE), lost)
    wanted = memberships(ENDPOINTS, final, PLANE)
    for _ in range(3):
        switch.follow(wanted, ())
    assert sorted(switch.members.values()) == sorted((tenant, set(addresses)) for tenant, addresses in wanted.items())
    assert fabric_steps(wanted, switch.partitions_seen()) == ()


@given(uses)
def test_device_is_in_a_partition_only_while_a_single_tenant_uses_it(moment: tuple[FabricUse, ...]) -> None:
    wanted = memberships(ENDPOINTS, moment, PLANE)
    for one in ENDPOINTS:
        holders = {use.tenant for use in moment if use.device == one.device}
        inside = {tenant for tenant, members in wanted.items() if one.address in members}
        assert inside == (holders if len(holders) == 1 and DEFAULT_TENANT not in holders else set())


@given(
    st.lists(
        st.tuples(st.sampled_from(CARDS), st.sampled_from(TENANTS), st.lists(st.booleans(), max_size=6)), max_size=12
    )
)
def test_device_is_granted_to_another_tenant_only_after_it_was_observed_to_leave(
    asked: list[tuple[DeviceUuid, str, list[bool]]],
) -> None:
    """Devices change tenants at random on a fabric that loses orders; a granted device is in no partition of another tenant."""
    switch, holder = Switch(), dict[DeviceUuid, str]()
    for card, tenant, lost in asked:
        holder.pop(card, None)  # the previous holder has ended
        now = tuple(FabricUse(device=device, tenant=owner) for device, owner in holder.items())
        switch.follow(memberships(ENDPOINTS, now, PLANE), lost)
        told = {c.device: c.standing for c in conditions(ENDPOINTS, now, PLANE, switch.partitions_seen())}
        if may_grant(tenant, told[card]):
            holder[card] = tenant
        for device, owner in holder.items():
            addresses = {one.address for one in ENDPOINTS if one.device == device}
            assert {t for t, members in switch.members.values() if members & addresses} <= {owner}


def test_freed_device_leaves_before_it_joins_another_partition() -> None:
    address = ENDPOINTS[0].address
    seen = FabricPartition(tenant="red", number=7, members=frozenset({address, ENDPOINTS[1].address}))
    wanted = memberships(ENDPOINTS[:1], [FabricUse(device=CARDS[0], tenant="blue")], PLANE)
    first = fabric_steps(wanted, [seen])
    assert [(s.kind, s.tenant, s.number) for s in first] == [(FabricStepKind.RELEASE, "red", 7)]
    assert address in first[0].addresses
    then = fabric_steps(wanted, [FabricPartition(tenant="red", number=7)])
    assert [(s.kind, s.tenant, s.number) for s in then] == [
        (FabricStepKind.ATTACH, "blue", 0),
        (FabricStepKind.DROP, "red", 7),
    ]


def test_second_partition_of_a_tenant_is_emptied() -> None:
    address = ENDPOINTS[0].address
    twice = [
        FabricPartition(tenant="red", number=7),
        FabricPartition(tenant="red", number=9, members=frozenset({address})),
    ]
    steps = fabric_steps({"red": frozenset({address})}, twice)
    assert [(s.kind, s.number) for s in steps] == [(FabricStepKind.RELEASE, 9)]


def test_unknown_partitions_refuse_the_grant() -> None:
    assert not may_grant("red", None)
    assert not may_grant("red", ("blue",))
    assert may_grant("red", ("red",))
    assert may_grant("red", ())


def test_state_of_a_device_depends_on_its_users_and_its_partition() -> None:
    red, other = ENDPOINTS[0].address, ENDPOINTS[1].address
    both = frozenset({red, other})

    def state(tenants: Iterable[str], seen: frozenset[str], exposed: Iterable[str] = ()) -> FabricState:
        found = conditions(
            ENDPOINTS[:2],
            [FabricUse(device=CARDS[0], tenant=t) for t in tenants],
            PLANE,
            [FabricPartition(tenant="red", number=3, members=seen)],
            exposed=frozenset(exposed),
        )
        return found[0].state

    assert state((), frozenset()) is FabricState.CLEAR
    assert state(("red",), both) is FabricState.MEMBER
    assert state(("red",), frozenset({red})) is FabricState.JOINING
    assert state(("blue",), frozenset({red})) is FabricState.LEAVING
    assert state(("red", "blue"), both) is FabricState.LEAVING
    assert state(("red", "blue"), frozenset()) is FabricState.SHARED
    assert state((DEFAULT_TENANT,), frozenset()) is FabricState.NO_TENANT
    assert state(("red",), both, exposed=(red,)) is FabricState.EXPOSED


@pytest.mark.parametrize(
    ("plane", "text", "read"),
    [
        (FabricPlane.INFINIBAND, "0x506B4B0300A1B200", "506b4b0300a1b200"),
        (FabricPlane.ROCE, "h1/ens1f0/vf3", "h1/ens1f0/vf3"),
        (FabricPlane.NVLINK, "rack1-tray3-GPU2", "rack1-tray3-GPU2"),
    ],
)
def test_address_is_converted_to_canonical_form(plane: FabricPlane, text: str, read: str) -> None:
    assert read_address(plane, text) == read


@pytest.mark.parametrize(
    ("plane", "text"),
    [
        (FabricPlane.INFINIBAND, "0x0000000000000000"),
        (FabricPlane.INFINIBAND, "506b4b0300a1b20"),
        (FabricPlane.INFINIBAND, "506b4b0300a1b200,506b4b0300a1b201"),
        (FabricPlane.ROCE, "h1/../vf3"),
        (FabricPlane.NVLINK, ""),
    ],
)
def test_invalid_address_is_refused(plane: FabricPlane, text: str) -> None:
    with pytest.raises(CalabashError, match="is not an address on") as caught:
        read_address(plane, text)
    assert caught.value.hint


def test_address_of_two_devices_is_refused() -> None:
    twice = [FabricEndpoint(plane=PLANE, device=card, address="0" * 15 + "1") for card in CARDS[:2]]
    with pytest.raises(CalabashError, match="belongs to both GPU-0 and GPU-1"):
        check_endpoints(twice)


def test_exhausted_numbers_are_reported_with_the_count() -> None:
    assert free_number(1, 3, {1, 3}) == 2
    with pytest.raises(CalabashError, match="all 3 partitions") as caught:
        free_number(1, 3, {1, 2, 3})
    assert caught.value.reason is Reason.NO_CAPACITY
