"""Network lab of namespaces: time to start and stop, and throughput of its switches in user space.

Everything shares this machine's cores: the switches of both hosts, the sender and the receiver. Goals are therefore ratios, the
median over streams in turn: to two namespaces on a bridge of the kernel with the same settings of their cards, and to the same
two Open vSwitches with a bridge and a tunnel of their own, without OVN. Starts are given in starts of a bare interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench._reference import process_start_s
from bench._report import Report, run
from calabash.controllers.lab import namespaces
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.controllers.lab.station import MTU_BYTES, Station, device_of

ROUNDS, QUICK_ROUNDS = 7, 3
STREAM_S, QUICK_STREAM_S = 3.0, 1.0
PINGS = 400
# Goals: starts of a bare interpreter; of the kernel's bridge; of Open vSwitch without OVN (throughput, round trip).
UP, AGAIN, DOWN = 185, 47, 185
OF_BRIDGE = 0.18
OF_PLAIN_SWITCH, ROUND_TRIP_OF_PLAIN_SWITCH = 0.95, 1.25
PLAIN_KEY = 5_000  # the tunnel's virtual network identifier; those of OVN count from 1
MACS = ("0a:00:00:00:00:01", "0a:00:00:00:00:02")
PLAIN_MACS = ("0a:00:00:00:01:01", "0a:00:00:00:01:02")

_RECEIVE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5001))
print("ready", flush=True)
client, _ = listener.accept()
got = 0
while data := client.recv(1 << 20):
    got += len(data)
print(got, flush=True)
"""
_SEND = """
import json, socket, sys, time
client = socket.create_connection((sys.argv[1], 5001))
end, block = time.monotonic() + float(sys.argv[2]), b"x" * 65536
begun = time.monotonic()
while time.monotonic() < end:
    client.sendall(block)
client.shutdown(socket.SHUT_WR)
client.recv(1)
took = time.monotonic() - begun
tcp = [line.split() for line in open("/proc/self/net/snmp") if line.startswith("Tcp:")]
print(json.dumps({"took_s": took, "again": int(dict(zip(*tcp))["RetransSegs"])}))
"""


def measure(report: Report) -> None:
    """Measure all; the short form has fewer rounds and shorter streams."""
    _times(report)
    with _lab("n", hosts=("h1", "h2")) as lab:
        one, two = _pair(lab)
        stream_s = QUICK_STREAM_S if report.quick else STREAM_S
        bridge = (lab.customer("one", ["192.0.2.1/24"]), lab.customer("two", ["192.0.2.2/24"]))
        for station in bridge:
            station.ip(("link", "set", station.card, "mtu", MTU_BYTES))
        plain = _plain_pair(lab)
        rates: dict[str, list[float]] = {"bridge": [], "plain": [], "ours": []}
        trips: dict[str, list[float]] = {"bridge": [], "plain": [], "ours": []}
        resent = 0
        for _ in range(QUICK_ROUNDS if report.quick else ROUNDS):
            for name, pair in (("bridge", bridge), ("plain", plain), ("ours", (one, two))):
                rate, again = _stream(*pair, stream_s)
                rates[name].append(rate)
                trips[name].append(_round_trip_ms(*pair))
                resent += again if name == "ours" else 0
        name, of = "TCP between hosts", "a bridge of the kernel"
        report.add_ratio(f"{name}, of {of}", rates["ours"], rates["bridge"], "Gbit/s", of=of, at_least=OF_BRIDGE)
        of = "Open vSwitch without OVN"
        report.add_ratio(f"{name}, of {of}", rates["ours"], rates["plain"], "Gbit/s", of=of, at_least=OF_PLAIN_SWITCH)
        report.add("segments sent again meanwhile", resent, "", at_most=0)
        name, of = "round trip between hosts", "a bridge of the kernel"
        report.add_ratio(f"{name}, of {of}", trips["ours"], trips["bridge"], "ms", of=of)
        of, goal = "Open vSwitch without OVN", ROUND_TRIP_OF_PLAIN_SWITCH
        report.add_ratio(f"{name}, of {of}", trips["ours"], trips["plain"], "ms", of=of, at_most=goal)


