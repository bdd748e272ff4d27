"""Pool in a directory of its own, with a real daemon on a simulated node, and programs that use it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.api_client import PathClient

import calabash
from calabash.adapters.gpu import sim
from calabash.adapters.host.cgroups.groups import Cgroup, find_hierarchy
from calabash.adapters.host.mounts import unmount
from calabash.model.errors import CalabashError
from calabash.node.membership.protocol import group_name
from calabash.node.slots.pages import LimitsPage

NATIVE = Path(calabash.__file__).resolve().parent / "_native"
SIM = "lab"
HANG_S = 60.0  # a limit far beyond what a busy machine needs


def until(condition: Callable[[], Any], *, within_s: float = HANG_S, what: str = "") -> Any:
    """Poll until ``condition`` returns a true value and return that value; fail after ``within_s`` seconds.

    Args:
        what: description of the condition for the failure.
    """
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s: {what or condition}"
        time.sleep(0.01)


def elapsed_until(condition: Callable[[], Any], *, within_s: float = HANG_S, what: str = "") -> float:
    """Wait for a condition; return the seconds that it took."""
    begun = time.monotonic()
    until(condition, within_s=within_s, what=what)
    return time.monotonic() - begun


class Program:
    """Forked child that does the same as ``calabash run``: request a slice, hold its lease, and execute the program."""

    def __init__(self, home: Path, command: list[str], **body: Any) -> None:
        self._from_child, writing = os.pipe()
        reading, self.stdin = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(reading, 0)
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                os.closerange(3, 1024)  # the pipes of other programs must end with their owners
                _become(home, command, body)
            except CalabashError as error:
                os.write(1, f"refused {error.reason}\n".encode())
            except BaseException as error:
                os.write(1, f"broken {error!r}\n".encode())
            os._exit(1)
        os.close(writing)
        os.close(reading)
        os.set_blocking(self._from_child, False)
        self.output = b""
        self.code: int | None = None

    def says(self, text: str) -> bool:
        """Return True if the output so far contains a text."""
        try:
            while chunk := os.read(self._from_child, 65536):
                self.output += chunk
        except BlockingIOError:
            pass
        return text.encode() in self.output

    def has_begun(self) -> bool:
        """Return True if the child executes the program. It becomes a member process of its allocation shortly before."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes() != Path("/proc/self/cmdline").read_bytes()
        except OSError:
            return False

    def alive(self) -> bool:
        """Return True if the program runs; otherwise reap it and set ``code`` to its exit code."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def dead(self) -> bool:
        return not self.alive()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def finish(self) -> int:
        """Close its input and wait for its end; return the exit code."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1
        until(self.dead, what="the program to end")
        assert self.code is not None
        return self.code

    def close(self) -> None:
        self.kill()
        self.finish()
        os.close(self._from_child)


def _become(home: Path, command: list[str], body: dict[str, Any]) -> None:
    pool = PathClient(home)
    granted = pool.post("/v1/allocations", {"command": command, "enter": True, **body}, timeout_s=60)
    if granted["lease"]:
        lease = os.open(granted["lease"], os.O_RDONLY)
        fcntl.flock(lease, fcntl.LOCK_SH)
        os.set_inheritable(lease, True)
        pool.post(f"/v1/allocations/{granted['id']}/started", {"pid": os.getpid()})
    os.execvpe(command[0], command, {**os.environ, **granted["environment"]})


def _allocation_in(slot: Path) -> str:
    try:
        return LimitsPage.of_slot(slot).allocation
    except (OSError, CalabashError):
        return slot.name


