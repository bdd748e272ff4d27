"""Rendering of a replica as an ``Appliance``: interfaces, routes, kernel settings, configuration files and programs."""

from __future__ import annotations

from collections.abc import Iterable

from calabash.model.network import NetworkKind
from calabash.net.appliances import conntrackd, haproxy, keepalived, nft
from calabash.net.appliances.model import (
    INSIDE,
    OUTSIDE,
    Appliance,
    ApplianceInterface,
    ApplianceProgram,
    BalancerReplica,
    NfvReplica,
    PairMember,
    Replica,
)

_RULES, _CONNECTIONS, _BALANCER, _VIRTUAL = "rules.nft", "conntrackd.conf", "haproxy.cfg", "keepalived.conf"
_ALIVE = "alive.sh"
_FORWARDING = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/netfilter/nf_conntrack_tcp_be_liberal": "1",  # TCP windows of connections taken over are unknown
    "net/netfilter/nf_conntrack_tcp_loose": "0",  # packets without a known connection start none
}
_BALANCING = {"net/ipv4/ip_nonlocal_bind": "1", "net/ipv6/ip_nonlocal_bind": "1"}


def build_appliance(replica: Replica, directory: str) -> Appliance:
    """Return the appliance of a replica.

    Args:
        directory: absolute path of the directory that will contain the replica's files.

    Raises:
        CalabashError: the path of a health check is invalid.
    """
    return _gateway(replica, directory) if isinstance(replica, NfvReplica) else _balancer(replica, directory)


def _gateway(replica: NfvReplica, directory: str) -> Appliance:
    member = replica.member
    outside = ApplianceInterface(
        device=OUTSIDE, port=replica.outside_port, mac=replica.outside_mac, addresses=(), mtu_bytes=member.mtu_bytes
    )
    return Appliance(
        name=member.name,
        kind=NetworkKind.GATEWAY.value,
        item=replica.gateway,
        interfaces=(_inside(member, map(str, replica.ranges)), outside),
        virtual=str(member.virtual),
        settings=_FORWARDING,
        files={
            _RULES: nft.ruleset(replica),
            _CONNECTIONS: conntrackd.configuration(replica, directory),
            _VIRTUAL: keepalived.gateway_configuration(replica),
        },
        programs=(_conntrackd(directory), _keepalived(directory)),
        ruleset=_RULES,
    )


def _balancer(replica: BalancerReplica, directory: str) -> Appliance:
    member = replica.member
    anywhere = "0.0.0.0/0" if member.own.version == 4 else "::/0"
    return Appliance(
        name=member.name,
        kind=NetworkKind.LOAD_BALANCER.value,
        item=replica.balancer,
        interfaces=(_inside(member, (anywhere,)),),
        virtual=str(member.virtual),
        scripts=(_ALIVE,),
        settings=_BALANCING,
        files={
            _BALANCER: haproxy.configuration(replica, directory),
            _ALIVE: f'#!/bin/sh\nkill -0 "$(cat {directory}/haproxy.pid)"\n',
            _VIRTUAL: keepalived.balancer_configuration(replica, f"{directory}/{_ALIVE}"),
        },
        programs=(_haproxy(directory), _keepalived(directory)),
        secrets=(replica.certificate,) if replica.certificate else (),
    )


def _inside(member: PairMember, reached: Iterable[str]) -> ApplianceInterface:
    return ApplianceInterface(
        device=INSIDE,
        port=member.name,
        mac=member.mac,
        addresses=(f"{member.own}/{member.prefix}",),
        mtu_bytes=member.mtu_bytes,
        routes=tuple((prefix, str(member.router)) for prefix in reached),
    )


def _keepalived(directory: str) -> ApplianceProgram:
    file = f"{directory}/{_VIRTUAL}"
    own = ("-p", f"{directory}/keepalived.pid", "-r", f"{directory}/vrrp.pid")
    return ApplianceProgram(
        name="keepalived",
        file=_VIRTUAL,
        arguments=("--vrrp", "--dont-fork", "--log-console", *own, "-f", file),
        check=("--config-test", "-f", file),
        reload="HUP",
        waits=True,
    )


def _conntrackd(directory: str) -> ApplianceProgram:
    return ApplianceProgram(
        name="conntrackd",
        file=_CONNECTIONS,
        arguments=("-C", f"{directory}/{_CONNECTIONS}"),
        leaves=("conntrackd.lock", "conntrackd.ctl"),
    )


def _haproxy(directory: str) -> ApplianceProgram:
    file = f"{directory}/{_BALANCER}"
    return ApplianceProgram(
        name="haproxy",
        file=_BALANCER,
        arguments=("-W", "-p", f"{directory}/haproxy.pid", "-f", file),
        check=("-c", "-f", file),
        reload="USR2",
    )
