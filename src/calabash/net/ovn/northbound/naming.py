"""Names of rows in OVN's northbound database. Names of two objects never collide, whatever labels users choose.

Labels of users consist of lower-case letters, digits and dashes (``model.addresses``). Names that the platform adds
contain a colon, so they cannot equal a user's name. Names of port groups are used as identifiers in match expressions.
They therefore consist of words joined by dots, in which dashes are replaced by ``_``.

A *link* joins two switches or routers by a port on each side. The parameter ``link`` is the name of the link, from
which the names of both ports are formed.
"""

from __future__ import annotations

from calabash.model.network import vpc_of


def router(vpc: str) -> str:
    """Return the name of the logical router of a VPC."""
    return f"cb-{vpc}"


def switch(subnet: str) -> str:
    """Return the name of the logical switch of a subnet ``VPC/SUBNET``."""
    return f"cb-{subnet}"


def line_switch(line: str) -> str:
    return f"cb-{vpc_of(line)}:line:{_last(line)}"


def uplink_switch(uplink: str) -> str:
    return f"cb:uplink:{uplink}"


def endpoint_switch(number: int) -> str:
    return f"cb:endpoint:{number}"


def router_port(link: str) -> str:
    """Return the name of the router port of a link such as ``red/a``, ``red:uplink`` or ``red:peer:green``."""
    return f"{link}:router"


def switch_port(link: str) -> str:
    """Return the name of the switch port that is joined to ``router_port``."""
    return f"{link}:switch"


def localnet_port(link: str) -> str:
    """Return the name of the switch port that joins a switch to the provider's physical network."""
    return f"{link}:localnet"


def uplink_link(vpc: str) -> str:
    return f"{vpc}:uplink"


def peering_link(vpc: str, other: str) -> str:
    return f"{vpc}:peer:{other}"


def line_link(line: str) -> str:
    return f"{vpc_of(line)}:line:{_last(line)}"


def endpoint_link(vpc: str, number: int) -> str:
    return f"{vpc}:endpoint:{number}"


def balancer(name: str) -> str:
    """Return the name of the row of a load balancer ``VPC/LB``."""
    return f"cb-{name}"


def translation(name: str) -> str:
    """Return the name of the load balancer row that implements a DNAT rule ``VPC/RULE``."""
    return f"cb-{name}:dnat"


def endpoint_balancer(link: str) -> str:
    """Return the name of the load balancer row of an endpoint in one of its two VPCs; ``link`` is ``VPC:endpoint:NUMBER``."""
    return f"cb-{link}"


def group(vpc: str, kind: str, label: str = "") -> str:
    """Return the name of a port group: ``cb.VPC.KIND[.LABEL]``."""
    return ".".join(("cb", vpc, kind, *((label,) if label else ()))).replace("-", "_")


def security_group(name: str) -> str:
    """Return the name of the port group of a security group ``VPC/GROUP``."""
    return group(vpc_of(name), "sg", _last(name))


def drop_group(vpc: str) -> str:
    """Return the name of the port group that contains every port of a VPC."""
    return group(vpc, "drop")


def _last(name: str) -> str:
    return name.rsplit("/", 1)[1]
