"""Cost of a remote card: the same program on the driver itself, on a local worker, and over TCP with and without TLS.

The local worker is behind shared memory. The same run measures the cost of plain TCP and TLS without the product.

Figures are medians of rounds; a ratio is taken within each round, for other work on the machine slows both sides of it.
Every goal is such a ratio: of launches to those by the driver itself, of a call to a ping-pong over TCP, of a copy to
a TCP stream of the same size.

``--rtt 1ms`` puts so much between program and server, by a proxy, and measures calls that wait for answers, and no rates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.native.remote_connections import CuttableProxy, MinimalBroker, lease_file
from tests.native.remote_world import DirectServer, RemoteNode
from tests.native.sim_cuda_programs import CudaNode

from bench._lab import KERNELS, program
from bench._plain_tls import tls_gib_s
from bench._report import Report, run

# Goals: of launches by the driver itself, of a ping-pong over TCP, of plain TCP, of our TCP.
DONE, SENT, TO_CALLER = 0.55, 1.0, 1.0
RING_QUESTION, QUESTION, TLS_QUESTION = 1.0, 1.5, 2.0
COPY_RATIO, TLS_RATIO = 0.90, 0.70
START_QUESTIONS = 5
BULK_BYTES = 64 << 20
ITSELF = "the driver itself"
WAYS = ("local", "ring", "socket", "tcp", "tls")


class Place:
    """A server with one card, and its addresses by transport."""

    def __init__(self, directory: Path, delay_s: float) -> None:
        self.node = RemoteNode(directory / "node.state", "A100-80GB")
        self._listeners = (DirectServer(self.node), MinimalBroker(self.node.socket))
        ports = [listener.port for listener in self._listeners]
        self._lines = [CuttableProxy(port, delay_s) for port in ports] if delay_s else []
        if self._lines:
            ports = [line.port for line in self._lines]
        self.ways = {
            "ring": f"unix:{self.node.socket}",
            "socket": f"socket:{self.node.socket}",
            "tcp": f"tcp:127.0.0.1:{ports[0]}",
            "tls": f"file:{lease_file(directory / 'lease', ports[1])}",
        }

    def close(self) -> None:
        for line in self._lines:
            line.close()
        for listener in self._listeners:
            listener.close()
        self.node.close()

    def calls(self, way: str, rounds: int) -> dict[str, Any]:
        """Run the program once over a transport; ``local`` is the driver itself."""
        environment = CudaNode.environment(self.node)
        if way != "local":
            environment = self.node.environment(CALABASH_REMOTE=self.ways[way])
        command = [str(program("remote_calls")), "--kernels", str(KERNELS), "--rounds", str(rounds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"{way}: exit {done.returncode}: {done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def _wire(*words: object) -> dict[str, float]:
    done = subprocess.run([program("wire"), *map(str, words)], capture_output=True, text=True, check=True, timeout=60)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextmanager
def _place(delay_s: float = 0.0) -> Iterator[Place]:
    with (
        tempfile.TemporaryDirectory(prefix="calabash-bench-") as directory,
        closing(Place(Path(directory), delay_s)) as p,
    ):
        yield p


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run over each transport, with plain TCP and TLS measured around it, because other work on the machine varies."""

    runs: dict[str, dict[str, Any]]
    ping_us: float
    tcp_gib_s: dict[str, float]  # TCP alone, around the run of that way
    tls_gib_s: float  # TLS alone


