"""Accepted durations of a container's kernels, derived from the steps of its counter of GPU time."""

from __future__ import annotations

from calabash.node.slots.clamped_counters import MS, LargestStep

SECOND = 1_000 * MS
_FAR_NS = 1 << 60


def _kernel_ns(steps: LargestStep, step_ns: int, count: int, *, launches: int, said_ns: int = 0) -> int:
    """Return the duration after ``count`` readings, with one more launch at each of the first ``launches`` of them."""
    found_ns = 0
    for number in range(count):
        found_ns = steps.kernel_ns(said_ns, number * step_ns, number * 20 * MS, 1 + min(number, launches))
    return found_ns


def test_kernel_charged_while_it_runs_is_as_long_as_all_its_charges() -> None:
    assert _kernel_ns(LargestStep(), 4 * MS, 101, launches=0) == 400 * MS


def test_kernel_charged_a_fraction_of_the_time_is_divided_and_one_charged_all_is_not() -> None:
    beside, alone = LargestStep(), LargestStep()
    _kernel_ns(beside, 10 * MS, 101, launches=0)
    _kernel_ns(alone, 20 * MS, 101, launches=0)
    assert (beside.divided_ns(2_000 * MS), alone.divided_ns(2_000 * MS)) == (SECOND, 0)


def test_many_launches_charged_in_small_steps_are_no_long_kernel() -> None:
    assert _kernel_ns(LargestStep(), 4 * MS, 101, launches=101, said_ns=_FAR_NS) == 6 * MS
