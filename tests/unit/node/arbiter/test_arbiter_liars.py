"""Tenants that run real kernels and forge the rest of their page, in virtual time: cost for an honest tenant of the card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from tests.unit.node.arbiter.arbiter_world import Tenant, World

from calabash.node.slots.clamped_counters import KERNEL_NS_MAX, MS

SECOND = 1_000 * MS
POINTS = 0.02
_FAR_NS = 1 << 60
WAITING: Mapping[str, Any] = {"waiting_count": 1_000_000}
NO_KERNELS: Mapping[str, Any] = {"kernel_ns": 0}
ALL: Mapping[str, Any] = {
    **WAITING,
    **NO_KERNELS,
    "demand_ns": _FAR_NS,
    "inflight_ns": _FAR_NS,
    "busy_until_ns": _FAR_NS,
}


def _always(_now_ns: int) -> bool:
    return True


def _of(on_ms: int, period_ms: int) -> Callable[[int], bool]:
    return lambda now_ns: now_ns // MS % period_ms < on_ms


@pytest.mark.parametrize(
    ("percent", "kernel_ms", "forged", "wants"),
    [
        (50, 25, WAITING, _of(10, 20)),
        (50, 25, WAITING, _of(5, 50)),
        (30, 25, WAITING, _of(10, 20)),
        (50, 1, WAITING, _of(10, 20)),
        (10, 10, ALL, _of(5, 50)),
        (30, 100, NO_KERNELS, _always),
        (10, 100, NO_KERNELS, _always),
        (50, 10, NO_KERNELS, _always),
        (50, 100, NO_KERNELS, _of(10, 20)),
        (30, 100, ALL, _of(10, 20)),
        (10, 100, ALL, _of(5, 50)),
    ],
)
def test_real_kernels_behind_a_forged_page_cost_the_other_tenant_two_points_at_most(
    percent: int, kernel_ms: int, forged: Mapping[str, Any], wants: Callable[[int], bool]
) -> None:
    liar = Tenant(kernel_ns=kernel_ms * MS, core_percent=percent, wants=wants, forged=forged)
    world = World({"liar": liar, "honest": Tenant(kernel_ns=MS, core_percent=100 - percent)})
    world.run(SECOND)
    start = world.now_ns
    world.run(3 * SECOND)
    assert world.share("honest", start) >= 1 - percent / 100 - POINTS


@pytest.mark.parametrize("percent", [30, 50, 80])
@pytest.mark.parametrize(("duty", "slow_us"), [(0.4, 0), (0.4, 200), (0.4, 400), (0.6, 200), (0.6, 400)])
def test_honest_tenant_with_late_launches_loses_nothing_to_requested_and_unused_windows(
    duty: float, slow_us: int, percent: int
) -> None:
    def wants(now_ns: int) -> bool:
        return Random(now_ns // (5 * MS) * 7 + 1).random() < duty

    late: Mapping[str, Any] = {"slow_ns": slow_us * 1_000, "very_slow": 0.1}
    asked: Mapping[str, Any] = {**WAITING, "inflight_ns": _FAR_NS, "kernel_ns": KERNEL_NS_MAX, "demand_ns": _FAR_NS}
    liar = Tenant(kernel_ns=MS, core_percent=percent, wants=wants, forged=asked, noise=Random(3), **late)
    honest = Tenant(kernel_ns=MS, core_percent=100 - percent, noise=Random(5), **late)
    world = World({"liar": liar, "honest": honest})
    world.run(SECOND)
    start = world.now_ns
    world.run(3 * SECOND)
    assert world.share("honest", start) == pytest.approx(1 - percent / 100, abs=0.02)


@pytest.mark.parametrize("runs", [True, False])
def test_first_kernel_that_two_tenants_pretend_takes_nothing_from_a_third(runs: bool) -> None:
    charged: list[Tenant] = []

    def wants(now_ns: int) -> bool:
        charged[0].charged_ns = max(charged[0].charged_ns, now_ns * 3 // 4)  # of its page; nothing was launched
        return runs

    forged: Mapping[str, Any] = {**WAITING, "demand_ns": _FAR_NS, "unmeasured_ns": SECOND, "kernel_ns": KERNEL_NS_MAX}
    running = Tenant(kernel_ns=MS, core_percent=10, wants=wants, forged=forged)
    charged.append(running)
    partner = Tenant(kernel_ns=MS, core_percent=50)
    world = World({"running": running, "partner": partner, "honest": Tenant(kernel_ns=MS, core_percent=40)})
    world.run(2 * SECOND)
    start = world.now_ns
    world.run(6 * SECOND)
    assert world.share("honest", start) >= 0.4 - POINTS


@pytest.mark.parametrize("shares", [(30, 70), (10, 90)])
@pytest.mark.parametrize("kernel_ms", [0.1, 1, 10, 100])
def test_occasional_late_launches_do_not_change_the_ratio(shares: tuple[int, int], kernel_ms: float) -> None:
    tenants = {
        name: Tenant(
            kernel_ns=int(kernel_ms * MS),
            core_percent=percent,
            slow_ns=200_000,
            very_slow=0.05,
            noise=Random(100 + percent),
        )
        for name, percent in zip("ab", shares, strict=True)
    }
    world = World(tenants)
    world.run(SECOND)
    start = world.now_ns
    world.run((4 if kernel_ms < 100 else 10) * SECOND)  # a round of 100 ms kernels takes a second
    few, many = world.share("a", start), world.share("b", start)
    assert few + many >= 0.97
    assert few / many == pytest.approx(shares[0] / shares[1], rel=0.03)
