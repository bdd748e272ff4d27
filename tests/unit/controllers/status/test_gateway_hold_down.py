"""Gateway hosts that were lost or are new have the lowest priority until they are stable for a set time."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from calabash.controllers.status.gateway_hold_down import ActiveGatewayPort, HeldDownHosts
from calabash.model.network import Vpc
from calabash.net.ovn.translation.view import NetworkHosts, View
from calabash.net.store.networks import Networks

HOSTS = ("g1", "g2", "g3", "g4")
ALIVE = {"g1": 1, "g2": 1, "g3": 1}
SEEDS = st.integers(0, 2**32)
AWAY_S = st.floats(0.25, 40.0)
VPC = Vpc(name="red", cidrs=())


@cache
def order(number: int, hosts: tuple[str, ...], last: tuple[str, ...] = ()) -> tuple[str, ...]:
    view = View(networks=Networks(), vpc=VPC, hosts=NetworkHosts(gateways=hosts, resting=last))
    found = list(view.priorities((), number))
    assert all(before > after for (_, before), (_, after) in pairwise(found))
    return tuple(host for host, _ in found)


@given(st.integers(0, 10**6), st.permutations(HOSTS))
def test_additional_host_does_not_change_the_order_of_other_hosts(number: int, hosts: list[str]) -> None:
    with_it = order(number, tuple(hosts))
    assert tuple(host for host in with_it if host != hosts[-1]) == order(number, tuple(hosts[:-1]))


def test_networks_are_spread_over_hosts_and_a_held_down_host_is_never_first() -> None:
    first = [order(number, HOSTS)[0] for number in range(400)]
    assert all(70 <= first.count(host) <= 130 for host in HOSTS)
    assert all(order(number, HOSTS, ("g4",))[:-1] == order(number, HOSTS[:-1]) for number in range(50))


def held(host: str, *order: str, since_s: float = 0.0, name: str = "red") -> ActiveGatewayPort:
    return ActiveGatewayPort(name=name, order=order, host=host, since_s=since_s)


def stable_hosts(rest_s: float = 60.0) -> HeldDownHosts:
    """Return held-down hosts with three hosts that have been stable for long at time 0."""
    hosts = HeldDownHosts(rest_s=rest_s)
    hosts.update((), ALIVE, 1, -100.0)
    return hosts


def test_lost_host_is_held_down_until_it_is_stable_for_the_hold_down_time() -> None:
    hosts = stable_hosts()
    hosts.update([held("g1", "g1", "g2")], ALIVE, 1, 0)
    for now_s in (100.0, 100.9):
        hosts.update([held("g2", "g1", "g2", since_s=100)], ALIVE, 1, now_s)
        assert not hosts.hosts
    hosts.update([held("g2", "g1", "g2", since_s=100)], ALIVE, 1, 101)
    assert hosts.hosts == ("g1",)
    hosts.update([held("g2", "g2", "g1", since_s=100)], {"g2": 9}, 9, 150)  # g1 is dead
    hosts.update([held("g2", "g2", "g1", since_s=100)], {"g1": 9, "g2": 9}, 9, 209.9)
    assert hosts.hosts == ("g1",)
    hosts.update([held("g2", "g2", "g1", since_s=100)], {"g1": 9, "g2": 9}, 9, 210)
    assert not hosts.hosts


def test_interrupted_claim_unknown_order_and_fail_back_are_not_losses() -> None:
    hosts = stable_hosts()
    for number in range(8):  # two hosts take it from each other
        hosts.update([held("g2", "g1", "g2", since_s=number / 2)], ALIVE, 1, number / 2)
    for number in range(8):  # the order changes, and northd is slow
        hosts.update([held("g2", "g1", "g2", since_s=4)], ALIVE, 1, 4.5)
        hosts.update([held("g2", "g2", "g1", since_s=4)], ALIVE, 1, 5 + number)
    hosts.update([held("g2", "g1", "g2", since_s=4)], ALIVE, 2, 20)
    hosts.update([held("g2", "g1", "g2", since_s=4)], ALIVE, 2, 40)
    assert not hosts.hosts
    hosts.update([held("g2", "g1", "g2", since_s=4)], {**ALIVE, "g2": 2}, 2, 41)
    hosts.update([held("g2", "g1", "g2", since_s=4)], {**ALIVE, "g2": 2}, 2, 42)
    assert hosts.hosts == ("g1",)


def test_claim_of_a_host_that_just_returned_is_not_accepted() -> None:
    hosts = stable_hosts()
    hosts.update([held("g2", "g1", "g2", since_s=0)], ALIVE, 1, 0)
    hosts.update([held("g2", "g1", "g2", since_s=0)], ALIVE, 1, 1)
    assert hosts.hosts == ("g1",)
    for number in range(100):  # g2 has carried out nothing since
        hosts.update([held("g1", "g2", "g1", since_s=2)], ALIVE, 1, 2 + number)
    back = {**ALIVE, "g1": 2}
    for now_s in (110.0, 111.0, 114.9):
        hosts.update([held("g1", "g2", "g1", since_s=2)], back, 1, now_s)
        assert "g2" not in hosts.hosts
    hosts.update([held("g1", "g2", "g1", since_s=2)], back, 1, 115)
    hosts.update([held("g1", "g2", "g1", since_s=2)], back, 1, 116)
    assert hosts.hosts[-1:] == ("g2",)  # now accepted: g2 is lost too


def test_host_lost_later_has_the_lower_priority() -> None:
    hosts = stable_hosts()
    for now_s in (0, 1):
        hosts.update([held("g2", "g1", "g2", "g3")], ALIVE, 1, now_s)
    for now_s in (10, 11):
        hosts.update([held("g3", "g2", "g3", "g1", since_s=10)], ALIVE, 1, now_s)
    assert order(1, HOSTS[:3], hosts.hosts) == ("g3", "g1", "g2")


def test_held_down_host_keeps_its_position_while_a_row_is_updated() -> None:
    hosts = stable_hosts()
    for now_s in range(20):
        hosts.update([held("g2", "g1", "g2"), held("g3", "g1", "g2", "g3", name="blue", since_s=9)], ALIVE, 1, now_s)
    assert hosts.hosts == ("g1", "g2")


def test_restored_hosts_stay_held_down_with_their_times() -> None:
    hosts = HeldDownHosts(rest_s=60)
    hosts.restore(("g2", "g1"), 0)
    assert hosts.hosts == ("g2", "g1")
    hosts.add_new(("g3",), 10)
    hosts.restore(("g1", "g4"), 30)
    assert hosts.hosts == ("g1", "g4")
    hosts.update((), {"g1": 1, "g4": 1}, 1, 60)
    assert list(hosts.hosts) == ["g4"]


class Cluster:
    """Simulated gateway hosts of OVN.

    A host takes a port if it believes that it is the first live host of the order. A host that has just returned knows no
    other host for up to three seconds, in which it takes ports that the others take back. Rows follow the held-down hosts, and
    hosts follow the rows, with random delays.
    """

    STEP_S = 0.25

    def __init__(self, hosts: tuple[str, ...], ports: int, chance: Random, rest_s: float) -> None:
        self.hosts, self.chance = hosts, chance
        self.held_down = HeldDownHosts(rest_s)
        self.now_s, self.asked, self.told_s = 0.0, 1, 0.0
        self.down: set[str] = set()
        self.deaf: dict[str, float] = {}
        self.counts = dict.fromkeys(hosts, 1)
        self.heard = dict.fromkeys(hosts, 0.0)  # time when each host had carried out all changes
        self.rows = {str(number): order(number, hosts) for number in range(ports)}
        self.known = {host: dict(self.rows) for host in hosts}
        self.held = {name: (row[0], 0.0) for name, row in self.rows.items()}
        self.observed: list[tuple[str, ...]] = [()]

    def lose(self, host: str) -> None:
        self.down.add(host)

    def restore(self, host: str) -> None:
        self.down.discard(host)
        self.deaf[host] = self.now_s + self.chance.uniform(0, 3)

    def live(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += self.STEP_S
            self._carry()
            for name in self.rows:
                self._claim(name)
            alive = {host: self.counts[host] for host in self.hosts if self.now_s - self.heard[host] <= 6}
            ports = [
                ActiveGatewayPort(name=name, order=row, host=self.held[name][0], since_s=self.held[name][1])
                for name, row in self.rows.items()
            ]
            self.held_down.update(ports, alive, self.asked, self.now_s)
            if self.held_down.hosts != self.observed[-1]:
                self.observed.append(self.held_down.hosts)

    def _carry(self) -> None:
        for name, row in self.rows.items():
            wanted = order(int(name), self.hosts, self.held_down.hosts)
            if row != wanted and self.chance.random() < 0.5:
                self.rows[name] = wanted
                self.asked += 1
        if self.now_s - self.told_s >= 3:
            self.told_s = self.now_s
            self.asked += 1
        for host in set(self.hosts) - self.down:
            if self.chance.random() < 0.6:
                self.counts[host], self.known[host] = self.asked, dict(self.rows)
            if self.counts[host] == self.asked:
                self.heard[host] = self.now_s

    def _claim(self, name: str) -> None:
        """A host that takes a port from another one keeps it for half a second."""
        host, since_s = self.held[name]
        claiming = [one for one in self.hosts if one not in self.down and self._is_first(one, name)]
        others = [one for one in claiming if one != host]
        if others and (host not in claiming or self.now_s - since_s >= 0.5):
            self.held[name] = (self.chance.choice(others), self.now_s)

    def _is_first(self, host: str, name: str) -> bool:
        row = self.known[host][name]
        before = row[: row.index(host)]
        return self.deaf.get(host, 0.0) > self.now_s or all(one in self.down for one in before)


@given(SEEDS, st.sampled_from(HOSTS[:3]), st.lists(st.tuples(AWAY_S, AWAY_S), max_size=4))
def test_repeated_loss_of_one_host_never_holds_down_another(
    seed: int, lost: str, times: list[tuple[float, float]]
) -> None:
    chance = Random(seed)
    cluster = Cluster(HOSTS[: chance.choice((2, 3))], 3, chance, rest_s=30)
    lost = lost if lost in cluster.hosts else cluster.hosts[0]
    cluster.live(10)
    for away_s, back_s in times:
        cluster.lose(lost)
        cluster.live(away_s)
        cluster.restore(lost)
        cluster.live(back_s)
    assert set(cluster.observed) <= {(), (lost,)}
    losses = sum(stand == (lost,) for stand in cluster.observed)
    assert losses <= len(times)  # at most one change for each loss
    cluster.live(50)
    assert cluster.observed[-1] == ()
    before = len(cluster.observed)
    cluster.live(30)
    assert len(cluster.observed) == before


@given(SEEDS, st.lists(st.tuples(st.sampled_from(HOSTS[:3]), AWAY_S), max_size=6))
def test_all_hosts_regain_their_positions_after_random_losses(seed: int, turns: list[tuple[str, float]]) -> None:
    cluster = Cluster(HOSTS[:3], 3, Random(seed), rest_s=30)
    cluster.live(10)
    for host, for_s in turns:
        (cluster.restore if host in cluster.down else cluster.lose)(host)
        cluster.live(for_s)
    for host in sorted(cluster.down):
        cluster.restore(host)
    cluster.live(120)
    assert cluster.observed[-1] == ()
    assert all(cluster.held[name][0] == row[0] for name, row in cluster.rows.items())
    assert len(cluster.observed) <= 1 + 4 * (len(turns) + 3)


@given(SEEDS, st.sampled_from(HOSTS[:2]))
def test_returned_host_takes_no_traffic_during_the_hold_down_time(seed: int, lost: str) -> None:
    cluster = Cluster(HOSTS[:2], 4, Random(seed), rest_s=30)
    cluster.live(10)
    cluster.lose(lost)
    cluster.live(20)
    assert cluster.held_down.hosts == ((lost,) if any(row[-1] == lost for row in cluster.rows.values()) else ())
    cluster.restore(lost)
    cluster.live(10)
    assert all(host != lost for host, _ in cluster.held.values())
