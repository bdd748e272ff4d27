"""Attacks on compute shares: forged usage pages, and launches past the library."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.daemons.world import until
from tests.hostile.people import Child, User
from tests.hostile.world import POINTS, HostileWorld

SECONDS = 4.0  # a tenant that was ahead of its share pays back over some seconds


def _busy(world: HostileWorld, child: Child) -> int:
    return sum(d.busy_ns for p in world.card_state().processes if p.pid == child.pid for d in p.devices)


def _share_while(world: HostileWorld, child: Child, seconds: float) -> float:
    """Return the share of the card that a program uses over some seconds, in percent.

    It is never overestimated: the busy time is read inside the measured interval.
    """
    begun, before = time.monotonic(), _busy(world, child)
    time.sleep(seconds)
    return (_busy(world, child) - before) / (time.monotonic() - begun) / 1e7


def _held_to(world: HostileWorld, child: Child, percent: int) -> Callable[[], bool]:
    """Return a condition that is true if the program has ended or used at most its share during half a second."""
    return lambda: child.dead() or _share_while(world, child, 0.5) <= percent + POINTS


@pytest.mark.parametrize("what", ["charged", "bucket", "demand"])
def test_a_forged_usage_page_costs_another_tenant_nothing(world: HostileWorld, mallory: User, what: str) -> None:
    forger = mallory.runs(world.program("hostile"), "forge", what, world.kernels, "1000", memory_mib=1024, cores=50)
    assert forger.line() == "forging 1"
    with world.unharmed(seconds=SECONDS):
        until(lambda: _busy(world, forger) > 0, what="the forger to use the card")


def test_a_fixed_share_is_not_exceeded_by_a_forged_page(world: HostileWorld, mallory: User) -> None:
    forger = mallory.runs(
        world.program("hostile"), "forge", "charged", world.kernels, "1000", memory_mib=1024, cores=30
    )
    assert forger.line() == "forging 1"
    until(_held_to(world, forger, 30), what="the forger to be found out")
    with world.unharmed(seconds=SECONDS):
        assert 0 < _share_while(world, forger, SECONDS) <= 30 + POINTS


def test_kernels_launched_past_the_library_are_charged_or_ended_within_seconds(
    world: HostileWorld, mallory: User
) -> None:
    bare = mallory.runs(world.program("hostile"), "barely", world.kernels, "1000", memory_mib=1024, cores=20)
    assert bare.line() == "running 1"
    until(_held_to(world, bare, 20), what="the program without the library to be held to its share or ended")
    with world.unharmed(seconds=SECONDS):  # meanwhile the honest tenant gets back its lost time
        assert bare.dead() or _share_while(world, bare, SECONDS) <= 20 + POINTS
