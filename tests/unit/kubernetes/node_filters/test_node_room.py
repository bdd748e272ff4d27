"""Tests of the accounting of a node, against a plain model that sums up all pods each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.node_filters.demand import Demand, HostPort
from calabash.kubernetes.node_filters.node_room import NodeRoom
from calabash.kubernetes.node_filters.reasons import Filter, Refusal

RESOURCES = ("cpu", "memory", "example.com/widget")
ALLOCATABLE = {"cpu": 1000, "memory": 1000, "pods": 4}

ports = st.builds(
    HostPort, st.sampled_from(["0.0.0.0", "127.0.0.1", "::"]), st.sampled_from(["TCP", "UDP"]), st.integers(1, 2)
)
demands = st.builds(
    Demand,
    st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 700)).map(lambda d: tuple(sorted(d.items()))),
    st.sets(ports, max_size=2).map(tuple),
)
uids = st.sampled_from([f"u{i}" for i in range(6)])
events = st.lists(st.tuples(uids, st.none() | demands), max_size=20)  # None: the pod is removed


def room_with(pods: dict[str, Demand]) -> NodeRoom:
    room = NodeRoom()
    room.set_allocatable(ALLOCATABLE)
    for uid, demand in pods.items():
        room.add(uid, demand)
    return room


def conflict(one: HostPort, other: HostPort) -> bool:
    same = (one.protocol, one.number) == (other.protocol, other.number)
    return same and (one.address == other.address or "0.0.0.0" in (one.address, other.address))


def fits(pods: dict[str, Demand], demand: Demand) -> bool:
    """Plain model: sum up all pods."""
    if any(conflict(one, other) for one in demand.ports for pod in pods.values() for other in pod.ports):
        return False
    sums = {name: sum(dict(pod.amounts).get(name, 0) for pod in pods.values()) for name in RESOURCES}
    return len(pods) < ALLOCATABLE["pods"] and all(
        sums[name] + amount <= ALLOCATABLE.get(name, 0) for name, amount in demand.amounts
    )


@given(events, demands)
def test_accounting_is_exact_after_any_events(changes: list[tuple[str, Demand | None]], demand: Demand) -> None:
    room, pods = room_with({}), dict[str, Demand]()
    for uid, changed in changes:
        if changed is None:
            room.remove(uid)
            pods.pop(uid, None)
        else:
            room.add(uid, changed)
            pods[uid] = changed
    assert (room.refusal(demand) is None) == fits(pods, demand)
    assert len(room) == len(pods)
    for name in RESOURCES:
        assert room.used(name) == sum(dict(pod.amounts).get(name, 0) for pod in pods.values())


@given(st.dictionaries(uids, demands, max_size=4), demands, st.randoms())
def test_accounting_does_not_depend_on_the_order(pods: dict[str, Demand], demand: Demand, chance: object) -> None:
    order = list(pods)
    chance.shuffle(order)  # type: ignore[attr-defined]
    shuffled = room_with({uid: pods[uid] for uid in order})
    assert shuffled.refusal(demand) == room_with(pods).refusal(demand)
    for uid in order:
        shuffled.remove(uid)
    assert shuffled.refusal(demand) == room_with({}).refusal(demand)
    assert [shuffled.used(name) for name in RESOURCES] == [0, 0, 0]


def test_refusal_names_the_resource_with_its_amounts() -> None:
    room = room_with({"a": Demand((("cpu", 800),))})
    refused = Refusal(filter=Filter.NODE_RESOURCES_FIT, subject="cpu", requested=300, free=200)
    assert room.refusal(Demand((("cpu", 300),))) == refused
    assert room.refusal(Demand((("cpu", 200),))) is None


def test_pod_that_requests_nothing_of_a_resource_fits_although_too_much_of_it_is_used() -> None:
    room = room_with({"a": Demand((("cpu", 5000),))})
    assert room.free("cpu") == -4000
    assert room.refusal(Demand((("memory", 1),))) is None


def test_node_without_allocatable_pods_has_room_for_none() -> None:
    room = NodeRoom()
    assert room.refusal(Demand()) == Refusal(filter=Filter.NODE_RESOURCES_FIT, subject="pods", requested=1, free=0)


def test_port_that_two_pods_have_is_taken_until_both_are_removed() -> None:
    port = Demand((), (HostPort("127.0.0.1", "TCP", 1),))
    room = room_with({"a": port, "b": port})
    room.remove("a")
    assert room.refusal(port) == Refusal(filter=Filter.NODE_PORTS, subject="TCP/1")
    room.remove("b")
    assert room.refusal(port) is None


def test_node_with_an_unreadable_pod_has_no_room_until_the_pod_is_removed_or_readable() -> None:
    room = room_with({})
    room.add("a", None)
    assert room.refusal(Demand()) == Refusal(filter=Filter.UNREADABLE_POD, subject="a")
    assert len(room) == 1
    room.add("a", Demand())
    assert room.refusal(Demand()) is None
    room.add("b", None)
    room.remove("b")
    assert room.refusal(Demand()) is None
