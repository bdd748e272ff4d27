"""Store of tenant networks as a value: cost of validating changes, of reading it, and of computing the rows for OVN.

Processor time of this process, in CPU units (``bench._reference``), one of which is about 1 ms on the machines where the
goals were set. A VPC has a router, a subnet and four ports; with all services also a gateway, a floating address, a load
balancer, and an endpoint of the next VPC's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_network

from bench._reference import CpuTime, add_cpu_time, cpu_time
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
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

VPCS, QUICK_VPCS, PORTS = 1000, 200, 4
CHANGES = 200
# Goals: CPU units; the first three for 1,000 VPCs.
BUILD, SERVED, READ = 3_000, 8_000, 100
CHANGE, ROWS, SERVED_ROWS = 0.5, 1, 5
RANGE, SUBNET = ip_network("10.0.0.0/16"), ip_network("10.0.1.0/24")
HOSTS = NetworkHosts(gateways=("g1", "g2"))


def measure(report: Report) -> None:
    """Measure all; the short form has fewer VPCs, and goals in proportion."""
    vpcs = QUICK_VPCS if report.quick else VPCS
    share = vpcs / VPCS
    report.fact("vpcs", str(vpcs))
    plain, took = _built(item for number in range(vpcs) for item in _plain(number))
    objects = f"{len(list(plain.items()))} objects"
    add_cpu_time(report, "VPCs with four ports put", took, at_most=BUILD * share, detail=objects)
    served, took = _built(item for items in (_uplinks(vpcs), *map(_served, range(vpcs))) for item in items)
    objects = f"{len(list(served.items()))} objects"
    add_cpu_time(report, "VPCs with all services put", took, at_most=SERVED * share, detail=objects)
    _repeated(report, "a port put and removed", _changing(served, vpcs), CHANGES, at_most=CHANGE)
    items, last = tuple(served.items()), f"v{vpcs - 1}"
    _repeated(report, "the whole book read", lambda: Networks.from_objects(items, 1), 5, at_most=READ * share)
    after, _ = served.put(Port(name=f"{last}/a/more"))
    _repeated(report, "changes since a port was put", lambda: after.changes_since(served), CHANGES, at_most=CHANGE)
    for name, networks, goal in (("four ports", plain, ROWS), ("all services", served, SERVED_ROWS)):
        rows = partial(vpc_rows, networks, last, hosts=HOSTS)
        _repeated(report, f"rows of a VPC with {name}", rows, 50, at_most=goal)


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


def _built(items: Iterator[NetworkObject]) -> tuple[Networks, CpuTime]:
    """Return a store with these objects, and the processor time of putting them."""
    networks = Networks()
    with cpu_time() as took:
        for item in items:
            networks, _ = networks.put(item)
    return networks, took


def _changing(networks: Networks, vpcs: int) -> Callable[[], object]:
    """Return a call that puts a port into the next VPC and removes it."""
    numbers = itertools.cycle(range(vpcs))

    def change() -> None:
        name = f"v{next(numbers)}/a/more"
        after, item = networks.put(Port(name=name))
        after.remove(kind_of(item), name)

    return change


def _repeated(report: Report, name: str, call: Callable[[], object], times: int, *, at_most: float) -> None:
    """Record the processor time of one call, of some repeats."""
    with cpu_time() as took:
        for _ in range(times):
            call()
    add_cpu_time(report, name, took, at_most=at_most, times=times)


if __name__ == "__main__":
    run("net_book", "The book of tenant networks", measure)