def _round(place: Place, rounds: int) -> Round:
    runs: dict[str, dict[str, Any]] = {}
    alone: dict[str, float] = {}
    before = _wire("bulk", BULK_BYTES)["gib_s"]
    for way in WAYS:
        runs[way] = place.calls(way, rounds)
        after = _wire("bulk", BULK_BYTES)["gib_s"]
        alone[way] = (before + after) / 2
        before = after
    return Round(runs=runs, ping_us=_wire("ping", 5000)["us"], tcp_gib_s=alone, tls_gib_s=tls_gib_s(BULK_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Medians over rounds: of a figure, or of a ratio within one round."""

    rounds: list[Round]

    def median(self, way: str, what: str) -> float:
        return statistics.median(float(one.runs[way][what]) for one in self.rounds)

    def ratio(self, way: str, other: str, what: str) -> float:
        return statistics.median(float(one.runs[way][what]) / float(one.runs[other][what]) for one in self.rounds)

    def of_tcp(self, way: str, what: str) -> float:
        return statistics.median(float(one.runs[way][what]) / one.tcp_gib_s[way] for one in self.rounds)

    def of_tls(self, what: str) -> float:
        return statistics.median(float(one.runs["tls"][what]) / one.tls_gib_s for one in self.rounds)

    def each(self, way: str, what: str) -> list[float]:
        return [float(one.runs[way][what]) for one in self.rounds]


def measure(report: Report) -> None:
    """Measure all transports in turn, several times."""
    rounds, count = (30, 3) if report.quick else (100, 9)
    with _place() as place:
        all_ = Rounds(rounds=[_round(place, rounds) for _ in range(count)])
    ping = statistics.median(one.ping_us for one in all_.rounds)
    report.add("TCP alone: 64 bytes and back", ping, "us")
    report.add("TCP alone: 64 MiB", statistics.median(one.tcp_gib_s["tcp"] for one in all_.rounds), "GiB/s")
    report.add(
        "TLS alone: 64 MiB",
        statistics.median(one.tls_gib_s for one in all_.rounds),
        "GiB/s",
        detail="OpenSSL, AES-128-GCM",
    )
    _launches(report, all_)
    pings = [one.ping_us for one in all_.rounds]
    for way, goal in (("ring", RING_QUESTION), ("socket", QUESTION), ("tcp", QUESTION), ("tls", TLS_QUESTION)):
        name = f"{way}: question, of a ping-pong"
        report.add_ratio(name, all_.each(way, "question_us"), pings, "us", of="ping-pong over TCP", at_most=goal)
    _copies(report, all_)
    for way in ("ring", "tcp", "tls"):
        report.add(f"{way}: start to the first kernel's end", all_.median(way, "start_ms"), "ms")
    asked = max(int(one.runs[way]["start_questions"]) for way in ("ring", "tcp", "tls") for one in all_.rounds)
    report.add("start: questions that are waited for", asked, "", at_most=START_QUESTIONS)


def _launches(report: Report, all_: Rounds) -> None:
    """Report the rate at which the program sends launches, and at which the simulated driver executes them."""
    report.add("the driver itself: launches done", all_.median("local", "launches_s"), "1/s")
    for way, least in (("ring", DONE), ("tcp", DONE), ("tls", None)):
        sent, local = ([1e9 / ns for ns in all_.each(one, "launch_p10_ns")] for one in (way, "local"))
        how = "bursts of 1,000, the fast tenth"
        goal = None if least is None else SENT
        report.add_ratio(f"{way}: launches sent", sent, local, "1/s", of=ITSELF, at_least=goal, detail=how)
        name, ours, local = f"{way}: launch to its caller", all_.each(way, "launch_ns"), all_.each("local", "launch_ns")
        report.add_ratio(name, ours, local, "ns", of=ITSELF, at_most=TO_CALLER)
        ours, local = all_.each(way, "launches_s"), all_.each("local", "launches_s")
        report.add_ratio(f"{way}: launches done", ours, local, "1/s", of=ITSELF, at_least=least)


def _copies(report: Report, all_: Rounds) -> None:
    for kib in (4, 64, 1024, BULK_BYTES >> 10):
        for what in ("in", "out"):
            name = f"{what}_{kib}"
            size = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
            goal = COPY_RATIO if kib >> 10 >= 64 else None
            local = all_.median("local", name)
            for way in ("ring", "tcp"):
                ratio = all_.of_tcp(way, name)
                detail = f"{all_.median(way, name):.2f} GiB/s, the driver itself {local:.2f}"
                report.add(f"{way}: copy {what}, {size}, of TCP", ratio, "times", at_least=goal, detail=detail)
            tls = all_.ratio("tls", "tcp", name)
            report.add(f"tls: copy {what}, {size}, of tcp", tls, "times", at_least=TLS_RATIO if goal else None)
            if not goal:
                continue
            alone = all_.of_tls(name)
            detail = f"{all_.median('tls', name):.2f} GiB/s"
            report.add(f"tls: copy {what}, {size}, of TLS alone", alone, "times", detail=detail)


def measure_far(report: Report, rtt_s: float) -> None:
    """Measure calls that wait for answers, over a line with a delay."""
    with _place(rtt_s / 2) as place:
        for way in ("tcp", "tls"):
            result = place.calls(way, 1)
            asked = int(result["start_questions"])
            report.add(f"{way}: question", float(result["question_us"]) / 1000, "ms", detail=f"RTT {rtt_s * 1000:g} ms")
            report.add(f"{way}: start", float(result["start_ms"]), "ms", detail=f"{asked} questions")


def _milliseconds(text: str) -> float:
    return float(text.removesuffix("ms")) / 1000


def main() -> None:
    """Run the benchmark, with the delay of the command line if there is one."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rtt", type=_milliseconds, metavar="1ms", help="so much between program and server")
    options, others = parser.parse_known_args(sys.argv[1:])
    chosen = partial(measure_far, rtt_s=options.rtt) if options.rtt else measure
    run("remote", "Cards that are elsewhere", chosen, others)


if __name__ == "__main__":
    main()
