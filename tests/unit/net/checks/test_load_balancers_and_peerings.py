"""Checks of load balancers, endpoints and peerings, and what their messages disclose about other tenants."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from msgspec.structs import replace
from tests.unit.net.checks.test_gateways_and_routes import dnat, fip, line, uplink
from tests.unit.net.store.test_networks import build_networks, port, refused, subnet, vpc

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import Eip, NetworkGateway, NetworkKind, NetworkObject, Peering, Port, SecurityGroup
from calabash.model.network_services import (
    Backend,
    CheckKind,
    HealthCheck,
    Layer,
    LoadBalancer,
    ServiceEndpoint,
    TransportProtocol,
)
from calabash.net.objects.acceptance import endpoint_accepted, peering_accepted, peering_ranges
from calabash.net.store.networks import Networks


def balancer(
    name: str = "red/web", vip: str = "10.0.1.100", number: int = 80, *, offered: tuple[str, ...] = ()
) -> LoadBalancer:
    return LoadBalancer(
        name=name,
        vip=ip_address(vip),
        vip_number=number,
        backends=(Backend(port=f"{name.split('/', maxsplit=1)[0]}/a/one", number=8080),),
        offered_to=offered,
    )


def pair(name: str = "red/web", vip: str = "10.0.1.100") -> LoadBalancer:
    return replace(balancer(name, vip), layer=Layer.L7)


def checked(kind: CheckKind, path: str = "", interval_s: float = 1.0) -> LoadBalancer:
    return replace(balancer(), check=HealthCheck(kind=kind, path=path, interval_s=interval_s))


RED = build_networks(
    uplink("up1", 100),
    vpc("red", tenant="rot"),
    subnet("red/a"),
    port("red/a/one"),
    NetworkGateway(name="red/out"),
    Eip(name="red/e"),
    vpc("blue", tenant="blau"),
    subnet("blue/a"),
    port("blue/a/one"),
    vpc("green", "10.2.0.0/16", tenant="rot"),
    subnet("green/a", "10.2.1.0/24"),
)


@pytest.mark.parametrize(
    ("item", "reason", "words"),
    [
        (balancer(vip="10.0.9.9"), Reason.NOT_FOUND, "neither in a subnet of the VPC"),
        (balancer(vip="10.0.1.1"), Reason.CONFLICT, "the router of subnet red/a"),
        (balancer(vip="10.0.1.2"), Reason.CONFLICT, "taken by port red/a/one"),
        (balancer(vip="10.0.1.255"), Reason.BAD_REQUEST, "broadcast"),
        (balancer(number=0), Reason.BAD_REQUEST, "not between 1 and 65535"),
        (replace(balancer(), backends=()), Reason.BAD_REQUEST, "no backend"),
        (replace(balancer(), backends=(Backend(port="red/a/two", number=1),)), Reason.NOT_FOUND, "red/a/two"),
        (replace(balancer(), backends=(Backend(port="blue/a/one", number=1),)), Reason.NOT_FOUND, "blue/a/one"),
        (replace(balancer(), backends=(Backend(port="red/a/one", number=1),) * 2), Reason.BAD_REQUEST, "twice"),
        (replace(balancer(), protocol=TransportProtocol.ICMP), Reason.BAD_REQUEST, "balances tcp or udp"),
        (replace(balancer(), certificate="own"), Reason.BAD_REQUEST, "not the name of a secret"),
        (replace(pair(), certificate="../own"), Reason.BAD_REQUEST, "not the name of a secret"),
        (replace(pair(), protocol=TransportProtocol.UDP), Reason.BAD_REQUEST, "l7 only tcp"),
        (replace(pair("red/" + "w" * 31), vip_number=1), Reason.BAD_REQUEST, "longer than 30 characters"),
        (pair(vip="198.51.100.3"), Reason.BAD_REQUEST, "l7 needs an address in a subnet"),
        (checked(CheckKind.HTTP, "/healthz"), Reason.BAD_REQUEST, "l4 does not support http checks"),
        (replace(checked(CheckKind.HTTP, "/a b"), layer=Layer.L7), Reason.BAD_REQUEST, "not a valid path"),
        (replace(checked(CheckKind.HTTP, "/a\nb"), layer=Layer.L7), Reason.BAD_REQUEST, "not a valid path"),
        (checked(CheckKind.TCP, "/healthz"), Reason.BAD_REQUEST, "only an http check has a path"),
        (checked(CheckKind.TCP, interval_s=0.5), Reason.BAD_REQUEST, "not between 1.0 s"),
        (checked(CheckKind.TCP, interval_s=float("nan")), Reason.BAD_REQUEST, "not between 1.0 s"),
        (replace(balancer(), offered_to=("",)), Reason.BAD_REQUEST, "has an invalid name"),
        (replace(balancer(), ports=("red/a/own",)), Reason.CONFLICT, "its ports are none"),
        (Peering(name="red/red"), Reason.BAD_REQUEST, "cannot be a peer of itself"),
        (Peering(name="red/nobody"), Reason.NOT_FOUND, "VPC nobody does not exist"),
        (Peering(name="red/green", routes=(ip_network("10.3.0.0/24"),)), Reason.BAD_REQUEST, "not within 10.2.0.0/16"),
        (Peering(name="red/blue", routes=(ip_network("10.0.0.0/24"),)), Reason.CONFLICT, "of its own VPC"),
        (ServiceEndpoint(name="red/s", source="red/web"), Reason.BAD_REQUEST, "in the same VPC"),
        (ServiceEndpoint(name="red/s", source="blue/web"), Reason.NOT_FOUND, "no load balancer blue/web is offered"),
        (ServiceEndpoint(name="red/s", source="bl ue/web"), Reason.BAD_REQUEST, "is not a valid name"),
    ],
)
def test_invalid_object_is_refused_with_a_reason_and_changes_nothing(
    item: NetworkObject, reason: Reason, words: str
) -> None:
    error = refused(RED, item)
    assert words in error.message
    assert error.reason is reason
    assert "\n" not in error.message


def test_balancers_may_share_an_address_but_not_a_port_number() -> None:
    networks, _ = RED.put(balancer())
    assert "taken by load balancer red/web" in refused(networks, balancer("red/web2")).message
    networks, _ = networks.put(balancer("red/tls", number=443))
    assert "taken by load balancer red/web" in refused(networks, port("red/a/two", "10.0.1.100")).message
    assert refused(networks, pair("red/seven")).reason is Reason.CONFLICT
    assert refused(networks, balancer(vip="10.0.1.101")).reason is Reason.CONFLICT


def test_external_address_is_shared_by_port_number_but_a_floating_one_is_exclusive() -> None:
    networks, _ = RED.put(balancer(vip="198.51.100.3"))
    assert "in use by load balancer red/web" in refused(networks, dnat("red/n")).message
    assert "in use by load balancer red/web" in refused(networks, fip("red/n")).message
    networks, _ = networks.put(dnat("red/n", outside=443))
    assert "in use by NAT rule red/n" in refused(networks, balancer("red/tls", "198.51.100.3", 443)).message
    with pytest.raises(CalabashError, match="used by NAT rule red/n, load balancer red/web"):
        networks.remove(NetworkKind.EIP, "red/e")


def test_l7_balancer_has_two_replica_ports_and_a_virtual_port() -> None:
    networks, item = RED.put(pair(vip="10.0.1.3"))
    assert isinstance(item, LoadBalancer)
    assert item.ports == ("red/a/x-lb-web-1", "red/a/x-lb-web-2", "red/a/x-lb-web-vip")
    virtual = networks.find(Port, item.ports[2])
    assert virtual is not None
    assert virtual.addresses == (item.vip,)
    assert virtual.virtual_parents == item.ports[:2]
    assert networks.put(pair(vip="10.0.1.3")) == (networks, item)
    assert networks.put(item)[0] is networks
    assert (
        "reserved for ports of the platform"
        in refused(networks, Port(name="red/a/two", security_groups=("red/x-lb-web",))).message
    )
    ports = networks.of_vpc("red").all(Port)
    assert [str(ports[name].addresses[0]) for name in item.ports] == ["10.0.1.4", "10.0.1.5", "10.0.1.3"]
    networks, _ = networks.put(dnat("red/n", to=item.ports[2]))
    with pytest.raises(CalabashError, match="load balancer red/web is used by NAT rule red/n"):
        networks.remove(NetworkKind.LOAD_BALANCER, "red/web")
    networks = networks.remove(NetworkKind.NAT_RULE, "red/n").remove(NetworkKind.LOAD_BALANCER, "red/web")
    assert [entry.name for entry in networks.of_vpc("red").all(SecurityGroup).values()] == ["red/default"]
    assert list(networks.of_vpc("red").all(Port)) == ["red/a/one"]


def test_l7_balancer_without_free_addresses_changes_nothing() -> None:
    networks = build_networks(
        vpc("red"), subnet("red/a", "10.0.1.0/29"), *(port(f"red/a/{name}") for name in ("one", "b", "c"))
    )
    error = refused(networks, pair(vip="10.0.1.6"))
    assert error.reason is Reason.NO_CAPACITY


def offered_networks(*tenants: str) -> Networks:
    return RED.put(balancer("blue/web", offered=tenants))[0]


def test_endpoint_needs_an_offered_balancer_and_ignores_ranges() -> None:
    assert (
        "is offered to the tenant of the VPC"
        in refused(offered_networks("gelb"), ServiceEndpoint(name="red/s", source="blue/web")).message
    )
    for tenants in (("rot",), ("*",)):
        networks, item = offered_networks(*tenants).put(ServiceEndpoint(name="red/s", source="blue/web"))
        assert item == ServiceEndpoint(
            name="red/s", source="blue/web", vip=ip_address("10.0.1.3"), subnet="red/a", number=1
        )
        assert "taken by endpoint red/s" in refused(networks, port("red/a/two", "10.0.1.3")).message
    unoffered, _ = RED.put(balancer())
    assert unoffered.put(ServiceEndpoint(name="green/s", source="red/web"))[0] is not unoffered  # of the same tenant


def test_balancer_with_endpoints_can_be_deleted_after_its_offer_is_withdrawn() -> None:
    networks, endpoint = offered_networks("rot").put(ServiceEndpoint(name="red/s", source="blue/web"))
    assert isinstance(endpoint, ServiceEndpoint)
    assert endpoint_accepted(networks, endpoint)
    for kind, name in ((NetworkKind.LOAD_BALANCER, "blue/web"), (NetworkKind.VPC, "blue")):
        with pytest.raises(CalabashError, match="used by endpoint red/s"):
            networks.remove(kind, name, cascade=kind is NetworkKind.VPC)
    networks, _ = networks.put(balancer("blue/web"))
    assert not endpoint_accepted(networks, endpoint)
    for kind, name in ((NetworkKind.LOAD_BALANCER, "blue/web"), (NetworkKind.VPC, "blue")):
        after = networks.remove(kind, name, cascade=kind is NetworkKind.VPC)
        assert after.find(ServiceEndpoint, "red/s") is None


def test_peering_is_accepted_when_both_vpcs_request_it_and_shares_one_number() -> None:
    networks, mine = RED.put(Peering(name="red/green", routes=(ip_network("10.2.1.0/24"),)))
    assert isinstance(mine, Peering)
    assert not peering_accepted(networks, mine)
    networks, theirs = networks.put(Peering(name="green/red"))
    assert isinstance(theirs, Peering)
    assert theirs.number == mine.number == 1
    assert peering_accepted(networks, mine)
    assert peering_accepted(networks, theirs)
    assert refused(networks, vpc("green", "10.0.0.0/8", tenant="rot")).reason is Reason.CONFLICT
    green = networks.find(type(vpc("green")), "green")
    assert green is not None
    assert peering_ranges(mine, green) == mine.routes


def test_overlap_with_a_peer_is_checked_only_after_it_has_accepted() -> None:
    networks, _ = RED.put(Peering(name="red/blue"))  # the same ranges, of another tenant: no word
    error = refused(networks, Peering(name="blue/red"))
    assert "10.0.0.0/16 of VPC blue overlaps 10.0.0.0/16 of VPC red" in error.message
    assert "net endpoint create blue/NAME --balancer red/LB" in error.hint


def test_peering_request_is_deleted_with_the_requested_vpc() -> None:
    networks, _ = RED.put(Peering(name="blue/green"))
    networks = networks.remove(NetworkKind.VPC, "green", cascade=True)
    networks, _ = networks.put(vpc("green", "10.2.0.0/16", tenant="eve"))
    networks, asked = networks.put(Peering(name="green/blue"))
    assert isinstance(asked, Peering)
    assert not peering_accepted(networks, asked)


def test_destinations_of_a_vpc_cannot_overlap() -> None:
    networks, _ = RED.put(vpc("more", "10.2.0.0/17", tenant="rot"))
    networks, _ = networks.put(Peering(name="red/green"))
    networks, _ = networks.put(Peering(name="green/red"))
    networks, _ = networks.put(Peering(name="red/more"))
    assert "10.2.0.0/17 overlaps another destination of VPC red" in refused(networks, Peering(name="more/red")).message
    assert "peer green" in refused(networks, line("red/dc", 7, cidr="10.2.3.0/30")).message


def test_overlap_message_does_not_name_other_destinations_of_a_peer() -> None:
    networks, _ = RED.put(Peering(name="red/green"))
    networks, _ = networks.put(Peering(name="green/red"))
    networks, _ = networks.put(line("green/dc", 7, cidr="10.8.3.0/30"))
    error = refused(networks, vpc("red", "10.0.0.0/16", "10.8.0.0/16", tenant="rot"))
    assert error.message == "VPC red: 10.8.0.0/16 overlaps another destination of VPC green"


def test_source_address_of_health_checks_cannot_be_taken() -> None:
    assert "taken by" in refused(RED, port("red/a/two", "10.0.1.254")).message
    networks, _ = RED.put(subnet("red/b", "10.0.2.0/24", gateways=("10.0.2.254",)))
    assert refused(networks, port("red/b/two", "10.0.2.253")).reason is Reason.CONFLICT
    assert networks.put(port("red/b/two", "10.0.2.252"))[0] is not networks
