"""Store of networks: allocation, refused changes, deletion, and changes between stores."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, NetworkObject, Port, SecurityGroup, Subnet, Vpc
from calabash.net.store.networks import Networks


def build_networks(*items: NetworkObject) -> Networks:
    networks = Networks()
    for item in items:
        networks, _ = networks.put(item)
    return networks


def vpc(name: str, *cidrs: str, tenant: str = "") -> Vpc:
    return Vpc(name=name, cidrs=tuple(map(ip_network, cidrs or ("10.0.0.0/16",))), tenant=tenant)


def subnet(name: str, *cidrs: str, gateways: tuple[str, ...] = ()) -> Subnet:
    ranges = tuple(map(ip_network, cidrs or ("10.0.1.0/24",)))
    return Subnet(name=name, cidrs=ranges, gateways=tuple(map(ip_address, gateways)))


def port(name: str, *addresses: str, mac: str = "") -> Port:
    return Port(name=name, addresses=tuple(map(ip_address, addresses)), mac=mac)


RED = build_networks(
    vpc("red", "10.0.0.0/16", "fd00::/56"), subnet("red/a"), subnet("red/b", "10.0.2.0/29", "fd00::/64")
)


def refused(networks: Networks, item: NetworkObject) -> CalabashError:
    before = networks.revision, tuple(networks.items())
    with pytest.raises(CalabashError) as caught:
        networks.put(item)
    assert (networks.revision, tuple(networks.items())) == before
    return caught.value


def test_empty_fields_are_allocated_and_kept_on_updates() -> None:
    networks, one = RED.put(port("red/b/one"))
    assert one == Port(
        name="red/b/one",
        addresses=(ip_address("10.0.2.2"), ip_address("fd00::2")),
        mac="0a:00:01:00:00:01",
        security_groups=("red/default",),
    )
    networks, _ = networks.put(port("red/b/two"))
    again, same = networks.put(port("red/b/one"))
    assert again is networks
    assert same == one


def test_two_vpcs_may_have_equal_ranges_and_differ_in_numbers_and_macs() -> None:
    networks = build_networks(vpc("red"), vpc("blue"), subnet("red/a"), subnet("blue/a"))
    networks, red = networks.put(port("red/a/one"))
    networks, blue = networks.put(port("blue/a/one"))
    assert isinstance(red, Port)
    assert isinstance(blue, Port)
    assert red.addresses == blue.addresses
    assert red.mac != blue.mac


@pytest.mark.parametrize(
    ("item", "reason", "words"),
    [
        (vpc("red", "10.1.0.0/16"), Reason.CONFLICT, "must keep 10.0.1.0/24"),
        (vpc("x-red"), Reason.NOT_PERMITTED, "are reserved"),
        (vpc("green", "10.0.0.0/16", "10.0.128.0/24"), Reason.BAD_REQUEST, "overlap"),
        (vpc("green", "169.254.8.0/24"), Reason.BAD_REQUEST, "which is reserved"),
        (vpc("green", "fe80::/64"), Reason.BAD_REQUEST, "which is reserved"),
        (vpc("green", "10.0.0.0/31"), Reason.BAD_REQUEST, "between /8 and /30"),
        (Vpc(name="green", cidrs=()), Reason.BAD_REQUEST, "needs a range"),
        (Vpc(name="green", cidrs=(ip_network("fd00::/56"),), mtu_bytes=1000), Reason.BAD_REQUEST, "MTU"),
        (Vpc(name="green", cidrs=(ip_network("10.0.0.0/8"),), number=1), Reason.CONFLICT, "number 1 is taken"),
        (vpc("red", "10.0.0.0/16", "fd00::/56", tenant="eve"), Reason.CONFLICT, "tenant cannot change"),
        (subnet("green/a"), Reason.NOT_FOUND, "VPC green does not exist"),
        (subnet("red/c", "10.0.1.128/25"), Reason.CONFLICT, "10.0.1.128/25 overlaps 10.0.1.0/24 of subnet red/a"),
        (subnet("red/c", "10.1.0.0/24"), Reason.BAD_REQUEST, "not within"),
        (subnet("red/c", "10.0.3.0/24", "10.0.4.0/24"), Reason.BAD_REQUEST, "twice"),
        (subnet("red/c", "10.0.3.0/24", gateways=("10.0.4.1",)), Reason.BAD_REQUEST, "10.0.4.1"),
        (subnet("red/c", "10.0.3.0/24", gateways=("10.0.3.255",)), Reason.BAD_REQUEST, "broadcast"),
        (subnet("red/a", "10.0.3.0/24"), Reason.CONFLICT, "cannot change"),
        (subnet("red/a/b"), Reason.BAD_REQUEST, "3 parts, not 2"),
        (port("red/a/one", "10.0.2.3"), Reason.BAD_REQUEST, "not in 10.0.1.0/24"),
        (port("red/a/one", "10.0.1.1"), Reason.CONFLICT, "the router of subnet red/a"),
        (port("red/a/one", "10.0.1.0"), Reason.BAD_REQUEST, "network address"),
        (port("red/a/one", "10.0.1.255"), Reason.BAD_REQUEST, "broadcast"),
        (port("red/a/one", "10.0.1.7", "10.0.1.8"), Reason.BAD_REQUEST, "one address of each range"),
        (port("red/a/one", mac="01:00:00:00:00:01"), Reason.BAD_REQUEST, "not a unicast MAC address"),
        (port("red/a/one", mac="0e:00:00:00:00:01"), Reason.BAD_REQUEST, "reserved for routers"),
        (port("red/z/one"), Reason.NOT_FOUND, "no subnet 'red/z'"),
        (port("red/a/x-one"), Reason.NOT_PERMITTED, "are reserved"),
        (Port(name="red/a/one", security_groups=("blue/default",)), Reason.NOT_FOUND, "blue/default"),
        (Port(name="red/a/one", qos="red/fast"), Reason.NOT_FOUND, "red/fast"),
        (Port(name="red/a/one", virtual_parents=("red/a/two",)), Reason.NOT_FOUND, "red/a/two"),
    ],
)
def test_invalid_object_is_refused_with_a_reason_and_changes_nothing(
    item: NetworkObject, reason: Reason, words: str
) -> None:
    error = refused(RED, item)
    assert error.reason is reason
    assert words in error.message
    assert "\n" not in error.message


def test_exhausted_range_is_reported() -> None:
    networks = RED
    for number in range(5):
        networks, _ = networks.put(port(f"red/b/p{number}"))
    error = refused(networks, port("red/b/more"))
    assert error.reason is Reason.NO_CAPACITY
    assert "all 6 addresses of 10.0.2.0/29" in error.message


def test_address_or_mac_in_use_is_refused_for_another_port() -> None:
    networks, one = RED.put(port("red/a/one", "10.0.1.9", mac="0A:11:22:33:44:55"))
    assert isinstance(one, Port)
    assert one.mac == "0a:11:22:33:44:55"
    assert "taken by port red/a/one" in refused(networks, port("red/a/two", "10.0.1.9")).message
    assert "taken by port red/a/one" in refused(networks, port("red/b/two", mac=one.mac)).message
    assert refused(networks, port("red/a/one", "10.0.1.10")).reason is Reason.CONFLICT


def test_object_in_use_cannot_be_deleted_and_its_dependents_are_named() -> None:
    networks, _ = RED.put(SecurityGroup(name="red/web"))
    networks, _ = networks.put(Port(name="red/a/one", security_groups=("red/web",)))
    for kind, name, by in (
        (NetworkKind.VPC, "red", "subnet red/a"),
        (NetworkKind.SUBNET, "red/a", "port red/a/one"),
        (NetworkKind.SECURITY_GROUP, "red/web", "port red/a/one"),
        (NetworkKind.SECURITY_GROUP, "red/default", "is deleted only with its VPC"),
    ):
        with pytest.raises(CalabashError, match=by) as caught:
            networks.remove(kind, name)
        assert caught.value.reason is Reason.CONFLICT
    assert not list(networks.remove(NetworkKind.VPC, "red", cascade=True).items())
    with pytest.raises(CalabashError, match="port red/a/two does not exist"):
        networks.remove(NetworkKind.PORT, "red/a/two")


def test_store_rebuilt_from_its_objects_is_equal() -> None:
    networks, _ = RED.put(port("red/a/one"))
    assert Networks.from_objects(networks.items(), networks.revision) == networks


def test_changes_since_an_earlier_store_are_reported() -> None:
    networks, one = RED.put(port("red/a/one"))
    networks = networks.remove(NetworkKind.SUBNET, "red/b")
    put, gone = networks.changes_since(RED)
    assert put == (one,)
    assert [item.name for item in gone] == ["red/b"]
    assert networks.changes_since(networks) == ((), ())
