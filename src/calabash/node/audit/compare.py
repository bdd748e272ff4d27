"""Compare the GPU time that a tenant's usage page reports with what the driver saw (pure).

Theory of operation. The driver reports how much of a device's time each process had (NVML: in whole percent, some times
a second). The sum over the processes of an allocation and over time is *seen*; the growth of the counter on the page,
clamped to plausible values, is *told*. Their difference is the *excess*. For an honest program it is not noise around
zero but a lag, because work is charged when it is sent and seen when it has run. For honest programs the excess stayed
within 140 ms either way, for kernels of 0.1 to 100 ms, graphs, and eight processes that share a card with another
tenant (measured on the simulated card; whole percents add less than a hundredth of the time). Hence an excess below
``SLACK_NS`` is not reported, and one that grows more slowly than ``LEAK_RATIO`` of the time is regarded as a measuring
error. Anything above is charged: all of it, and from then on with the smaller ``CAUGHT_SLACK_NS`` for as long as it
goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calabash.node.audit.duty_cycle import Pace, pace
from calabash.node.slots.clamped_counters import KERNEL_NS_MAX, MS

SLACK_NS = 250 * MS
CAUGHT_SLACK_NS = 50 * MS
CAUGHT_NS = 3_000 * MS
AHEAD_NS = 400 * MS  # largest credit of a page that reports more than was seen
LEAK_RATIO = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Difference between the measured and the reported GPU time of one slice, kept between two audit windows.

    Args:
        excess_ns: GPU time that the driver saw and the usage page has not reported so far; negative: the page is ahead.
        caught_ns: when the slice was last found to report too little; 0: never.
    """

    excess_ns: int = 0
    caught_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One audit window of one slice: its end, its length, and the GPU time in it.

    Args:
        seen_ns: GPU time according to the driver.
        told_ns: GPU time according to the usage page.
        inflight_ns: GPU time of work that is charged on the page and has not finished.
    """

    now_ns: int
    elapsed_ns: int
    seen_ns: int
    told_ns: int
    inflight_ns: int = 0


def check(audit: Audit, window: Window) -> tuple[Audit, int]:
    """Return the audit state after a window, and the unreported GPU time to charge, in ns."""
    caught = audit.caught_ns > 0 and window.now_ns - audit.caught_ns < CAUGHT_NS
    excess = audit.excess_ns + window.seen_ns - window.told_ns
    if excess > 0:
        excess = max(0, excess - int(LEAK_RATIO * window.elapsed_ns))
    if excess > (CAUGHT_SLACK_NS if caught else SLACK_NS):
        return Audit(caught_ns=window.now_ns), excess
    return replace(audit, excess_ns=max(-AHEAD_NS - min(window.inflight_ns, KERNEL_NS_MAX), excess)), 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """State of the forced suspension of one allocation.

    Args:
        suspended_ns: since when the arbiter suspends it; 0: it may run.
        ignored_ns: when it last ran although suspended; 0: never.
        frozen: its processes are stopped.
        pace: its duty cycle, if it is known to ignore its suspension.
    """

    suspended_ns: int = 0  # since when; 0: it may run
    ignored_ns: int = 0
    frozen: bool = False
    pace: Pace | None = None  # of an allocation that is known to ignore its suspension


IGNORED_NS = 10_000 * MS  # time for which an allocation counts as ignoring suspension after it did, or under-reported
SUSPENSION_SEEN_NS = 500 * MS  # a driver window that began earlier covers time before the suspension
RUNS_RATIO = 0.05


def throttle(
    state: Throttle,
    *,
    suspended: bool,
    seen_ratio: float | None,
    now_ns: int,
    share: float = 1.0,
    seen_ns: int | None = None,
    under_reports: bool = False,
) -> Throttle:
    """Decide whether an allocation must be stopped by force.

    If it runs although the arbiter suspends it, it counts as ignoring suspension for IGNORED_NS. During that time it
    runs only for its share of the time (a duty cycle), or, if it has no share of its own, only while not suspended.

    Args:
        suspended: the arbiter suspends it.
        seen_ratio: fraction of a device's time that it used in a window which ends now; None between windows.
        share: fraction of the device's time to which it is always entitled; 1: the arbiter alone decides.
        seen_ns: device time that it used in that window; None between windows.
        under_reports: its usage page was just found to report too little.
    """
    since_ns = (state.suspended_ns or now_ns) if suspended else 0
    runs = suspended and seen_ratio is not None and seen_ratio > RUNS_RATIO and now_ns - since_ns > SUSPENSION_SEEN_NS
    ignored_ns = now_ns if runs or (under_reports and _is_known(state.ignored_ns, now_ns)) else state.ignored_ns
    if not _is_known(ignored_ns, now_ns):
        return Throttle(suspended_ns=since_ns, ignored_ns=ignored_ns, frozen=state.frozen and suspended)
    paced = pace(state.pace or Pace(), share=share, seen_ns=seen_ns, suspended=suspended, now_ns=now_ns)
    frozen = not paced.runs(now_ns) if share < 1 else suspended
    return Throttle(suspended_ns=since_ns, ignored_ns=ignored_ns, frozen=frozen, pace=paced)


def _is_known(ignored_ns: int, now_ns: int) -> bool:
    return ignored_ns > 0 and now_ns - ignored_ns < IGNORED_NS
