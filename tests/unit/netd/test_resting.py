"""Gateway hosts that were lost or are new come last until they have been well for a set time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from calabash.model.network import Vpc
from calabash.net.book import Networks
from calabash.net.view import NetworkHosts, View
from calabash.netd.resting import RestingHosts, resting

HOSTS = ("g1", "g2", "g3", "g4")
VPC = Vpc(name="red", cidrs=())


def order(number: int, hosts: tuple[str, ...], last: tuple[str, ...] = ()) -> tuple[str, ...]:
    view = View(networks=Networks(), vpc=VPC, hosts=NetworkHosts(gateways=hosts, resting=last))
    found = list(view.priorities((), number))
    assert all(before > after for (_, before), (_, after) in pairwise(found))
    return tuple(host for host, _ in found)


@given(st.integers(0, 10**6), st.permutations(HOSTS))
def test_one_more_host_changes_the_order_of_no_two_others(number: int, hosts: list[str]) -> None:
    with_it = order(number, tuple(hosts))
    assert tuple(host for host in with_it if host != hosts[-1]) == order(number, tuple(hosts[:-1]))


def test_numbers_are_spread_over_hosts_and_a_new_one_that_rests_is_first_nowhere() -> None:
    first = [order(number, HOSTS)[0] for number in range(400)]
    assert all(70 <= first.count(host) <= 130 for host in HOSTS)
    assert all(order(number, HOSTS, ("g4",))[:-1] == order(number, HOSTS[:-1]) for number in range(50))


@given(st.permutations(HOSTS), st.integers(0, 3), st.sets(st.integers(0, 10**4), max_size=8))
def test_who_rests_is_seen_by_rows_as_they_are_and_drawing_them_up_again_changes_none(
    hosts: list[str], how_many: int, numbers: set[int]
) -> None:
    last = tuple(hosts[:how_many])
    orders = {number: order(number, HOSTS, last) for number in numbers}
    found = resting(orders.values())
    assert {number: order(number, HOSTS, found) for number in numbers} == orders


def test_a_host_that_loses_its_port_rests_until_it_has_been_well_for_the_time() -> None:
    hosts = RestingHosts(rest_s=60)
    hosts.begin(("g1", "g2"), [("g1", "g2")], 0)
    hosts.look((), (), 60)
    assert not hosts.hosts
    hosts.moved(("g1", "g2"), "g2", "g1", 61)  # to the one that comes first: a fail-back
    assert not hosts.hosts
    hosts.moved(("g1", "g2"), "g1", "g2", 100)
    assert hosts.hosts == ("g1",)
    hosts.look(("g1",), ("g2",), 150)  # dead so long
    hosts.look((), ("g2",), 209)
    assert hosts.hosts == ("g1",)
    hosts.look((), ("g2",), 210)
    assert not hosts.hosts


def test_a_silent_host_loses_nothing_that_it_has_and_one_without_ports_rests() -> None:
    hosts = RestingHosts(rest_s=60)
    hosts.look(("g1", "g2"), ("g1",), 0)
    assert hosts.hosts == ("g2",)


def test_of_hosts_that_rest_who_was_lost_later_stands_behind() -> None:
    hosts = RestingHosts(rest_s=60)
    hosts.moved(("g1", "g2", "g3"), "g1", "g2", 0)
    hosts.moved(("g2", "g3", "g1"), "g2", "g3", 10)
    assert order(1, HOSTS[:3], hosts.hosts) == ("g3", "g1", "g2")


def test_a_controller_that_starts_has_the_new_and_those_behind_all_others_rest() -> None:
    hosts = RestingHosts(rest_s=60)
    hosts.begin(("g1", "g2", "g3"), [("g2", "g1"), ("g2", "g1")], 0)
    assert hosts.hosts == ("g1", "g3")
    fresh = RestingHosts(rest_s=60)
    fresh.begin(("g1", "g2"), [], 0)
    assert not fresh.hosts
