"""Decide whether a driver's samples of processes are device time (pure).

The samples of some drivers say how long each process used the device. A driver that divides a device between processes by
time slices may instead attribute each of its sampling periods to one or two of them: an H200 with driver 580 reported 99
percent in some periods of 200 ms, and nothing in the others, for a process that had 30 percent. Such samples are right in
the mean over minutes, and would accuse every honest program within seconds.

They are recognised by what is missing: an allocation reports work in a window, and the driver has no sample of it while
others have. That also happens when the first work of a program is charged and not yet seen. If the reports add up to more
than the window, an allocation reports work that was not done, and what is missing says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

EVIDENCE = 8  # the score from which samples are evidence, and with which a device begins
_MISSING = -4
_LEAST = -64
_TOLD_RATIO_MAX = 1.1  # of a window; what honest programs report together
_WORK_RATIO = 0.1  # of a window; an allocation that reports less may have had no sample


def score_after(score: int, windows: Iterable[tuple[float, int]]) -> int:
    """Return the score of a device after a window.

    Args:
        score: the score before.
        windows: for each allocation, the reported GPU time as a part of the window, and the nanoseconds that the driver saw.
    """
    active = [(told, seen_ns) for told, seen_ns in windows if told >= _WORK_RATIO or seen_ns > 0]
    if len(active) < 2 or sum(told for told, _ in active) > _TOLD_RATIO_MAX:  # one alone is sampled exactly
        return score
    if all(seen_ns > 0 for _, seen_ns in active):
        return min(EVIDENCE, score + 1)
    return max(_LEAST, score + _MISSING)
