"""Tests that killed daemons of a network are started again, while packets pass where possible."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.daemons.world import until
from tests.net.flows import Echoes, Probe
from tests.net.station_sockets import pings

from calabash.controllers.lab import supervisor
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station

HOSTS, GATEWAYS = ("h1", "h2"), ()
KILLED = ("central/nb", "central/sb", "central/northd", "h2/ovsdb-server", "h2/ovn-controller", "h2/ovs-vswitchd")
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def supervised(lab: Lab) -> Lab:
    """Start the supervisor of the lab, and return the lab."""
    supervisor.start_supervisor(lab)
    assert supervisor.supervisor_pid(lab.directory)
    return lab


@pytest.fixture(scope="module")
def pair(supervised: Lab) -> tuple[Station, Station]:
    nb = supervised.central.nbctl
    nb("ls-add", "s")
    made = []
    for number, host in enumerate(HOSTS, 1):
        port, mac, address = f"s/a/p{number}", f"0a:00:00:00:00:0{number}", f"10.0.1.1{number}"
        nb("lsp-add", "s", port, "--", "lsp-set-addresses", port, f"{mac} {address}")
        made.append(supervised.station(host, port, mac, [f"{address}/24"]))
        nb("wait-until", "Logical_Switch_Port", port, "up=true")
    assert pings(made[0], "10.0.1.12")
    return made[0], made[1]


def kill(lab: Lab, name: str) -> int:
    """Kill a daemon with SIGKILL; return its PID."""
    pid = lab.daemons()[name]
    assert pid, name
    os.kill(pid, signal.SIGKILL)
    return pid


def restarted(lab: Lab, name: str, before: int, count: int) -> bool:
    told = supervisor.read_restarts(lab.directory).get(name)
    return lab.daemons()[name] not in (0, before) and told is not None and told.count == count


@pytest.mark.parametrize("name", KILLED)
def test_killed_daemon_is_started_again_and_counted_and_packets_pass(
    supervised: Lab, pair: tuple[Station, Station], name: str
) -> None:
    one, two = pair
    with Echoes(two, "10.0.1.12", 9000), Probe(one, "10.0.1.12", 9000) as probe:
        until(lambda: probe.answered_since(0), within_s=WITHIN_S, what="the probe is answered")
        killed_s = time.monotonic()
        before = kill(supervised, name)
        until(lambda: restarted(supervised, name, before, 1), within_s=WITHIN_S, what=f"{name} runs again")
        runs_s = time.monotonic()
        supervised.central.nbctl("--wait=hv", "--timeout=60", "sync", timeout_s=60)
        carried_s = time.monotonic()
        until(lambda: probe.answered_since(runs_s + 1), within_s=WITHIN_S, what="packets pass")
        print(
            f"{name}: runs after {runs_s - killed_s:.3f} s, carries out changes after {carried_s - killed_s:.3f} s,",
            end=" ",
        )
        print(f"no packet for {probe.hole_s(killed_s):.3f} s")


def test_daemon_that_keeps_ending_waits_longer_each_time(supervised: Lab) -> None:
    name = "central/northd"
    first = supervisor.read_restarts(supervised.directory).get(name, supervisor.DaemonRestarts()).count
    begun_s = time.monotonic()
    for count in range(first + 1, first + 4):
        before = kill(supervised, name)
        until(lambda: restarted(supervised, name, before, count), within_s=WITHIN_S, what=f"start {count}")  # noqa: B023
    assert time.monotonic() - begun_s > supervisor.PAUSE_S * 3  # 0 or 0.5 s, then twice that each time
    log = (supervised.directory / supervisor.LOG_FILE).read_text()
    assert log.count('event="daemon restarted"') >= 3


def test_killed_supervisor_is_replaced_and_the_next_one_starts_what_has_ended(supervised: Lab) -> None:
    before = supervisor.supervisor_pid(supervised.directory)
    os.kill(before, signal.SIGKILL)
    until(lambda: supervisor.supervisor_pid(supervised.directory) == 0, within_s=WITHIN_S, what="the supervisor ends")
    killed = kill(supervised, "h1/ovn-controller")
    supervisor.start_supervisor(supervised)
    assert supervisor.supervisor_pid(supervised.directory) not in (0, before)
    until(lambda: supervised.daemons()["h1/ovn-controller"] not in (0, killed), within_s=WITHIN_S)
