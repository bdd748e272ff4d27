"""Consequences of over-use: reported once, requests held back, allocations ended after the notice time and not before."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import Reason
from calabash.model.money import Money
from calabash.model.request import AllocationId
from calabash.pool.overuse.policy import HeldUse, OverUseAnswer, OverUsePolicy, OverUseState, TenantUse, judge_use


def _euros(amount: float) -> Money:
    return Money(amount=Decimal(str(amount)), currency="EUR")


def _held(name: str, *, devices: float = 1.0, idle_s: float = 0.0, granted_at: float = 0.0) -> HeldUse:
    return HeldUse(
        allocation=AllocationId(name), tenant="vision", devices=devices, idle_s=idle_s, granted_at=granted_at
    )


@pytest.mark.parametrize(
    ("spent", "answer", "told", "held_back"),
    [
        (70, OverUseAnswer.HOLD, 0, False),
        (80, OverUseAnswer.HOLD, 1, False),
        (100, OverUseAnswer.TELL, 1, False),
        (100, OverUseAnswer.HOLD, 1, True),
        (100, OverUseAnswer.RETURN, 1, True),
        (100, OverUseAnswer.OFF, 0, False),
    ],
)
def test_a_budget_is_warned_of_and_then_held(spent: float, answer: OverUseAnswer, told: int, held_back: bool) -> None:
    tenant = TenantUse(name="vision", budget=_euros(100), spent=_euros(spent))
    _, verdict = judge_use(OverUseState(), lambda _: OverUsePolicy(budget=answer), [tenant], [], now_s=0)
    assert (len(verdict.to_report), "vision" in verdict.held_back, verdict.take_back) == (told, held_back, ())


@pytest.mark.parametrize(
    ("answer", "lowered"),
    [(OverUseAnswer.TELL, []), (OverUseAnswer.HOLD, []), (OverUseAnswer.LOWER, ["a"]), (OverUseAnswer.RETURN, ["a"])],
)
def test_shares_of_who_is_over_are_lowered_and_nobody_elses(answer: OverUseAnswer, lowered: list[str]) -> None:
    tenant = TenantUse(name="vision", limit=0.5)
    other = HeldUse(allocation=AllocationId("b"), tenant="speech", devices=1.0, idle_s=0.0, granted_at=0.0)
    policy = OverUsePolicy(limit=answer, idle=OverUseAnswer.RETURN, idle_s=0.0)
    _, verdict = judge_use(OverUseState(), lambda _: policy, [tenant], [_held("a"), other], now_s=0)
    assert list(verdict.lowered) == lowered
    _, verdict = judge_use(OverUseState(), lambda _: policy, [], [_held("a"), other], now_s=0)
    assert verdict.lowered == {}


def test_a_case_is_told_once_and_again_when_it_comes_back() -> None:
    policy, state, told = OverUsePolicy(), OverUseState(), []
    for second, spent in enumerate((90, 90, 10, 90)):
        tenant = TenantUse(name="vision", budget=_euros(100), spent=_euros(spent))
        state, verdict = judge_use(state, lambda _: policy, [tenant], [], now_s=second)
        told.append(len(verdict.to_report))
    assert told == [1, 0, 0, 1]


def test_an_idle_slice_is_taken_back_after_notice_unless_it_works() -> None:
    policy = OverUsePolicy(idle=OverUseAnswer.RETURN, idle_s=60, notice_s=30)
    state, seen = OverUseState(), []
    for second, idle_s in ((0, 59), (10, 69), (20, 79), (39, 98), (40, 99), (41, 0), (200, 61), (229, 90), (230, 91)):
        state, verdict = judge_use(state, lambda _: policy, [], [_held("a", idle_s=idle_s)], now_s=second)
        seen.append((len(verdict.to_report), [f.allocation for f in verdict.take_back]))
    assert seen == [(0, []), (1, []), (0, []), (0, []), (0, ["a"]), (0, []), (1, []), (0, []), (0, ["a"])]


def test_only_the_newest_that_are_too_many_go_back_when_a_limit_was_lowered() -> None:
    policy = OverUsePolicy(limit=OverUseAnswer.RETURN, notice_s=0)
    held = [_held(name, devices=0.5, granted_at=at) for at, name in enumerate("abcdef")]
    _, verdict = judge_use(OverUseState(), lambda _: policy, [TenantUse(name="vision", limit=2)], held, now_s=0)
    assert [(f.allocation, f.reason) for f in verdict.take_back] == [
        ("f", Reason.QUEUE_OVER_LIMIT),
        ("e", Reason.QUEUE_OVER_LIMIT),
    ]


def test_a_spent_budget_in_another_currency_is_not_compared() -> None:
    tenant = TenantUse(name="vision", budget=_euros(1), spent=Money(amount=Decimal(99), currency="USD"))
    _, verdict = judge_use(OverUseState(), lambda _: OverUsePolicy(), [tenant], [], now_s=0)
    assert verdict.to_report == ()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 4), st.floats(0, 7200)), max_size=8),
    st.floats(0, 8),
    st.sampled_from(OverUseAnswer),
    st.floats(0, 600),
)
def test_nothing_is_taken_back_before_notice_nor_from_who_keeps_to_what_was_agreed(
    slices: list[tuple[float, float]], limit: float, answer: OverUseAnswer, notice_s: float
) -> None:
    policy = OverUsePolicy(limit=answer, idle=answer, idle_s=3600, notice_s=notice_s)
    held = [_held(f"a{i}", devices=d, idle_s=idle, granted_at=i) for i, (d, idle) in enumerate(slices)]
    tenants = [TenantUse(name="vision", limit=limit)]
    state, verdict = judge_use(OverUseState(), lambda _: policy, tenants, held, now_s=0)
    assert not verdict.take_back or notice_s == 0
    _, verdict = judge_use(state, lambda _: policy, tenants, held, now_s=notice_s)
    taken = {f.allocation for f in verdict.take_back}
    if answer is not OverUseAnswer.RETURN:
        assert not taken
        return
    assert {one.allocation for one in held if one.idle_s >= 3600} <= taken
    kept = [one for one in held if one.allocation not in taken]
    assert sum(one.devices for one in kept) <= limit + 1e-6
    if sum(one.devices for one in held) <= limit:
        assert all(one.idle_s >= 3600 for one in held if one.allocation in taken)
