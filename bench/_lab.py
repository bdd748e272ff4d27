"""Card, slots and tenants for benchmarks without a pool.

A lab has a temporary CALABASH_HOME, slots as the agent writes them, the arbiter process, and C programs that are compiled on
demand. The card is simulated unless the machine has a real one; BENCH_CARD=sim or BENCH_CARD=real overrides this. Use of the
card is measured at the card: by the simulator's accounts, or by the work that programs saw completed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import calabash
from bench._report import ROOT
from calabash.adapters.gpu.nvidia.driver import open_driver
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.adapters.gpu.sim import NodeFile, SimNode, create_node, show_node
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId, ComputePolicy
from calabash.node.devices.inventory import Inventory
from calabash.node.processes.reaper import OpenSlot, Reaper
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
from calabash.node.slots.names import LEASE_FILE
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.overhead import Residual
from calabash.node.slots.pages import LimitsPage, UsagePage

NATIVE = Path(calabash.__file__).with_name("_native")  # of the installed package, which may be a wheel
SHIM = NATIVE / "lib" / "libcalabash.so"
PROGRAMS = ROOT / "bench" / "programs"
BUILD = ROOT / "build" / "bench"
KERNELS = PROGRAMS / "kernels.ptx"


def real_card() -> bool:
    """Return True if benchmarks measure on a real card."""
    card = os.environ.get("BENCH_CARD", "")
    return card == "real" or (card != "sim" and Path("/proc/driver/nvidia/version").exists())


def cuda_headers() -> Path:
    """Return the directory of ``cuda.h``: of the environment of development, or of an installed CUDA toolkit.

    Raises FileNotFoundError.
    """
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    own = sorted((ROOT / ".venv" / "lib").glob("python3*/site-packages/nvidia/cu13/include"))
    for directory in (*own, toolkit):
        if (directory / "cuda.h").is_file():
            return directory
    raise FileNotFoundError(f"no cuda.h in .venv or {toolkit}; hint: set CUDA_HOME to the CUDA toolkit")


def program(name: str) -> Path:
    """Return the path of a program of bench/programs; compile it if its sources are newer."""
    source, target = PROGRAMS / f"{name}.c", BUILD / name
    newest = max(path.stat().st_mtime for path in (source, PROGRAMS / "driver.h"))
    if not target.exists() or target.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        include = cuda_headers()
        temporary = target.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
        command += ["-isystem", str(include), f"-I{ROOT / 'native'}", str(source), "-o", str(temporary), "-ldl"]
        subprocess.run(command, check=True)
        temporary.rename(target)
    return target


class Tenant:
    """A running program of one slot."""

    def __init__(self, process: subprocess.Popen[bytes], slot: str | None) -> None:
        self.process = process
        self.slot = slot
        self.pid = process.pid

    def wait_ready(self) -> None:
        """Wait until the program has printed ``ready``."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != b"ready\n":
            raise RuntimeError(f"tenant did not come up: {line!r} {self.finish_text()}")

    def go(self) -> None:
        """Let a program that was started with ``--gate`` begin."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def finish_text(self, timeout_s: float = 60) -> str:
        """Wait for the program's end and return its output."""
        output, errors = self.process.communicate(timeout=timeout_s)
        return (output + errors).decode(errors="replace")

    def result(self, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for the program's end and return the JSON object in the last line of its output."""
        output, errors = self.process.communicate(timeout=timeout_s)
        if self.process.returncode != 0:
            raise RuntimeError(f"tenant ended with {self.process.returncode}: {errors.decode(errors='replace')}")
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def kill(self) -> None:
        """Kill the program."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class Keeper:
    """Thread that does the agent's work on the memory of slots: reaps dead processes and publishes residual memory."""

    def __init__(self, state: Path | None, slots: Sequence[Path], *, pause_s: float = 0.1) -> None:
        self._driver = open_driver(DriverOptions(sim_state=state))
        self._reaper = Reaper(Inventory([self._driver]), PageLibrary())
        self._open_slots = [
            OpenSlot(
                usage=UsagePage.of_slot(slot),
                limits=LimitsPage.of_slot(slot),
                lease=slot / LEASE_FILE,
                residuals=[Residual()],
            )
            for slot in slots
        ]
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._reaper.tick(self._open_slots)
            self._stop.wait(self._pause_s)

    def learn_context(self, model: str, context_bytes: int) -> None:
        """Publish the memory of an empty context, as the agent does after its probe."""
        self._reaper.learn_context(model, context_bytes)
        for slot in self._open_slots:
            self._reaper.publish_context(slot.limits)

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()
        self._driver.close()


class Lab:
    """A temporary home with slots on one card. Use as a context manager, which removes everything at its end."""

    def __init__(self, *, gpus: str = "A100-40GB", arbiter: bool = True) -> None:
        self.real = real_card()
        self._gpus = gpus
        self._want_arbiter = arbiter
        self.tool_environment: Mapping[str, str] = {}  # variables of the tools that read the card's accounts
        self._stack = ExitStack()
        self._tenants: list[Tenant] = []
        self._arbiter: subprocess.Popen[bytes] | None = None
        self.home = Path()
        self.node: NodeFile | None = None
        self.uuid = DeviceUuid("")

    def __enter__(self) -> Self:
        if not SHIM.exists():
            subprocess.run(["make", "-s", "-C", str(ROOT / "native")], check=True)
        self.home = Path(tempfile.mkdtemp(prefix="calabash-bench-"))
        self._stack.callback(shutil.rmtree, self.home, ignore_errors=True)
        (self.home / "alloc").mkdir()
        self._make_card()
        if self._want_arbiter:
            self._arbiter = self._start_arbiter()
            self._stack.callback(self.stop_arbiter)
        return self

    def _make_card(self) -> None:
        if self.real:
            listed = subprocess.run(
                ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
            )
            self.uuid = DeviceUuid(listed.stdout.split()[0])
        else:
            self.node = create_node(self.home, "bench", self._gpus)
            self.uuid = self.card_state().devices[0].uuid

    def _start_arbiter(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "calabash.node.arbiter.main", "--home", str(self.home)])

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def now_ns(self) -> int:
        """Return the time on the clock of the tenants."""
        return time.monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tenant in self._tenants:
            if tenant.process.poll() is None:
                tenant.kill()
        self._stack.close()

    def stop_arbiter(self) -> None:
        """Stop the arbiter; does nothing if there is none."""
        if self._arbiter is not None:
            self._arbiter.send_signal(signal.SIGTERM)
            self._arbiter.wait(timeout=10)
            self._arbiter = None

    def card_state(self) -> SimNode:
        """Return the state and accounts of the simulated card."""
        assert self.node is not None
        return show_node(self.node, environment=self.tool_environment)

    def slot(
        self,
        name: str,
        *,
        core_percent: int = 100,
        policy: ComputePolicy | None = ComputePolicy.FIXED,
        memory_limit_bytes: int = 0,
        spill_bytes: int = 0,
        priority: int = 0,
    ) -> Path:
        """Create a slot on the first card and return its directory."""
        coming, path = self.home / "alloc" / f".{name}", self.home / "alloc" / name
        device = SlotDevice(
            uuid=self.uuid,
            memory_limit_bytes=memory_limit_bytes,
            spill_bytes=spill_bytes,
            core_percent=core_percent,
            policy=policy,
            priority=priority,
        )
        create_slot(coming, SlotSpec(allocation=AllocationId(name), devices=(device,)))
        coming.rename(path)
        return path

    def drop_slot(self, name: str) -> None:
        """Remove a slot."""
        shutil.rmtree(self.home / "alloc" / name, ignore_errors=True)

    def limits(self, name: str) -> LimitsPage:
        """Return the limits page of a slot."""
        return LimitsPage.of_slot(self.home / "alloc" / name)

    def usage(self, name: str) -> UsagePage:
        """Return the usage page of a slot."""
        return UsagePage.of_slot(self.home / "alloc" / name)

    def keeper(self, *names: str) -> Keeper:
        """Start a keeper for the memory of some slots; it stops when the lab closes."""
        state = self.node.state if self.node is not None else None
        keeper = Keeper(state, [self.home / "alloc" / name for name in names])
        self._stack.callback(keeper.close)
        return keeper

    def environment(self, slot: str | None) -> dict[str, str]:
        """Return the environment of a program on the card: inside a slot, or without the shim if ``slot`` is None."""
        environment = dict(os.environ)
        if self.node is not None:
            environment["CALABASH_SIM"] = str(self.node.state)
            environment["LD_LIBRARY_PATH"] = str(NATIVE / "simgpu")
        environment.pop("LD_PRELOAD", None)
        if slot is not None:
            environment["LD_PRELOAD"] = str(SHIM)
            environment["CALABASH_SLOT"] = str(self.home / "alloc" / slot)
        return environment

    def start(self, slot: str | None, name: str, *arguments: object) -> Tenant:
        """Start a benchmark program."""
        command = [str(program(name)), *(str(argument) for argument in arguments)]
        # Unbuffered, so that what follows "ready" stays in the pipe for communicate().
        process = subprocess.Popen(
            command,
            env=self.environment(slot),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        tenant = Tenant(process, slot)
        self._tenants.append(tenant)
        return tenant

    def remove_tenant(self, tenant: Tenant) -> None:
        """Remove an ended tenant from the lab."""
        self._tenants.remove(tenant)

    def load(self, slot: str | None, *arguments: object) -> Tenant:
        """Start ``gpuload`` and wait until it has made its context."""
        tenant = self.start(slot, "gpuload", "--kernels", KERNELS, *arguments)
        tenant.wait_ready()
        return tenant

    def busy_ns(self) -> tuple[int, dict[int, int]]:
        """Return the time now, and the card's time that each process has had so far, in ns."""
        before = self.now_ns()
        state = self.card_state()
        after = self.now_ns()
        return (before + after) // 2, {
            process.pid: sum(device.busy_ns for device in process.devices) for process in state.processes
        }
