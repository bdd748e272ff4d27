"""Definitions of the command line's kinds of network objects: options and columns, from which commands are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from calabash.cli.net import parsing as net_parsing
from calabash.cli.net.parsing import Ports, in_vpc, port_named, words
from calabash.cli.output import Column, Row, dash
from calabash.model.network import vpc_of
from calabash.model.units import parse_duration_s

Given = dict[str, Any]  # of the options that were given
Spec = dict[str, Any]


class DurationType(click.ParamType[float]):
    """Duration with its unit, converted to seconds."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        return parse_duration_s(value) if isinstance(value, str) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetOption:
    """Option of ``create`` and ``set``.

    Args:
        field: field of the object's spec that the option sets; "" for an option that ``NetKind.spec`` handles.
        text: help text of the option.
        read: converts the option's value to that of the field; None: the value is used unchanged.
        several: True if it takes values separated by commas, or can be repeated.
        needed: True if ``create`` requires it.
        fixed: True if it cannot be changed later.
    """

    flag: str
    field: str
    text: str
    metavar: str = ""
    type: Any = None
    read: Callable[[str, Any, Ports], Any] | None = None
    several: bool = False
    needed: bool = False
    fixed: bool = False

    @property
    def parameter(self) -> str:
        return self.flag.lstrip("-").split("/")[0].replace("-", "_")

    def decorated(self, command: Any, *, new: bool) -> Any:
        """Return the command with this option added; ``new`` is True for ``create`` and False for ``set``."""
        named: dict[str, Any] = {"help": self.text, "required": new and self.needed, "default": None}
        if "/--no-" in self.flag:
            return click.option(self.flag, self.parameter, **named)(command)
        named |= {"metavar": self.metavar} if self.metavar else {}
        named |= {"multiple": True, "default": ()} if self.several else {}
        return click.option(self.flag, self.parameter, type=self.type or str, **named)(command)

    def value(self, name: str, given: Any, ports: Ports) -> Any:
        """Convert the value of this option to the value of the object's field.

        Args:
            name: full name of the object; short names in the value refer to its VPC.
            given: value of the option.
            ports: returns the ports of a VPC.
        """
        found = words(given) if self.several else given
        return self.read(vpc_of(name), found, ports) if self.read else found


@dataclass(frozen=True, slots=True, kw_only=True)
class NetKind:
    """Command group of a kind of network objects, or of the objects of a kind that have certain fields.

    Args:
        word: name of the command.
        kind: name in the API.
        noun: noun with its article, for help texts.
        path: form of the objects' names, for help texts.
        columns: columns of ``list``, besides name, generation and state.
        spec: sets fields of the object that one option does not set alone; called after all other fields are set.
        only: fields that objects of this group have, and that ``create`` sets.
        create: True if the group has ``create`` and ``set``.
    """

    word: str
    kind: str
    noun: str
    path: str
    help: str
    options: tuple[NetOption, ...] = ()
    columns: tuple[Column, ...] = ()
    spec: Callable[[str, Spec, Given, Ports], Spec] | None = None
    only: Spec = field(default_factory=dict)
    create: bool = True


def listed(title: str, name: str, *, wide: bool = False) -> Column:
    """Return a column for a field that is a list of words."""
    return Column(title=title, text=lambda r: dash(",".join(map(str, r["spec"].get(name) or ()))), wide=wide)


def plain(title: str, name: str, *, wide: bool = False) -> Column:
    """Return a column for a field that is one word."""
    return Column(title=title, text=lambda r: dash(_shown(r["spec"].get(name))), wide=wide)


def _shown(value: Any) -> Any:
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def _groups(vpc: str, found: list[str], _: Ports) -> list[str]:
    return [in_vpc(vpc, one, "--sg") for one in found]


def _ports(vpc: str, found: list[str], ports: Ports) -> list[str]:
    return [port_named(vpc, one, "port", ports) for one in found]


def _one(what: str) -> Callable[[str, str, Ports], str]:
    return lambda vpc, found, _: in_vpc(vpc, found, what) if found else ""


