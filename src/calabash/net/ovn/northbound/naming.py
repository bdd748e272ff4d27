"""What things of a VPC are called in OVN. No two objects share a name, whatever their users call them.

Labels of users have small letters, digits and dashes (``model.addresses``). A name of ours that could meet a user's therefore
has a colon, and a group's, which stands in expressions as an identifier, has dots between its parts and ``_`` for dashes.
"""

from __future__ import annotations

from calabash.model.network import vpc_of


def router(vpc: str) -> str:
    return f"cb-{vpc}"


def switch(subnet: str) -> str:
    """Of a subnet, ``VPC/SUBNET``."""
    return f"cb-{subnet}"


def line_switch(line: str) -> str:
    return f"cb-{vpc_of(line)}:line:{_last(line)}"


def uplink_switch(uplink: str) -> str:
    return f"cb:uplink:{uplink}"


def endpoint_switch(number: int) -> str:
    return f"cb:endpoint:{number}"


def router_port(network: str) -> str:
    """A router's port in what ``network`` is called: ``red/a``, ``red:uplink``, ``red:peer:green``."""
    return f"{network}:router"


def switch_port(network: str) -> str:
    """The switch's port at the other end of ``router_port``."""
    return f"{network}:switch"


def localnet_port(network: str) -> str:
    """A switch's port to the provider's network."""
    return f"{network}:localnet"


def uplink_of(vpc: str) -> str:
    return f"{vpc}:uplink"


def peer_of(vpc: str, other: str) -> str:
    return f"{vpc}:peer:{other}"


def line_of(line: str) -> str:
    return f"{vpc_of(line)}:line:{_last(line)}"


def endpoint_of(vpc: str, number: int) -> str:
    return f"{vpc}:endpoint:{number}"


def balancer(name: str) -> str:
    """Of a load balancer, ``VPC/LB``."""
    return f"cb-{name}"


def translation(name: str) -> str:
    """The load balancer that carries out a DNAT rule, ``VPC/RULE``."""
    return f"cb-{name}:dnat"


def endpoint_balancer(network: str) -> str:
    """Of an endpoint at one of its VPCs, ``VPC:endpoint:NUMBER``."""
    return f"cb-{network}"


def group(vpc: str, kind: str, label: str = "") -> str:
    """A port group: ``cb.VPC.KIND[.LABEL]``."""
    return ".".join(("cb", vpc, kind, *((label,) if label else ()))).replace("-", "_")


def security_group(name: str) -> str:
    """Of ``VPC/GROUP``."""
    return group(vpc_of(name), "sg", _last(name))


def drop_group(vpc: str) -> str:
    """In which every port of a VPC is."""
    return group(vpc, "drop")


def _last(name: str) -> str:
    return name.rsplit("/", 1)[1]
