"""Measurements of a pool that does not answer, during a soak."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from bench.soak import stalls

SPINS = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwhile True: pass"
WAITS = """
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR2)
def waits():
    print("ready", flush=True); time.sleep(60)  # one line: the signal may come before it sleeps
waits()
"""


def test_time_without_a_processor_is_that_of_the_kernel() -> None:
    """Four programs on one processor wait for it three quarters of the time, at any load; a sleeping one hardly waits."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPINS]) for _ in range(4)]
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    every = [*spinning, sleeping]
    try:
        time.sleep(1.0)
        before = {one.pid: stalls.waited(one.pid) for one in every}
        time.sleep(2.0)
        waited = {one.pid: stalls.waited(one.pid) - before[one.pid] for one in every}
    finally:
        for one in every:
            one.kill()
            one.wait()
    assert sum(waited[one.pid] for one in spinning) > 4.0, waited
    assert waited[sleeping.pid] < 0.5, waited


def test_process_that_has_ended_waited_for_zero_seconds() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert stalls.waited(gone.pid) == 0.0
    assert stalls.kernel_threads(gone.pid) == []


def test_innermost_frames_of_each_thread_are_reported() -> None:
    program = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    threads = stalls.kernel_threads(program.pid)
    os.kill(program.pid, signal.SIGUSR2)
    time.sleep(0.5)
    program.kill()
    _, dump = program.communicate(timeout=30)
    assert len(threads) == 1
    assert threads[0].startswith(f"thread {program.pid} ")
    assert stalls.innermost(dump) == ["waits (<string>:5); <module> (<string>:6)"], dump