def _backends_text(row: Row) -> str:
    return ",".join(f"{b['port'].rsplit('/', 1)[-1]}:{b['number']}" for b in row["spec"]["backends"])


def _balancer(name: str, spec: Spec, given: Given, _ports: Ports) -> Spec:
    """Set address, port number, health check, certificate and layer of a load balancer. HTTP and TLS need layer 7."""
    if given.get("vip") is not None:
        spec["vip"], spec["vip_number"] = net_parsing.address_and_number(given["vip"], "--vip")
    if given.get("check") is not None or given.get("interval") is not None or given.get("failures") is not None:
        known = spec.get("check", {"kind": "none", "path": ""})
        text = given.get("check") or known["kind"] + (f":{known['path']}" if known["path"] else "")
        interval_s, failures = given.get("interval"), given.get("failures")
        spec["check"] = {**known, **net_parsing.check(text, interval_s, failures)}
    if given.get("tls"):
        spec["certificate"] = given["tls"].removeprefix(f"{vpc_of(name)}/")
    reads = spec.get("check", {}).get("kind") == "http" or spec.get("certificate") or given.get("http")
    if reads and "layer" not in spec:
        spec["layer"] = "l7"
    return spec


def rates_of(_: str, spec: Spec, given: Given, _ports: Ports) -> Spec:
    """Set the rates of a policy: ``--egress``, ``--ingress``, or ``--rate`` for a direction without its own option."""
    for way in ("egress", "ingress"):
        text = given.get(way) or given.get("rate")
        if text is not None:
            spec[f"{way}_bits_per_s"] = net_parsing.rate(text)
    return spec


def _state(row: Row) -> str:
    """Return the state of an object: ``no: REASON`` of its first failed condition, else its most advanced condition.

    The state is ``waits`` if the controller has not seen the last change, or if no condition holds.
    """
    conditions = {one["kind"]: one for one in row["status"]["conditions"]}
    for one in conditions.values():
        if one["holds"] is False:
            return f"no: {one['reason'] or one['kind']}"
    if row["status"]["observed_generation"] < row["generation"]:
        return "waits"
    return next((kind for kind in ("ready", "realized", "valid") if conditions.get(kind, {}).get("holds")), "waits")


NAME = Column(title="NAME", text=lambda r: r["name"])
STATE = (
    Column(title="GEN", text=lambda r: str(r["generation"]), right=True),
    Column(title="STATE", text=_state),
    Column(title="HOST", text=lambda r: dash(r["status"]["host"]), wide=True),
    Column(title="TENANT", text=lambda r: dash(r["tenant"]), wide=True),
)
CIDRS = NetOption(
    flag="--cidr",
    field="cidrs",
    several=True,
    needed=True,
    metavar="RANGE",
    text="Address range, such as 10.0.0.0/16; repeat for several.",
)
HOSTS = NetOption(
    flag="--hosts", field="hosts", several=True, metavar="NAMES", text="Gateway hosts, in order of preference."
)
PHYSICAL = NetOption(
    flag="--physical", field="physical", metavar="NAME", text="Name of the outside network on the hosts. Default: ext."
)
VLAN = click.IntRange(0, 4094)

