"""Rows that several VPCs share: switches of uplinks and of endpoints, and options of the whole.

An uplink is a switch of its own, as each router on a switch costs all others there. What is let pass is said at the switch,
without connections: between the provider's network and a VPC only what has one of the VPC's outside addresses, so that
nobody who routes a tenant's range to its router comes in, and nothing leaves untranslated; and nothing at all that is from
or for the platform's own networks. At the switch of an endpoint only the service passes, and its answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.addresses import Network
from calabash.model.network import Eip, GatewayKind, NetworkGateway, Uplink, Vpc, vpc_of
from calabash.net.appliances.naming import RANKS, outside_mac, outside_port
from calabash.net.objects.collection import NetworkObjects
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import GATEWAYS, PLATFORM, RESTING, Ref, Rows
from calabash.net.ovn.northbound.tables import SINGLE
from calabash.net.ovn.translation.cross_vpc import CONSUMER, PROVIDER, SERVICE, Crossing, crossings
from calabash.net.ovn.translation.security_groups import FROM_PORT, TO_PORT, AccessEntry, add_acl
from calabash.net.ovn.translation.topology import add_localnet_port, add_switch_port_to_router
from calabash.net.ovn.translation.view import NetworkHosts, of_version, one_of

# The loss of a gateway host is seen within three of these, in ms. Health checks come from a MAC that no user may have, as
# what has it passes access lists.
OPTIONS = {"bfd-min-rx": "200", "bfd-min-tx": "200", "bfd-mult": "3", "svc_monitor_mac": "0e:ff:00:00:00:01"}
# Of addresses that nobody has, a router need not hear; and who owns one says so when it moves to another host.
UPLINK_CONFIG = {"broadcast-arps-to-all-routers": "false"}
ANNOUNCED = {"nat-addresses": "router"}
OWN_DROP, OWN, CLOSED, OPEN = 1000, 1001, 2000, 2001  # priorities


def desired_platform(
    networks: NetworkObjects, *, protected: tuple[Network, ...] = (), hosts: NetworkHosts | None = None
) -> Rows:
    """All rows of the platform. Which gateway hosts there are, and which rest, stands there for the next controller.

    Args:
        protected: ranges of the platform's own networks (of tunnels, of management, of metadata).
    """
    draft = Draft(PLATFORM)
    draft.add("NB_Global", SINGLE, {"options": OPTIONS, "external_ids": _told(hosts or NetworkHosts())})
    for uplink in networks.all(Uplink):
        _add_uplink(draft, uplink, protected)
    for gateway in networks.all(NetworkGateway):
        found = networks.find(Uplink, gateway.uplink)
        if found is not None and gateway.address is not None:
            _add_gateway(networks, draft, gateway, found)
    for crossing in crossings(networks):
        _add_endpoint(draft, crossing)
    return draft.rows()


def _told(hosts: NetworkHosts) -> dict[str, str]:
    told = {GATEWAYS: ",".join(hosts.gateways), RESTING: ",".join(hosts.resting)}
    return {key: names for key, names in told.items() if names}


def _add_uplink(draft: Draft, uplink: Uplink, protected: tuple[Network, ...]) -> None:
    name = naming.uplink_switch(uplink.name)
    switch = draft.add("Logical_Switch", name, {"other_config": UPLINK_CONFIG})
    add_localnet_port(draft, name, switch, uplink.physical, uplink.vlan)
    local = naming.localnet_port(name)
    for direction, side, end in ((FROM_PORT, "inport", "src"), (TO_PORT, "outport", "dst")):
        port = f'{side} == "{local}"'
        for version in (4, 6):
            closed = of_version(protected, version)
            if closed:
                match = f"{port} && ip{version}.{end} == {one_of(closed)}"
                add_acl(draft, switch, f"closed{version}", AccessEntry(direction, CLOSED, match, "drop"))
        own = f"{port} && ip{uplink.cidr.version}.{end} == {uplink.cidr}"  # where it lies in a range that is closed
        add_acl(draft, switch, "uplink", AccessEntry(direction, OPEN, own, "allow"))


def _add_gateway(networks: NetworkObjects, draft: Draft, gateway: NetworkGateway, uplink: Uplink) -> None:
    switch = Ref("Logical_Switch", naming.uplink_switch(uplink.name))
    vpc = vpc_of(gateway.name)
    eips = (eip.address for eip in networks.of_vpc(vpc).all(Eip).values())
    own = tuple(address for address in (gateway.address, *eips) if address is not None)
    if gateway.kind is GatewayKind.OVN:
        network = naming.uplink_of(vpc)
        add_switch_port_to_router(draft, network, switch, ANNOUNCED)
        ports: tuple[str, ...] = (naming.switch_port(network),)
    else:
        number = next(iter(networks.of_vpc(vpc).all(Vpc).values())).number
        ports = tuple(outside_port(gateway.name, rank) for rank in RANKS)
        for rank, port in zip(RANKS, ports, strict=True):
            mac = outside_mac(number, rank)
            security = " ".join((mac, *map(str, sorted(own, key=int))))
            draft.add(
                "Logical_Switch_Port",
                port,
                {"addresses": frozenset((mac,)), "port_security": frozenset((security,))},
                under=(switch, "ports"),
            )
    family = f"ip{uplink.cidr.version}"
    for port in ports:
        for direction, side, end in ((FROM_PORT, "inport", "src"), (TO_PORT, "outport", "dst")):
            passing = f"{family}.{end} == {one_of(own)}"
            Passage(direction, f'{side} == "{port}"', passing, uplink.cidr.version).add(draft, switch, port)


@dataclass(frozen=True, slots=True)
class Passage:
    """Of IP only what is ``passing`` (with ``at``), at a port (``at``); and discovery where IPv6 has neighbours there."""

    direction: str
    at: str
    passing: str
    version: int

    def add(self, draft: Draft, switch: Ref, key: str) -> None:
        drop = AccessEntry(self.direction, OWN_DROP, f"{self.at} && ip", "drop")
        add_acl(draft, switch, f"{key}:drop", drop)
        add_acl(draft, switch, f"{key}:own", AccessEntry(self.direction, OWN, f"{self.at} && {self.passing}", "allow"))
        if self.version == 6:
            discovery = f"{self.at} && (nd || nd_rs || nd_ra)"
            add_acl(draft, switch, f"{key}:nd", AccessEntry(self.direction, OWN, discovery, "allow"))


def _add_endpoint(draft: Draft, crossing: Crossing) -> None:
    number, version = crossing.endpoint.number, crossing.balancer.vip.version
    switch = draft.add("Logical_Switch", naming.endpoint_switch(number), {})
    client, service = crossing.address(CONSUMER), crossing.address(SERVICE)
    protocol, socket = crossing.balancer.protocol.value, crossing.balancer.vip_number
    asking = f"ip{version}.src == {client} && ip{version}.dst == {service} && {protocol}.dst == {socket}"
    answering = f"ip{version}.src == {service} && ip{version}.dst == {client} && {protocol}.src == {socket}"
    for side, vpc, sends, gets in (
        (CONSUMER, crossing.consumer, asking, answering),
        (PROVIDER, crossing.provider, answering, asking),
    ):
        network = naming.endpoint_of(vpc, number)
        add_switch_port_to_router(draft, network, switch)
        port = naming.switch_port(network)
        for direction, match, passing in (
            (FROM_PORT, f'inport == "{port}"', sends),
            (TO_PORT, f'outport == "{port}"', gets),
        ):
            Passage(direction, match, passing, version).add(draft, switch, str(side))
