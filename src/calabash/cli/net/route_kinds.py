"""Table of the kinds of network objects, and the definitions of gateways, routes, outside addresses and lines."""

from __future__ import annotations

import click

from calabash.cli.net import kinds as net_kinds
from calabash.cli.net.kinds import HOSTS, PHYSICAL, VLAN, Given, NetKind, NetOption, Spec, listed, plain
from calabash.cli.net.parsing import Ports, in_vpc, number, port_named, rate_text
from calabash.cli.output import Column, dash
from calabash.model.errors import CalabashError
from calabash.model.network import vpc_of


def _gateway(name: str, spec: Spec, given: Given, _ports: Ports) -> Spec:
    if given.get("nfv"):
        spec["kind"] = "nfv"
    address = given.get("address")
    if address is not None:
        if not (address[:1].isdigit() or ":" in address):
            raise CalabashError(
                f"gateway {name}: --address {address[:80]!r} is not an address",
                hint="omit --address, and a free outside address is chosen for the gateway",
            )
        spec["address"] = address
    return spec


def _inside(vpc: str, text: str, ports: Ports) -> str:
    return port_named(vpc, text, "--target", ports)


def _dnat(name: str, spec: Spec, given: Given, ports: Ports) -> Spec:
    port, _, digits = given["forward_to"].rpartition(":")
    spec["port"] = port_named(vpc_of(name), port or digits, "--forward-to", ports)
    spec["inside_number"] = number(digits, "--forward-to") if port else spec["outside_number"]
    return {"protocol": "tcp", **spec}


def _route(_: str, spec: Spec, given: Given, _ports: Ports) -> Spec:
    if given.get("drop"):
        spec["next_hop"] = None
    elif given.get("via") is None and "next_hop" not in spec:
        raise CalabashError("a route needs a target: --via ADDRESS or --drop", hint="add one of the two options")
    return spec


def _eip(vpc: str, text: str, _: Ports) -> str:
    return in_vpc(vpc, text, "--eip")


def _listed_subnet(vpc: str, text: str, _: Ports) -> str:
    return in_vpc(vpc, text, "--subnet")


ROUTES = NetOption(
    flag="--routes", field="routes", several=True, metavar="RANGES", text="Address ranges of the other side to reach."
)
_EIP = NetOption(
    flag="--eip",
    field="eip",
    needed=True,
    metavar="NAME",
    read=_eip,
    text="Outside address: an EIP of the VPC, or its gateway.",
)