VPC = NetKind(
    word="vpc",
    kind="vpc",
    noun="a VPC",
    path="VPC",
    help="Create, change, list and connect VPCs, the address spaces of tenants.",
    options=(
        CIDRS,
        NetOption(flag="--tenant", field="tenant", metavar="NAME", text="Tenant. Default: yours.", fixed=True),
        NetOption(flag="--mtu", field="mtu_bytes", type=int, metavar="BYTES", text="MTU of ports. Default: 1400."),
    ),
    columns=(listed("RANGES", "cidrs"), plain("MTU", "mtu_bytes", wide=True)),
)
SUBNET = NetKind(
    word="subnet",
    kind="subnet",
    noun="a subnet",
    path="VPC/SUBNET",
    help="Create, change and list subnets of a VPC, from which ports get addresses.",
    options=(
        CIDRS,
        NetOption(
            flag="--gateway",
            field="gateways",
            several=True,
            metavar="ADDRESS",
            text="Address of the router. Default: the first address.",
        ),
        NetOption(flag="--dhcp/--no-dhcp", field="dhcp", text="Serve DHCP in the subnet."),
        NetOption(flag="--dns/--no-dns", field="dns", text="Serve DNS in the subnet."),
    ),
    columns=(listed("RANGES", "cidrs"), listed("GATEWAYS", "gateways"), plain("DHCP", "dhcp"), plain("DNS", "dns")),
)
PORT = NetKind(
    word="port",
    kind="port",
    noun="a port",
    path="VPC/SUBNET/PORT",
    help="Create, change and list ports, which connect programs, pods and machines to a subnet.",
    options=(
        NetOption(
            flag="--ip",
            field="addresses",
            several=True,
            metavar="ADDRESS",
            text="IP address. Default: a free one.",
            fixed=True,
        ),
        NetOption(flag="--mac", field="mac", metavar="MAC", text="MAC address. Default: a free one.", fixed=True),
        NetOption(
            flag="--sg",
            field="security_groups",
            several=True,
            metavar="NAMES",
            read=_groups,
            text="Security groups. Default: default.",
        ),
        NetOption(flag="--qos", field="qos", metavar="NAME", read=_one("--qos"), text="QoS policy of the VPC."),
        NetOption(
            flag="--virtual-parents",
            field="virtual_parents",
            several=True,
            metavar="PORTS",
            read=_ports,
            text="Make the port a virtual address that moves between these ports.",
        ),
    ),
    columns=(
        listed("ADDRESSES", "addresses"),
        plain("MAC", "mac"),
        listed("GROUPS", "security_groups", wide=True),
        plain("QOS", "qos", wide=True),
    ),
)
GROUP = NetKind(
    word="sg",
    kind="sg",
    noun="a security group",
    path="VPC/GROUP",
    help="Create, change and list security groups; traffic that no rule allows is dropped.",
    columns=(Column(title="RULES", text=lambda r: str(len(r["spec"]["rules"])), right=True),),
)
BALANCER = NetKind(
    word="lb",
    kind="lb",
    noun="a load balancer",
    path="VPC/LB",
    help="Create, change and list load balancers, one address for several ports.",
    options=(
        NetOption(
            flag="--vip", field="", needed=True, metavar="ADDRESS:NUMBER", text="Address and port number.", fixed=True
        ),
        NetOption(
            flag="--backends",
            field="backends",
            several=True,
            needed=True,
            metavar="PORT:NUMBER",
            read=net_parsing.backends,
            text="Backend ports, such as web1:8080,web2:8080.",
        ),
        NetOption(
            flag="--protocol",
            field="protocol",
            type=click.Choice(["tcp", "udp"]),
            text="Protocol. Default: tcp.",
            fixed=True,
        ),
        NetOption(flag="--check", field="", metavar="CHECK", text="Health check: tcp, http:/PATH (layer 7) or none."),
        NetOption(
            flag="--interval",
            field="",
            type=DurationType(),
            metavar="TIME",
            text="Time between two checks, such as 2s.",
        ),
        NetOption(
            flag="--failures",
            field="",
            type=click.IntRange(1),
            text="Failed checks until a backend is unhealthy. Default: 2.",
        ),
        NetOption(flag="--tls", field="", metavar="CERTIFICATE", text="Terminate TLS with this certificate (layer 7)."),
        NetOption(flag="--http/--no-http", field="", text="Balance HTTP requests with HAProxy (layer 7).", fixed=True),
        NetOption(
            flag="--offer",
            field="offered_to",
            several=True,
            metavar="TENANTS",
            text="Tenants that may create endpoints of this load balancer; *: all.",
        ),
    ),
    columns=(
        Column(title="VIP", text=lambda r: f"{_host(r['spec']['vip'])}:{r['spec']['vip_number']}"),
        plain("LAYER", "layer"),
        Column(title="TO", text=_backends_text),
        Column(title="CHECK", text=lambda r: ":".join(filter(None, (r["spec"]["check"][k] for k in ("kind", "path"))))),
        plain("CERTIFICATE", "certificate", wide=True),
    ),
    spec=_balancer,
)


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
