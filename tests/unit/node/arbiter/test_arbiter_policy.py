"""Rules of the arbiter, in virtual time."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.arbiter.arbiter_world import Tenant, World

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import ComputeDemand
from calabash.node.arbiter.policy import SharedDevice, decide, is_active, weights
from calabash.node.slots.clamped_counters import KERNEL_NS_MAX, MS, ClampedCounter
from calabash.node.slots.layout import Gate, PagePolicy

FIXED, BURST, BEST_EFFORT = PagePolicy.FIXED, PagePolicy.BURST, PagePolicy.BEST_EFFORT
SECOND = 1_000 * MS
A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")


def _demand(percent: int, policy: PagePolicy = FIXED, priority: int = 0, demand_ns: int = 100 * MS) -> ComputeDemand:
    return ComputeDemand(core_percent=percent, policy=policy, priority=priority, demand_ns=demand_ns, waiting_count=1)


@pytest.mark.parametrize("kernel_ms", [0.2, 1, 10, 100])
@pytest.mark.parametrize("shares", [(30, 70), (10, 90), (50, 50)])
def test_two_busy_tenants_get_their_shares_for_any_kernel_length(shares: tuple[int, int], kernel_ms: float) -> None:
    kernel_ns = int(kernel_ms * MS)
    world = World(
        {
            "a": Tenant(kernel_ns=kernel_ns, core_percent=shares[0]),
            "b": Tenant(kernel_ns=kernel_ns, core_percent=shares[1]),
        }
    )
    world.run(SECOND)
    start = world.now_ns
    world.run(4 * SECOND)
    assert world.share("a", start) == pytest.approx(shares[0] / 100, abs=0.02)
    assert world.share("b", start) == pytest.approx(shares[1] / 100, abs=0.02)
    assert world.share("a", start) / world.share("b", start) == pytest.approx(shares[0] / shares[1], rel=0.05)


@pytest.mark.parametrize("shares", [(30, 70), (10, 90)])
@pytest.mark.parametrize("believed", [1.0, 1.06])
def test_kernels_that_vary_or_are_shorter_than_assumed_do_not_change_the_ratio(
    shares: tuple[int, int], believed: float
) -> None:
    world = World(
        {
            name: Tenant(
                kernel_ns=10 * MS,
                core_percent=percent,
                jitter=0.05,
                slow_ns=200_000,
                forged={"kernel_ns": int(believed * 10 * MS)},
                noise=Random(percent),
            )
            for name, percent in zip("ab", shares, strict=True)
        }
    )
    world.run(SECOND)
    start = world.now_ns
    world.run(6 * SECOND)
    few, many = world.share("a", start), world.share("b", start)
    assert few + many >= 0.97
    assert few / many == pytest.approx(shares[0] / shares[1], rel=0.03)


def test_kernels_of_very_different_length_do_not_change_the_shares() -> None:
    world = World({"a": Tenant(kernel_ns=200_000, core_percent=60), "b": Tenant(kernel_ns=30 * MS, core_percent=40)})
    world.run(SECOND)
    start = world.now_ns
    world.run(4 * SECOND)
    assert world.share("a", start) == pytest.approx(0.6, abs=0.02)
    assert world.share("b", start) == pytest.approx(0.4, abs=0.02)


@settings(max_examples=examples(25), deadline=None)
@given(
    shares=st.lists(st.integers(5, 40), min_size=2, max_size=4).filter(lambda values: sum(values) <= 100),
    kernels=st.lists(st.sampled_from([200_000, MS, 4 * MS, 25 * MS]), min_size=4, max_size=4),
)
def test_fixed_tenants_get_their_share_and_never_more(shares: list[int], kernels: list[int]) -> None:
    tenants = {str(i): Tenant(kernel_ns=kernels[i], core_percent=share) for i, share in enumerate(shares)}
    world = World(tenants)
    world.run(SECOND)
    start = world.now_ns
    world.run(3 * SECOND)
    for i, share in enumerate(shares):
        got = world.share(str(i), start)
        assert got <= share / 100 + 0.02
        assert got >= share / 100 * 0.9 - 0.01


@settings(max_examples=examples(25), deadline=None)
@given(
    policies=st.lists(st.sampled_from([FIXED, BURST, BEST_EFFORT]), min_size=2, max_size=4),
    share=st.integers(5, 25),
)
def test_no_tenant_starves_and_a_burst_tenant_uses_idle_time(policies: list[PagePolicy], share: int) -> None:
    tenants = {str(i): Tenant(kernel_ns=MS, core_percent=share, policy=policy) for i, policy in enumerate(policies)}
    world = World(tenants)
    world.run(SECOND)
    start = world.now_ns
    world.run(3 * SECOND)
    got = {str(i): world.share(str(i), start) for i in range(len(policies))}
    assert all(part > 0.002 for part in got.values())
    for i, policy in enumerate(policies):
        if policy is not BEST_EFFORT:
            assert got[str(i)] >= share / 100 * 0.93
    if BURST in policies or BEST_EFFORT in policies:
        assert sum(got.values()) > 0.95


def test_idle_tenant_gets_its_share_back_within_20_ms_of_demand() -> None:
    back_ns = 3 * SECOND
    lender = Tenant(kernel_ns=MS, core_percent=70, policy=BURST, wants=lambda now: now >= back_ns)
    world = World({"lender": lender, "borrower": Tenant(kernel_ns=MS, core_percent=30, policy=BURST)}, tick_ns=3 * MS)
    world.run(back_ns - world.now_ns)
    assert world.share("borrower", 2 * SECOND) > 0.97
    world.run(20 * MS)
    start = world.now_ns
    world.run(100 * MS)
    assert world.share("lender", back_ns) > 0.35
    assert world.share("lender", start) == pytest.approx(0.7, abs=0.06)


def test_repeating_round_keeps_shares_while_the_arbiter_is_late() -> None:
    world = World({"a": Tenant(kernel_ns=200_000, core_percent=30), "b": Tenant(kernel_ns=200_000, core_percent=70)})
    world.run(SECOND)
    world.tick_ns = 100 * MS
    start = world.now_ns
    world.run(3 * SECOND)
    assert world.share("a", start) == pytest.approx(0.3, abs=0.03)
    assert world.share("a", start) + world.share("b", start) > 0.95


def test_single_fixed_tenant_is_limited_to_its_rate_and_a_burst_tenant_is_not() -> None:
    for policy, share in ((FIXED, 0.3), (BURST, 1.0), (BEST_EFFORT, 1.0)):
        world = World(
            {
                "a": Tenant(kernel_ns=MS, core_percent=30, policy=policy),
                "idle": Tenant(kernel_ns=MS, core_percent=50, wants=lambda _now: False),
            }
        )
        world.run(SECOND)
        start = world.now_ns
        world.run(SECOND)
        assert world.share("a", start) == pytest.approx(share, abs=0.03)


def test_unclaimed_time_goes_to_burst_by_share_and_a_trickle_to_best_effort() -> None:
    got = weights({A: _demand(20, FIXED), B: _demand(30, BURST), C: _demand(10, BURST)})
    assert got == pytest.approx({A: 0.2, B: 0.3 + 0.4 * 0.75, C: 0.1 + 0.4 * 0.25})
    got = weights({A: _demand(50, BURST), B: _demand(50, BEST_EFFORT)})
    assert got == pytest.approx({A: 0.99, B: 0.01})
    got = weights({A: _demand(60, FIXED), B: _demand(10, BEST_EFFORT), C: _demand(30, BEST_EFFORT)})
    assert got == pytest.approx({A: 0.6, B: 0.1, C: 0.3})


def test_best_effort_of_higher_priority_goes_first() -> None:
    got = weights({A: _demand(60, FIXED), B: _demand(50, BEST_EFFORT, priority=1), C: _demand(50, BEST_EFFORT)})
    assert got[B] > 0.38
    assert 0 < got[C] <= 0.011


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.builds(_demand, st.integers(1, 100), st.sampled_from([FIXED, BURST, BEST_EFFORT]), st.integers(-2, 2)),
        min_size=1,
    )
)
def test_sum_of_weights_is_at_most_one(demands: dict[str, ComputeDemand]) -> None:
    got = weights({AllocationId(name): demand for name, demand in demands.items()})
    assert sum(got.values()) <= 1 + 1e-9
    assert all(part >= 0 for part in got.values())
    promised = sum(demand.core_percent for demand in demands.values() if demand.policy is not BEST_EFFORT)
    for name, demand in demands.items():
        if demand.policy is FIXED:
            assert got[AllocationId(name)] <= demand.core_percent / 100 + 1e-9
        if demand.policy is not BEST_EFFORT and promised <= 100:
            assert got[AllocationId(name)] >= demand.core_percent / 100 - 1e-9


def test_time_windows_of_one_round_do_not_overlap() -> None:
    demands = {A: _demand(30), B: _demand(20, BURST), C: _demand(40)}
    _, decision = decide(SharedDevice(), demands, 100 * MS)
    windows = sorted((o.window.start_ns, o.window.end_ns) for o in decision.orders.values() if o.window is not None)
    assert len(windows) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(windows))
    assert windows[0][0] > 100 * MS


def test_container_without_demand_is_idle_unless_a_long_kernel_is_in_flight() -> None:
    quiet = ComputeDemand(core_percent=50, policy=FIXED, demand_ns=100 * MS)
    assert is_active(quiet, 105 * MS)
    assert not is_active(quiet, 120 * MS)
    running = ComputeDemand(core_percent=50, policy=FIXED, demand_ns=100 * MS, inflight_ns=100 * MS)
    assert is_active(running, 190 * MS)
    assert not is_active(running, 100 * MS + SECOND)
    dead_waiter = ComputeDemand(core_percent=50, policy=FIXED, demand_ns=100 * MS, waiting_count=3)
    assert not is_active(dead_waiter, 100 * MS + SECOND)


def test_tenant_that_reports_more_time_than_has_passed_harms_only_itself() -> None:
    believed, forged_ns = ClampedCounter(), 0
    for step in range(100):
        forged_ns = believed.read(2**64 - 1 if step else 0, step * 10 * MS, burst_ns=40 * MS)
    assert forged_ns <= SECOND + 40 * MS
    state, _ = decide(SharedDevice(), {A: _demand(30), B: _demand(70)}, 100 * MS)
    forged = ComputeDemand(core_percent=30, policy=FIXED, demand_ns=110 * MS, charged_ns=forged_ns)
    _, decision = decide(state, {A: forged, B: _demand(70, demand_ns=110 * MS)}, 118 * MS)
    assert decision.orders[B].gate in {Gate.OPEN, Gate.RATE}
    window = decision.orders[A].window
    assert window is not None
    assert window.end_ns == window.start_ns


def test_gate_of_a_whole_card_is_open_and_of_a_shared_one_is_not() -> None:
    _, alone = decide(SharedDevice(), {A: _demand(100)}, 100 * MS)
    assert alone.orders[A].gate is Gate.OPEN
    _, shared = decide(SharedDevice(), {A: _demand(100), B: _demand(10, BEST_EFFORT, demand_ns=0)}, 100 * MS)
    assert shared.orders[A].gate is Gate.RATE


def _liar_beside(liar: Tenant, honest: Tenant, seconds: int = 5) -> tuple[float, float]:
    """Return the part of the card that each tenant has, after the time that it takes to detect the forgery."""
    world = World({"liar": liar, "honest": honest})
    world.run(2 * SECOND)
    start = world.now_ns
    world.run(seconds * SECOND)
    return world.share("liar", start), world.share("honest", start)


@pytest.mark.parametrize("policy", [FIXED, BURST, BEST_EFFORT])
@pytest.mark.parametrize("percent", [20, 50])
def test_tenant_has_its_share_beside_one_that_hides_its_charges(percent: int, policy: PagePolicy) -> None:
    liar = Tenant(kernel_ns=MS, core_percent=percent, policy=policy, conceals=True)
    got, honest = _liar_beside(liar, Tenant(kernel_ns=MS, core_percent=100 - percent))
    assert honest == pytest.approx(1 - percent / 100, abs=0.02)
    assert got < percent / 100 + 0.02


def test_tenant_has_its_share_beside_one_that_hides_its_charges_and_queues_deeply() -> None:
    liar = Tenant(kernel_ns=MS, core_percent=50, conceals=True, rich=True, depth_ns=200 * MS)
    got, honest = _liar_beside(liar, Tenant(kernel_ns=MS, core_percent=50), seconds=10)
    assert honest > 0.48
    assert got < 0.52


@pytest.mark.parametrize("percent", [10, 50])
def test_tenant_has_its_share_beside_one_without_the_library(percent: int) -> None:
    liar = Tenant(kernel_ns=MS, core_percent=percent, ungated=True)
    got, honest = _liar_beside(liar, Tenant(kernel_ns=MS, core_percent=100 - percent), seconds=10)
    assert honest > 0.98 - percent / 100
    assert got < percent / 100 + 0.02


@pytest.mark.parametrize("conceals", [False, True])
def test_fixed_share_is_not_exceeded_with_a_forged_bucket_on_an_otherwise_idle_device(conceals: bool) -> None:
    world = World({"liar": Tenant(kernel_ns=MS, core_percent=50, rich=True, conceals=conceals)})
    world.run(2 * SECOND)
    start = world.now_ns
    world.run(5 * SECOND)
    assert 0.42 < world.share("liar", start) < 0.52


def test_tenant_that_reports_correctly_again_is_not_held_strictly_any_more() -> None:
    liar = Tenant(kernel_ns=MS, core_percent=50, conceals=True)
    world = World({"liar": liar, "honest": Tenant(kernel_ns=MS, core_percent=50)})
    world.run(4 * SECOND)
    assert any(account.is_strict(world.now_ns) for account in world.state.accounts.values())
    liar.conceals = False
    world.run(5 * SECOND)
    assert not any(account.is_strict(world.now_ns) for account in world.state.accounts.values())


@settings(max_examples=examples(8), deadline=None)
@given(
    shares=st.lists(st.integers(5, 40), min_size=1, max_size=3).filter(lambda values: sum(values) <= 100),
    kernels=st.lists(st.sampled_from([200_000, MS, 10 * MS, 100 * MS]), min_size=4, max_size=4),
    policy=st.sampled_from([FIXED, BURST, BEST_EFFORT]),
    pause_ms=st.sampled_from([0, 30, 300]),
)
def test_honest_tenant_is_never_held_strictly(
    shares: list[int], kernels: list[int], policy: PagePolicy, pause_ms: int
) -> None:
    # Kernels of 100 ms with shorter pauses than that do overdraw their accounts, and are held until they have repaid.
    assume(pause_ms != 30 or max(kernels) < 100 * MS)

    def wants(now_ns: int) -> bool:
        return pause_ms == 0 or now_ns // (pause_ms * MS) % 2 == 0

    tenants = {
        str(i): Tenant(kernel_ns=kernels[i], core_percent=share, policy=policy if i else FIXED, wants=wants)
        for i, share in enumerate(shares)
    }
    world = World(tenants)
    for _ in range(4):
        world.run(SECOND)
        assert not any(account.strict_until_ns for account in world.state.accounts.values())
    assert not any(tenant.unreported_ns or tenant.throttle.frozen for tenant in tenants.values())


_FAR_NS = 1 << 60
FORGED = {
    "waiting_count": 1_000_000,
    "inflight_ns": _FAR_NS,
    "unmeasured_ns": KERNEL_NS_MAX,
    "kernel_ns": KERNEL_NS_MAX,  # the highest that is believed of a page
    "busy_until_ns": _FAR_NS,
    "demand_ns": _FAR_NS,
}


@pytest.mark.parametrize("percent", [10, 50, 80])
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("fields", [*((name,) for name in FORGED), tuple(FORGED)], ids="+".join)
def test_demand_without_use_takes_nothing_from_the_other_tenant(
    fields: tuple[str, ...], runs: bool, percent: int
) -> None:
    liar = Tenant(kernel_ns=MS, core_percent=percent, wants=lambda _now: runs, forged={n: FORGED[n] for n in fields})
    got, honest = _liar_beside(liar, Tenant(kernel_ns=MS, core_percent=100 - percent))
    assert honest == pytest.approx(1 - percent / 100, abs=0.02)
    assert got < percent / 100 + 0.02