GATEWAY = NetKind(
    word="gateway",
    kind="gateway",
    noun="a gateway",
    path="VPC/GATEWAY",
    help="Create, change and list gateways from VPCs to outside networks.",
    options=(
        NetOption(
            flag="--snat/--no-snat",
            field="snat",
            text="Translate source addresses of outgoing packets to the gateway's.",
        ),
        NetOption(flag="--address", field="", metavar="ADDRESS", text="Address. Default: a free one.", fixed=True),
        NetOption(flag="--nfv/--no-nfv", field="", text="Use two replicas with nftables instead of OVN.", fixed=True),
        NetOption(
            flag="--uplink",
            field="uplink",
            metavar="NAME",
            text="Uplink. Default: the one with fewest VPCs.",
            fixed=True,
        ),
    ),
    columns=(
        plain("KIND", "kind"),
        plain("ADDRESS", "address"),
        plain("SNAT", "snat"),
        plain("UPLINK", "uplink", wide=True),
    ),
    spec=_gateway,
)
EIP = NetKind(
    word="eip",
    kind="eip",
    noun="an outside address",
    path="VPC/EIP",
    help="Create, change and list outside addresses of a VPC.",
    options=(
        NetOption(
            flag="--address", field="address", metavar="ADDRESS", text="Address. Default: a free one.", fixed=True
        ),
    ),
    columns=(plain("ADDRESS", "address"),),
)
NAT = NetKind(
    word="nat",
    kind="nat",
    noun="a NAT rule",
    path="VPC/RULE",
    help="Forward outside ports to inside ports.",
    columns=(
        plain("KIND", "kind"),
        plain("EIP", "eip"),
        Column(title="OUTSIDE", text=lambda r: dash(r["spec"]["outside_number"] or None), right=True),
        plain("PORT", "port"),
        Column(title="INSIDE", text=lambda r: dash(r["spec"]["inside_number"] or None), right=True),
        plain("PROTOCOL", "protocol"),
    ),
    create=False,
)
DNAT = NetKind(
    word="dnat",
    kind="nat",
    noun="a forwarded port",
    path="VPC/RULE",
    help="Forward an outside port to one inside.",
    options=(
        _EIP,
        NetOption(
            flag="--outside",
            field="outside_number",
            type=click.IntRange(1, 65535),
            needed=True,
            text="Port number of the outside address.",
        ),
        NetOption(
            flag="--forward-to",
            field="",
            needed=True,
            metavar="PORT:NUMBER",
            text="Port and port number that get the packets, such as web1:8443.",
        ),
        NetOption(
            flag="--protocol", field="protocol", type=click.Choice(["tcp", "udp"]), text="Protocol. Default: tcp."
        ),
    ),
    spec=_dnat,
    only={"kind": "dnat"},
)
FIP = NetKind(
    word="fip",
    kind="nat",
    noun="a floating address",
    path="VPC/FIP",
    help="Map outside addresses to ports, in both directions.",
    options=(
        _EIP,
        NetOption(
            flag="--target", field="port", needed=True, metavar="PORT", read=_inside, text="Port that gets the address."
        ),
        NetOption(flag="--distributed/--no-distributed", field="distributed", text="Translate on the port's own host."),
    ),
    columns=(plain("EIP", "eip"), plain("PORT", "port"), plain("DISTRIBUTED", "distributed")),
    only={"kind": "fip"},
)
PEER = NetKind(
    word="peer",
    kind="peer",
    noun="a peering",
    path="VPC/OTHER",
    help="Create and list peerings, routes between two VPCs that both sides request.",
    options=(ROUTES,),
    columns=(listed("ROUTES", "routes"),),
)
LINE = NetKind(
    word="line",
    kind="line",
    noun="a dedicated line",
    path="VPC/LINE",
    help="Create, change and list dedicated lines, provider VLANs of one VPC (administrators).",
    options=(
        NetOption(flag="--vlan", field="vlan", type=VLAN, needed=True, text="VLAN tag.", fixed=True),
        NetOption(
            flag="--cidr", field="cidr", needed=True, metavar="RANGE", text="Address range of the line.", fixed=True
        ),
        NetOption(
            flag="--address",
            field="address",
            needed=True,
            metavar="ADDRESS",
            text="Address of the VPC in the range.",
            fixed=True,
        ),
        NetOption(
            flag="--peer", field="peer", needed=True, metavar="ADDRESS", text="Address of the other end.", fixed=True
        ),
        ROUTES,
        PHYSICAL,
        HOSTS,
    ),
    columns=(plain("VLAN", "vlan"), plain("RANGE", "cidr"), plain("PEER", "peer"), listed("ROUTES", "routes")),
)
ENDPOINT = NetKind(
    word="endpoint",
    kind="endpoint",
    noun="an endpoint",
    path="VPC/ENDPOINT",
    help="Create and list endpoints, services of other VPCs under an address of the VPC; ranges may overlap.",
    options=(
        NetOption(
            flag="--balancer", field="source", needed=True, metavar="VPC/LB", text="Load balancer to reach.", fixed=True
        ),
        NetOption(flag="--address", field="vip", metavar="ADDRESS", text="Address. Default: a free one.", fixed=True),
        NetOption(
            flag="--subnet",
            field="subnet",
            metavar="NAME",
            read=_listed_subnet,
            text="Subnet of the address. Default: the first.",
            fixed=True,
        ),
    ),
    columns=(plain("FROM", "source"), plain("VIP", "vip"), plain("SUBNET", "subnet", wide=True)),
)
ROUTE = NetKind(
    word="route",
    kind="route",
    noun="a route",
    path="VPC/ROUTE",
    help="Create, change and list static and policy routes of a VPC.",
    options=(
        NetOption(
            flag="--destination", field="prefix", needed=True, metavar="RANGE", text="Destination of the packets."
        ),
        NetOption(flag="--via", field="next_hop", metavar="ADDRESS", text="Next hop."),
        NetOption(flag="--drop/--no-drop", field="", text="Drop the packets."),
        NetOption(flag="--source", field="source", metavar="RANGE", text="Source of the packets, for a policy route."),
        NetOption(
            flag="--priority",
            field="priority",
            type=int,
            metavar="N",
            text="Priority of a policy route; highest first.",
        ),
    ),
    columns=(plain("TO", "prefix"), plain("VIA", "next_hop"), plain("FROM", "source"), plain("PRIORITY", "priority")),
    spec=_route,
)
DNS = NetKind(
    word="dns",
    kind="dns",
    noun="a DNS record",
    path="VPC/RECORD",
    help="Create, change and list DNS records of a VPC's subnets.",
    options=(
        NetOption(flag="--host", field="host", needed=True, metavar="NAME", text="Host name, such as db.internal."),
        NetOption(
            flag="--address",
            field="addresses",
            several=True,
            needed=True,
            metavar="ADDRESS",
            text="Address of the host.",
        ),
    ),
    columns=(plain("HOST", "host"), listed("ADDRESSES", "addresses")),
)
QOS = NetKind(
    word="qos",
    kind="qos",
    noun="a QoS policy",
    path="VPC/POLICY",
    help="Create, change and list rate limits of ports.",
    options=(
        NetOption(flag="--rate", field="", metavar="RATE", text="Limit of both directions, such as 1Gbit, or none."),
        NetOption(flag="--egress", field="", metavar="RATE", text="Limit of packets that a port sends."),
        NetOption(flag="--ingress", field="", metavar="RATE", text="Limit of packets that a port receives."),
    ),
    columns=(
        Column(title="EGRESS", text=lambda r: rate_text(r["spec"]["egress_bits_per_s"]), right=True),
        Column(title="INGRESS", text=lambda r: rate_text(r["spec"]["ingress_bits_per_s"]), right=True),
    ),
    spec=net_kinds.rates_of,
)
UPLINK = NetKind(
    word="uplink",
    kind="uplink",
    noun="an uplink",
    path="UPLINK",
    help="Create, change and list uplinks to outside networks (administrators).",
    options=(
        NetOption(flag="--cidr", field="cidr", needed=True, metavar="RANGE", text="Address range.", fixed=True),
        NetOption(flag="--gateway", field="gateway", needed=True, metavar="ADDRESS", text="Next hop in the range."),
        PHYSICAL,
        NetOption(flag="--vlan", field="vlan", type=VLAN, text="VLAN tag; 0: none.", fixed=True),
        HOSTS,
        NetOption(
            flag="--vpcs-max",
            field="vpcs_max",
            type=click.IntRange(0, 100),
            text="Maximum number of VPCs that use the uplink; 0: as many as it has addresses for.",
        ),
    ),
    columns=(plain("RANGE", "cidr"), plain("GATEWAY", "gateway"), plain("VLAN", "vlan"), listed("HOSTS", "hosts")),
)
