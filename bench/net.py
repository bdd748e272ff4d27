"""Tenant networks on a whole OVN in namespaces of this machine: time from a change of the store to the first packet.

The controller runs in this process and reads the network store as a value; central, two hosts and a gateway host run beside it,
on the same cores. A port's namespace, cables and switch port are made before the clock starts: the figures are of the store,
OVN's databases, northd, the hosts' controllers and flows. A frame is sent every millisecond until it arrives.

Goals of these times are ratios to OVN's own round trip, ``ovn-nbctl --wait=hv sync``, taken before each of them: a client
writes a counter, northd carries it to the southbound database, and every host's controller answers. The processor time of
the controller is in CPU units (``bench._reference``). Goals in seconds remain where timers set the time.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.daemons.world import until
from tests.net.controller import Controller, vpc_with_ports
from tests.net.packets import IPV4, UDP, Sniffer, ethernet, ip, udp
from tests.net.servers import ClusterServer
from tests.net.stream import Stream
from tests.net.test_northbound import put, vpc_rows

from bench._reference import CPU_UNIT, cpu_unit_s
from bench._report import Report, run
from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.lab.station import Station
from calabash.controllers.sources.network_source import NetworkUpdate
from calabash.model.network import NetworkKind, Port
from calabash.net.store.networks import Networks

TENANTS, MANY, QUICK_MANY, PORTS = 10, 1000, 200, 4
ROUNDS = 7
# Goals: OVN's own round trips; for one VPC of many; CPU units for one.
CREATED, ADDED, ADDED_AMONG_MANY = 10.0, 4.0, 4.0
BULK_EACH, BULK_EACH_UNITS = 3.0, 10.0
# Goals: set by timers.
LEADER_S, SWITCH_S = 5.0, 2.0
AT_REST = "northd at rest; its name in DNS follows"


def measure(report: Report) -> None:
    """Measure all; the short form has 200 VPCs in place of 1,000."""
    if os.geteuid() != 0:
        report.fact("skipped", "namespaces need root")
        return
    many = QUICK_MANY if report.quick else MANY
    prefix = f"b{os.getpid() % 100000}"
    lab = Lab(prefix=prefix, directory=register() / prefix, hosts=("h1", "h2"), gateways=("g1",))
    with lab, Controller(lab.northbound, lab.southbound) as controller:
        networks = Networks()
        for number in range(TENANTS):
            networks = vpc_with_ports(networks, f"v{number}", PORTS)
        controller.realize(networks)
        times = Times(lab, controller)
        networks, created = times.created(networks)
        name = "VPC created to first packet, 10 tenants"
        _add(report, name, created.first_ms, created.syncs_ms, goal=CREATED, detail="between two hosts")
        networks, added = times.added(networks)
        name = "port added to first packet, 10 tenants"
        _add(report, name, added.first_ms, added.syncs_ms, goal=ADDED, detail=AT_REST)
        name = "port added to realized, 10 tenants"
        _add(report, name, added.realized_ms, added.syncs_ms, goal=None, detail="as the pool is told")
        _faults(report, lab, times, networks)
        before = networks
        for number in range(TENANTS, many):
            networks = vpc_with_ports(networks, f"v{number}", PORTS)
        _bulk(report, controller, (before, networks), many, added.syncs_ms)
        networks, added = times.added(networks)
        name = f"port added to first packet, {many} VPCs"
        _add(report, name, added.first_ms, added.syncs_ms, goal=ADDED_AMONG_MANY, detail=AT_REST)
        _add(report, f"port added to realized, {many} VPCs", added.realized_ms, added.syncs_ms, goal=None)
        networks, created = times.created(networks)
        name, detail = f"VPC created to first packet, {many} VPCs", "northd looks at all of them again"
        _add(report, name, created.first_ms, created.syncs_ms, goal=None, detail=detail)
        _started(report, lab, many)
    _leader(report)


def _add(
    report: Report, name: str, taken_ms: list[float], syncs_ms: list[float], *, goal: float | None, detail: str = ""
) -> None:
    """Record times as a ratio to OVN's own round trip before each of them."""
    report.add_ratio(name, taken_ms, syncs_ms, "ms", of="OVN's own round trip", at_most=goal, detail=detail)


