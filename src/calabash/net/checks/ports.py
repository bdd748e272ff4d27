"""Checks of ports and security groups."""

from __future__ import annotations

from msgspec.structs import replace

from calabash.model.addresses import Address, Network, parse_mac
from calabash.model.errors import CalabashError
from calabash.model.network import Port, QosPolicy, SecurityGroup, SecurityRule, Subnet, Vpc, vpc_of
from calabash.model.network_services import LoadBalancer, ServiceEndpoint, TransportProtocol
from calabash.net.addresses.allocation import check_host_address, free_address, free_mac
from calabash.net.addresses.derived import PLATFORM_MAC, health_check_address
from calabash.net.addresses.ranges import range_of
from calabash.net.checks.common import (
    NUMBER_MAX,
    check_between,
    check_distinct,
    check_immutable,
    conflict_error,
    describe,
    is_reserved_name,
    require_object,
)
from calabash.net.checks.limits import GROUPS_PER_PORT, PARENTS_PER_PORT, RULES_PER_GROUP, check_count
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.net.objects.collection import NetworkObjects, VpcObjects

NUMBERED = (TransportProtocol.TCP, TransportProtocol.UDP, TransportProtocol.SCTP)


def subnet_of(port: str) -> str:
    """Return the name of the subnet of a port."""
    return port.rsplit("/", 1)[0]


def check_port(networks: NetworkObjects, item: Port, old: Port | None) -> Port:
    """Check a port and complete its addresses, MAC and security groups.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    (vpc,) = objects.all(Vpc).values()
    subnet = require_object(objects, Subnet, subnet_of(item.name), describe(item))
    taken = AddressHolders(objects, item.name)
    foreign = [address for address in item.addresses if range_of(address, subnet.cidrs) is None]
    if foreign:
        raise CalabashError(
            f"{describe(item)}: {foreign[0]} is not in {', '.join(map(str, subnet.cidrs))} of the subnet",
            hint="leave the address out to have one allocated",
        )
    addresses = tuple(_address(item, cidr, old, taken) for cidr in subnet.cidrs)
    if len(item.addresses) > len(subnet.cidrs) or not set(item.addresses) <= set(addresses):
        raise CalabashError(
            f"{describe(item)}: needs at most one address of each range, not {', '.join(map(str, item.addresses))}"
        )
    groups = item.security_groups or (f"{vpc.name}/{DEFAULT_GROUP}",)
    check_count(len(groups), GROUPS_PER_PORT, f"security groups of {describe(item)}")
    check_distinct(groups, f"security groups of {describe(item)}")
    for group in groups:
        require_object(objects, SecurityGroup, group, describe(item))
        if is_reserved_name(group) and not is_reserved_name(item.name):
            raise CalabashError(
                f"{describe(item)}: {group} is reserved for ports of the platform",
                hint="create a group with the same rules",
            )
    if item.qos:
        require_object(objects, QosPolicy, item.qos, describe(item))
    _check_parents(objects, item)
    item = replace(item, addresses=addresses, mac=_mac(vpc, objects, item, old), security_groups=groups)
    check_immutable(item, old, "addresses", "mac")
    return item


class AddressHolders:
    """Addresses in use in the subnets of a VPC: by ports, routers, health checks, endpoints and load balancers.

    Args:
        objects: the objects of the VPC.
        requester: name of the object that needs an address; "" for none. ``holder`` and ``check`` do not count the
            addresses of this object as taken.
        balancers: False if the addresses of load balancers do not count as taken, because a load balancer needs the
            address, and load balancers may share one.
    """

    def __init__(self, objects: VpcObjects, requester: str, *, balancers: bool = True) -> None:
        self._requester = requester
        self._ports = objects.addresses
        self._others: dict[int, tuple[str, str]] = {}
        for subnet in objects.all(Subnet).values():
            for gateway in subnet.gateways:
                self._others[int(gateway)] = (subnet.name, f"the router of subnet {subnet.name}")
            for address in filter(None, (health_check_address(cidr, subnet.gateways) for cidr in subnet.cidrs)):
                self._others[int(address)] = (subnet.name, f"health checks in subnet {subnet.name}")
        for endpoint in objects.all(ServiceEndpoint).values():
            if endpoint.vip is not None:
                self._others[int(endpoint.vip)] = (endpoint.name, describe(endpoint))
        for balancer in objects.all(LoadBalancer).values() if balancers else ():
            self._others.setdefault(int(balancer.vip), (balancer.name, describe(balancer)))

    def __call__(self, number: int) -> bool:
        return number in self._ports or number in self._others

    def holder(self, address: Address) -> str:
        """Return a description of the object that has the address; "" if it is free or belongs to the requester."""
        number = int(address)
        port = self._ports.get(number, "")
        if port and port != self._requester:
            return f"port {port}"
        name, holder = self._others.get(number, ("", ""))
        return "" if port or name == self._requester else holder

    def check(self, address: Address, subject: str) -> None:
        """Raise CalabashError (CONFLICT) if another object has the address."""
        if taken_by := self.holder(address):
            raise conflict_error(
                f"{subject}: {address} is taken by {taken_by}", hint="leave the address out to have one allocated"
            )


def check_group(networks: NetworkObjects, item: SecurityGroup, _old: SecurityGroup | None) -> SecurityGroup:
    """Check the rules of a security group.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    check_count(len(item.rules), RULES_PER_GROUP, f"rules of {describe(item)}")
    check_distinct(item.rules, f"rules of {describe(item)}")
    for number, rule in enumerate(item.rules, 1):
        subject = f"{describe(item)}, rule {number}"
        if (rule.peer is None) == (not rule.peer_group):
            raise CalabashError(
                f"{subject}: needs either a peer range or a peer group", hint="0.0.0.0/0 is every IPv4 address"
            )
        if rule.peer_group and rule.peer_group != item.name:
            require_object(objects, SecurityGroup, rule.peer_group, subject)
        _check_rule_ports(rule, subject)
    return item


