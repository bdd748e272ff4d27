"""Residual memory from readings that are not taken at one instant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calabash.node.slots.overhead import NOISY_READINGS, ProcessReading, ProcessResidual, Residual

GIB = 1 << 30


def _quiet(driver: int, ledger: int) -> ProcessReading:
    return ProcessReading(
        driver_bytes=driver,
        ledger_before_bytes=ledger,
        ledger_after_bytes=ledger,
        transactions_before=7,
        transactions_after=7,
        reserving=False,
    )


def _noisy(driver: int, before: int, after: int) -> ProcessReading:
    return ProcessReading(
        driver_bytes=driver,
        ledger_before_bytes=before,
        ledger_after_bytes=after,
        transactions_before=7,
        transactions_after=9,
        reserving=True,
    )


def test_residual_is_published_at_the_first_quiet_reading() -> None:
    assert ProcessResidual().update(_quiet(5 * GIB, 4 * GIB)) == GIB


def test_fall_of_the_residual_is_published_at_the_second_reading() -> None:
    residual = ProcessResidual()
    residual.update(_quiet(5 * GIB, 4 * GIB))
    assert residual.update(_quiet(4 * GIB, 4 * GIB)) == GIB
    assert residual.update(_quiet(4 * GIB, 4 * GIB)) == 0


def test_rise_of_the_residual_is_published_at_once() -> None:
    residual = ProcessResidual()
    residual.update(_quiet(5 * GIB, 4 * GIB))
    assert residual.update(_quiet(6 * GIB, 4 * GIB)) == 2 * GIB


def test_change_reverted_between_two_equal_readings_is_noticed() -> None:
    reading = ProcessReading(
        driver_bytes=5 * GIB,
        ledger_before_bytes=4 * GIB,
        ledger_after_bytes=4 * GIB,
        transactions_before=7,
        transactions_after=9,
        reserving=False,
    )
    assert not reading.quiet
    assert ProcessResidual().update(reading) == 0


@given(st.lists(st.tuples(st.integers(0, GIB), st.integers(0, GIB)), min_size=NOISY_READINGS, max_size=30))
def test_published_residual_of_a_busy_program_is_never_too_high(steps: list[tuple[int, int]]) -> None:
    true_residual = 300 << 20
    residual = ProcessResidual()
    for before, grown in steps:
        # What the ledger counts in addition is reserved, and the driver may or may not have given it yet.
        assert residual.update(_noisy(before + grown + true_residual, before, before + grown)) <= true_residual
        assert residual.update(_noisy(before + true_residual, before, before + grown)) <= true_residual


def test_published_residual_of_a_busy_program_becomes_exact() -> None:
    residual = ProcessResidual()
    for step in range(NOISY_READINGS):
        published = residual.update(_noisy(3 * GIB + step, 2 * GIB, 2 * GIB + step))
    assert published == GIB


@given(st.lists(st.integers(0, GIB), min_size=2))
def test_steady_counters_give_the_exact_residual(ledgers: list[int]) -> None:
    residual = ProcessResidual()
    for ledger in ledgers:
        published = residual.update(_quiet(ledger + 1234, ledger))
    assert published == 1234


def test_residual_of_a_device_is_the_sum_over_its_present_processes() -> None:
    residual = Residual()
    assert residual.update({(0, 1): _quiet(3 * GIB, GIB), (1, 1): _quiet(GIB, 0)}) == 3 * GIB
    assert residual.update({(0, 1): _quiet(3 * GIB, GIB)}) == 2 * GIB
    assert residual.update({(0, 2): _noisy(3 * GIB, GIB, GIB)}) == 0, "a new owner of an entry starts from nothing"
