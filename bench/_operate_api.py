"""Latency and cost of the HTTP API while 200 clients poll and 20 watch: a real pool and gateway on a simulated node, over TCP.

The clients are those of eight tenants. Each polls every two seconds on a persistent connection, in turn the routes that the
console and the command line read, and sends the ETag that it has seen. Meanwhile queues change, programs run and requests
wait. Pool, gateway and clients share the processors of the machine. The time of an answer is therefore compared with that of
an echo: one more connection, to a process that sends each message back, used in the same event loop at the same time. The
processor time of an answer is in CPU units (``bench._reference``). If other work leaves less than the core that pool and
gateway need, answers queue, and their 99th percentile misses its goal while the processor time does not.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.daemons.world import World, until

from bench._reference import CPU_UNIT, MESSAGE_BYTES, cpu_unit_s, echo_process
from bench._report import Report

POLLING, WATCHING, TENANTS = 200, 20, 8
PERIOD_S = 2.0
HELD, WAITING = 16, 60
ECHO_PERIOD_S = 0.02
# Goals: of the 99th percentile of an echo; CPU units, watchers included and without; MiB.
ANSWER_P99, ANSWER_WORK, ANSWER_WORK_MOST, GREW_MIB = 30.0, 10.0, 4.0, 4.0
PATHS = (
    "/v1/overview",
    "/v1/allocations",
    "/v1/devices",
    "/v1/queues",
    "/v1/events?after=0&limit=100",
    "/v1/quota",
    "/v1/me",
    "/v1/status",
)


@dataclass(slots=True)
class Seen:
    """Measurements of the clients. Times in seconds."""

    answers_s: list[float] = field(default_factory=list)
    echoes_s: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    told: int = 0


def measure_api(report: Report) -> None:
    """Measure the 99th percentile of an answer, its processor time, the most answers in a second, and the memory."""
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as directory:
        Path(directory).chmod(0o755)
        world = World(Path(directory) / "home", "8xA100-40GB", options=("--console", "127.0.0.1:0"))
        try:
            world.up()
            with echo_process() as echo:
                asyncio.run(_measured(report, world, echo, seconds=8.0 if report.quick else 40.0))
        finally:
            world.close()


async def _measured(report: Report, world: World, echo: tuple[str, int], *, seconds: float) -> None:
    tokens = await asyncio.to_thread(_peopled, world)
    host, port = _address(world)
    waiting = await _waiting(world)
    try:
        seen = Seen()
        clients = [_Client(host, port, tokens[n % TENANTS], n, seen) for n in range(POLLING)]
        for client in clients:  # one after the other, as people come
            await client.ask()
        pids = await asyncio.to_thread(_processes, world)
        watchers = [asyncio.ensure_future(_watch(host, port, tokens[n % TENANTS], seen)) for n in range(WATCHING)]
        changing = asyncio.ensure_future(asyncio.to_thread(_change, world, seconds))
        echoing = asyncio.ensure_future(_echoes(echo, seen))
        unit_s = cpu_unit_s()
        used_s, began = _processor_s(pids), time.monotonic()
        seen.answers_s.clear()
        await asyncio.gather(*(client.poll(until_s=began + seconds / 2) for client in clients))
        half_mib = _memory_mib(pids)
        await asyncio.gather(*(client.poll(until_s=began + seconds) for client in clients))
        took_s, used_s = time.monotonic() - began, _processor_s(pids) - used_s
        echoing.cancel()
        unit_s = (unit_s + cpu_unit_s()) / 2
        asked = len(seen.answers_s)
        what = f"{POLLING} clients every {PERIOD_S:g} s, {WATCHING} watch, {asked / took_s:.0f} answers a second"
        times = sorted(1e3 * t for t in seen.answers_s)
        echo_ms = _quantile(sorted(1e3 * t for t in seen.echoes_s), 0.99)
        p99_ms, echoes = _quantile(times, 0.99), f"echo, p99 of {len(seen.echoes_s)}"
        report.add_ratio("API answer, p99", p99_ms, echo_ms, "ms", of=echoes, at_most=ANSWER_P99, detail=what)
        report.add("API answer, median", statistics.median(times), "ms")
        name, detail = "processor time of an answer", "pool and gateway, watchers included"
        answer_ms = 1e3 * used_s / asked
        report.add_ratio(name, answer_ms, 1e3 * unit_s, "ms", of=CPU_UNIT, at_most=ANSWER_WORK, detail=detail)
        failed = sum(number for status, number in seen.statuses.items() if status not in {200, 304})
        report.add("answers that failed", failed, "", at_most=0)
        report.add("changes told to watchers", seen.told, "")
        now_mib = _memory_mib(pids)
        report.add("memory of pool and gateway", now_mib, "MiB")
        report.add("memory grew in the second half", now_mib - half_mib, "MiB", at_most=GREW_MIB)
        await changing
        await _without_a_pause(report, clients[:16], pids, seconds=seconds / 4, unit_s=unit_s)
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for client in clients:
            client.close()
    finally:
        for writer in waiting:
            writer.close()


async def _without_a_pause(
    report: Report, clients: list[_Client], pids: list[int], *, seconds: float, unit_s: float
) -> None:
    """Measure how many answers there can be in a second, and the processor time of each."""
    seen = clients[0].seen
    seen.answers_s.clear()
    began, used_s = time.monotonic(), _processor_s(pids)
    await asyncio.gather(*(client.poll(until_s=began + seconds, pause_s=0.0) for client in clients))
    asked, used_s = len(seen.answers_s), _processor_s(pids) - used_s
    name, detail = "answers a second at most", f"{len(clients)} clients without a pause"
    report.add(name, asked / (time.monotonic() - began), "1/s", detail=detail)
    name, each_ms = "processor time of one of them", 1e3 * used_s / asked
    report.add_ratio(name, each_ms, 1e3 * unit_s, "ms", of=CPU_UNIT, at_most=ANSWER_WORK_MOST)


class _Client:
    """A polling client on one connection."""

    def __init__(self, host: str, port: int, token: str, number: int, seen: Seen) -> None:
        self._where = host, port
        self._token = token
        self._number = number
        self._paths = itertools.islice(itertools.cycle(PATHS), number, None)
        self.seen = seen
        self._tags: dict[str, str] = {}
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def poll(self, *, until_s: float, pause_s: float = PERIOD_S) -> None:
        """Send requests until ``until_s``, with a pause of ``pause_s`` between them."""
        await asyncio.sleep(pause_s * self._number / POLLING)
        while (begun := time.monotonic()) < until_s:
            await self.ask()
            await asyncio.sleep(max(0.0, begun + pause_s - time.monotonic()))

    async def ask(self) -> None:
        """Send the next request and record the reply."""
        path, begun = next(self._paths), time.monotonic()
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self._reader, self._writer = await asyncio.open_connection(*self._where, limit=1 << 22)
        tag = f"If-None-Match: {self._tags[path]}\r\n" if path in self._tags else ""
        head = f"GET {path} HTTP/1.1\r\nHost: {self._where[0]}\r\nAuthorization: Bearer {self._token}\r\n{tag}\r\n"
        self._writer.write(head.encode())
        status, headers = await _head(self._reader)
        await self._reader.readexactly(int(headers.get("content-length", 0)))
        if "etag" in headers:
            self._tags[path] = headers["etag"]
        self.seen.answers_s.append(time.monotonic() - begun)
        self.seen.statuses[status] = self.seen.statuses.get(status, 0) + 1

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()


async def _echoes(address: tuple[str, int], seen: Seen) -> None:
    """Send a message to the echo process every ECHO_PERIOD_S until cancelled."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        while True:
            begun = time.monotonic()
            writer.write(bytes(MESSAGE_BYTES))
            await reader.readexactly(MESSAGE_BYTES)
            seen.echoes_s.append(time.monotonic() - begun)
            await asyncio.sleep(ECHO_PERIOD_S)
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _watch(host: str, port: int, token: str, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /v1/watch HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        await _head(reader)
        while line := await reader.readline():
            seen.told += line.startswith(b"data: ")
    finally:
        writer.close()


def _peopled(world: World) -> list[str]:
    """Create tenants with a member each and start some programs; return the members' tokens."""
    tokens = []
    for number in range(TENANTS):
        tenant, user = f"team{number}", f"user{number}"
        world.client.put(f"/v1/tenants/{tenant}", {"guarantee": 0.5})
        world.client.put(f"/v1/users/{user}", {})
        world.client.put("/v1/members", {"user": user, "role": "member", "tenant": tenant})
        tokens.append(str(world.client.post("/v1/tokens", {"user": user})["secret"]))
    for number in range(HELD):
        world.run(
            "cat", tenant=f"team{number % TENANTS}", memory_mib=1024, cores=10, mode="vgpu", policy="burst", wait_s=60
        )
    until(lambda: len(world.allocations()) == HELD, what="the programs to run")
    return tokens


async def _waiting(world: World) -> list[asyncio.StreamWriter]:
    """Send requests that must wait, because all devices are taken; return their connections."""
    found = []
    for number in range(WAITING):
        order: dict[str, Any] = {"gpus": 8, "mode": "exclusive", "wait_s": 3600, "tenant": f"team{number % TENANTS}"}
        body = json.dumps(order).encode()
        _, writer = await asyncio.open_unix_connection(str(world.home / "pool.sock"))
        writer.write(f"POST /v1/allocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        found.append(writer)
    pending = ["pending"] * WAITING
    await asyncio.to_thread(
        until, lambda: [a["state"] for a in world.allocations() if a["state"] == "pending"] == pending, what="the line"
    )
    return found


def _change(world: World, seconds: float) -> None:
    """Change a tenant and its queue once a second."""
    end = time.monotonic() + seconds
    for number in itertools.count(1):
        if time.monotonic() > end:
            return
        world.client.put(f"/v1/tenants/team{number % TENANTS}", {"weight": number})
        time.sleep(1.0)


def _address(world: World) -> tuple[str, int]:
    host, _, port = str(world.client.get("/v1/status")["console"]).removeprefix("http://").rpartition(":")
    return host, int(port)


def _processes(world: World) -> list[int]:
    """Return the process IDs of the pool and its gateway."""
    assert world.daemon is not None
    children = [
        int(pid)
        for task in Path(f"/proc/{world.daemon.pid}/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    gateways = [pid for pid in children if b"calabash.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [world.daemon.pid, *gateways]


def _processor_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_mib(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _quantile(ascending: list[float], part: float) -> float:
    return ascending[min(len(ascending) - 1, math.ceil(part * len(ascending)) - 1)]
