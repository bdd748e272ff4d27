"""Fixtures of the shim's tests: a simulated node, slots on it, and tenant programs compiled once per session.

A program runs exactly as the pool would start it: the simulated driver on the library path, the shim preloaded, the
slot named in the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compiled import compiled
from tests.native.machine import CC, NATIVE, runnable

from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
from calabash.node.slots.pages import LimitsPage, ProcUsage, UsagePage

ROOT = Path(__file__).resolve().parents[2]
SHIM = NATIVE / "lib/libcalabash.so"
PAGELIB = ROOT / "src/calabash/_native/lib/libcalabash-page.so"  # the agent's own
SIMGPU = NATIVE / "simgpu"
PROGRAMS = ROOT / "tests/native/shim"
INCLUDE = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/include"

MIB = 1 << 20
GIB = 1 << 30
SUCCESS, OUT_OF_MEMORY, NOT_PERMITTED = 0, 2, 800


@functools.cache
def program(name: str, *flags: str) -> Path:
    """Compile the test program ``tests/native/shim/NAME.c``, linked with the simulated driver if it names it."""
    source = PROGRAMS / f"{name}.c"
    link = [f"-L{SIMGPU}", "-l:libcuda.so.1"] if name in {"tenant", "devices", "green"} else []
    command = [CC, "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'native'}", "-isystem", str(INCLUDE)]
    return runnable(compiled(name, [*command, *flags, source, *link, "-pthread"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot on a simulated node, with the agent's view of its pages."""

    world: World
    path: Path

    @property
    def limits(self) -> LimitsPage:
        return LimitsPage.of_slot(self.path)

    @property
    def usage(self) -> UsagePage:
        return UsagePage.of_slot(self.path)

    def environment(self, **more: str) -> dict[str, str]:
        return self.world.environment() | {"LD_PRELOAD": str(SHIM), "CALABASH_SLOT": str(self.path)} | more

    def start(self, *command: str | Path, **more: str) -> subprocess.Popen[str]:
        """Start a program on this slice; its input and output are text."""
        return subprocess.Popen(
            [str(c) for c in command],
            env=self.environment(**more),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *command: str | Path, **more: str) -> str:
        """Run a program to its end and return what it printed; a failure shows its output."""
        process = self.start(*command, **more)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{command} ended with {process.returncode}: {out}{err}"
        return out.strip()

    @contextlib.contextmanager
    def start_holder(self, size_bytes: int, **more: str) -> Iterator[subprocess.Popen[str]]:
        """Start a process of the container that holds so much memory; it is killed, not ended, at the close."""
        process = self.start(program("tenant"), "hold", str(size_bytes), **more)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.communicate()

    def tenant_command(self, *arguments: str | int) -> list[str]:
        return [str(program("tenant")), *(str(argument) for argument in arguments)]

    def tenant(self, *arguments: str | int, **more: str) -> str:
        return self.run(*self.tenant_command(*arguments), **more)

    def procs(self) -> list[ProcUsage]:
        return self.usage.procs()

    def reap(self, proc: ProcUsage) -> int:
        """Reap a dead process as the agent does."""
        usage = self.usage  # stays mapped during the call
        return int(
            pagelib().cb_page_reap(
                ctypes.c_void_p(usage.address), proc.index, proc.generation, proc.pid, ctypes.c_uint64(proc.start_time)
            )
        )

    def reap_dead(self) -> None:
        """Reap all dead processes, as the agent does within a second of their end."""
        for proc in self.procs():
            if not Path(f"/proc/{proc.pid}").exists() and proc.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino:
                self.reap(proc)

    def reap_all(self) -> None:
        for proc in self.procs():
            assert self.reap(proc) == 1, f"slot {proc.index} is not reaped"


@functools.cache
def pagelib() -> ctypes.CDLL:
    """Load the agent's page library."""
    return ctypes.CDLL(str(PAGELIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A simulated node."""

    path: Path

    @classmethod
    def create(cls, path: Path, gpus: str = "1xA100-40GB") -> World:
        path.mkdir(parents=True, exist_ok=True)
        command = [
            str(runnable(SIMGPU / "calabash-simctl")),
            "create",
            str(path / "node.state"),
            "--gpus",
            gpus,
            "--name",
            "test",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return cls(path=path)

    def environment(self) -> dict[str, str]:
        """Return the environment to use the node without the shim."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return kept | {"CALABASH_SIM": str(self.path / "node.state"), "LD_LIBRARY_PATH": str(SIMGPU)}

    def show(self) -> dict[str, Any]:
        """Return the simulator's own state of the node."""
        command = [str(runnable(SIMGPU / "calabash-simctl")), "show", str(self.path / "node.state"), "--json"]
        shown: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return shown

    def device(self, index: int = 0) -> dict[str, Any]:
        device: dict[str, Any] = self.show()["devices"][index]
        return device

    def uuids(self) -> list[DeviceUuid]:
        return [DeviceUuid(device["uuid"]) for device in self.show()["devices"]]

    def slot(
        self, name: str = "slot", *, cap: int = GIB, spill: int = 0, devices: tuple[int, ...] = (0,), context: int = 0
    ) -> Slot:
        """Make a slot over these devices of the node, each with the same cap, of which ``spill`` bytes may be off the card."""
        uuids = self.uuids()
        path = self.path / name
        entries = tuple(SlotDevice(uuid=uuids[i], memory_limit_bytes=cap, spill_bytes=spill) for i in devices)
        create_slot(path, SlotSpec(allocation=AllocationId(name), devices=entries))
        path.chmod(0o755)
        slot = Slot(world=self, path=path)
        if context:
            limits = slot.limits
            for index in range(len(devices)):
                limits.set_context_bytes(index, context)
        return slot
