"""Rendering of uplinks, gateways, outside addresses, NAT rules and dedicated lines for Kube-OVN."""

from __future__ import annotations

from typing import Any

from calabash.model.network import (
    DedicatedLine,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    Port,
    Subnet,
    Uplink,
)
from calabash.net.kubeovn.resources import PROVIDER_NAME_MAX, Rendering, by_version, join_versions, protocol_of

NAT_GATEWAY_HOSTS = "gateway hosts are chosen by the node label ovn.kubernetes.io/external-gw"


def render_uplink(into: Rendering, item: Uplink) -> None:
    """Render an uplink as a ProviderNetwork (one for each interface), a Vlan and an underlay Subnet."""
    if not _segment(into, item, item.physical, item.vlan):
        return
    spec = {
        "protocol": protocol_of([item.cidr]),
        "cidrBlock": str(item.cidr),
        "gateway": str(item.gateway),
        "excludeIps": [str(item.gateway)],
        "vlan": _vlan(item.physical, item.vlan),
    }
    into.add("Subnet", uplink_subnet(item.name), spec, item)
    if item.hosts:
        into.add_unsupported(item, f"hosts: {NAT_GATEWAY_HOSTS}", whole=False)


def uplink_subnet(uplink: str) -> str:
    """Return the name of the underlay Subnet of an uplink."""
    return f"uplink.{uplink}"  # labels of VPCs contain no dot


def _vlan(physical: str, vlan: int) -> str:
    return f"{physical}-vlan{vlan}"


def _segment(into: Rendering, item: Uplink | DedicatedLine, physical: str, vlan: int) -> bool:
    """Render the ProviderNetwork and Vlan of an uplink or line, unless they exist already.

    Returns False if the name of the physical network is too long for Kube-OVN.

    Args:
        physical: name of the provider's physical network.
        vlan: number of the VLAN on it.
    """
    if len(physical) > PROVIDER_NAME_MAX:
        into.add_unsupported(item, f"physical {physical!r} has more than {PROVIDER_NAME_MAX} characters")
        return False
    existing = {(resource.kind, resource.name) for resource in into.resources}
    if ("ProviderNetwork", physical) not in existing:
        card = into.interfaces.get(physical, physical)
        into.add("ProviderNetwork", physical, {"defaultInterface": card}, item)
    if ("Vlan", _vlan(physical, vlan)) not in existing:
        into.add("Vlan", _vlan(physical, vlan), {"id": vlan, "provider": physical}, item)
    return True


def gateway_of(into: Rendering, name: str) -> NetworkGateway | None:
    """Return the gateway of the VPC to which the object with this name belongs; None if the VPC has none."""
    return next(iter(into.objects(name).all(NetworkGateway).values()), None)


def _rendered_uplink(into: Rendering, gateway: NetworkGateway) -> Uplink | None:
    """Return the uplink of the gateway if it could be rendered, else None."""
    uplink = into.networks.find(Uplink, gateway.uplink)
    return uplink if uplink is not None and len(uplink.physical) <= PROVIDER_NAME_MAX else None


def render_gateway(into: Rendering, item: NetworkGateway, vpc: dict[str, Any]) -> None:
    """Render a gateway and add its routes to ``vpc``, the spec of the Vpc.

    Kind ovn becomes an OvnEip and OvnSnatRules, kind nfv a VpcNatGateway with IptablesEIP and IptablesSnatRules.
    """
    uplink = _rendered_uplink(into, item)
    if uplink is None:
        into.add_unsupported(item, f"its uplink {item.uplink} is not supported")
    elif item.kind is GatewayKind.OVN:
        _ovn_gateway(into, item, uplink, vpc)
    else:
        _nat_gateway(into, item, uplink, vpc)


def gateway_eip(into: Rendering, item: NetworkGateway) -> str:
    """Return the name of the resource for a gateway's outside address. Kube-OVN prescribes it for kind ovn."""
    if item.kind is GatewayKind.OVN:
        return f"{into.space(item.name)}-{uplink_subnet(item.uplink)}"
    return f"{into.name(item.name)}.own"


def _anywhere(version: int, next_hop: str) -> dict[str, str]:
    prefix = "0.0.0.0/0" if version == 4 else "::/0"
    return {"policy": "policyDst", "cidr": prefix, "nextHopIP": next_hop}


def _ovn_gateway(into: Rendering, item: NetworkGateway, uplink: Uplink, vpc: dict[str, Any]) -> None:
    name, space = gateway_eip(into, item), into.space(item.name)
    vpc["enableExternal"] = True
    vpc.setdefault("extraExternalSubnets", []).append(uplink_subnet(uplink.name))
    vpc.setdefault("staticRoutes", []).append(_anywhere(uplink.gateway.version, str(uplink.gateway)))
    addresses = [item.address] if item.address is not None else []
    spec = {
        "externalSubnet": uplink_subnet(uplink.name),
        "type": "lrp",
        "v4Ip": by_version(addresses, 4),
        "v6Ip": by_version(addresses, 6),
    }
    into.add("OvnEip", name, spec, item)
    key = "v4IpCidr" if uplink.cidr.version == 4 else "v6IpCidr"
    for subnet in into.objects(item.name).all(Subnet).values() if item.snat else ():
        for cidr in subnet.cidrs:
            if cidr.version == uplink.cidr.version:
                spec = {"ovnEip": name, "vpc": space, key: str(cidr)}
                into.add("OvnSnatRule", f"{into.name(subnet.name)}-snat", spec, item)


