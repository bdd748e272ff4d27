"""Kernels of seconds beside short ones, in virtual time: every share over 30 seconds."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.node.arbiter.arbiter_world import Tenant, World

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import LAG_NS_MAX
from calabash.node.slots.clamped_counters import MS

SECOND = 1_000 * MS
WINDOW_S = 30
POINTS = 0.02
LONG = tuple(f"long{i}" for i in range(4))


def _world(percent: int) -> World:
    long = {name: Tenant(kernel_ns=2 * SECOND, core_percent=10) for name in LONG}
    return World({"short": Tenant(kernel_ns=MS, core_percent=percent), **long})


def _windows(world: World, name: str, since_ns: int) -> list[float]:
    """Return the part of the device that a tenant had in every window of 30 seconds, one beginning each second."""
    busy: Counter[int] = Counter()
    for at_ns, ns in world.tenants[AllocationId(name)].busy_at:
        busy[at_ns // SECOND] += ns
    first, last = since_ns // SECOND, world.now_ns // SECOND
    return [
        sum(busy[second] for second in range(start, start + WINDOW_S)) / (WINDOW_S * SECOND)
        for start in range(first, last - WINDOW_S + 1)
    ]


@pytest.mark.parametrize("percent", [50, 60])
def test_tenant_of_short_kernels_has_its_share_beside_four_tenants_of_two_second_kernels(percent: int) -> None:
    world = _world(percent)
    world.run(30 * SECOND)  # all four begin at once, before their length is known; that is paid back first
    start = world.now_ns
    world.run(60 * SECOND)
    assert _windows(world, "short", start) == pytest.approx([percent / 100] * 31, abs=POINTS)
    shares = {name: world.share(name, start) for name in LONG}
    assert sum(shares.values()) == pytest.approx(0.4, abs=POINTS)
    for share in shares.values():  # one kernel is 3.3 points of 60 seconds
        assert share == pytest.approx(0.1, abs=0.035)
    assert sum(shares.values()) + world.share("short", start) >= 0.95 * (percent + 40) / 100


def test_time_lost_to_unknown_two_second_kernels_is_paid_back() -> None:
    world = _world(60)
    start = world.now_ns
    world.run(10 * SECOND)  # no length was known, so all four were launched at once
    assert world.share("short", start) < 0.3
    world.run(20 * SECOND)
    assert world.share("short", start) >= 0.6 - POINTS
    assert all(abs(account.credit_ns) <= LAG_NS_MAX for account in world.state.accounts.values())


def test_tenant_of_two_second_kernels_is_not_held_strictly() -> None:
    world = _world(50)
    for _ in range(25):
        world.run(SECOND)
        assert not any(account.strict_until_ns for account in world.state.accounts.values())
        assert not any(tenant.unreported_ns for tenant in world.tenants.values())
