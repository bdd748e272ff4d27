"""Lab in virtual time: the same programs, library, arbiter and simulated card, with a clock that stops during computation.

Measurements repeat on any machine, however busy it is; the speed of code is not part of them. ``programs/virtual_time.c`` is
loaded before every program and replaces its clock; this process is a member like the others: time passes only while it sleeps
in the lab.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from bench._lab import BUILD, PROGRAMS, Lab, Tenant, program

MEMBERS_MAX = 64
_SYS_FUTEX, _FUTEX_WAIT, _FUTEX_WAKE = 202, 0, 1
_STUCK_S = 60.0
_POLL_NS = 100_000_000
_SECOND_NS = 1_000_000_000
_AHEAD_S = 3_600
_libc = ctypes.CDLL(None, use_errno=True)


class _Member(ctypes.Structure):
    _fields_: ClassVar = [
        ("present", ctypes.c_uint32),
        ("running", ctypes.c_uint32),
        ("wake_ns", ctypes.c_uint64),
        ("stopped", ctypes.c_uint64),
    ]


class _World(ctypes.Structure):
    _fields_: ClassVar = [
        ("now_ns", ctypes.c_uint64),
        ("realtime_offset_ns", ctypes.c_uint64),
        ("member", _Member * MEMBERS_MAX),
    ]


class _Timeout(ctypes.Structure):
    _fields_: ClassVar = [("seconds", ctypes.c_long), ("ns", ctypes.c_long)]


def _library() -> Path:
    source, target = PROGRAMS / "virtual_time.c", BUILD / "virtual_time.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", str(source)]
        subprocess.run([*command, "-o", str(temporary)], check=True)
        temporary.rename(target)
    return target


class _SharedWorld:
    """The file of a virtual time, mapped into this process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._world = _World.from_buffer(self._map)


class MemberControl(_SharedWorld):
    """Stop and continue members from a member process, as a control group's freezer does."""

    def set_stopped(self, place: int, stopped: bool) -> None:
        """Withhold turns from the member at a place, or grant them again."""
        self._world.member[place].stopped = stopped


class VirtualTime(_SharedWorld):
    """The clock that members share. This process has place 0 and runs whenever it is not in ``sleep``.

    The clock starts at a whole second, so that periodic work has the same phase in every run, an hour ahead of
    CLOCK_MONOTONIC: where a member waits by the kernel's clock, for an answer from one of its threads, its timeout does
    not pass before the answer is there, however slow the machine is.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(ctypes.sizeof(_World)))
        super().__init__(path)
        self._path = path
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._world.now_ns = (time.monotonic_ns() // _SECOND_NS + _AHEAD_S) * _SECOND_NS
        self._world.realtime_offset_ns = time.time_ns() - self._world.now_ns
        me = self._world.member[0]
        me.present, me.running = 1, 1

    def now_ns(self) -> int:
        """Return the time of the clock."""
        return int(self._world.now_ns)

    def environment(self, preload: str, place: int) -> dict[str, str]:
        """Return the environment variables that make a program a member."""
        return {
            "VIRTUAL_TIME": str(self._path),
            "VIRTUAL_TIME_PLACE": str(place),
            "LD_PRELOAD": f"{_library()} {preload}".strip(),
        }

    def free_place(self) -> int:
        """Return the number of the next free place."""
        self._reap()
        return next(i for i in range(1, MEMBERS_MAX) if i not in self._processes)

    def joined(self, place: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process that was just started has taken its place."""
        self._processes[place] = process
        end = time.monotonic() + _STUCK_S
        while not self._world.member[place].present:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("a program did not join the virtual time")
            time.sleep(0.0005)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a member; it cannot run meanwhile, because it is this process's turn."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        self._reap()

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        me = self._world.member[0]
        me.wake_ns = self._world.now_ns + int(seconds * 1e9)
        me.running = 0
        self._hand_on()
        end, seen_ns = time.monotonic() + _STUCK_S, self.now_ns()
        while not me.running:
            if self._wait(me):
                break
            if self._reap():
                self._hand_on()
            if self.now_ns() != seen_ns:
                end, seen_ns = time.monotonic() + _STUCK_S, self.now_ns()
            elif time.monotonic() > end:
                raise RuntimeError("virtual time stands still")

    def _wait(self, me: _Member) -> bool:
        """Wait a moment for this process's turn and return True if it has come."""
        word = ctypes.addressof(me) + _Member.running.offset
        timeout = _Timeout(0, _POLL_NS)
        _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(word), _FUTEX_WAIT, 0, ctypes.byref(timeout), None, 0)
        return bool(me.running)

    def _hand_on(self) -> None:
        members = [member for member in self._world.member if member.present and not member.stopped]
        following = min(members, key=lambda member: member.wake_ns)
        self._world.now_ns = max(self._world.now_ns, following.wake_ns)
        following.running = 1
        word = ctypes.addressof(following) + _Member.running.offset
        _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(word), _FUTEX_WAKE, 1, None, None, 0)

    def _reap(self) -> bool:
        """Drop members that have ended; return True if one of them ended during its turn."""
        ended = [place for place, process in self._processes.items() if process.poll() is not None]
        had_turn = False
        for place in ended:
            del self._processes[place]
            member = self._world.member[place]
            had_turn = had_turn or bool(member.present and member.running)
            member.present = member.running = member.stopped = 0
        return had_turn