def _nat_gateway(into: Rendering, item: NetworkGateway, uplink: Uplink, vpc: dict[str, Any]) -> None:
    ports = into.objects(item.name).all(Port)
    inside = next((ports[name] for name in item.ports if name in ports), None)
    lan = by_version(inside.addresses, 4) if inside is not None else ""
    if inside is None or not lan or uplink.cidr.version != 4:
        into.add_unsupported(item, "a VpcNatGateway supports IPv4 only, and needs an address in the VPC")
        return
    name, space = into.name(item.name), into.space(item.name)
    spec = {
        "vpc": space,
        "subnet": into.name(inside.name.rpartition("/")[0]),
        "lanIp": lan,
        "externalSubnets": [uplink_subnet(uplink.name)],
    }
    into.add("VpcNatGateway", name, spec, item)
    into.add_unsupported(
        item, "a VpcNatGateway is a single pod: there is no immediate failover if its host is lost", whole=False
    )
    vpc.setdefault("staticRoutes", []).append(_anywhere(4, lan))
    eip = {"natGwDp": name, "v4ip": str(item.address or ""), "externalSubnet": uplink_subnet(uplink.name)}
    own = gateway_eip(into, item)
    into.add("IptablesEIP", own, eip, item)
    for subnet in into.objects(item.name).all(Subnet).values() if item.snat else ():
        for cidr in subnet.cidrs:
            if cidr.version == 4:
                spec = {"eip": own, "internalCIDR": str(cidr)}
                into.add("IptablesSnatRule", f"{into.name(subnet.name)}-snat", spec, item)


def render_eip(into: Rendering, item: Eip) -> None:
    """Render an outside address as an OvnEip or an IptablesEIP, depending on the kind of the gateway."""
    gateway = gateway_of(into, item.name)
    uplink = _rendered_uplink(into, gateway) if gateway is not None else None
    addresses = [item.address] if item.address is not None else []
    if gateway is None or uplink is None:
        into.add_unsupported(item, "an outside address needs an external subnet, and the VPC has no gateway to one")
    elif gateway.kind is GatewayKind.OVN:
        spec = {
            "externalSubnet": uplink_subnet(uplink.name),
            "type": "nat",
            "v4Ip": by_version(addresses, 4),
            "v6Ip": by_version(addresses, 6),
        }
        into.add("OvnEip", into.name(item.name), spec, item)
    elif by_version(addresses, 4):
        eip = {"natGwDp": into.name(gateway.name), "v4ip": str(item.address)}
        into.add("IptablesEIP", into.name(item.name), eip | {"externalSubnet": uplink_subnet(uplink.name)}, item)
    else:
        into.add_unsupported(item, "a VpcNatGateway supports IPv4 outside addresses only")


def render_nat(into: Rendering, item: NatRule) -> None:
    """Render a NAT rule as OvnFip or OvnDnatRule, or as IptablesFIPRule or IptablesDnatRule of a VpcNatGateway."""
    gateway = gateway_of(into, item.name)
    if gateway is None or _rendered_uplink(into, gateway) is None:
        into.add_unsupported(item, "the VPC has no gateway that can translate")
        return
    own = item.eip == gateway.name
    eip = into.objects(item.name).all(Eip).get(item.eip)
    outside = gateway.address if own else eip.address if eip is not None else None
    inside = into.objects(item.name).all(Port)[item.port].addresses
    version = outside.version if outside is not None else 4
    address = by_version(inside, version)
    if not address:
        into.add_unsupported(item, f"{item.port} has no IPv{version} address for {item.eip}")
        return
    resource = gateway_eip(into, gateway) if own else into.name(item.eip)
    if item.distributed:
        into.add_unsupported(
            item,
            "it is translated at the gateway: distributed translation needs the name of a pod, not of a port",
            whole=False,
        )
    numbers = {"externalPort": str(item.outside_number), "internalPort": str(item.inside_number)}
    name = into.name(item.name)
    if gateway.kind is GatewayKind.NFV:
        if version != 4:
            into.add_unsupported(item, "a VpcNatGateway supports IPv4 only")
        elif item.kind is NatKind.FIP:
            into.add("IptablesFIPRule", name, {"eip": resource, "internalIp": address}, item)
        else:
            rule = numbers | {"eip": resource, "internalIp": address, "protocol": item.protocol.value}
            into.add("IptablesDnatRule", name, rule, item)
        return
    spec = {"ovnEip": resource, "vpc": into.space(item.name), "v4Ip" if version == 4 else "v6Ip": address}
    if item.kind is NatKind.FIP:
        into.add("OvnFip", name, spec | {"type": "centralized"}, item)
    else:
        into.add("OvnDnatRule", name, spec | numbers | {"protocol": item.protocol.value}, item)


def render_line(into: Rendering, item: DedicatedLine, vpc: dict[str, Any]) -> None:
    """Render a dedicated line as an underlay Subnet that is joined to the router of the VPC.

    Adds the routes of the line to ``vpc``, the spec of the Vpc.
    """
    if not _segment(into, item, item.physical, item.vlan):
        return
    spec = {
        "vpc": into.space(item.name),
        "protocol": protocol_of([item.cidr]),
        "cidrBlock": str(item.cidr),
        "gateway": str(item.peer),
        "excludeIps": sorted({str(item.peer), str(item.address)}),
        "vlan": _vlan(item.physical, item.vlan),
        "u2oInterconnection": True,
        "u2oInterconnectionIP": join_versions([item.address]),
    }
    into.add("Subnet", f"line{item.number}", spec, item)
    for prefix in item.routes:
        route = {"policy": "policyDst", "cidr": str(prefix), "nextHopIP": str(item.peer)}
        vpc.setdefault("staticRoutes", []).append(route)
    if item.hosts:
        into.add_unsupported(item, f"hosts: {NAT_GATEWAY_HOSTS}", whole=False)
