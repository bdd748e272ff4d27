"""``calabash run --wait``: messages while it waits, and waiting for a pool that is not running."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.api_client import PathClient
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until

WHOLE = ("--memory", "39GiB", "--cores", "100")


@pytest.fixture
def terminal(make_world: Callable[..., World], tmp_path: Path) -> Iterator[Terminal]:
    """Yield a terminal at a pool of its own with one A100-40GB, all of which is held."""
    world = make_world("1xA100-40GB")
    world.up()
    made = Terminal(world.home, tmp_path)
    yield made
    made.close()


def waits(terminal: Terminal, count: int = 1) -> None:
    until(lambda: [a["state"] for a in terminal.items("ps")].count("pending") == count, what="it to wait")


def test_run_that_waits_says_its_position_and_the_reason_on_one_line(terminal: Terminal) -> None:
    holder = terminal.start_holder(*WHOLE)
    first = terminal.start("run", *WHOLE, "--wait", "60s", "--", "echo", "done")
    waits(terminal)
    second = terminal.start("run", *WHOLE, "--wait", "60s", "--", "echo", "done")
    waits(terminal, 2)
    first.says("waiting at position 1 in queue default: ")
    second.says("waiting at position 2 in queue default: ")
    time.sleep(3)  # a repeated message would be there by now
    holder.finish()
    assert [first.code(), second.code()] == [0, 0]
    for job in (first, second):
        line, last = job.text.splitlines()
        assert len(line) > len("waiting at position 1 in queue default: ")
        assert last == "done"


def test_quiet_run_says_nothing_while_it_waits(terminal: Terminal) -> None:
    holder = terminal.start_holder(*WHOLE)
    jobs = [terminal.start("run", flag, *WHOLE, "--wait", "60s", "--", "true") for flag in ("-q", "--quiet")]
    waits(terminal, 2)
    time.sleep(4)
    holder.finish()
    assert [(job.code(), job.text) for job in jobs] == [(0, ""), (0, "")]


def test_line_is_renewed_in_place_on_a_terminal_and_removed_at_the_end(terminal: Terminal) -> None:
    holder = terminal.start_holder(*WHOLE)
    own, other = pty.openpty()
    process = subprocess.Popen(
        terminal.words("run", *WHOLE, "--wait", "60s", "--", "echo", "done"),
        env=terminal.environment,
        stdin=other,
        stdout=other,
        stderr=other,
    )
    shown = b""
    while shown.count(b"waiting at position 1") < 2:
        shown += os.read(own, 4096)
    assert b"\n" not in shown
    holder.finish()
    assert process.wait(timeout=60) == 0
    while b"done" not in shown:
        shown += os.read(own, 4096)
    os.close(other)  # open until now, so that the last output of the program can be read
    os.close(own)
    last = shown.rpartition(b"\r\x1b[K")[2].decode()
    assert re.fullmatch(r"\w+: 39GiB and 100% of compute of device 0 \(NVIDIA .*\), mode vgpu\r\ndone\r\n", last)


def test_run_waits_for_a_pool_that_restarts_and_says_so_once(make_world: Callable[..., World], tmp_path: Path) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    terminal = Terminal(world.home, tmp_path)
    holder = terminal.start_holder(*WHOLE)
    waiting = terminal.start("run", *WHOLE, "--wait", "120s", "--", "echo", "done")
    waits(terminal)
    world.kill()
    late = terminal.start("run", *WHOLE, "--wait", "120s", "--", "echo", "done")
    for job in (waiting, late):
        job.says("waiting for the pool: ")
    time.sleep(1.5)
    world.up()
    waits(terminal, 2)
    holder.finish()
    assert [waiting.code(), late.code()] == [0, 0]
    for job in (waiting, late):
        assert job.text.count("waiting for the pool: ") == 1
        assert job.text.endswith("done\n")
    until(lambda: not world.allocations(), what="all slices to come back")
    terminal.close()


def test_run_that_does_not_wait_fails_at_once_without_a_pool_and_one_that_waits_when_its_time_is_over(
    tmp_path: Path,
) -> None:
    terminal = Terminal(tmp_path / "none", tmp_path)
    assert "no pool answers" in terminal.refused(1, "run", *WHOLE, "--", "true")
    begun = time.monotonic()
    done = terminal("run", *WHOLE, "--wait", "2s", "--", "true", code=1)
    assert 1 < time.monotonic() - begun < 20
    told, error, hint = done.stderr.splitlines()
    assert told.startswith("waiting for the pool: no pool answers")
    assert error.startswith("error: no pool answers")
    assert hint.startswith("hint: ")


def test_list_of_the_asking_process_has_only_what_it_waits_for_or_is_in(terminal: Terminal) -> None:
    holder = terminal.start_holder(*WHOLE)
    terminal.start("run", "-q", *WHOLE, "--wait", "60s", "--", "true")
    waits(terminal)
    pool = PathClient(terminal.home)
    assert len(pool.rows("/v1/allocations")) == 2
    assert pool.rows("/v1/allocations?mine=1") == []
    assert [a["position"] for a in pool.rows("/v1/allocations")] == [0, 1]
    holder.finish()
