"""Killed daemons of OVN and Open vSwitch: time until the supervisor has restarted each, and time without packets.

Two stations on two hosts of a lab, and a datagram between them every 10 ms. Each daemon is killed (SIGKILL) in turn, those of
hosts on the host of the station that answers. Times are for information: they are set by how long a daemon takes to start and
by how soon others connect to it again, which is a second for OVN's databases.
"""

from __future__ import annotations

import os
import signal
import statistics
import time

from tests.daemons.world import until
from tests.net.flows import Echoes, Probe

from bench._report import Report, run
from calabash.controllers.lab import supervisor
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.lab.station import Station

ROUNDS, QUICK_ROUNDS = 5, 1
PREFIX = "bnd"
KILLED = {
    "northbound": "central/nb",
    "southbound": "central/sb",
    "ovn-northd": "central/northd",
    "ovsdb-server": "h2/ovsdb-server",
    "ovn-controller": "h2/ovn-controller",
    "ovs-vswitchd": "h2/ovs-vswitchd",
}
WITHIN_S = 60.0


def measure(report: Report) -> None:
    rounds = [_round() for _ in range(QUICK_ROUNDS if report.quick else ROUNDS)]
    for title in KILLED:
        for part, what in enumerate(("runs", "carries_out", "no_packet")):
            times = [found[title][part] for found in rounds]
            report.add(f"{title}_{what}", statistics.median(times), "s", detail=f"longest {max(times):.2f} s")


def _round() -> dict[str, tuple[float, float, float]]:
    """Kill each daemon of a new network once, so that none waits because it ended before."""
    with Lab(prefix=PREFIX, directory=register() / PREFIX, hosts=("h1", "h2"), gateways=()) as lab:
        supervisor.start_supervisor(lab)
        one, two = _stations(lab)
        return {title: _killed(lab, name, one, two) for title, name in KILLED.items()}


def _stations(lab: Lab) -> tuple[Station, Station]:
    nb = lab.central.nbctl
    nb("ls-add", "s")
    made = []
    for number, host in enumerate(("h1", "h2"), 1):
        port, mac, address = f"s/a/p{number}", f"0a:00:00:00:00:0{number}", f"10.0.1.1{number}"
        nb("lsp-add", "s", port, "--", "lsp-set-addresses", port, f"{mac} {address}")
        made.append(lab.station(host, port, mac, [f"{address}/24"]))
        nb("wait-until", "Logical_Switch_Port", port, "up=true")
    return made[0], made[1]


def _killed(lab: Lab, name: str, one: Station, two: Station) -> tuple[float, float, float]:
    """Return the seconds until a killed daemon runs, until a change is carried out on all hosts, and without packets."""
    with Echoes(two, "10.0.1.12", 9000), Probe(one, "10.0.1.12", 9000) as probe:
        until(lambda: probe.answered_since(0), within_s=WITHIN_S, what="the probe is answered")
        before = lab.daemons()[name]
        count = _count(lab, name)
        killed_s = time.monotonic()
        os.kill(before, signal.SIGKILL)
        until(lambda: _count(lab, name) > count and lab.daemons()[name], within_s=WITHIN_S, what=f"{name} runs again")
        runs_s = time.monotonic()
        lab.central.nbctl("--wait=hv", "sync", timeout_s=WITHIN_S)
        carried_s = time.monotonic()
        until(lambda: probe.answered_since(carried_s + 1), within_s=WITHIN_S, what="packets pass")
        return runs_s - killed_s, carried_s - killed_s, probe.hole_s(killed_s)


def _count(lab: Lab, name: str) -> int:
    return supervisor.read_restarts(lab.directory).get(name, supervisor.DaemonRestarts()).count


if __name__ == "__main__":
    run("net_daemons", "Daemons of OVN that are killed", measure)
