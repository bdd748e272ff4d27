"""Attacks on the cap of memory."""

from __future__ import annotations

import time

from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld

GIB = 1 << 30


def _used(world: HostileWorld, user: User) -> int:
    """What the card says that this user's processes have."""
    return sum(d.alloc_bytes + d.context_bytes for p in world.books().processes if p.uid == user.uid for d in p.devices)


def test_every_context_is_charged_to_its_slice(world: HostileWorld, mallory: User) -> None:
    with world.unharmed():
        opener = mallory.runs(world.program("hostile"), "contexts", "60", memory_mib=1024, cores=10)
        until(lambda: "refused after" in opener.text() or opener.dead(), within_s=20, what="a context to be refused")
        assert _used(world, mallory) <= GIB


def test_a_sibling_flood_of_contexts_stays_within_the_slice(world: HostileWorld, mallory: User) -> None:
    script = f"for i in 1 2 3 4 5 6 7 8; do {world.program('hostile')} contexts 4 & done; wait"
    with world.unharmed():
        mallory.runs("/bin/sh", "-c", script, memory_mib=2048, cores=10)
        for _ in range(20):
            assert _used(world, mallory) <= 2 * GIB
            time.sleep(0.05)


def test_memory_taken_beside_the_library_is_found_and_ended(world: HostileWorld, mallory: User) -> None:
    bare = mallory.runs(world.program("hostile"), "bare", "8192", memory_mib=1024, cores=10)
    line = bare.line()
    if line == "held 8192":
        until(lambda: bare.dead() or _used(world, mallory) <= GIB, within_s=6, what="the program to be ended")
    with world.unharmed():
        assert _used(world, mallory) <= GIB


def test_a_full_slice_is_refused_more_and_its_neighbour_is_not(world: HostileWorld, mallory: User) -> None:
    with world.unharmed():
        greedy = mallory.runs(world.program("hostile"), "hold", "38000", memory_mib=2048, cores=10)
        held = int(greedy.line().split()[1])
        assert 0 < held < 2048
        assert _used(world, mallory) <= 2 * GIB
