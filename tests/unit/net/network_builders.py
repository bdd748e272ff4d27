"""Builders of small networks for tests."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from calabash.model.network import NetworkObject, Port, Subnet, Vpc
from calabash.net.store.networks import Networks


def build_networks(*items: NetworkObject, platform: bool = True) -> Networks:
    networks = Networks()
    for item in items:
        networks, _ = networks.put(item, platform=platform)
    return networks


def vpc(name: str, *cidrs: str, tenant: str = "") -> Vpc:
    return Vpc(name=name, tenant=tenant, cidrs=tuple(map(ip_network, cidrs or ("10.0.0.0/16",))))


def subnet(name: str, *cidrs: str, served: bool = False) -> Subnet:
    return Subnet(name=name, cidrs=tuple(map(ip_network, cidrs or ("10.0.1.0/24",))), dhcp=served, dns=served)


def port(name: str, *addresses: str, groups: tuple[str, ...] = (), mac: str = "", qos: str = "") -> Port:
    return Port(name=name, addresses=tuple(map(ip_address, addresses)), security_groups=groups, mac=mac, qos=qos)
