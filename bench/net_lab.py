"""A lab's network of namespaces: how long it takes to come and go, and what its switches in user space carry.

Everything shares this machine's cores: both hosts' switches, who sends and who receives. So throughput is given as a share of
what two namespaces on a bridge of the kernel's carry with the same settings of their cards.
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

from bench._report import Report, run
from calabash.netd.lab import namespaces
from calabash.netd.lab.lab import Lab
from calabash.netd.lab.record import register
from calabash.netd.lab.station import MTU_BYTES, Station

ROUNDS, QUICK_ROUNDS = 7, 3
STREAM_S, QUICK_STREAM_S = 5.0, 2.0
PINGS = 400
UP_S, AGAIN_S, DOWN_S = 2.0, 0.5, 2.0
SHARE, ROUND_TRIP_MS = 0.18, 0.5
MACS = ("0a:00:00:00:00:01", "0a:00:00:00:00:02")

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
    """All of it; the short form has fewer rounds and shorter streams."""
    _times(report)
    with _lab("n", hosts=("h1", "h2")) as lab:
        one, two = _pair(lab)
        stream_s = QUICK_STREAM_S if report.quick else STREAM_S
        plain = (lab.customer("one", ["192.0.2.1/24"]), lab.customer("two", ["192.0.2.2/24"]))
        for station in plain:
            station.ip(("link", "set", station.card, "mtu", MTU_BYTES))
        base, _ = _stream(*plain, stream_s)
        rate, again = _stream(one, two, stream_s)
        report.add("TCP by a bridge of the kernel", base, "Gbit/s")
        report.add("TCP between hosts", rate, "Gbit/s")
        report.add("TCP between hosts, share of the bridge's", rate / base, "", at_least=SHARE)
        report.add("segments sent again meanwhile", again, "", at_most=0)
        report.add("round trip between hosts", _round_trip_ms(one, two), "ms", at_most=ROUND_TRIP_MS, detail="median")


def _times(report: Report) -> None:
    ups, agains, downs = [], [], []
    for _ in range(QUICK_ROUNDS if report.quick else ROUNDS):
        lab = _new("m", hosts=("h1", "h2", "g1", "g2"))
        try:
            ups.append(_seconds(lab.up))
            agains.append(_seconds(lab.up))
        finally:
            downs.append(_seconds(lab.down))
    report.add("up: central and four hosts", statistics.median(ups), "s", at_most=UP_S, detail=f"most {max(ups):.2f} s")
    report.add("up again when all runs", statistics.median(agains), "s", at_most=AGAIN_S)
    report.add("down", statistics.median(downs), "s", at_most=DOWN_S, detail=f"most {max(downs):.2f} s")


def _new(letter: str, hosts: tuple[str, ...]) -> Lab:
    prefix = f"b{letter}{os.getpid() % 1_000_000}"
    return Lab(prefix=prefix, directory=register() / prefix, hosts=hosts, gateways=())


@contextlib.contextmanager
def _lab(letter: str, hosts: tuple[str, ...]) -> Iterator[Lab]:
    with _new(letter, hosts) as lab:
        yield lab


def _pair(lab: Lab) -> tuple[Station, Station]:
    """Two stations on two hosts, bound, on one switch."""
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


def _stream(sender: Station, receiver: Station, stream_s: float) -> tuple[float, int]:
    """Gbit/s of one TCP stream, and segments that were sent again."""
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
    """Of datagrams of 8 bytes and their answers."""
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
