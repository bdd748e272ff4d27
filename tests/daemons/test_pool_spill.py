"""Slices with more memory than their device (``calabash run --spill``) on a real pool: amounts and refusals.

Two programs whose memory together exceeds that of the device both finish.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compiled import compiled
from tests.daemons.terminal import TENANT, Job, Terminal
from tests.daemons.world import World, until

from calabash.platform.home.directory import SETTINGS_FILE

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "bench" / "programs"
PIECE_MIB = 256
CONTEXT_MIB = 512
REFUSED = 5


@pytest.fixture(scope="session")
def sweeper() -> str:
    """Return the path of the program that reads all of its memory again and again."""
    headers = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include"
    words: list[str | Path] = ["-std=gnu11", "-O2", "-pthread", "-isystem", headers, f"-I{ROOT / 'native'}"]
    return str(compiled("spill_sweeper", ["gcc", *words, PROGRAMS / "sweeper.c", "-ldl"]))


@pytest.fixture
def pool(make_world: Callable[..., World]) -> World:
    """Start a pool with one T4 that permits spilling."""
    world = make_world("1xT4")
    (world.home / SETTINGS_FILE).write_text("[devices]\nspill = true\nspill_mib_max = 24576\n")
    world.up()
    return world


@pytest.fixture
def terminal(pool: World, tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(pool.home, tmp_path)
    yield made
    made.close()


def tenant(terminal: Terminal, *words: str, code: int | None = 0) -> Any:
    """Run the example program; return its report."""
    done = terminal("run", *words, "--", "python3", str(TENANT), "--seconds", "0.2", code=code)
    return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done


def said(job: Job) -> dict[str, Any]:
    """Return the report of a finished program, its last line."""
    assert job.code() == 0, job.text
    found: dict[str, Any] = json.loads(job.text.splitlines()[-1])
    return found


def test_a_program_has_more_than_the_card_and_people_see_both_numbers(pool: World, terminal: Terminal) -> None:
    saw = tenant(terminal, "--memory", "20GiB", "--spill", "12GiB")
    assert saw["memory_total_bytes"] == 20 << 30
    assert 19 << 30 < saw["memory_held_bytes"] <= 20 << 30
    until(lambda: not pool.allocations(), what="the first one's place to be free")
    job = terminal.start("run", "--memory", "20GiB", "--spill", "12GiB", "--cores", "60", "--", "sleep", "600")
    allocation = until(lambda: [a for a in pool.allocations() if a["state"] == "running"], what="it to run")[0]
    (part,) = allocation["slices"]
    assert (part["memory_mib"], part["spill_mib"]) == (20 * 1024, 12 * 1024)
    assert pool.devices()[0]["memory_allocated_mib"] == 8 * 1024
    assert "20GiB (8GiB)" in terminal("top", "--once").stdout
    why = terminal("why", allocation["id"]).stdout
    assert "20480 MiB, 8192 MiB of them promised on the card" in why
    assert "12GiB of 20GiB may be paged to the host" in why
    job.kill()


def test_what_is_promised_is_counted_against_the_card_and_the_rest_against_the_machine(
    pool: World, terminal: Terminal
) -> None:
    first = terminal.start_holder("--memory", "20GiB", "--spill", "14GiB", "--cores", "10")
    card = tenant(terminal, "--memory", "20GiB", "--spill", "10GiB", "--cores", "10", code=REFUSED)
    assert "asked 10GiB" in card.stderr
    machine = tenant(terminal, "--memory", "16GiB", "--spill", "12GiB", "--cores", "10", code=REFUSED)
    assert "host memory" in machine.stderr
    tenant(terminal, "--memory", "12GiB", "--spill", "10GiB", "--cores", "10")
    first.finish()


def test_nothing_is_spilled_where_the_operator_has_not_allowed_it(pool: World, terminal: Terminal) -> None:
    assert "spilled memory: at most 24GiB of host memory" in terminal("device", "show", "0").stdout
    assert "spilled memory: not allowed" in terminal("device", "set", "0", "--allow-spill", "off").stdout
    refused = tenant(terminal, "--memory", "20GiB", "--spill", "12GiB", code=None)
    assert refused.returncode != 0
    assert "spilling memory to the host is not enabled" in refused.stderr
    assert "hint: " in refused.stderr
    pool.kill()
    (pool.home / SETTINGS_FILE).write_text("[devices]\nspill_mib_max = 24576\n")
    pool.up()
    assert pool.devices()[0]["spill_mib"] == 0
    terminal("device", "set", "0", "--allow-spill", "on")
    assert tenant(terminal, "--memory", "20GiB", "--spill", "12GiB")["memory_total_bytes"] == 20 << 30
    terminal("device", "set", "0", code=2)
    terminal("device", "set", "0", "--allow-spill", "auto")
    assert pool.devices()[0]["spill_mib"] == 0


def test_two_tenants_of_seven_tenths_of_a_card_each_finish(pool: World, terminal: Terminal, sweeper: str) -> None:
    card_mib = pool.devices()[0]["memory_mib"]
    memory_mib = card_mib * 7 // 10
    spill_mib = memory_mib - card_mib * 49 // 100
    pieces = (memory_mib - CONTEXT_MIB) // PIECE_MIB
    program = (sweeper, str(PROGRAMS / "kernels.ptx"), str(pieces), str(PIECE_MIB), "3")
    words = ("--memory", f"{memory_mib}MiB", "--spill", f"{spill_mib}MiB", "--cores", "50", "--policy", "burst")
    jobs = [terminal.start("run", *words, "--", *program) for _ in range(2)]
    for job in jobs:
        job.says("ready")
    for job in jobs:
        assert job.process.stdin is not None
        job.process.stdin.write(b"go\n")
        job.process.stdin.flush()
    ran = [said(job) for job in jobs]
    assert all(one["seconds"] > 0 for one in ran)
    assert max(one["began_ns"] for one in ran) < min(one["ended_ns"] for one in ran), "they ran at the same time"
    until(lambda: not pool.allocations(), what="both slices to come back")
