"""Compares the GPU time that a tenant's page tells with what the driver saw. Pure.

Theory of operation. The driver tells how much of a device's time each process had (NVML: in whole percent, some times
a second). Summed over the processes of an allocation and over time that is *seen*; the growth of the page's counter, as
far as it can be true, is *told*. Their difference, the excess, is not noise around zero but a lag: work is charged
when it is sent and seen when it ran. For honest programs it stayed within 140 ms either way, for kernels of 0.1 to 100
ms, graphs, and eight processes that share a card with another tenant (measured on the simulated card; whole percents
add less than a hundredth of the time). Hence nothing is said below ``SLACK_NS``, an excess that grows more slowly
than ``LEAK_RATIO`` of the time is taken for a measuring error, and whatever is above is owed: all of it, and
from then on without the slack for as long as it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calabash.node.audit.duty_cycle import Pace, pace
from calabash.node.slots.clamped_counters import KERNEL_NS_MAX, MS

SLACK_NS = 250 * MS
CAUGHT_SLACK_NS = 50 * MS
CAUGHT_NS = 3_000 * MS
AHEAD_NS = 400 * MS  # who tells more than it used is owed nothing for it beyond this
LEAK_RATIO = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What is remembered of one slice between two windows; ``caught_ns`` 0: never found to tell too little."""

    excess_ns: int = 0
    caught_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of one slice: how long it was, and the GPU time in it by the driver and by the page."""

    now_ns: int
    elapsed_ns: int
    seen_ns: int
    told_ns: int
    inflight_ns: int = 0


def check(audit: Audit, window: Window) -> tuple[Audit, int]:
    """The audit after a window, and the GPU time to charge because the page did not tell it."""
    caught = audit.caught_ns > 0 and window.now_ns - audit.caught_ns < CAUGHT_NS
    excess = audit.excess_ns + window.seen_ns - window.told_ns
    if excess > 0:
        excess = max(0, excess - int(LEAK_RATIO * window.elapsed_ns))
    if excess > (CAUGHT_SLACK_NS if caught else SLACK_NS):
        return Audit(caught_ns=window.now_ns), excess
    return replace(audit, excess_ns=max(-AHEAD_NS - min(window.inflight_ns, KERNEL_NS_MAX), excess)), 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """What is remembered of an allocation that keeps to no gate; ``ignored_ns``: when it last ran without leave."""

    suspended_ns: int = 0  # since when; 0: it may run
    ignored_ns: int = 0
    frozen: bool = False
    pace: Pace | None = None  # of one that is known to run without leave


IGNORED_NS = 10_000 * MS  # for so long after it ran without leave, or hid that it ran, it is taken for one that does
SUSPENSION_SEEN_NS = 500 * MS  # a window of the driver that began earlier tells of time before the suspension
RUNS_RATIO = 0.05


def throttle(
    state: Throttle,
    *,
    suspended: bool,
    seen_ratio: float | None,
    now_ns: int,
    share: float = 1.0,
    seen_ns: int | None = None,
    hides: bool = False,
) -> Throttle:
    """Whether an allocation must be stopped by force: while its arbiter has suspended it, if it runs all the same; and
    from then on for the part of the time that is not its own.

    Args:
        seen_ratio: part of a device's time that it had in a window which ends now; None between windows.
        share: the part of it that it was given and may have whatever its arbiter says; 1: as the arbiter says.
        seen_ns: what it had in that window.
        hides: it was just found to have told too little.
    """
    since_ns = (state.suspended_ns or now_ns) if suspended else 0
    runs = suspended and seen_ratio is not None and seen_ratio > RUNS_RATIO and now_ns - since_ns > SUSPENSION_SEEN_NS
    ignored_ns = now_ns if runs or (hides and _is_known(state.ignored_ns, now_ns)) else state.ignored_ns
    if not _is_known(ignored_ns, now_ns):
        return Throttle(suspended_ns=since_ns, ignored_ns=ignored_ns, frozen=state.frozen and suspended)
    paced = pace(state.pace or Pace(), share=share, seen_ns=seen_ns, suspended=suspended, now_ns=now_ns)
    frozen = not paced.runs(now_ns) if share < 1 else suspended
    return Throttle(suspended_ns=since_ns, ignored_ns=ignored_ns, frozen=frozen, pace=paced)


def _is_known(ignored_ns: int, now_ns: int) -> bool:
    return ignored_ns > 0 and now_ns - ignored_ns < IGNORED_NS