def _faults(report: Report, lab: Lab, times: Times, networks: Networks) -> None:
    """Measure the packets between two hosts that are lost when a daemon dies."""
    with times.station(networks, "v1/a/p0", "h1") as one, times.station(networks, "v1/a/p1", "h2") as other:
        until(lambda: _lost(Stream(one, other), 0.2) == 0)
        stream = Stream(one, other)
        with stream:
            for daemon in ("northd", "nb", "sb"):
                lab.central.kill(daemon)
            for host in ("h1", "h2"):
                lab.host(host).kill("ovn-controller")
            time.sleep(1.0)
            lab.central.up()
            for host in ("h1", "h2"):
                lab.host(host).start("ovn-controller")
            time.sleep(3.0)
        report.add(
            "packets lost, all of the control plane killed",
            stream.lost,
            "packets",
            at_most=0,
            detail=f"of {stream.sent}, until it is back",
        )
        stream = Stream(one, other)
        with stream:
            time.sleep(0.2)
            lab.host("h1").kill("ovs-vswitchd")
            lab.host("h1").start("ovs-vswitchd")
            time.sleep(4.0)
        detail = "set by timers: a host's controller connects to its switch again after 1 s"
        report.add("hole, switch of the host killed", stream.hole_s, "s", at_most=SWITCH_S, detail=detail)


def _lost(stream: Stream, seconds: float) -> int:
    with stream:
        time.sleep(seconds)
    return stream.lost


def _bulk(
    report: Report, controller: Controller, stores: tuple[Networks, Networks], many: int, syncs_ms: list[float]
) -> None:
    """Carry out the change from one store to another, which has VPCs up to number ``many``."""
    before, networks = stores
    put_items, _ = networks.changes_since(before)
    news = NetworkUpdate(revision=networks.revision, whole=False, items=[(item, 1) for item in put_items])
    unit_s = cpu_unit_s()
    begun_s, cpu_s = time.monotonic(), time.process_time()
    controller.reconciler.apply_update(news)
    northbound = controller.reconciler.northbound
    until(lambda: f"v{many - 1}" in northbound.owners() and len(northbound.owners()) >= many, within_s=900)
    written_s = time.monotonic() - begun_s
    until(lambda: controller.reconciler.revision == networks.revision and controller.reconciler.settled(), within_s=900)
    realized_s = time.monotonic() - begun_s
    cpu_s = time.process_time() - cpu_s
    unit_s = (unit_s + cpu_unit_s()) / 2
    added = many - TENANTS
    name, detail = "a VPC with 4 ports of many, until realized", f"{added} in {realized_s:.1f} s, by all hosts"
    sync_ms = statistics.median(syncs_ms)
    _add(report, name, [1000 * realized_s / added], [sync_ms], goal=BULK_EACH, detail=detail)
    report.add("VPCs written per second in bulk", added / written_s, "/s")
    name, cpu_ms = "processor time of the controller for a VPC of many", 1000 * cpu_s / added
    report.add_ratio(name, cpu_ms, 1000 * unit_s, "ms", of=CPU_UNIT, at_most=BULK_EACH_UNITS)


def _started(report: Report, lab: Lab, many: int) -> None:
    """Measure the time until a further client of the northbound database has its copy; the controller keeps the lock."""
    begun_s = time.monotonic()
    northbound = Northbound(lab.northbound, lock="")
    try:
        northbound.session.wait_ready(120.0)
        report.add(f"all rows of {many} VPCs read anew", time.monotonic() - begun_s, "s")
    finally:
        northbound.close()
    with Path("/proc/self/statm").open() as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    report.add("resident memory of this process", resident, "MiB", detail="book, rows, and the benchmark")


@dataclass(slots=True)
class Taken:
    """Times of some rounds in ms: to the first packet, until realized, and OVN's own round trip before each."""

    first_ms: list[float] = field(default_factory=list)
    realized_ms: list[float] = field(default_factory=list)
    syncs_ms: list[float] = field(default_factory=list)