class VirtualTenant(Tenant):
    """A program whose output goes to a file, because no process reads a pipe while the program runs."""

    def __init__(
        self, process: subprocess.Popen[bytes], slot: str | None, *, output: Path, clock: VirtualTime, place: int
    ) -> None:
        super().__init__(process, slot)
        self.place = place
        self._output = output
        self._clock = clock

    def output(self) -> str:
        """Return the text that it has printed so far."""
        return self._output.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Let time pass until the program has printed ``ready``."""
        while not self._output.read_bytes().startswith(b"ready\n"):
            if self.process.poll() is not None:
                raise RuntimeError(f"tenant did not come up: {self.output()}")
            self._clock.sleep(0.0002)

    def finish_text(self, timeout_s: float = 60) -> str:
        """Wait for the program's end and return its output."""
        end_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        while self.process.poll() is None:
            if self._clock.now_ns() > end_ns:
                raise TimeoutError("a tenant did not end")
            self._clock.sleep(0.01)
        return self.output()

    def result(self, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for the program's end and return the JSON object in the last line of its output."""
        result: dict[str, Any] = json.loads(self.finish_text(timeout_s).splitlines()[-1])
        return result

    def kill(self) -> None:
        """Kill the program."""
        self._clock.kill(self.process)


class VirtualLab(Lab):
    """A lab whose programs and arbiter run in virtual time. Simulated cards only."""

    clock: VirtualTime

    def _make_card(self) -> None:
        self.real = False
        super()._make_card()
        self.clock = VirtualTime(self.home / "time")  # from now on, because the card has been used until now
        self.tool_environment = self.clock.environment("", -1)  # the tools of the card see the clock of the tenants

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.clock.sleep(seconds)

    def now_ns(self) -> int:
        """Return the time on the clock of the tenants."""
        return self.clock.now_ns()

    def _start_arbiter(self) -> subprocess.Popen[bytes]:
        place = self.clock.free_place()
        command = [sys.executable, "-m", "calabash.node.arbiter.main", "--home", str(self.home)]
        process = subprocess.Popen(command, env=os.environ | self.clock.environment("", place))
        self.clock.joined(place, process)
        return process

    def stop_arbiter(self) -> None:
        """Stop the arbiter; does nothing if there is none."""
        process, self._arbiter = self._arbiter, None
        if process is not None:
            self.clock.kill(process)

    def start_arbiter(self) -> None:
        """Start the arbiter again after ``stop_arbiter``."""
        self._arbiter = self._start_arbiter()

    def start(self, slot: str | None, name: str, *arguments: object) -> VirtualTenant:
        """Start a benchmark program."""
        command = [str(program(name)), *(str(argument) for argument in arguments)]
        return self.start_command(command, self.environment(slot), slot=slot)

    def start_command(
        self, command: Sequence[str], environment: dict[str, str], *, slot: str | None = None
    ) -> VirtualTenant:
        """Start any program as a member; the lab ends it when it closes."""
        place = self.clock.free_place()
        environment = environment | self.clock.environment(environment.get("LD_PRELOAD", ""), place)
        output = self.home / f"output-{len(self._tenants)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        tenant = VirtualTenant(process, slot, output=output, clock=self.clock, place=place)
        self._tenants.append(tenant)
        self.clock.joined(place, process)
        return tenant

    def percent(self, tenants: Sequence[Tenant], seconds: float, settle: float) -> list[float]:
        """Let time pass and return the percentage of the card that each tenant had, by the card's own accounts."""
        self.sleep(settle)
        before_ns, before = self.busy_ns()
        self.sleep(seconds)
        after_ns, after = self.busy_ns()
        return [(after[t.pid] - before[t.pid]) / (after_ns - before_ns) * 100 for t in tenants]
