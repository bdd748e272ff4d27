"""Loss of a gateway host of OVN's pair, of an NFV gateway and of an L7 balancer: interruption, and lost TCP streams.

A host is lost at once: its cables, then every process of it, with the one that runs its appliances. A datagram every
10 ms shows the interruption; of a balancer a new connection every 50 ms, in the address's subnet and through
the VPC's router.

Goals are in seconds, because timers set these times: BFD between gateway hosts (three intervals of 200 ms), the advertisements
of keepalived (three of 150 ms). No work of the machine takes a comparable part of them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from ipaddress import ip_address, ip_network

from tests.net.flows import Calls, Echoes, Probe, Streams
from tests.net.realized_lab import RealizedLab, ReconciledHost, eventually, lose_host, restart_host
from tests.net.web import Web

from bench._report import Report, run
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.links import INTERNET_ADDRESS
from calabash.controllers.lab.record import register
from calabash.model.network import GatewayKind, NetworkGateway, Port, Subnet, Uplink, Vpc
from calabash.model.network_services import Backend, Layer, LoadBalancer

ROUNDS, QUICK_ROUNDS = 4, 2
STREAMS = 50
HOLE_S, BACK_HOLE_S = 0.7, 0.1
CALLS_HOLE_S = 1.0
PREFIX = "bgw"
_FOLLOWS = "Delayed start completed"  # in keepalived's log
VIP = "10.0.1.100"


def measure(report: Report) -> None:
    for kind in GatewayKind:
        found = [_lost(kind) for _ in range(QUICK_ROUNDS if report.quick else ROUNDS)]
        holes = [hole for hole, _, _ in found]
        how = f"{len(found)} losses of a gateway host; longest {max(holes):.2f} s; set by timers"
        report.add(f"{kind.value}_gateway_lost", statistics.median(holes), "s", at_most=HOLE_S, detail=how)
        lost, of = sum(lost for _, lost, _ in found), STREAMS * len(found)
        report.add(f"{kind.value}_streams_lost", lost, "streams", at_most=0, detail=f"of {of} established")
        if kind is GatewayKind.OVN:
            back = [hole for _, _, hole in found]
            how = f"{len(back)} hosts that take their place again; longest {max(back):.2f} s; set by timers"
            report.add("ovn_gateway_back", statistics.median(back), "s", at_most=BACK_HOLE_S, detail=how)
    for row, subnet in (("balancer_lost", "red/a"), ("balancer_lost_routed", "red/b")):
        holes = [_balancer_lost(f"{subnet}/client") for _ in range(QUICK_ROUNDS if report.quick else ROUNDS)]
        how = f"{len(holes)} losses of the host of a balancer's address; longest {max(holes):.2f} s; set by timers"
        report.add(row, statistics.median(holes), "s", at_most=CALLS_HOLE_S, detail=how)


def _lost(kind: GatewayKind) -> tuple[float, int, float]:
    """Return the interruption in seconds and the lost streams when the active host of a fresh lab's gateway is lost.

    For OVN's own gateways also the interruption while the host becomes active again, else 0.
    """
    lab = Lab(prefix=PREFIX, directory=register() / PREFIX, hosts=("h1",), gateways=("g1", "g2"))
    with lab, RealizedLab(lab) as realized, contextlib.ExitStack() as kept:
        realized.put(
            Uplink(name="up", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1")),
            Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
            Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),)),
            Port(name="red/a/web1"),
            NetworkGateway(name="red/out", kind=kind, snat=True),
        )
        realized.apply()
        web = realized.station("h1", "red/a/web1")
        hosts: dict[str, ReconciledHost] = {}
        if kind is GatewayKind.NFV:
            for name in lab.record.gateways:
                hosts[name] = ReconciledHost(realized, name, {})
                kept.callback(hosts[name].close)
            eventually(lambda: len(_active(hosts)) == 1, "one replica has the address")
            eventually(lambda: all(map(_listens, hosts.values())), "the other one listens")
        with Echoes(lab.world, INTERNET_ADDRESS, 9000), Probe(web, INTERNET_ADDRESS, 9000) as probe:
            eventually(lambda: probe.answered_since(0), "packets pass")
            with Streams(web, INTERNET_ADDRESS, 9000, STREAMS) as streams:
                if not hosts:  # BFD of tunnels is there for OVN's gateways only
                    eventually(lambda: all(_tunnels_up(lab, name) for name in lab.hosts), "hosts see each other")
                first = _active(hosts)[0] if hosts else _owner(lab)
                lost_s = time.monotonic()
                lose_host(lab, first, hosts.get(first))
                eventually(lambda: probe.answered_since(lost_s + 0.2), "the other host has taken over")
                hole_s, lost = probe.hole_s(lost_s), streams.lost()
                back_s = 0.0 if hosts else _back(realized, first, probe)
                return hole_s, lost + (0 if hosts else streams.lost()), back_s


def _back(realized: RealizedLab, host: str, probe: Probe) -> float:
    """Return the interruption in seconds while a host that returned and is healthy takes its traffic again."""
    realized.resting = (host,)
    realized.apply()
    restart_host(realized.lab, host)
    eventually(lambda: all(_tunnels_up(realized.lab, name) for name in realized.lab.hosts), "hosts see each other")
    back_s = time.monotonic()
    eventually(lambda: probe.answered_since(back_s + 1.0), "packets pass")
    realized.resting = ()
    realized.apply()
    eventually(lambda: _owner(realized.lab) == host, "the host has its place again")
    again_s = time.monotonic()
    eventually(lambda: probe.answered_since(again_s + 1.0), "packets pass")
    return probe.hole_s(back_s)


def _balancer_lost(client: str) -> float:
    """Return the seconds in which no new connection of a client of an L7 balancer's virtual address was answered."""
    lab = Lab(prefix=PREFIX, directory=register() / PREFIX, hosts=("h1",), gateways=("g1", "g2"))
    with lab, RealizedLab(lab) as realized, contextlib.ExitStack() as kept:
        balancer = LoadBalancer(
            name="red/site",
            vip=ip_address(VIP),
            vip_number=80,
            backends=(Backend(port="red/a/web", number=8080),),
            layer=Layer.L7,
        )
        realized.put(
            Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"),)),
            *(Subnet(name=f"red/{label}", cidrs=(ip_network(f"10.0.{n}.0/24"),)) for n, label in enumerate("ab", 1)),
            *(Port(name=name) for name in ("red/a/web", client)),
            balancer,
        )
        realized.apply()
        web, caller = realized.station("h1", "red/a/web"), realized.station("h1", client)
        hosts: dict[str, ReconciledHost] = {}
        for name in lab.record.gateways:
            hosts[name] = ReconciledHost(realized, name, {})
            kept.callback(hosts[name].close)
        eventually(lambda: len(_active(hosts)) == 1, "one replica has the address")
        eventually(lambda: all(map(_listens, hosts.values())), "the other one listens")
        with contextlib.closing(Web(web, "web")), Calls(caller, VIP, 80) as calls:
            eventually(lambda: calls.answered_s(0) < float("inf"), "calls are answered")
            first = _active(hosts)[0]
            lost_s = time.monotonic()
            lose_host(lab, first, hosts[first])
            eventually(lambda: calls.answered_s(lost_s + 0.2) < float("inf"), "the other replica answers")
            return calls.hole_s(lost_s)


def _active(hosts: dict[str, ReconciledHost]) -> list[str]:
    return [name for name, one in hosts.items() if any(state.active for state in one.states)]


def _listens(host: ReconciledHost) -> bool:
    """Return True if the host's replica follows the other one; before, it takes nothing over."""
    return any(_FOLLOWS in log.read_text() for log in host.directory.rglob("keepalived.log"))


def _owner(lab: Lab) -> str:
    """Return the host that carries the VPC's gateway port, "" if none does at the moment."""
    row = lab.central.sbctl(
        "--bare", "--columns=chassis", "find", "Port_Binding", 'logical_port="cr-red:uplink:router"'
    )
    return lab.central.sbctl("--bare", "--columns=name", "list", "Chassis", row.strip()).strip() if row.strip() else ""


def _tunnels_up(lab: Lab, host: str) -> bool:
    """Return True if all BFD sessions are up with their fast intervals, which takes some seconds after a start."""
    said = lab.host(host).appctl("ovs-vswitchd", "bfd/show")
    others = len(lab.hosts) - 1
    return said.count("Remote Session State: up") == others and said.count("RX Interval: Approx 200ms") == others


if __name__ == "__main__":
    run("net_gateways", "The loss of a gateway host", measure)