def _check_rule_ports(rule: SecurityRule, subject: str) -> None:
    first, last = rule.ports
    if (first, last) == (0, 0):
        return
    if rule.protocol not in NUMBERED:
        raise CalabashError(f"{subject}: {rule.protocol.value} has no port numbers", hint="use tcp, udp or sctp")
    check_between(first, 1, NUMBER_MAX, f"{subject}, first port number")
    check_between(last, first, NUMBER_MAX, f"{subject}, last port number")


def _address(item: Port, cidr: Network, old: Port | None, taken: AddressHolders) -> Address:
    """Return the address of the port in one range of its subnet.

    It is the requested address, else the current one, else a free one.

    Args:
        cidr: the range.
        taken: addresses in use.
    """
    asked = first_address_in(item.addresses, cidr)
    if asked is None and old is not None:
        asked = first_address_in(old.addresses, cidr)
    if asked is None:
        return free_address(cidr, taken, describe(item))
    check_host_address(asked, cidr, describe(item))
    taken.check(asked, describe(item))
    return asked


def first_address_in(addresses: tuple[Address, ...], cidr: Network) -> Address | None:
    """Return the first address that is in the range, or None."""
    return next((address for address in addresses if address in cidr), None)


def _mac(vpc: Vpc, objects: VpcObjects, item: Port, old: Port | None) -> str:
    """Return the MAC of the port: the requested one, else the current one, else a free one."""
    asked = item.mac or (old.mac if old is not None else "")
    if not asked:
        return free_mac(vpc.number, objects.macs, len(objects.macs))
    mac = parse_mac(asked, f"MAC of {describe(item)}")
    if mac.startswith(PLATFORM_MAC):
        raise CalabashError(f"{describe(item)}: MACs that begin with {PLATFORM_MAC} are reserved for routers")
    if (holder := objects.macs.get(mac, item.name)) != item.name:
        raise conflict_error(
            f"{describe(item)}: {mac} is taken by port {holder}", hint="leave the MAC out to have one allocated"
        )
    return mac


def _check_parents(objects: VpcObjects, item: Port) -> None:
    subject = f"virtual {describe(item)}"
    check_count(len(item.virtual_parents), PARENTS_PER_PORT, f"parents of {subject}")
    check_distinct(item.virtual_parents, f"parents of {subject}")
    for parent in item.virtual_parents:
        port = require_object(objects, Port, parent, subject)
        if parent == item.name or port.virtual_parents or subnet_of(parent) != subnet_of(item.name):
            raise CalabashError(f"{subject}: {parent} is not another port of the same subnet without parents")
    if item.virtual_parents:
        for other in objects.all(Port).values():
            if item.name in other.virtual_parents:
                raise conflict_error(f"{subject} is itself a parent of virtual port {other.name}")
