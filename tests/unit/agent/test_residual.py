"""Residual memory from looks that are never taken at one instant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calabash.agent.residual import NOISY_LOOKS, Look, Residual

GIB = 1 << 30


def _quiet(driver: int, ledger: int) -> Look:
    return Look(driver_bytes=driver, ledger_before_bytes=ledger, ledger_after_bytes=ledger, reserving=False)


def test_a_context_is_seen_at_the_first_quiet_look() -> None:
    assert Residual().see(_quiet(5 * GIB, 4 * GIB)) == GIB


def test_a_fall_is_believed_at_the_second_look() -> None:
    residual = Residual()
    residual.see(_quiet(5 * GIB, 4 * GIB))
    assert residual.see(_quiet(4 * GIB, 4 * GIB)) == GIB
    assert residual.see(_quiet(4 * GIB, 4 * GIB)) == 0


def test_a_rise_is_published_at_once() -> None:
    residual = Residual()
    residual.see(_quiet(5 * GIB, 4 * GIB))
    assert residual.see(_quiet(6 * GIB, 4 * GIB)) == 2 * GIB


@given(st.lists(st.tuples(st.integers(0, GIB), st.integers(0, GIB)), min_size=NOISY_LOOKS, max_size=30))
def test_a_program_that_never_rests_is_held_to_an_upper_bound(steps: list[tuple[int, int]]) -> None:
    true_residual = 300 << 20
    residual = Residual()
    published = 0
    for before, grown in steps:
        look = Look(
            driver_bytes=before + grown + true_residual,  # everything was allocated before the driver answered
            ledger_before_bytes=before,
            ledger_after_bytes=before + grown,
            reserving=True,
        )
        published = residual.see(look)
    assert published >= true_residual
    assert published <= true_residual + max(grown for _, grown in steps)


@given(st.lists(st.integers(0, GIB), min_size=2))
def test_a_steady_ledger_gives_the_exact_residual(ledgers: list[int]) -> None:
    residual = Residual()
    for ledger in ledgers:
        published = residual.see(_quiet(ledger + 1234, ledger))
    assert published == 1234
