"""Test doubles for broker tests: an in-memory pool, and a process that takes connections like the parent of workers."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

from calabash.adapters.pool.asynchronous import AsyncPoolClient
from calabash.broker.server.audit import AuditLog
from calabash.broker.server.authentication import TokenVerifier
from calabash.broker.server.broker import Broker, ServerSettings
from calabash.broker.server.journal import LeaseJournal
from calabash.broker.server.keyring import TokenRegistry
from calabash.broker.server.lease_allocations import LeaseAllocations
from calabash.broker.server.metrics import LeaseCounters
from calabash.broker.tokens import TokenClaims, read_token
from calabash.model.errors import CalabashError, Reason

GREETING = struct.Struct("<8sHHI16s32s")


class MemoryPool(AsyncPoolClient):
    """In-memory pool; each allocation takes one whole device."""

    def __init__(self, cards: int = 2) -> None:
        self.cards = cards
        self.allocations: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.kept: list[str] = []
        self.away = False
        self.grants = asyncio.Event()
        self.grants.set()

    async def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        if self.away:
            raise CalabashError("no pool answers", reason=Reason.POOL_DOWN)
        if path == "/v1/status":
            return {"driver": "nvidia 580.65.06"}
        if path == "/v1/devices":
            return {"items": [self._device(number) for number in range(self.cards)]}
        if (method, path) == ("POST", "/v1/allocations"):
            return await self._grant(body)
        if method == "POST" and path.endswith("/keep"):
            self.kept.append(path.split("/")[3])
            return {}
        if method == "DELETE":
            name = path.removeprefix("/v1/allocations/").partition("?")[0]
            if self.allocations.pop(name, None) is None:
                raise CalabashError("there is none", reason=Reason.NOT_FOUND)
            return {}
        assert path == "/v1/allocations", path
        return {"items": list(self.allocations.values())}

    async def _grant(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        await self.grants.wait()
        if len(self.allocations) + body["gpus"] > self.cards:
            raise CalabashError("no card is free", reason=Reason.NO_CAPACITY, hint="wait")
        name = f"a{len(self.asked)}"
        self.allocations[name] = {
            "id": name,
            "uid": os.geteuid(),
            "command": body["command"],
            "pids": [1, 2],
            "state": "running",
        }
        memory_mib = body["memory_mib"] or 40960
        share = {"memory_mib": memory_mib, "core_percent": body["cores"] or max(1, 100 * memory_mib // 40960)}
        slices = [{"device": f"GPU-{n}", **share} for n in range(body["gpus"])]
        return {"id": name, "slices": slices, "worker_socket": f"/run/{name}.sock", "warnings": []}

    def _device(self, number: int) -> dict[str, Any]:
        return {
            "uuid": f"GPU-{number}",
            "index": number,
            "model": "NVIDIA A100-SXM4-40GB" if number % 2 == 0 else "NVIDIA H100 80GB",
            "compute_capability": "8.0" if number % 2 == 0 else "9.0",
            "memory_mib": 40960 if number % 2 == 0 else 81920,
            "memory_free_mib": 40960 if number % 2 == 0 else 81920,
            "memory_used_mib": 0,
            "core_allocated_percent": 0,
            "utilization_percent": 0,
            "health": "healthy",
            "allocations": list(self.allocations) if number == 0 else [],
        }


class Clockwork:
    """Clock that advances only when ``s`` is set."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


class BrokerWorld:
    """Broker on an in-memory pool."""

    def __init__(self, directory: Path, pool: MemoryPool, *, settings: ServerSettings | None = None) -> None:
        self.directory = directory
        self.pool = pool
        self.settings = settings or ServerSettings(name="lab01", grace_s=60)
        self.registry = TokenRegistry(directory)
        self.clock = Clockwork()
        self.again()

    def again(self) -> None:
        """Create a new broker from the files of the previous one."""
        self.verifier = TokenVerifier(self.directory, now=self.clock)
        self.leases = LeaseAllocations(
            pool=self.pool,
            verifier=self.verifier,
            journal=LeaseJournal(self.directory),
            audit=AuditLog(self.directory, now=self.clock),
            counters=LeaseCounters(),
            clock=self.clock,
            now=self.clock,
        )
        self.broker = Broker(self.settings, self.leases)

    def claims(self, name: str = "vision", *, gpus: int = 2, memory_mib: int = 0, cores: int = 100) -> TokenClaims:
        text = self.registry.create(name, gpus=gpus, memory_mib=memory_mib, cores=cores, valid_s=5000, now=self.clock())
        ring = self.registry.keyring()
        return read_token(text, server=ring.server, keys=ring.known(), now=self.clock())

    def audited(self) -> str:
        return (self.directory / "audit.log").read_text()


class HostStandIn:
    """Stand-in for the parent of workers: takes connections one after the other and answers each with ``status``."""

    def __init__(self, path: Path, status: int = 0) -> None:
        self.path = path
        self.status = status
        self.greetings: list[tuple[Any, ...]] = []
        self.passed: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()

    async def take(self) -> socket.socket:
        """Return the next connection that is handed over."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        guest, _ = await loop.sock_accept(self._listener)
        with guest:
            guest.setblocking(True)
            data, descriptors, _, _ = socket.recv_fds(guest, GREETING.size, 1)
            self.greetings.append(GREETING.unpack(data))
            self.passed.append(socket.socket(fileno=descriptors[0]))
            guest.send(bytes([self.status]))
        return self.passed[-1]

    def close(self) -> None:
        for each in (self._listener, *self.passed):
            each.close()
