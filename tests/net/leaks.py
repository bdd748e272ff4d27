"""Many tenants with the same addresses, and packets between them as expressions for ``ovn-trace``, to find leaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from calabash.model.network import NetworkGateway, NetworkObject, Port, Subnet, Uplink, Vpc
from calabash.model.network_services import Backend, LoadBalancer
from calabash.net.addresses.derived import MacUse, platform_mac
from calabash.net.ovn.northbound import naming
from calabash.net.store.networks import Networks

PER_UPLINK = 25
PORTS = 3  # of each tenant
_KINDS = ("tcp", "udp", "icmp4", "arp", "tcp6", "icmp6", "other", "tagged")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A packet: its ingress port, its content, and the tenant whose ports it may reach ("" none)."""

    switch: str
    flow: str
    owner: str


def tenants(count: int) -> Networks:
    """Return tenants ``t1`` and so on, each with two subnets, three ports, a load balancer and a gateway."""
    networks = Networks()
    for number in range(1, count + 1):
        for item in _tenant(number):
            networks, _ = networks.put(item)
    return networks


def _tenant(number: int) -> Iterator[NetworkObject]:
    name, uplink = f"t{number}", f"up{number // PER_UPLINK}"
    if number == 1 or number % PER_UPLINK == 0:
        second = number // PER_UPLINK
        cidr = ip_network(f"198.51.{second}.0/24")
        yield Uplink(name=uplink, cidr=cidr, gateway=cidr[1], vlan=100 + second)
    yield Vpc(name=name, cidrs=(ip_network("10.0.0.0/16"), ip_network("fd00::/56")))
    yield Subnet(name=f"{name}/a", cidrs=(ip_network("10.0.1.0/24"), ip_network("fd00::/64")), dhcp=True, dns=True)
    yield Subnet(name=f"{name}/b", cidrs=(ip_network("10.0.2.0/24"),))
    for last in range(11, 11 + PORTS - 1):
        yield Port(name=f"{name}/a/p{last}", addresses=(ip_address(f"10.0.1.{last}"), ip_address(f"fd00::{last}")))
    yield Port(name=f"{name}/b/p11", addresses=(ip_address("10.0.2.11"),))
    yield LoadBalancer(
        name=f"{name}/web",
        vip=ip_address("10.0.1.100"),
        vip_number=80,
        backends=(Backend(port=f"{name}/a/p11", number=8080),),
    )
    yield NetworkGateway(name=f"{name}/out", uplink=uplink, snat=True)


def attempts(networks: Networks, count: int, seed: int) -> Iterator[Attempt]:
    """Return packets from random ports to ports of other tenants.

    They are sent to the addresses and MACs of these ports, with forged senders, and from outside.
    """
    chance = random.Random(seed)
    names = [vpc.name for vpc in networks.all(Vpc)]
    for _ in range(count):
        one, other = chance.sample(names, 2)
        if chance.random() < 0.2:
            yield _from_outside(networks, one, chance)
        else:
            yield _from_port(networks, one, other, chance)


def _from_port(networks: Networks, one: str, other: str, chance: random.Random) -> Attempt:
    own = chance.choice(list(networks.of_vpc(one).all(Port).values()))
    target = chance.choice(list(networks.of_vpc(other).all(Port).values()))
    subnet = own.name.rsplit("/", 1)[0]
    vpcs = {name: _number(networks, name) for name in (one, other)}
    router = platform_mac(MacUse.SUBNET, vpcs[one], networks.of_vpc(one).all(Subnet)[subnet].number)
    theirs = platform_mac(MacUse.SUBNET, vpcs[other], 1)
    to = chance.choice((target.mac, router, theirs, "ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01"))
    forged = chance.random() < 0.2
    source = target if forged else own
    what = _what(chance.choice(_KINDS), source, target, chance)
    flow = f'inport == "{own.name}" && eth.src == {source.mac} && eth.dst == {to} && {what}'
    return Attempt(naming.switch(subnet), flow, one)


def _from_outside(networks: Networks, one: str, chance: random.Random) -> Attempt:
    """Return a packet of a sender on the provider's network that uses a tenant's internal addresses."""
    (gateway,) = networks.of_vpc(one).all(NetworkGateway).values()
    uplink = networks.find(Uplink, gateway.uplink)
    assert uplink is not None
    target = chance.choice(list(networks.of_vpc(one).all(Port).values()))
    router = platform_mac(MacUse.UPLINK, _number(networks, one), uplink.number)
    sender = chance.choice((str(uplink.gateway), "10.0.1.12", "203.0.113.9"))
    inside = chance.choice((str(target.addresses[0]), "10.0.1.100", "10.0.1.1"))
    flow = (
        f'inport == "{naming.localnet_port(naming.uplink_switch(uplink.name))}" && eth.src == 00:00:5e:00:53:01 '
        f"&& eth.dst == {router} && ip4.src == {sender} && ip4.dst == {inside} && ip.ttl == 64 && {_transport(chance)}"
    )
    return Attempt(naming.uplink_switch(uplink.name), flow, "")


def _what(kind: str, source: Port, target: Port, chance: random.Random) -> str:
    inside = chance.choice((str(target.addresses[0]), "10.0.1.100", "169.254.169.254", "172.31.0.1"))
    four = f"ip4.src == {source.addresses[0]} && ip4.dst == {inside} && ip.ttl == 64"
    six = f"ip6.src == {source.addresses[-1]} && ip6.dst == {target.addresses[-1]} && ip.ttl == 64"
    plain = f"{four} && tcp && tcp.dst == 80"
    both = source.addresses[-1].version == target.addresses[-1].version == 6
    asks = f"arp.op == 1 && arp.sha == {source.mac} && arp.spa == {source.addresses[0]}"
    return {
        "arp": f"{asks} && arp.tpa == {inside}",
        "tcp6": f"{six} && tcp && tcp.dst == 80" if both else plain,
        "icmp6": f"{six} && icmp6.type == 128" if both else plain,
        "icmp4": f"{four} && icmp4.type == 8",
        "udp": f"{four} && udp && udp.src == {chance.choice((53, 5000))} && udp.dst == 53",
        "other": "eth.type == 0x88b5",
        "tagged": f"vlan.present == 1 && vlan.vid == {chance.choice((100, 101))} && {four}",
    }.get(kind, plain)


def _transport(chance: random.Random) -> str:
    return chance.choice(("tcp && tcp.dst == 8080", "udp && udp.src == 53 && udp.dst == 53", "icmp4.type == 8"))


def _number(networks: Networks, vpc: str) -> int:
    found = networks.find(Vpc, vpc)
    assert found is not None
    return found.number


def leaks(outputs: list[str], attempt: Attempt) -> list[str]:
    """Return the tenants' ports among the outputs of a packet that do not belong to the packet's own tenant."""
    ports = [port for port in outputs if port.count("/") == 2]
    return [port for port in ports if port.split("/")[0] != attempt.owner]
