"""Times in which the pool does not answer without an injected fault, and what its threads do meanwhile.

A machine with other work may give the pool no processor for seconds. That is no fault of the pool, so it is recorded as a fault
of the machine (``STARVED``), which excuses refusals in that time. It is measured by the kernel: the time in which
the pool's main thread was ready to run and did not. A pool that has its processor and does not answer is not excused: then the
log says what each of its threads does.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.soak.diary import STARVED
from bench.soak.world import World

SPAN_S = 5.0  # time over which starvation is measured
SHARE = 0.5  # of that time without a processor
SILENT_S = 8.0  # a pool that has not answered for so long is examined
EVERY_S = 0.5
FRAMES = 3


class Stalls:
    """Thread that watches the pool until the world is removed; ``shown`` has the examinations of a pool that did not answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shown: list[str] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("starving", self._measure), ("silence", self._listen))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _measure(self) -> None:
        waits: deque[tuple[float, float]] = deque()  # when, and how long there was no processor since the moment before
        pid, before_s = 0, 0.0
        with ExitStack() as stack:
            lasting = False
            while not self._over.wait(EVERY_S):
                now, found = time.monotonic(), self.world.pid()
                waited_s = waited(found)
                waits.append((now, max(0.0, waited_s - before_s) if found == pid else 0.0))
                pid, before_s = found, waited_s
                while waits[0][0] < now - SPAN_S:
                    waits.popleft()
                starved = sum(one for _, one in waits) > SHARE * SPAN_S
                if starved and not lasting:
                    stack.enter_context(self.world.diary.fault(STARVED, f"pool {pid} gets no processor"))
                elif lasting and not starved:
                    stack.pop_all().close()
                lasting = starved

    def _listen(self) -> None:
        """Request the status all the time, which needs one iteration of the pool's event loop and nothing else."""
        while not self._over.wait(EVERY_S):
            pid, began = self.world.pid(), time.monotonic()
            if pid and self.world.ask("/v1/status", timeout_s=SILENT_S) is None and self.world.pid() == pid:
                silent_s = time.monotonic() - began
                if silent_s >= SILENT_S and not self._broken():
                    self._show(pid, silent_s)

    def _broken(self) -> bool:
        now = time.time()
        return any(fault.meets(now - SILENT_S, now) for fault in self.world.diary.faults() if fault.device < 0)

    def _show(self, pid: int, silent_s: float) -> None:
        log = self.world.home / "pool.log"
        with suppress(OSError):
            before = log.stat().st_size
            os.kill(pid, signal.SIGUSR2)
            time.sleep(1.0)
            with log.open(errors="replace") as file:
                file.seek(before)
                stacks = innermost(file.read(1 << 20))
            told = [f"pool {pid} has not answered for {silent_s:.0f} s", *kernel_threads(pid), *stacks]
            self.shown.append("\n".join(told))
            for line in told:
                self.world.log.line("silence", line)


def waited(pid: int) -> float:
    """Return the seconds that the main thread of a process has waited for a processor since it began (proc(5), schedstat)."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def kernel_threads(pid: int) -> list[str]:
    """Return a line for each thread of a process: its number, its state and the kernel function that it waits in."""
    found = []
    with suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError):
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                found.append(f"thread {task.name} {state} {(task / 'wchan').read_text()}")
    return found


def innermost(dump: str) -> list[str]:
    """Return a line for each thread of a dump by ``faulthandler``: its innermost frames."""
    found: list[str] = []
    for block in re.split(r"^(?=Thread 0x|Current thread 0x)", dump, flags=re.MULTILINE)[1:]:
        frames = re.findall(r'^  File "([^"]*)", line (\d+) in (\S+)', block, flags=re.MULTILINE)[:FRAMES]
        found.append("; ".join(f"{function} ({Path(path).name}:{line})" for path, line, function in frames))
    return found
