"""The book of tenant networks as a value: what it costs to judge changes, to read it, and to draw up rows of it.

Processor seconds of this process alone, so that other load does not count. A VPC has a router, a subnet and four ports; with
all services also a gateway, an outside address that floats, a load balancer, and an endpoint of its neighbour's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from ipaddress import ip_network

from bench._report import Report, run
from calabash.model.network import (
    Eip,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkObject,
    Port,
    Subnet,
    Uplink,
    Vpc,
    kind_of,
)
from calabash.model.network_services import Backend, LoadBalancer, ServiceEndpoint
from calabash.net.book import Networks
from calabash.net.desired import desired
from calabash.net.view import NetworkHosts

VPCS, QUICK_VPCS, PORTS = 1000, 200, 4
CHANGES = 200
BUILD_S, SERVED_S = 3.0, 8.0  # of 1,000 VPCs
CHANGE_MS, READ_MS, ROWS_MS = 2.0, 200.0, 10.0
RANGE, SUBNET = ip_network("10.0.0.0/16"), ip_network("10.0.1.0/24")
HOSTS = NetworkHosts(gateways=("g1", "g2"))


def measure(report: Report) -> None:
    """All of it; the short form has fewer VPCs, and goals in proportion."""
    vpcs = QUICK_VPCS if report.quick else VPCS
    share = vpcs / VPCS
    report.fact("vpcs", str(vpcs))
    plain, build_s = _built(item for number in range(vpcs) for item in _plain(number))
    report.add(
        "VPCs with four ports put", build_s, "s", at_most=BUILD_S * share, detail=f"{len(list(plain.items()))} objects"
    )
    served, served_s = _built(item for items in (_uplinks(vpcs), *map(_served, range(vpcs))) for item in items)
    report.add(
        "VPCs with all services put",
        served_s,
        "s",
        at_most=SERVED_S * share,
        detail=f"{len(list(served.items()))} objects",
    )
    report.add("a port put and removed", _changed(served, vpcs), "ms", at_most=CHANGE_MS)
    items = tuple(served.items())
    report.add("the whole book read", _ms(lambda: Networks.of(items, 1), 5), "ms", at_most=READ_MS)
    last = f"v{vpcs - 1}"
    after, _ = served.put(Port(name=f"{last}/a/more"))
    report.add(
        "what a port's change comes to", _ms(lambda: after.changes_since(served), CHANGES), "ms", at_most=CHANGE_MS
    )
    report.add(
        "rows of a VPC with four ports", _ms(lambda: desired(plain, last, hosts=HOSTS), 50), "ms", at_most=ROWS_MS
    )
    report.add(
        "rows of a VPC with all services", _ms(lambda: desired(served, last, hosts=HOSTS), 50), "ms", at_most=ROWS_MS
    )


def _plain(number: int) -> Iterator[NetworkObject]:
    vpc = f"v{number}"
    yield Vpc(name=vpc, cidrs=(RANGE,))
    yield Subnet(name=f"{vpc}/a", cidrs=(SUBNET,), dhcp=True, dns=True)
    yield from (Port(name=f"{vpc}/a/p{port}") for port in range(PORTS))


def _uplinks(vpcs: int) -> Iterator[NetworkObject]:
    for number in range(vpcs // 30 + 1):
        cidr = ip_network(f"198.18.{number}.0/24")
        yield Uplink(name=f"up{number}", cidr=cidr, gateway=cidr[1], vlan=number + 1)


def _served(number: int) -> Iterator[NetworkObject]:
    vpc = f"v{number}"
    yield from _plain(number)
    yield NetworkGateway(name=f"{vpc}/out", snat=True)
    yield Eip(name=f"{vpc}/e")
    yield NatRule(name=f"{vpc}/f", kind=NatKind.FIP, eip=f"{vpc}/e", port=f"{vpc}/a/p0")
    backends = tuple(Backend(port=f"{vpc}/a/p{port}", number=8080) for port in range(PORTS))
    yield LoadBalancer(name=f"{vpc}/lb", vip=SUBNET[100], vip_number=80, backends=backends)
    if number:
        yield ServiceEndpoint(name=f"{vpc}/s", source=f"v{number - 1}/lb")


def _built(items: Iterator[NetworkObject]) -> tuple[Networks, float]:
    networks = Networks()
    begun = time.process_time()
    for item in items:
        networks, _ = networks.put(item)
    return networks, time.process_time() - begun


def _changed(networks: Networks, vpcs: int) -> float:
    """Of both together, ms."""
    begun = time.process_time()
    for number in range(CHANGES):
        name = f"v{number % vpcs}/a/more"
        after, item = networks.put(Port(name=name))
        after.remove(kind_of(item), name)
    return (time.process_time() - begun) * 1e3 / CHANGES


def _ms(what: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        what()
    return (time.process_time() - begun) * 1e3 / times


if __name__ == "__main__":
    run("net_book", "The book of tenant networks", measure)
