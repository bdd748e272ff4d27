"""Facts about a port that its host needs, taken from the network objects of the platform."""

from __future__ import annotations

from collections.abc import Callable

from calabash.model.addresses import Address, Network
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import Port, Subnet, Vpc, vpc_of
from calabash.net.objects.collection import NetworkObjects
from calabash.node.ports.protocol import PortFacts


class PlatformPorts:
    """Source of facts about ports; see ``PortSource``.

    Args:
        networks: returns the present network objects of the platform.
    """

    def __init__(self, networks: Callable[[], NetworkObjects]) -> None:
        self._networks = networks

    def port_facts(self, name: str) -> PortFacts:
        return facts_of(self._networks(), name)


def facts_of(networks: NetworkObjects, name: str) -> PortFacts:
    """Return the facts about the port with this name. Raises NOT_FOUND."""
    port = networks.find(Port, name)
    subnet = networks.find(Subnet, name.rpartition("/")[0])
    vpc = networks.find(Vpc, vpc_of(name))
    if port is None or subnet is None or vpc is None:
        raise CalabashError(f"there is no port {name}", reason=Reason.NOT_FOUND, hint="see `calabash net port list`")
    label = subnet.name.rpartition("/")[2]
    return PortFacts(
        name=port.name,
        mac=port.mac,
        addresses=tuple((address, _range_of(address, subnet)) for address in port.addresses),
        gateways=subnet.gateways,
        tenant=vpc.tenant,
        mtu_bytes=vpc.mtu_bytes,
        reaches=vpc.cidrs,
        resolvers=subnet.gateways if subnet.dns else (),
        domain=f"{label}.{vpc.name}.internal" if subnet.dns else "",
    )


def _range_of(address: Address, subnet: Subnet) -> Network:
    return next(network for network in subnet.cidrs if network.version == address.version and address in network)
