"""Simulated MPS: a control daemon that answers from memory, and sleeping processes for daemon, server and clients."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from calabash.adapters.gpu.library import OWN_FILES
from calabash.adapters.gpu.nvidia.mps import MpsControl
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text, in_full
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.policy import MpsRules
from calabash.node.modes.mps.notices import ServiceTools
from calabash.node.modes.mps.target import Served
from calabash.node.modes.protocol import NoAllocations, NodeTools

CARD = DeviceUuid("GPU-1")
ONE, TWO = AllocationId("one"), AllocationId("two")
SERVED = Served(
    place=(CARD, "", -1), uuid=CARD, name="device 0", part="mps", directory="0", multiprocessors=100
)  # fmt: skip
BOUND_S = 60.0


class Sleepers:
    """Sleeping processes that stand for the processes of a service and for programs."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []

    def one(self) -> subprocess.Popen[bytes]:
        self._all.append(subprocess.Popen(["sleep", "600"]))
        return self._all[-1]

    def close(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


class Pretended(MpsControl):
    """Simulated control program and daemon of one directory."""

    def __init__(self, directory: Path, sleepers: Sleepers) -> None:
        super().__init__(directory, CARD, {})
        self.sleepers = sleepers
        self.daemon: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.status = "ACTIVE"
        self.clients: list[int] = []
        self.terminated: list[int] = []
        self.defaults: tuple[str, str] = ("100", "unlimited")
        self.gives: tuple[str, str] = ("100", "unlimited")
        self.given: list[tuple[str, str]] = []
        self.by = 0
        self.asked = 0
        self.refuses_to_start = False
        self.has_no_servers = False
        self.short_lived = 0  # so many servers die as soon as they were started
        self.leaves = 0  # so many times the daemon dies when it is asked for a server

    def start(self, *, multiuser: bool) -> subprocess.Popen[bytes]:
        del multiuser
        self.log.mkdir(parents=True, exist_ok=True)
        self.daemon = self.sleepers.one()
        self.server = None
        if self.refuses_to_start:
            self.daemon.kill()
            self.daemon.wait()
        return self.daemon

    def faulting_client(self) -> int:
        by, self.by = self.by, 0
        return by

    def ask(self, *commands: str) -> str:
        self.asked += 1
        if self.daemon is None or self.daemon.poll() is not None:
            raise CalabashError("there is no daemon", reason=Reason.NOT_FOUND)
        return "".join(self._answer(*command.split()) for command in commands)

    def server_dies(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        self.clients.clear()

    def _answer(self, command: str, *words: str) -> str:
        lives = self.server is not None and self.server.poll() is None
        if self.server is not None and lives and command == "get_server_list":
            return f"{self.server.pid}\n"
        if command == "start_server" and not lives and self.leaves:
            self.leaves -= 1
            assert self.daemon is not None
            self.daemon.kill()
            self.daemon.wait()
            raise CalabashError("there is no daemon", reason=Reason.NOT_FOUND)
        if command == "start_server" and not lives and not self.has_no_servers:
            self.server, self.status, self.gives = self.sleepers.one(), "ACTIVE", self.defaults
            if self.short_lived:
                self.short_lived -= 1
                self.server_dies()
        if command.startswith("set_default_"):
            percent, memory = self.defaults
            self.defaults = (words[0], memory) if "percentage" in command else (percent, words[1])
        if not lives:
            return "Failed to find server\n" if command.startswith(("get_server_status", "get_client")) else ""
        self._do(command, words)
        answers = {
            "get_server_status": f"{self.status}\n",
            "get_client_list": "".join(f"{pid}\n" for pid in self.clients),
            "get_active_thread_percentage": f"{float(self.gives[0])}\n",
            "get_device_pinned_mem_limit": f"{self.gives[1]}\n",
        }
        return answers.get(command, "")

    def _do(self, command: str, words: tuple[str, ...]) -> None:
        if command == "set_active_thread_percentage":
            self.gives = (words[1], self.gives[1])
        elif command == "set_device_pinned_mem_limit":
            self.gives = (self.gives[0], words[2])
            self.given.append(self.gives)
        elif command == "terminate_client":
            self.terminated.append(int(words[1]))
        elif command in {"shutdown_server", "quit"}:
            self.server_dies()


class Told:
    """Recorder of the events, notes and health events of a service."""

    def __init__(self, rules: MpsRules | None = None) -> None:
        self.events: list[tuple[str, str, Text]] = []
        self.notes: dict[AllocationId, Text] = {}
        self.health: list[tuple[HealthEvent, Text, frozenset[AllocationId]]] = []
        self.owners: dict[int, AllocationId] = {}
        self.tools = ServiceTools(
            name="device 0",
            allocation_of=self.owners.get,
            reports=self,
            environment={},
            files=OWN_FILES,
            rules=rules or MpsRules(),
        )

    def events_of(self, kind: str) -> list[tuple[str, str]]:
        """Return the allocations and messages of the events of a kind."""
        return [(allocation, in_full(message)) for found, allocation, message in self.events if found == kind]

    def record_event(self, kind: str, reason: str, allocation: str, message: Text) -> None:
        self.events.append((kind, allocation, message))

    def set_note(self, allocation: AllocationId, note: Text) -> None:
        self.notes[allocation] = note

    def health_event(self, event: HealthEvent, cause: Text, tenants: Collection[AllocationId]) -> None:
        self.health.append((event, cause, frozenset(tenants)))


class Cards:
    """Inventory whose driver has no MIG."""

    def devices(self) -> tuple[Device, ...]:
        return (Device(uuid=CARD, index=3, vendor="x", model="A100", memory_mib=1, multiprocessor_count=108),)

    def driver_of(self, uuid: str) -> object:
        return object()


def record(profile: str = "", start: int = -1) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1024, core_percent=30, profile=profile, start=start)
    return AllocationRecord(
        id=ONE,
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1024, core_percent=30),
        placement=Placement(node=NodeName("n"), mode=ModeName("mps"), slices=(part,)),
    )


class EndedAllocations(NoAllocations):
    """Recorder of the allocations that an executor ends."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str, Text]] = []

    def end(self, allocation: AllocationId, reason: str, explanation: Text) -> None:
        self.ended.append((allocation, reason, explanation))


def tools(home: Path, **more: Any) -> NodeTools:
    return NodeTools(home=home, inventory=cast("Any", Cards()), library=home / "none.so", environment={}, **more)
