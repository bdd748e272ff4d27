"""Rendering of VPCs, subnets, ports, security groups and QoS policies for Kube-OVN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calabash.model.network import Direction, Port, QosPolicy, SecurityGroup, SecurityRule, Subnet, Vpc
from calabash.model.network_services import LoadBalancer, TransportProtocol
from calabash.net.kubeovn.resources import MEGABIT, Rendering, by_version, join_versions, protocol_of

ANNOTATION = "ovn.kubernetes.io"
_PROTOCOLS = {
    TransportProtocol.ANY: "all",
    TransportProtocol.ICMP: "icmp",
    TransportProtocol.TCP: "tcp",
    TransportProtocol.UDP: "udp",
}


def render_subnet(into: Rendering, item: Subnet) -> None:
    """Render a subnet as a Subnet resource of Kube-OVN. The first subnet with DNS also gets the VpcDns of the VPC."""
    vpc = into.vpc(item.name)
    versions = {cidr.version for cidr in item.cidrs}
    spec: dict[str, Any] = {
        "vpc": into.space(item.name),
        "protocol": protocol_of(item.cidrs),
        "cidrBlock": join_versions(item.cidrs),
        "gateway": join_versions(item.gateways),
        "excludeIps": [str(gateway) for gateway in item.gateways],
        "gatewayType": "distributed",
        "mtu": vpc.mtu_bytes,
        "enableDHCP": item.dhcp or None,
        "enableIPv6RA": (item.dhcp and 6 in versions) or None,
        "enableLb": bool(into.objects(item.name).all(LoadBalancer)) or None,
    }
    into.add("Subnet", into.name(item.name), spec, item)
    if item.dns:
        first = next(s for s in into.objects(item.name).all(Subnet).values() if s.dns)
        if first is item:
            space = into.space(item.name)
            into.add("VpcDns", f"{space}-dns", {"vpc": space, "subnet": into.name(item.name), "replicas": 2}, item)
        into.add_unsupported(item, "its DNS answers names of the cluster, not names of ports", whole=False)


def render_port(into: Rendering, item: Port) -> None:
    """Render a port as annotations of a pod, and a virtual port as a Vip resource of Kube-OVN."""
    subnet = item.name.rpartition("/")[0]
    if item.virtual_parents:
        _virtual(into, item, subnet)
        return
    annotations = {
        "logical_switch": into.name(subnet),
        "ip_address": join_versions(item.addresses),
        "mac_address": item.mac,
        "port_security": "true",
        "security_groups": ",".join(into.name(group) for group in item.security_groups),
    }
    if item.qos:
        annotations |= _rates(into.objects(item.name).all(QosPolicy)[item.qos])
    held = into.pods.setdefault(item.name, {})
    held.update({f"{ANNOTATION}/{key}": value for key, value in annotations.items()})


def _virtual(into: Rendering, item: Port, subnet: str) -> None:
    name = f"{into.name(subnet)}.{item.name.rpartition('/')[2]}"
    spec = {
        "namespace": into.space(item.name),
        "subnet": into.name(subnet),
        "v4ip": by_version(item.addresses, 4),
        "v6ip": by_version(item.addresses, 6),
        "macAddress": item.mac,
    }
    into.add("Vip", name, spec, item)
    ports = into.objects(item.name).all(Port)
    for parent in item.virtual_parents:
        held = into.pods.setdefault(parent, {})
        key = f"{ANNOTATION}/aaps"
        held[key] = ",".join([*filter(None, [held.get(key, "")]), name])
        if parent in ports and set(ports[parent].security_groups) != set(item.security_groups):
            into.add_unsupported(
                item, f"it has the security groups of the port that holds the address, here {parent}", whole=False
            )


def _rates(policy: QosPolicy) -> dict[str, str]:
    """Return the rates in whole Mbit/s, rounded down, at least 1."""
    rates = {"egress_rate": policy.egress_bits_per_s, "ingress_rate": policy.ingress_bits_per_s}
    return {key: str(max(1, rate // MEGABIT)) for key, rate in rates.items() if rate}


def render_qos(into: Rendering, item: QosPolicy) -> None:
    """Record that a QoS policy is part of the pods' annotations. Rates that are not whole Mbit/s are unsupported."""
    into.part(item, "annotations of pods")
    for what, rate in (("egress", item.egress_bits_per_s), ("ingress", item.ingress_bits_per_s)):
        if rate % MEGABIT:
            rounded = max(1, rate // MEGABIT)
            into.add_unsupported(
                item, f"rates are whole Mbit/s: {what} of {rate} bit/s becomes {rounded} Mbit/s", whole=False
            )


def render_group(into: Rendering, item: SecurityGroup) -> None:
    """Render a security group as a SecurityGroup resource of Kube-OVN.

    Both drop packets that no rule permits. Rules for unsupported protocols are left out and reported.
    """
    versions = sorted({cidr.version for cidr in into.vpc(item.name).cidrs})
    rules: dict[Direction, list[dict[str, Any]]] = {Direction.INGRESS: [], Direction.EGRESS: []}
    for rule in item.rules:
        if rule.protocol not in _PROTOCOLS:
            into.add_unsupported(
                item, f"rules for {rule.protocol} are not supported: {rule.direction} stays closed", whole=False
            )
            continue
        rules[rule.direction] += [_rule(into, rule, version) for version in _versions(rule, versions)]
    spec = {"ingressRules": rules[Direction.INGRESS], "egressRules": rules[Direction.EGRESS]}
    into.add("SecurityGroup", into.name(item.name), spec, item)


def _versions(rule: SecurityRule, versions: Sequence[int]) -> Sequence[int]:
    return [rule.peer.version] if rule.peer is not None else versions


def _rule(into: Rendering, rule: SecurityRule, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ipVersion": f"ipv{version}",
        "protocol": _PROTOCOLS[rule.protocol],
        "priority": 1,
        "policy": "allow",
    }
    if rule.peer_group:
        found |= {"remoteType": "securityGroup", "remoteSecurityGroup": into.name(rule.peer_group)}
    else:
        anywhere = "0.0.0.0/0" if version == 4 else "::/0"
        found |= {"remoteType": "address", "remoteAddress": str(rule.peer or anywhere)}
    if rule.protocol in {TransportProtocol.TCP, TransportProtocol.UDP}:
        first, last = rule.ports if rule.ports != (0, 0) else (1, 65535)
        found |= {"portRangeMin": max(1, first), "portRangeMax": last}
    return found


def vpc_spec(into: Rendering, item: Vpc) -> dict[str, Any]:
    """Return the initial spec of a Vpc. Renderers of routes, peerings and gateways extend it."""
    return {"namespaces": [into.space(item.name)]}
