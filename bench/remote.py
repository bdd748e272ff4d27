"""What it costs that the card is elsewhere: the same program on the driver itself, through memory that is shared with its
worker, and over TCP, open and with TLS; beside them, in the same run, what TCP costs that carries nothing of ours.

``--rtt 1ms`` puts so much between program and server, by a proxy, and measures what waits for answers, and no rates.
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
from functools import partial
from pathlib import Path
from typing import Any

from tests.native.remote_door import Door, Line, lease_file
from tests.native.remote_world import OpenDoor, RemoteNode
from tests.native.sim_cuda_programs import CudaNode

from bench._lab import KERNELS, program
from bench._report import Report, run

LAUNCHES_S, RING_LAUNCHES_S = 500_000, 1_000_000
LAUNCH_NS, STEADY_NS = 1000, 300
RING_QUESTION_US, OVER_PING_US = 10, 10
COPY_RATIO, TLS_RATIO = 0.90, 0.85
START_QUESTIONS = 5
BULK_BYTES = 64 << 20


class Place:
    """A server with one card, and the ways to it."""

    def __init__(self, directory: Path, delay_s: float) -> None:
        self.node = RemoteNode(directory / "node.state", "A100-80GB")
        self._doors = (OpenDoor(self.node), Door(self.node.socket))
        ports = [door.port for door in self._doors]
        self._lines = [Line(port, delay_s) for port in ports] if delay_s else []
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
        for door in self._doors:
            door.close()
        self.node.close()

    def calls(self, way: str, rounds: int) -> dict[str, Any]:
        """One run of the program; ``local`` is the driver itself."""
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


def measure(report: Report) -> None:
    """All ways in turn, several times."""
    rounds, count = (30, 3) if report.quick else (100, 7)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ("local", "ring", "socket", "tcp", "tls")}
    pings, bulks = [], []
    with _place() as place:
        for _ in range(count):
            pings.append(_wire("ping", 5000)["us"])
            bulks.append(_wire("bulk", BULK_BYTES)["gib_s"])
            for way, results in runs.items():
                results.append(place.calls(way, rounds))

    def median(way: str, what: str) -> float:
        return statistics.median(float(one[what]) for one in runs[way])

    ping, bulk = statistics.median(pings), statistics.median(bulks)
    report.add("TCP alone: 64 bytes and back", ping, "us")
    report.add("TCP alone: 64 MiB", bulk, "GiB/s")
    local_s, local_ns = median("local", "launches_s"), median("local", "launch_ns")
    for way, least in (("ring", RING_LAUNCHES_S), ("tcp", LAUNCHES_S)):
        sending = 1e9 / median(way, "launch_p10_ns")
        report.add(f"{way}: launches sent", sending, "1/s", at_least=least, detail="bursts of 1,000, the fast tenth")
    for way in ("ring", "tcp", "tls"):
        detail = f"the driver itself {local_ns:.0f} ns"
        report.add(f"{way}: launch to its caller", median(way, "launch_ns"), "ns", at_most=LAUNCH_NS, detail=detail)
        rate = median(way, "launches_s")
        detail = f"{rate / local_s:.2f} of the driver itself, {local_s:,.0f}"
        report.add(f"{way}: launches done", rate, "1/s", at_least=LAUNCHES_S, detail=detail)
    fastest = min(float(one["launch_p10_ns"]) for one in runs["ring"])
    report.add("ring: launch to its caller, steady", fastest, "ns", at_most=STEADY_NS)
    report.add("ring: question", median("ring", "question_us"), "us", at_most=RING_QUESTION_US)
    for way in ("socket", "tcp", "tls"):
        detail = f"ping-pong {ping:.1f} us"
        took = median(way, "question_us")
        report.add(f"{way}: question", took, "us", at_most=ping + OVER_PING_US, detail=detail)
    _copies(report, median, bulk)
    for way in ("ring", "tcp", "tls"):
        report.add(f"{way}: start to the first kernel's end", median(way, "start_ms"), "ms")
    asked = max(int(one["start_questions"]) for way in ("ring", "tcp", "tls") for one in runs[way])
    report.add("start: questions that are waited for", asked, "", at_most=START_QUESTIONS)


def _copies(report: Report, median: Any, bulk: float) -> None:
    for kib in (4, 64, 1024, BULK_BYTES >> 10):
        for what in ("in", "out"):
            name = f"{what}_{kib}"
            size = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
            goal = COPY_RATIO if kib >> 10 >= 64 else None
            for way in ("ring", "tcp"):
                rate = median(way, name)
                detail = f"{rate:.2f} GiB/s, the driver itself {median('local', name):.2f}"
                report.add(f"{way}: copy {what}, {size}, of TCP", rate / bulk, "times", at_least=goal, detail=detail)
            rate = median("tls", name) / median("tcp", name)
            goal = TLS_RATIO if goal else None
            report.add(f"tls: copy {what}, {size}, of tcp", rate, "times", at_least=goal)


def measure_far(report: Report, rtt_s: float) -> None:
    """What waits for answers, over a line that takes time."""
    with _place(rtt_s / 2) as place:
        for way in ("tcp", "tls"):
            result = place.calls(way, 1)
            asked = int(result["start_questions"])
            report.add(f"{way}: question", float(result["question_us"]) / 1000, "ms", detail=f"RTT {rtt_s * 1000:g} ms")
            report.add(f"{way}: start", float(result["start_ms"]), "ms", detail=f"{asked} questions")


def _milliseconds(text: str) -> float:
    return float(text.removesuffix("ms")) / 1000


def main() -> None:
    """With or without a distance."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rtt", type=_milliseconds, metavar="1ms", help="so much between program and server")
    options, others = parser.parse_known_args(sys.argv[1:])
    chosen = partial(measure_far, rtt_s=options.rtt) if options.rtt else measure
    run("remote", "Cards that are elsewhere", chosen, others)


if __name__ == "__main__":
    main()
