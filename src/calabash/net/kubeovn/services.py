"""Rendering of load balancers, peerings, routes, DNS records and service endpoints for Kube-OVN, as far as it supports them."""

from __future__ import annotations

from typing import Any

from calabash.model.network import DnsRecord, NetworkRoute, Peering, Port, Subnet
from calabash.model.network_services import CheckKind, Layer, LoadBalancer, ServiceEndpoint
from calabash.net.addresses.derived import peering_interfaces
from calabash.net.kubeovn.resources import Rendering, by_version, join_versions


def render_balancer(into: Rendering, item: LoadBalancer) -> None:
    """Render a load balancer as a SwitchLBRule. Its ``namespace`` tells Kube-OVN to which VPC it belongs."""
    objects = into.objects(item.name)
    numbers = {backend.number for backend in item.backends}
    ports = objects.all(Port)
    endpoints = [by_version(ports[backend.port].addresses, item.vip.version) for backend in item.backends]
    if item.layer is Layer.L7:
        into.add_unsupported(item, "Kube-OVN has no load balancer that terminates TLS or parses HTTP; run one as pods")
    elif not any(item.vip in cidr for subnet in objects.all(Subnet).values() for cidr in subnet.cidrs):
        into.add_unsupported(item, f"a SwitchLBRule needs an address in a subnet, and {item.vip} is external")
    elif len(numbers) != 1:
        into.add_unsupported(item, f"a SwitchLBRule has one port number for all backends, not {len(numbers)}")
    elif not all(endpoints):
        into.add_unsupported(item, f"not all backends have an IPv{item.vip.version} address")
    else:
        (number,) = numbers
        port = {
            "name": "service",
            "port": item.vip_number,
            "targetPort": number,
            "protocol": item.protocol.value.upper(),
        }
        spec = {
            "namespace": into.space(item.name),
            "vip": str(item.vip),
            "sessionAffinity": "None",
            "ports": [port],
            "endpoints": endpoints,
        }
        into.add("SwitchLBRule", into.name(item.name), spec, item)
        if item.check.kind is not CheckKind.NONE:
            into.add_unsupported(item, "Kube-OVN chooses interval and count of health checks itself", whole=False)


def render_peering(into: Rendering, item: Peering, vpc: dict[str, Any]) -> None:
    """Render a peering as part of the Vpc, with routes to the peer.

    Adds nothing to ``vpc``, the spec of the Vpc, while only one side has requested the peering.
    """
    own, other = item.name.split("/")
    back = into.networks.find(Peering, f"{other}/{own}")
    if back is None:
        into.part(item, f"nothing, until VPC {other} requests the peering too")
        return
    into.part(item, f"Vpc {into.space(own)}")
    side = 0 if own < other else 1
    own_interfaces, peer_interfaces = peering_interfaces(item.number, side), peering_interfaces(item.number, 1 - side)
    connect = ",".join(str(interface) for interface in own_interfaces)
    vpc.setdefault("vpcPeerings", []).append({"remoteVpc": into.space(other), "localConnectIP": connect})
    subnets = into.networks.of_vpc(other).all(Subnet).values()
    for prefix in item.routes or [cidr for subnet in subnets for cidr in subnet.cidrs]:
        next_hop = next(interface.ip for interface in peer_interfaces if interface.version == prefix.version)
        route = {"policy": "policyDst", "cidr": str(prefix), "nextHopIP": str(next_hop)}
        vpc.setdefault("staticRoutes", []).append(route)


def render_route(into: Rendering, item: NetworkRoute, vpc: dict[str, Any]) -> None:
    """Add a route to ``vpc``, the spec of the Vpc: a policy route if the route has a source, else a static route."""
    ip = f"ip{item.prefix.version}"
    into.part(item, f"Vpc {into.space(item.name)}")
    if item.source is None:
        if item.next_hop is None:
            into.add_unsupported(item, "a static route of Kube-OVN needs a next hop: it cannot drop packets")
            return
        route = {"policy": "policyDst", "cidr": str(item.prefix), "nextHopIP": str(item.next_hop)}
        vpc.setdefault("staticRoutes", []).append(route)
        return
    policy: dict[str, Any] = {
        "priority": item.priority,
        "action": "drop" if item.next_hop is None else "reroute",
        "match": f"{ip}.src == {item.source} && {ip}.dst == {item.prefix}",
    }
    if item.next_hop is not None:
        policy["nextHopIP"] = join_versions([item.next_hop])
    vpc.setdefault("policyRoutes", []).append(policy)


def render_record(into: Rendering, item: DnsRecord) -> None:
    """Record a DNS record as unsupported: VpcDns answers names of the cluster only."""
    into.add_unsupported(item, "VpcDns answers names of the cluster only")


def render_endpoint(into: Rendering, item: ServiceEndpoint) -> None:
    """Record an endpoint as unsupported: released versions of Kube-OVN cannot join VPCs with overlapping ranges."""
    into.add_unsupported(item, "Kube-OVN cannot offer a service of another VPC whose ranges may overlap")
