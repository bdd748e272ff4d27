"""Attacks on the memory limit."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

GIB = 1 << 30


def _used(world: HostileWorld, user: User) -> int:
    """Return the memory of this user's processes on the card."""
    return sum(
        d.alloc_bytes + d.context_bytes for p in world.card_state().processes if p.uid == user.uid for d in p.devices
    )


def _calabash_run(world: HostileWorld, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``calabash run`` as a user types it."""
    command = [Path(sys.executable).with_name("calabash"), "run", *words]
    environment = world.environment | {"CALABASH_HOME": str(world.home)}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_context_is_charged_to_its_slice(world: HostileWorld, mallory: User) -> None:
    with world.unharmed():
        opener = mallory.runs(world.program("hostile"), "contexts", "60", memory_mib=1024, cores=10)
        until(lambda: "refused after" in opener.text() or opener.dead(), what="a context to be refused")
        assert _used(world, mallory) <= GIB


def test_contexts_of_many_sibling_processes_stay_within_the_slice(world: HostileWorld, mallory: User) -> None:
    script = f"for i in 1 2 3 4 5 6 7 8; do {world.program('hostile')} contexts 4 & done; wait"
    with world.unharmed():
        mallory.runs("/bin/sh", "-c", script, memory_mib=2048, cores=10)
        for _ in range(20):
            assert _used(world, mallory) <= 2 * GIB
            time.sleep(0.05)


def test_a_program_that_takes_memory_past_the_library_is_found_and_ended(world: HostileWorld, mallory: User) -> None:
    bare = mallory.runs(world.program("hostile"), "bare", "8192", memory_mib=1024, cores=10)
    line = bare.line()
    if line == "held 8192":
        until(lambda: bare.dead() or _used(world, mallory) <= GIB, what="the program to be ended")
    with world.unharmed():
        assert _used(world, mallory) <= GIB


def test_a_full_slice_is_refused_more_memory_and_another_slice_is_not(world: HostileWorld, mallory: User) -> None:
    with world.unharmed():
        greedy = mallory.runs(world.program("hostile"), "hold", "38000", memory_mib=2048, cores=10)
        held = int(greedy.line().split()[1])
        assert 0 < held < 2048
        assert _used(world, mallory) <= 2 * GIB


def test_sixty_contexts_stay_within_a_slice_of_one_gibibyte(world: HostileWorld) -> None:
    with world.unharmed():
        before = world.card_state().devices[0].denied_count
        done = _calabash_run(
            world, "--memory", "1GiB", "--cores", "10%", "--", world.program("hostile"), "contexts", "60"
        )
        found = re.fullmatch(r"refused after (\d+)\n", done.stdout)
        assert found, done
        assert int(found[1]) <= 2  # of 424 MiB each, the first included
        assert world.card_state().devices[0].denied_count == before, "the card itself was asked for more than it has"


def test_a_small_slice_has_all_of_its_memory_from_its_first_moment(world: HostileWorld) -> None:
    for _ in range(3):
        done = _calabash_run(
            world, "--memory", "800MiB", "--cores", "10%", "--", world.program("hostile"), "again", "300", "90"
        )
        assert done.stdout == "succeeded 90\n", done
