"""Translation of objects that several VPCs share: switches of uplinks and endpoints, and global options.

Each uplink has a switch of its own, because each router on a switch increases the cost of all other routers there. The
switch filters packets without connection tracking. Between the provider network and a VPC it admits only packets from
or to an external address of the VPC. So a machine of the provider network cannot send packets to a tenant's internal
range through the tenant's router, and no packet with an untranslated source leaves. Packets from and to the platform's
own networks are dropped. The switch of a service endpoint admits only requests to the service and its replies.
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
from calabash.net.ovn.translation.cross_vpc import CONSUMER, PROVIDER, SERVICE, AcceptedEndpoint, accepted_endpoints
from calabash.net.ovn.translation.security_groups import FROM_PORT, TO_PORT, Acl, add_acl
from calabash.net.ovn.translation.topology import add_localnet_port, add_switch_port_to_router
from calabash.net.ovn.translation.view import NetworkHosts, filter_version, match_set

# The loss of a gateway host is detected after three BFD intervals (ms). The source MAC of health checks bypasses ACLs, so it is
# one that users cannot set.
OPTIONS = {"bfd-min-rx": "200", "bfd-min-tx": "200", "bfd-mult": "3", "svc_monitor_mac": "0e:ff:00:00:00:01"}
# Routers do not receive ARP requests for unknown addresses; a router announces its addresses when it moves to another host.
UPLINK_CONFIG = {"broadcast-arps-to-all-routers": "false"}
ANNOUNCE_NAT = {"nat-addresses": "router"}
OWN_DROP, OWN, CLOSED, OPEN = 1000, 1001, 2000, 2001  # ACL priorities


def platform_rows(
    networks: NetworkObjects, *, protected: tuple[Network, ...] = (), hosts: NetworkHosts | None = None
) -> Rows:
    """Return all rows of the platform.

    Args:
        networks: all networks of the pool.
        protected: ranges of the platform's own networks (tunnels, management, metadata), which no tenant may reach.
        hosts: the gateway hosts, and those of them that are held back after a loss (``NetworkHosts``). Both are
            recorded in the rows, from which the next controller reads them.
    """
    draft = Draft(PLATFORM)
    draft.add("NB_Global", SINGLE, {"options": OPTIONS, "external_ids": _host_ids(hosts or NetworkHosts())})
    for uplink in networks.all(Uplink):
        _add_uplink(draft, uplink, protected)
    for gateway in networks.all(NetworkGateway):
        found = networks.find(Uplink, gateway.uplink)
        if found is not None and gateway.address is not None:
            _add_gateway(networks, draft, gateway, found)
    for accepted in accepted_endpoints(networks):
        _add_endpoint(draft, accepted)
    return draft.rows()


def _host_ids(hosts: NetworkHosts) -> dict[str, str]:
    ids = {GATEWAYS: ",".join(hosts.gateways), RESTING: ",".join(hosts.resting)}
    return {key: names for key, names in ids.items() if names}


def _add_uplink(draft: Draft, uplink: Uplink, protected: tuple[Network, ...]) -> None:
    name = naming.uplink_switch(uplink.name)
    switch = draft.add("Logical_Switch", name, {"other_config": UPLINK_CONFIG})
    add_localnet_port(draft, name, switch, uplink.physical, uplink.vlan)
    local = naming.localnet_port(name)
    for direction, side, end in ((FROM_PORT, "inport", "src"), (TO_PORT, "outport", "dst")):
        port = f'{side} == "{local}"'
        for version in (4, 6):
            closed = filter_version(protected, version)
            if closed:
                match = f"{port} && ip{version}.{end} == {match_set(closed)}"
                add_acl(draft, switch, f"closed{version}", Acl(direction, CLOSED, match, "drop"))
        own = f"{port} && ip{uplink.cidr.version}.{end} == {uplink.cidr}"  # the uplink may lie in a protected range
        add_acl(draft, switch, "uplink", Acl(direction, OPEN, own, "allow"))


def _add_gateway(networks: NetworkObjects, draft: Draft, gateway: NetworkGateway, uplink: Uplink) -> None:
    switch = Ref("Logical_Switch", naming.uplink_switch(uplink.name))
    vpc = vpc_of(gateway.name)
    eips = (eip.address for eip in networks.of_vpc(vpc).all(Eip).values())
    own = tuple(address for address in (gateway.address, *eips) if address is not None)
    if gateway.kind is GatewayKind.OVN:
        network = naming.uplink_link(vpc)
        add_switch_port_to_router(draft, network, switch, ANNOUNCE_NAT)
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
            passing = f"{family}.{end} == {match_set(own)}"
            StatelessFilter(direction, f'{side} == "{port}"', passing, uplink.cidr.version).add(draft, switch, port)


@dataclass(frozen=True, slots=True)
class StatelessFilter:
    """Filter of IP packets at a port, without connection tracking. IPv6 neighbour discovery is always admitted.

    Args:
        direction: FROM_PORT or TO_PORT.
        at: match expression for the port.
        passing: match expression for the admitted packets; other IP packets are dropped.
        version: IP version of the addresses in ``passing``.
    """

    direction: str
    at: str
    passing: str
    version: int

    def add(self, draft: Draft, switch: Ref, key: str) -> None:
        """Add the ACLs of the filter to the switch; ``key`` is unique on the switch."""
        drop = Acl(self.direction, OWN_DROP, f"{self.at} && ip", "drop")
        add_acl(draft, switch, f"{key}:drop", drop)
        add_acl(draft, switch, f"{key}:own", Acl(self.direction, OWN, f"{self.at} && {self.passing}", "allow"))
        if self.version == 6:
            discovery = f"{self.at} && (nd || nd_rs || nd_ra)"
            add_acl(draft, switch, f"{key}:nd", Acl(self.direction, OWN, discovery, "allow"))


def _add_endpoint(draft: Draft, accepted: AcceptedEndpoint) -> None:
    number, version = accepted.endpoint.number, accepted.balancer.vip.version
    switch = draft.add("Logical_Switch", naming.endpoint_switch(number), {})
    client, service = accepted.address(CONSUMER), accepted.address(SERVICE)
    protocol, socket = accepted.balancer.protocol.value, accepted.balancer.vip_number
    request = f"ip{version}.src == {client} && ip{version}.dst == {service} && {protocol}.dst == {socket}"
    reply = f"ip{version}.src == {service} && ip{version}.dst == {client} && {protocol}.src == {socket}"
    for side, vpc, sends, receives in (
        (CONSUMER, accepted.consumer, request, reply),
        (PROVIDER, accepted.provider, reply, request),
    ):
        network = naming.endpoint_link(vpc, number)
        add_switch_port_to_router(draft, network, switch)
        port = naming.switch_port(network)
        for direction, match, passing in (
            (FROM_PORT, f'inport == "{port}"', sends),
            (TO_PORT, f'outport == "{port}"', receives),
        ):
            StatelessFilter(direction, match, passing, version).add(draft, switch, str(side))
