"""Attacks on compute shares: what a tenant writes into its page, and what it runs beside the library."""

from __future__ import annotations

import time

import pytest
from tests.daemons.world import until
from tests.hostile.people import Child, User
from tests.hostile.world import POINTS, HostileWorld

pytestmark = pytest.mark.alone

FORGERIES = ["charged", "bucket", "demand"]


def _busy(world: HostileWorld, child: Child) -> int:
    return sum(d.busy_ns for p in world.books().processes if p.pid == child.pid for d in p.devices)


def _share_while(world: HostileWorld, child: Child, seconds: float) -> float:
    """What a program has of the card, in percent; what had been before it ended counts too."""
    begun, before = time.monotonic(), _busy(world, child)
    time.sleep(seconds)
    return (_busy(world, child) - before) / (time.monotonic() - begun) / 1e7


@pytest.mark.parametrize("what", FORGERIES)
def test_what_a_page_says_of_its_own_use_costs_the_neighbour_nothing(
    world: HostileWorld, mallory: User, what: str
) -> None:
    forger = mallory.runs(world.program("hostile"), "forge", what, world.kernels, "1000", memory_mib=1024, cores=50)
    assert forger.line() == "forging 1"
    time.sleep(1.0)  # within this second it is found out
    with world.unharmed(seconds=6.0):
        pass


@pytest.mark.parametrize("what", ["charged", "bucket"])
def test_a_fixed_share_is_not_exceeded_by_a_forged_page(world: HostileWorld, mallory: User, what: str) -> None:
    forger = mallory.runs(world.program("hostile"), "forge", what, world.kernels, "1000", memory_mib=1024, cores=30)
    assert forger.line() == "forging 1"
    time.sleep(1.0)
    with world.unharmed(seconds=6.0):
        assert _share_while(world, forger, 6.0) <= 30 + POINTS


def test_kernels_beside_the_library_are_charged_or_ended_within_seconds(world: HostileWorld, mallory: User) -> None:
    bare = mallory.runs(world.program("hostile"), "barely", world.kernels, "1000", memory_mib=1024, cores=20)
    assert bare.line() == "running 1"

    def held_to_its_share() -> bool:
        return bare.dead() or _share_while(world, bare, 0.5) <= 20 + POINTS

    until(held_to_its_share, within_s=6, what="the program without the library to be held to its share or ended")
    time.sleep(2.0)  # meanwhile the neighbour gets back what it lost
    with world.unharmed(seconds=5.0):
        assert bare.dead() or _share_while(world, bare, 5.0) <= 20 + POINTS
