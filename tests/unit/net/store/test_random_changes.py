"""Random sequences of changes to a store of networks, as a state machine with invariants."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples
from tests.unit.net.random_networks import RandomChange, RandomNetworks
from tests.unit.net.store_invariants import check_store

from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind, NetworkObject, SecurityGroup, Vpc, kind_of
from calabash.model.network_services import ServiceEndpoint
from calabash.net.objects.acceptance import endpoint_accepted
from calabash.net.store.dependents import foreign_dependents
from calabash.net.store.networks import Networks

SEEDS = st.integers(0, 1 << 32)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.networks = Networks()

    @rule(seed=SEEDS, count=st.integers(1, 12))
    def change_objects(self, seed: int, count: int) -> None:
        source = RandomNetworks(seed)
        for _ in range(count):
            before, items = self.networks, tuple(self.networks.items())
            change = source.change(before)
            self.networks, refusal = try_change(before, change)
            assert "\n" not in refusal
            assert not refusal or self.networks is before
            assert tuple(before.items()) == items
            assert self.networks.revision - before.revision == (self.networks is not before)

    @rule(seed=SEEDS)
    def create_objects(self, seed: int) -> None:
        self.networks = RandomNetworks(seed, vpcs=3, removing=0.0).made(self.networks, 40)

    @rule(data=st.data())
    def delete_vpc_with_contents(self, data: st.DataObject) -> None:
        vpcs = [vpc.name for vpc in self.networks.all(Vpc)]
        if not vpcs:
            return
        name = data.draw(st.sampled_from(vpcs))
        serves = any(
            True for vpc in self.networks.all(Vpc) if vpc.name == name for _ in foreign_dependents(self.networks, vpc)
        )
        self.networks, refusal = try_change(self.networks, RandomChange(kind=NetworkKind.VPC, name=name, cascade=True))
        assert (name in self.networks.vpcs) == bool(refusal) == serves

    @invariant()
    def store_invariants_hold(self) -> None:
        check_store(self.networks)

    def teardown(self) -> None:
        emptied_store(self.networks)


def try_change(networks: Networks, change: RandomChange) -> tuple[Networks, str]:
    """Return the store after the change, and the message if it was refused."""
    try:
        return change.applied(networks), ""
    except CalabashError as error:
        return networks, error.message or "no reason"


def emptied_store(networks: Networks) -> Networks:
    """Return the store after removing all that can be removed."""
    for group in list(networks.all(SecurityGroup)):  # groups may refer to each other
        networks, _ = networks.put(msgspec.structs.replace(group, rules=()), platform=True)
    while networks.vpcs:
        before = networks
        for item in list(networks.items()):
            if networks.get(kind_of(item), item.name) is not None:
                networks, _ = try_change(networks, RandomChange(kind=kind_of(item), name=item.name))
        assert networks is not before, f"nothing of {list(networks.items())} can be removed"
    return networks


StoreMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=12, deadline=None)
TestRandomSequencesKeepTheInvariants = StoreMachine.TestCase


@given(seed=SEEDS)
@settings(max_examples=examples(15), deadline=None)
def test_same_changes_give_the_same_store(seed: int) -> None:
    assert RandomNetworks(seed).made(Networks(), 120) == RandomNetworks(seed).made(Networks(), 120)


@given(seed=SEEDS)
@settings(max_examples=examples(15), deadline=None)
def test_putting_a_completed_object_again_changes_nothing(seed: int) -> None:
    networks = RandomNetworks(seed, removing=0.1).made(Networks(), 150)
    for item in networks.items():
        withdrawn = isinstance(item, ServiceEndpoint) and not endpoint_accepted(networks, item)
        if not withdrawn:
            assert networks.put(item, platform=True) == (networks, item)
            assert networks.put(item, platform=True)[0] is networks


@given(seed=SEEDS)
@settings(max_examples=examples(15), deadline=None)
def test_changes_between_two_stores_transform_one_into_the_other(seed: int) -> None:
    source = RandomNetworks(seed)
    before = source.made(Networks(), 100)
    after = source.made(before, 30)
    put, gone = after.changes_since(before)
    known = {(kind_of(item), item.name): item for item in before.items()}
    for item in gone:
        del known[kind_of(item), item.name]
    known.update({(kind_of(item), item.name): item for item in put})
    assert set(known.values()) == set(after.items())
    assert not set(put) & set(before.items())


def test_random_changes_create_every_kind_and_include_refused_ones() -> None:
    seen: set[NetworkKind] = set()
    refused = 0
    networks, source = Networks(), RandomNetworks(7)
    for _ in itertools.repeat(None, 1500):
        try:
            networks = source.change(networks).applied(networks)
        except CalabashError:
            refused += 1
        seen |= {kind_of(item) for item in networks.items()}
    assert seen == set(NetworkKind)
    assert 100 < refused < 1400


@given(seed=SEEDS, order=st.randoms(use_true_random=False))
@settings(max_examples=examples(15), deadline=None)
def test_changes_applied_in_any_order_give_the_same_store(seed: int, order: random.Random) -> None:
    source = RandomNetworks(seed, vpcs=2)
    before = source.made(Networks(), 120)
    after = source.made(before, 60)
    put, gone = after.changes_since(before)
    changes: list[tuple[NetworkObject, NetworkObject | None]] = [(item, item) for item in put]
    changes += [(item, None) for item in gone]
    order.shuffle(changes)
    told = before
    for item, now in changes:
        told = told.replaced(kind_of(item), item.name, now)
    assert told == replace(after, revision=before.revision)
