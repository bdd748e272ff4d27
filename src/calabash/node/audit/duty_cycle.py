"""Duty cycle of a program that ignores its suspension, when it can only be stopped and continued as a whole (pure).

Theory of operation. A program that launches work without the shim library cannot be held back at each launch, but its
control group can be stopped and continued. In each period the program runs until it has used its share of the period,
and is stopped for the rest. Work that it has queued continues while it is stopped, so a millisecond of running may cost
ten milliseconds of device time; this cost is learned. Device time beyond the share is a debt. It becomes known some
hundred milliseconds later, when the driver has measured it. A debt shortens the running time in the next periods, down
to nothing if it is large. So the error of every period is carried over, and over seconds the program gets its share and
no more.

The arbiter keeps an account of the program too, from the same data. The duty cycle keeps the program's debt there a
little larger than the debt that the arbiter forgives, so that the arbiter continues to suspend the program. It then
plans no time window for it, plans the other programs on the device as if it were absent, and gives back to them at once
the time that it takes from them. If the arbiter stops suspending the program, the debt is smaller than assumed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calabash.node.slots.clamped_counters import MS

PERIOD_NS = 100 * MS
KEPT_DEBT_NS = 120 * MS
FORGIVEN_NS = 50 * MS  # the arbiter does not suspend a program with a smaller debt
REPAID_RATIO = 0.25  # fraction of a debt repaid in one period; more would oscillate, as the driver reports late
COST_MIN, COST_MAX = 0.25, 100.0
PRIOR_NS = 50.0 * MS  # weight of the initial assumption that running costs its own duration
COST_KEPT = 0.8  # fraction of the learned values that is kept from window to window
FREE_NS_MIN = 2 * MS
STEP_NS = 20 * MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Duty cycle of one allocation: its processes run until ``free_until_ns``, and are then stopped until ``next_ns``.

    Args:
        at_ns: time of the last step.
        debt_ns: device time that the allocation used beyond its share.
    """

    at_ns: int = 0
    debt_ns: int = 0
    free_until_ns: int = 0
    next_ns: int = 0
    was_admitted: bool = False  # the arbiter has not suspended it at some step
    freed_ns: float = PRIOR_NS  # running time, decayed
    seen_ns: float = PRIOR_NS  # device time used, decayed

    @property
    def cost(self) -> float:
        """Device time, in ns, that the allocation uses for each nanosecond in which its processes run."""
        if self.freed_ns < FREE_NS_MIN:
            return 1.0
        return max(COST_MIN, min(COST_MAX, self.seen_ns / self.freed_ns))

    def runs(self, now_ns: int) -> bool:
        """Return True if the allocation runs at that time."""
        return now_ns < self.free_until_ns


def pace(state: Pace, *, share: float, seen_ns: int | None, suspended: bool, now_ns: int) -> Pace:
    """Return the duty cycle after one step; the next step is due at ``due_ns``.

    A new duty cycle keeps the allocation stopped until the arbiter has stopped suspending it once.

    Args:
        share: fraction of the device's time that it was given, 0..1.
        seen_ns: device time that it used in a window that ends now, according to the driver; None between windows.
        suspended: the arbiter suspends it.
    """
    elapsed_ns = now_ns - state.at_ns if state.at_ns else 0
    debt_ns = state.debt_ns - int(share * elapsed_ns)
    freed_ns = state.freed_ns + max(0, min(now_ns, state.free_until_ns) - state.at_ns) if state.at_ns else 0.0
    state = replace(state, at_ns=now_ns, debt_ns=debt_ns, freed_ns=freed_ns)
    if seen_ns is not None:
        state = replace(
            state,
            debt_ns=state.debt_ns + seen_ns,
            freed_ns=state.freed_ns * COST_KEPT,
            seen_ns=(state.seen_ns + seen_ns) * COST_KEPT,
        )
    least_ns = int(state.cost * FREE_NS_MIN)  # cost of the shortest running time
    state = replace(state, debt_ns=max(KEPT_DEBT_NS - max(int(share * PERIOD_NS), least_ns), state.debt_ns))
    if not suspended:
        state = replace(state, was_admitted=True, debt_ns=min(FORGIVEN_NS, state.debt_ns))
    if not state.was_admitted:
        return replace(state, free_until_ns=0, next_ns=now_ns + STEP_NS)
    if now_ns < state.next_ns:
        return state
    free_ns = (share * PERIOD_NS - REPAID_RATIO * (state.debt_ns - KEPT_DEBT_NS)) / state.cost
    if free_ns < FREE_NS_MIN:  # skip periods until the shortest running time is affordable
        free_ns = FREE_NS_MIN if state.debt_ns <= KEPT_DEBT_NS - least_ns else 0
    free_ns = min(PERIOD_NS, free_ns)
    return replace(state, free_until_ns=now_ns + int(free_ns), next_ns=now_ns + PERIOD_NS)


def due_ns(state: Pace) -> int:
    """Return the time of the next step of the duty cycle."""
    return state.free_until_ns if state.runs(state.at_ns) else state.next_ns
