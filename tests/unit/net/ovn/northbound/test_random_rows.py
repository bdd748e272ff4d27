"""Rows of random networks: complete, of one owner each, and reached by a controller that dies at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.net.ovn.northbound.applied_changes import apply_changes
from tests.unit.net.random_networks import RandomNetworks

from calabash.model.errors import CalabashError
from calabash.model.network import Peering, Vpc
from calabash.net.objects.acceptance import peering_accepted
from calabash.net.objects.collection import SHARED
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM, Columns, Ref, Rows
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

HOSTS = NetworkHosts(gateways=("g1", "g2"))
SEEDS = st.integers(0, 1 << 32)


def wanted_rows(networks: Networks, owner: str) -> Rows:
    return platform_rows(networks) if owner == PLATFORM else vpc_rows(networks, owner, hosts=HOSTS)


def owners(networks: Networks) -> list[str]:
    return [PLATFORM, *(vpc for vpc in networks.vpcs if vpc != SHARED)]


def references(columns: Columns) -> Iterator[Ref]:
    for value in columns.values():
        yield from (item for item in (value if isinstance(value, frozenset) else (value,)) if isinstance(item, Ref))


def grown(seed: int, changes: int) -> Networks:
    return RandomNetworks(seed, removing=0.1).made(Networks(), changes)


@given(seed=SEEDS)
@settings(max_examples=examples(25), deadline=None)
def test_random_rows_have_one_owner_and_refer_to_its_rows_only(seed: int) -> None:
    networks = grown(seed, 150)
    seen: dict[Ref, str] = {}
    for owner in owners(networks):
        rows = wanted_rows(networks, owner)
        assert rows
        for row, columns in rows.items():
            assert seen.setdefault(row, owner) == owner
            assert set(references(columns)) <= set(rows)


@given(seed=SEEDS)
@settings(max_examples=examples(25), deadline=None)
def test_routers_are_joined_only_by_accepted_peerings(seed: int) -> None:
    networks = grown(seed, 150)
    pairs = {
        (vpc, peer.name.split("/")[1])
        for vpc in networks.vpcs
        for peer in networks.of_vpc(vpc).all(Peering).values()
        if peering_accepted(networks, peer)
    }
    whose = {naming.router_port(naming.peering_link(one, other)): (one, other) for one, other in pairs}
    met = set()
    for vpc in networks.all(Vpc):
        for row, columns in vpc_rows(networks, vpc.name, hosts=HOSTS).items():
            if row.table == "Logical_Router_Port" and columns["peer"]:
                assert whose[row.key] == tuple(reversed(whose[str(columns["peer"])]))
                met.add(whose[row.key])
    assert met == pairs


@given(seed=SEEDS)
@settings(max_examples=examples(25), deadline=None)
def test_ports_of_a_router_have_distinct_addresses_and_macs(seed: int) -> None:
    networks = grown(seed, 150)
    for vpc in networks.all(Vpc):
        found = [
            columns
            for row, columns in vpc_rows(networks, vpc.name, hosts=HOSTS).items()
            if row.table == "Logical_Router_Port"
        ]
        macs = [columns["mac"] for columns in found]
        assert len(set(macs)) == len(macs)
        ranges = [ip_interface(text).network for columns in found for text in columns["networks"]]  # type: ignore[union-attr,arg-type]
        for number, one in enumerate(ranges):
            assert not any(one.version == other.version and one.overlaps(other) for other in ranges[:number])


class Controller:
    """Controller without state, like the real one. It reconciles some owners of each store and may die before any of them."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.rows: dict[str, Rows] = {}

    def round(self, networks: Networks, *, dies: bool) -> None:
        concerned = sorted({*owners(networks), *self.rows})
        self._random.shuffle(concerned)
        left = self._random.randrange(len(concerned) + 1) if dies else len(concerned)
        for owner in concerned[:left]:
            actual = self.rows.pop(owner, {})
            rows = wanted_rows(networks, owner) if owner in owners(networks) else {}
            if after := apply_changes(diff(rows, actual), actual):
                self.rows[owner] = after


@given(seed=SEEDS)
@settings(max_examples=examples(10), deadline=None)
def test_controller_that_dies_repeatedly_converges_to_the_desired_rows(seed: int) -> None:
    source, networks, controller = RandomNetworks(seed, removing=0.15), Networks(), Controller(seed)
    for _ in range(250):
        try:
            networks = source.change(networks).applied(networks)
        except CalabashError:
            continue
        controller.round(networks, dies=True)
    controller.round(networks, dies=False)
    assert controller.rows == {owner: wanted_rows(networks, owner) for owner in owners(networks)}