class Times:
    """Changes of a store that a controller carries out, with the time of the first packet."""

    def __init__(self, lab: Lab, controller: Controller) -> None:
        self._lab, self._controller = lab, controller
        self._made = 0

    def created(self, networks: Networks) -> tuple[Networks, Taken]:
        """Measure from a new VPC to the first packet between its two ports on two hosts."""
        found = Taken()
        for _ in range(ROUNDS):
            self._made += 1
            name = f"n{self._made}"
            before, networks = networks, vpc_with_ports(networks, name)
            with (
                self.station(networks, f"{name}/a/p0", "h1") as one,
                self.station(networks, f"{name}/a/p1", "h2") as other,
            ):
                self._first_packet(before, networks, (one, other), found)
        return networks, found

    def added(self, networks: Networks) -> tuple[Networks, Taken]:
        """Measure from a new port to the first packet to it, and until it is reported as realized."""
        found = Taken()
        with self.station(networks, "v0/a/p0", "h1") as one:
            for _ in range(ROUNDS):
                self._made += 1
                name = f"v0/a/q{self._made}"
                before, networks = networks, networks.put(Port(name=name))[0]
                with self.station(networks, name, "h2") as other:
                    self._first_packet(before, networks, (one, other), found)
        return networks, found

    @contextmanager
    def station(self, networks: Networks, name: str, host: str) -> Iterator[Station]:
        port = networks.find(Port, name)
        assert port is not None
        made = self._lab.station(host, name, port.mac, [f"{port.addresses[0]}/24"])
        try:
            yield made
        finally:
            made.remove()

    def _first_packet(
        self, before: Networks, networks: Networks, stations: tuple[Station, Station], found: Taken
    ) -> None:
        """Carry out a change and add its times to those found."""
        one, other = stations
        put_items, _ = networks.changes_since(before)
        mark = f"{one.port}>{other.port};".encode()
        body = ip(one.address(), other.address(), UDP, udp(one.address(), other.address(), (4000, 4000), mark))
        frame = ethernet(one.mac, other.mac, IPV4, body)
        stop = threading.Event()
        found.syncs_ms.append(self._sync_ms())
        with Sniffer(other) as sniffer:
            sender = threading.Thread(target=_send, args=(one, frame, stop), daemon=True)
            sender.start()
            try:
                begun_s = time.monotonic()
                self._controller.reconciler.apply_update(
                    NetworkUpdate(revision=networks.revision, whole=False, items=[(item, 1) for item in put_items])
                )
                assert sniffer.wait(mark, timeout_s=120)
                found.first_ms.append(1000 * (time.monotonic() - begun_s))
            finally:
                stop.set()
                sender.join()
        reconciler = self._controller.reconciler
        told = (NetworkKind.PORT, other.port)
        until(lambda: told in self._controller.reports, within_s=300)
        found.realized_ms.append(1000 * (time.monotonic() - begun_s))
        until(lambda: reconciler.revision == networks.revision and reconciler.settled(), within_s=300)
        self._rest()

    def _sync_ms(self) -> float:
        """Return the time of OVN's own round trip, with the start of its client, when northd is idle."""
        self._rest()
        begun_s = time.monotonic()
        self._lab.central.nbctl("--wait=hv", "sync")
        took_ms = 1000 * (time.monotonic() - begun_s)
        self._rest()
        return took_ms

    def _rest(self) -> None:
        """Wait until northd is idle.

        After a row of DNS, northd processes everything twice, and reports its count before the second pass.
        """
        for _ in range(2):
            count = self._controller.reconciler.northbound.beat()
            until(lambda: self._controller.reconciler.southbound.count() >= count, within_s=300)  # noqa: B023


def _send(station: Station, frame: bytes, stop: threading.Event) -> None:
    with station.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
        card.bind((station.card, 0))
        while not stop.wait(0.001):
            card.send(frame)


def _leader(report: Report) -> None:
    """Measure the time from the death of the leader of three northbound servers to the next write."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"tcp:127.0.0.1:{one.getsockname()[1]}" for one in held]
    with tempfile.TemporaryDirectory(prefix="cbn") as directory:
        servers: list[ClusterServer] = []
        try:
            for number, address in enumerate(addresses):
                held[number].close()
                servers.append(
                    ClusterServer(Path(directory) / str(number), address=address, joins=addresses[0] if number else "")
                )
                servers[-1].start()
                until(servers[-1].member)
            times = [_after_leader(servers) for _ in range(3)]
            name, detail = "leader of the database killed to next write", "worst of 3; set by Raft's election timer"
            report.add(name, max(times), "s", at_most=LEADER_S, detail=detail)
        finally:
            for server in servers:
                server.kill()


def _after_leader(servers: list[ClusterServer]) -> float:
    until(lambda: any(server.leads() for server in servers))
    northbound = Northbound(",".join(server.remote for server in servers))
    try:
        assert northbound.session.wait_lock(60)
        put(northbound, "red", vpc_rows("red"))
        leader = next(server for server in servers if server.leads())
        begun_s = time.monotonic()
        leader.kill()
        until(lambda: not northbound.session.ready)
        assert northbound.session.wait_lock(60)
        put(northbound, "red", {})
        took_s = time.monotonic() - begun_s
        leader.start()
        until(leader.member)
        return took_s
    finally:
        northbound.close()


if __name__ == "__main__":
    run("net", "Tenant networks on OVN", measure)
