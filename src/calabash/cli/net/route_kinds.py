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
    address = given.get("eip")
    if address is not None:
        if not (address[:1].isdigit() or ":" in address):
            raise CalabashError(
                f"gateway {name}: --eip {address[:80]!r} is no address",
                hint="a gateway has an outside address of its own; leave --eip out, and one is chosen",
            )
        spec["address"] = address
    return spec


def _inside(vpc: str, text: str, ports: Ports) -> str:
    return port_named(vpc, text, "--to", ports)


def _dnat(name: str, spec: Spec, given: Given, ports: Ports) -> Spec:
    port, _, digits = given["to"].rpartition(":")
    spec["port"] = port_named(vpc_of(name), port or digits, "--to", ports)
    spec["inside_number"] = number(digits, "--to") if port else spec["outside_number"]
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


ROUTES = NetOption(flag="--routes", field="routes", several=True, metavar="RANGES", text="Ranges at the other end.")
_EIP = NetOption(
    flag="--eip", field="eip", needed=True, metavar="NAME", read=_eip, text="Of the VPC: an EIP, or its gateway."
)

GATEWAY = NetKind(
    word="gateway",
    kind="gateway",
    noun="a gateway",
    path="VPC/GATEWAY",
    help="Create, change and list gateways from VPCs to outside networks.",
    options=(
        NetOption(flag="--snat/--no-snat", field="snat", text="What leaves gets the gateway's address."),
        NetOption(
            flag="--eip", field="", metavar="ADDRESS", text="Its outside address. Default: a free one.", fixed=True
        ),
        NetOption(flag="--nfv/--no-nfv", field="", text="Two replicas with nftables instead of OVN's.", fixed=True),
        NetOption(
            flag="--uplink", field="uplink", metavar="NAME", text="Default: the one with fewest VPCs.", fixed=True
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
    options=(NetOption(flag="--address", field="address", metavar="ADDRESS", text="Default: a free one.", fixed=True),),
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
            text="Its outside number.",
        ),
        NetOption(flag="--to", field="", needed=True, metavar="PORT:NUMBER", text="Where it goes, like web1:8443."),
        NetOption(flag="--protocol", field="protocol", type=click.Choice(["tcp", "udp"]), text="Default: tcp."),
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
        NetOption(flag="--to", field="port", needed=True, metavar="PORT", read=_inside, text="Whose it is."),
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
        NetOption(flag="--vlan", field="vlan", type=VLAN, needed=True, text="Its tag.", fixed=True),
        NetOption(flag="--cidr", field="cidr", needed=True, metavar="RANGE", text="The line's own range.", fixed=True),
        NetOption(
            flag="--address", field="address", needed=True, metavar="ADDRESS", text="The VPC's in it.", fixed=True
        ),
        NetOption(flag="--peer", field="peer", needed=True, metavar="ADDRESS", text="The other end's.", fixed=True),
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
        NetOption(flag="--from", field="source", needed=True, metavar="VPC/LB", text="Whose service.", fixed=True),
        NetOption(flag="--vip", field="vip", metavar="ADDRESS", text="Default: a free one.", fixed=True),
        NetOption(
            flag="--subnet", field="subnet", metavar="NAME", read=_listed_subnet, text="Default: the first.", fixed=True
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
        NetOption(flag="--to", field="prefix", needed=True, metavar="RANGE", text="Packets for there."),
        NetOption(flag="--via", field="next_hop", metavar="ADDRESS", text="Go there."),
        NetOption(flag="--drop/--no-drop", field="", text="Go nowhere."),
        NetOption(flag="--from", field="source", metavar="RANGE", text="Only those from there: a policy route."),
        NetOption(flag="--priority", field="priority", type=int, text="Of policy routes, the higher first."),
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
        NetOption(flag="--host", field="host", needed=True, metavar="NAME", text="Like db.internal."),
        NetOption(
            flag="--address", field="addresses", several=True, needed=True, metavar="ADDRESS", text="What it is."
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
        NetOption(flag="--rate", field="", metavar="RATE", text="Both ways, like 1Gbit; none: no bound."),
        NetOption(flag="--egress", field="", metavar="RATE", text="What a port sends."),
        NetOption(flag="--ingress", field="", metavar="RATE", text="What a port gets."),
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
        NetOption(flag="--cidr", field="cidr", needed=True, metavar="RANGE", text="Its range.", fixed=True),
        NetOption(flag="--gateway", field="gateway", needed=True, metavar="ADDRESS", text="The next hop in it."),
        PHYSICAL,
        NetOption(flag="--vlan", field="vlan", type=VLAN, text="Its tag, 0 none.", fixed=True),
        HOSTS,
        NetOption(
            flag="--vpcs-max",
            field="vpcs_max",
            type=click.IntRange(0, 100),
            text="Most VPCs that leave by it; 0: as its addresses allow.",
        ),
    ),
    columns=(plain("RANGE", "cidr"), plain("GATEWAY", "gateway"), plain("VLAN", "vlan"), listed("HOSTS", "hosts")),
)
