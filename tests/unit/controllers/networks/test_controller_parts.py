"""Pure parts of the network controller: order of changes, progress, backoff, statuses, and affected owners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calabash.adapters.ovn.southbound import Chassis
from calabash.controllers.networks.desired_rows import without_dns_updates
from calabash.controllers.networks.reconciler import BACKOFF_MAX_S, BACKOFF_MIN_S, VpcBackoff
from calabash.controllers.sources.network_source import NetworkUpdate
from calabash.controllers.sources.network_store import KnownNetworks
from calabash.controllers.status.progress import hosts_of, progress
from calabash.controllers.status.status_store import Statuses
from calabash.model.addresses import parse_network
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind, Peering, Port, Subnet, Vpc
from calabash.model.network_status import ConditionKind
from calabash.net.ovn.northbound.rows import PLATFORM, Insert, Ref, Update
from calabash.net.store.networks import Networks

NAMES = Update(Ref("DNS", "red/a:dns"), {"records": {"a": "10.0.0.1"}})
PORT = Insert(Ref("Logical_Switch_Port", "red/a/p"), {})


def chassis(name: str, count: int, silent_s: float = 0.0) -> Chassis:
    return Chassis(name=name, hostname=name, nb_cfg=count, silent_s=silent_s, addresses=(), told={})


def test_dns_updates_are_delayed_unless_there_are_no_other_changes() -> None:
    assert without_dns_updates((PORT, NAMES)) == (PORT,)
    assert without_dns_updates((NAMES,)) == (NAMES,)
    assert without_dns_updates((PORT,)) == (PORT,)
    assert without_dns_updates(()) == ()
    assert without_dns_updates((Insert(Ref("DNS", "red/a:dns"), {}),)) != ()  # a referenced row is inserted with them


def test_change_waits_only_for_live_affected_hosts() -> None:
    hosts = frozenset(("h1", "h2"))
    all_of_them = (chassis("h1", 7), chassis("h2", 6), chassis("h3", 1))
    assert progress(7, 7, hosts, all_of_them).waits_for == ("h2",)
    assert progress(6, 7, hosts, all_of_them).realized
    dead = (chassis("h1", 7), chassis("h2", 1, silent_s=60.0))
    assert progress(7, 7, hosts, dead).realized
    assert progress(7, 7, hosts, dead).silent == ("h2",)
    assert progress(7, 7, frozenset(("h1", "gone")), dead).silent == ("gone",)
    assert progress(8, 7, frozenset(), ()).waits_for == ("northd",)


def test_count_of_a_replaced_database_realizes_nothing() -> None:
    assert progress(2, 3, frozenset(("h1",)), (chassis("h1", 900),)).waits_for == ("h1",)


def test_vpc_affects_hosts_of_its_ports_and_gateway_hosts_if_it_has_a_gateway() -> None:
    networks = Networks.from_objects([Vpc(name="red", cidrs=()), Port(name="red/a/p"), Port(name="red/a/q")], 1)
    objects = networks.of_vpc("red")
    assert hosts_of(objects, {"red/a/p": "h1", "blue/a/p": "h2"}, ("g1",)) == {"h1"}


@given(st.integers(1, 30))
def test_pause_doubles_with_every_failure_up_to_a_limit(times: int) -> None:
    backoff, error, now_s = VpcBackoff(), CalabashError("no"), 0.0
    for _ in range(times):
        trouble = backoff.failed("red", error, now_s)
        assert backoff.waits("red", now_s)
        now_s = trouble.next_s
        assert backoff.due(now_s) == ["red"]
    assert trouble.next_s - (now_s - min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** (times - 1))) <= BACKOFF_MAX_S
    assert trouble.tries == times
    backoff.succeeded("red")
    assert backoff.next_s() is None


def test_status_is_reported_once_and_keeps_the_time_of_its_last_transition() -> None:
    now = iter(range(1, 100))
    statuses = Statuses(lambda: float(next(now)))
    key = (NetworkKind.PORT, "red/a/p")
    statuses.set(key, ConditionKind.REALIZED, True, "realized", observed=3)
    (report,) = statuses.take_reports()
    assert (report.status.observed_generation, report.status.conditions[0].since_s) == (3, 1.0)
    statuses.set(key, ConditionKind.REALIZED, True, "realized")
    assert statuses.take_reports() == []
    statuses.set(key, ConditionKind.REALIZED, True, "realized", "without h1", observed=4)
    assert statuses.take_reports()[0].status.conditions[0].since_s == 1.0
    statuses.set(key, ConditionKind.REALIZED, False, "waiting")
    assert statuses.take_reports()[0].status.conditions[0].since_s == 2.0
    statuses.remove([key])
    assert statuses.keys() == []


def test_change_affects_its_vpc_and_joined_vpcs() -> None:
    networks = Networks()
    for name, cidr in (("red", "10.0.0.0/16"), ("blue", "10.1.0.0/16"), ("green", "10.2.0.0/16")):
        networks, _ = networks.put(Vpc(name=name, cidrs=(parse_network(cidr),)))
    networks, _ = networks.put(Peering(name="red/blue"))
    known = KnownNetworks()
    assert known.apply_update(NetworkUpdate(revision=5, whole=True, items=[(i, 1) for i in networks.items()])) >= {
        "red",
        "blue",
    }
    subnet = Subnet(name="blue/a", cidrs=(parse_network("10.1.1.0/24"),), number=1)
    assert known.apply_update(NetworkUpdate(revision=6, whole=False, items=[(subnet, 1)])) == {"red", "blue", PLATFORM}
    port = Port(name="blue/a/p", mac="0a:00:00:00:00:09")
    assert known.apply_update(NetworkUpdate(revision=7, whole=False, items=[(port, 2)])) == {"blue"}
    assert known.generations[NetworkKind.PORT, "blue/a/p"] == 2
    gone = known.apply_update(NetworkUpdate(revision=8, whole=False, removed=[(NetworkKind.PORT, "blue/a/p")]))
    assert gone == {"blue"}
    assert known.apply_update(NetworkUpdate(revision=8, whole=False)) == frozenset()
    assert known.networks.find(Port, "blue/a/p") is None
