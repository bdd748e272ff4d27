"""Tests that the counters survive SIGKILL at any instruction; native/page/charge.h has the reasoning."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.native.shim_world import ROOT, pagelib, program

from calabash.node.slots.layout import UsageStruct


def test_process_killed_after_any_instruction_leaves_exact_counters() -> None:
    done = subprocess.run([program("charge_steps", "-O2")], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 50, "hardly an instruction was tried"


def test_three_thousand_kills_during_reservations_leave_exact_counters() -> None:
    command = [str(program("charge_storm", "-O2")), "3000", "4", "20261120"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout
    transactions, _ = done.stdout.split()
    assert int(transactions) > 3000


@pytest.mark.parametrize(("deaths", "ends"), [(0, "in 0"), (1, "in 1"), (7, "in 7"), (8, "refused 8")])
def test_entering_process_that_is_taken_for_dead_uses_another_entry(deaths: int, ends: str) -> None:
    entered = program("enter_reaped", "-O2", f"-I{ROOT / 'build/native'}", str(ROOT / "native/shim/process.c"))
    done = subprocess.run([entered, str(deaths)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ends)


@given(st.binary(min_size=512, max_size=4096), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60), deadline=None)
def test_calls_of_the_agent_return_for_any_content_of_the_page(noise: bytes, slot: int, pid: int) -> None:
    raw = (ctypes.c_char * (2 * ctypes.sizeof(UsageStruct)))()
    base = (ctypes.addressof(raw) + 4095) & ~4095
    content = (noise * (ctypes.sizeof(UsageStruct) // len(noise) + 1))[: ctypes.sizeof(UsageStruct)]
    ctypes.memmove(base, content, len(content))
    usage, library = ctypes.c_void_p(base), pagelib()
    mapped = UsageStruct.from_address(base)
    for index in (slot % 1024, slot):
        proc = mapped.proc[index % 1024]
        answer = library.cb_page_reap(usage, index, proc.generation, proc.pid, ctypes.c_uint64(proc.start_time))
        assert answer in (-1, 0, 1)
        assert library.cb_page_set_host_pid(usage, index, proc.generation, pid) in (0, 1)