class World:
    """One pool with a real daemon.

    Args:
        home: home directory of the pool.
        gpus: devices of the simulated node, such as ``2xT4``; "" for no simulated node.
        options: further command-line options of the daemon.
    """

    def __init__(
        self, home: Path, gpus: str = "2xA100-40GB", *, database: str = "", options: tuple[str, ...] = ()
    ) -> None:
        self.options = options
        self.home = home
        self.database = database
        self.sim = SIM if gpus else ""
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
        self.programs: list[Program] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self.client = PathClient(home)
        self.events_after = 0
        if gpus:
            sim.create_node(home, SIM, gpus, 1)

    @property
    def state_file(self) -> Path:
        return self.home / "sim" / SIM / "node.state"

    def slot_path(self, allocation: str) -> Path:
        """Return the directory of an allocation's slot, which is found by its limits page."""
        for slot in (self.home / "alloc").iterdir():
            with contextlib.suppress(OSError, CalabashError):
                if LimitsPage.of_slot(slot).allocation == allocation:
                    return slot
        raise AssertionError(f"{allocation} has no slot")

    def evidence(self) -> Iterable[Path]:
        """Return the home, which is kept if a test fails: logs, journal and state of the simulated node."""
        return [self.home]

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "calabash.pool.daemon", "--home", str(self.home)]
        if self.sim:
            words += ["--sim", self.sim]
        if self.database:
            words += ["--db", self.database]
        return [*words, *self.options]

    def up(self) -> dict[str, Any]:
        """Start the daemon and wait until it answers."""
        self.home.mkdir(exist_ok=True)
        with (self.home / "pool.log").open("ab") as log:
            self.daemon = subprocess.Popen(self.command(), env=self.environment, stdout=log, stderr=log)
        return self.ready()

    def ready(self) -> dict[str, Any]:
        daemon = self.daemon
        assert daemon is not None

        def answer() -> Any:
            assert daemon.poll() is None, (self.home / "pool.log").read_text()
            try:
                status = self.client.get("/v1/status", timeout_s=20)
            except CalabashError:
                return None
            return status if status["pid"] == daemon.pid else None

        found: dict[str, Any] = until(answer, what="the pool to answer")
        return found

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the daemon and wait for its end."""
        assert self.daemon is not None
        self.daemon.send_signal(number)
        self.daemon.wait(timeout=HANG_S)

    def run(self, *command: str, **body: Any) -> Program:
        """Start a program on a slice."""
        program = Program(self.home, list(command) or ["cat"], **body)
        self.programs.append(program)
        return program

    def running(self, *command: str, **body: Any) -> tuple[Program, dict[str, Any]]:
        """Start a program on a slice; return it with its allocation once it runs."""
        program = self.run(*command, **body)
        allocation = until(lambda: self.allocation_of(program), what=f"{command} to run")
        until(lambda: program.has_begun() or program.dead(), what=f"{command} to have taken over its process")
        return program, allocation

    def allocation_of(self, program: Program) -> dict[str, Any] | None:
        assert program.alive(), program.says("no such text") or program.output
        return next((a for a in self.allocations() if program.pid in a["pids"] and a["state"] == "running"), None)

    def allocations(self, *, ended: bool = False) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get("/v1/allocations" + ("?all=1" if ended else ""))["items"]
        return found

    def devices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get("/v1/devices")["items"]
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of a kind since the last call of ``forget_events``."""
        found: list[dict[str, Any]] = []
        after = self.events_after
        while items := self.client.get(f"/v1/events?after={after}")["items"]:
            found += [e for e in items if e["kind"] == kind]
            after = items[-1]["id"]
        return found

    def forget_events(self) -> None:
        while items := self.client.get(f"/v1/events?after={self.events_after}")["items"]:
            self.events_after = items[-1]["id"]

    def slots(self) -> list[str]:
        """Return the IDs of allocations that have a slot, and the names of directories that are incomplete slots."""
        return sorted(map(_allocation_in, (self.home / "alloc").iterdir()))

    def inject(self, gpu: str, *words: str) -> None:
        subprocess.run(
            [NATIVE / "simgpu" / "calabash-simctl", "inject", self.state_file, "--gpu", gpu, *words],
            check=True,
            capture_output=True,
        )

    def clean(self) -> bool:
        """End all programs; return True if the pool then has no trace of them and can be used by another test."""
        for program in self.programs:
            program.close()
        self.programs.clear()
        if self.daemon is None or self.daemon.poll() is not None:
            return False
        try:
            for allocation in self.allocations():
                self.client.delete(f"/v1/allocations/{allocation['id']}?force=1")
            until(lambda: not self.allocations(), what="the pool to be empty")
            for tenant in self.client.get("/v1/tenants")["items"]:
                self.client.delete(f"/v1/tenants/{tenant['name']}")
            for queue in self.client.get("/v1/queues")["items"]:
                if queue["name"] != "default":
                    self.client.delete(f"/v1/queues/{queue['name']}")
            for device in self.devices():
                if device["health"] == "healthy":  # its earlier failures are forgotten
                    self.client.post(f"/v1/devices/{device['index']}/undrain")
        except CalabashError:
            return False
        self.forget_events()
        return all(d["health"] == "healthy" for d in self.devices())

    def close(self) -> None:
        for program in self.programs:
            program.close()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(timeout=HANG_S)
        self._clear()

    def _clear(self) -> None:
        """Remove the control groups and mounts that a killed pool has left outside of its home."""
        hierarchy = find_hierarchy()
        if os.geteuid() != 0 or hierarchy is None:
            return
        group = Cgroup(hierarchy.directory / group_name(self.home))
        group.kill()
        until(lambda: not group.populated(), what="the programs of a killed pool to end")
        group.remove()
        slots = self.home / "alloc"
        for path in slots.iterdir() if slots.is_dir() else ():
            while path.is_mount():
                unmount(path)