def _times(report: Report) -> None:
    starts: list[float] = []
    ups, agains, downs = [], [], []
    for _ in range(QUICK_ROUNDS if report.quick else ROUNDS):
        lab = _new("m", hosts=("h1", "h2", "g1", "g2"))
        starts.append(process_start_s())
        try:
            ups.append(_seconds(lab.up))
            agains.append(_seconds(lab.up))
        finally:
            downs.append(_seconds(lab.down))
    for name, taken, goal in (
        ("up: central and four hosts", ups, UP),
        ("up again when all runs", agains, AGAIN),
        ("down", downs, DOWN),
    ):
        report.add_ratio(
            name, taken, starts, "s", of="start of an interpreter", at_most=goal, detail=f"most {max(taken):.2f} s"
        )


def _new(letter: str, hosts: tuple[str, ...]) -> Lab:
    prefix = f"b{letter}{os.getpid() % 1_000_000}"
    return Lab(prefix=prefix, directory=register() / prefix, hosts=hosts, gateways=())


@contextlib.contextmanager
def _lab(letter: str, hosts: tuple[str, ...]) -> Iterator[Lab]:
    with _new(letter, hosts) as lab:
        yield lab


def _pair(lab: Lab) -> tuple[Station, Station]:
    """Return two bound stations on two hosts, on one logical switch."""
    nb = lab.central.nbctl
    nb("ls-add", "s")
    made = []
    for number, mac in enumerate(MACS, 1):
        port, address = f"s/a/{number}", f"10.0.1.{10 + number}"
        nb("lsp-add", "s", port, "--", "lsp-set-addresses", port, f"{mac} {address}")
        made.append(lab.station(f"h{number}", port, mac, [f"{address}/24"]))
    for station in made:
        nb("wait-until", "Logical_Switch_Port", station.port, "up=true")
    return made[0], made[1]


def _plain_pair(lab: Lab) -> tuple[Station, Station]:
    """Return two stations on a bridge of their own in each host's Open vSwitch, joined by a tunnel that OVN does not know."""
    made = []
    for number, mac in enumerate(PLAIN_MACS, 1):
        host, other, port = lab.host(f"h{number}"), lab.host(f"h{3 - number}"), f"plain/{number}"
        station = lab.station(host.name, port, mac, [f"10.0.2.{10 + number}/24"])
        device = device_of(port)
        host.vsctl(
            *("del-port", "br-int", device),
            *("--", "add-br", "br-plain", "--", "set", "Bridge", "br-plain", "datapath_type=netdev"),
            *("--", "add-port", "br-plain", device),
            *("--", "add-port", "br-plain", "plain", "--", "set", "Interface", "plain", "type=geneve"),
            *(f"options:remote_ip={other.tunnel_address}", f"options:key={PLAIN_KEY}"),
        )
        host.lengthen_queues()
        made.append(station)
    return made[0], made[1]


def _stream(sender: Station, receiver: Station, stream_s: float) -> tuple[float, int]:
    """Return the throughput of one TCP stream in Gbit/s, and the number of retransmitted segments."""
    line = [sys.executable, "-c", _RECEIVE, receiver.address()]
    server = namespaces.inside(receiver.namespace, lambda: subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
    with server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        done = sender.run(sys.executable, "-c", _SEND, receiver.address(), str(stream_s))
        got = int(server.stdout.readline())
    told = json.loads(done.stdout)
    return got * 8 / told["took_s"] / 1e9, told["again"]


def _round_trip_ms(one: Station, two: Station) -> float:
    """Return the round trip of datagrams of 8 bytes and their answers."""
    with (
        one.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking,
        two.socket(socket.AF_INET, socket.SOCK_DGRAM) as answering,
    ):
        answering.bind((two.address(), 5002))
        asking.connect((two.address(), 5002))
        asking.settimeout(10)
        answering.settimeout(10)
        times = []
        for _ in range(PINGS):
            begun = time.monotonic()
            asking.send(b"question")
            answering.sendto(*answering.recvfrom(100))
            asking.recv(100)
            times.append(time.monotonic() - begun)
    return 1000 * statistics.median(times)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


if __name__ == "__main__":
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        sys.exit("a lab takes root and /dev/net/tun")
    run("net_lab", "A network of namespaces", measure)
