"""How long a program that keeps to no gate may run at a time, when all that can be done is to stop it. Pure.

Theory of operation. A program that launches past the library is not asked before each launch; its control group can be
stopped and let go. Over one period it is let go for as long as it needs for its share of the period, and stopped for
the rest. How much of the device's time a moment of freedom costs is learned: what it queued runs on while it is
stopped, so that a millisecond may be worth ten. What it had beyond its share is a debt, known some hundred milliseconds
later when the driver has seen it; a debt makes the next periods shorter, and a large one leaves nothing of them. So
the error of every period is carried over, and over seconds it has its share and no more.

The arbiter has an account of it, too, and is told the same. It is kept in debt there by a little more than what the arbiter
forgives, and stays suspended: the neighbours are then planned as if it were not there, and get back at once what it takes
from them; a turn of its own would be planned for nothing. When the arbiter suspends it no more, the debt is smaller than
was thought here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calabash.node.slots.clamped_counters import MS

PERIOD_NS = 100 * MS
KEPT_DEBT_NS = 120 * MS
FORGIVEN_NS = 50 * MS  # who owes the arbiter less is not suspended
REPAID_RATIO = 0.25  # of a debt, in one period: the driver tells late, and more would swing
COST_MIN, COST_MAX = 0.25, 100.0
PRIOR_NS = 50.0 * MS  # a moment of freedom is taken to be worth itself, until so much is known
COST_KEPT = 0.8  # of what was learned, from window to window
FREE_NS_MIN = 2 * MS
STEP_NS = 20 * MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What is remembered of one allocation. Until ``free_until_ns`` it runs, then it is stopped until ``next_ns``."""

    at_ns: int = 0
    debt_ns: int = 0
    free_until_ns: int = 0
    next_ns: int = 0
    was_admitted: bool = False  # the arbiter has let it run since it is known
    freed_ns: float = PRIOR_NS  # for how long it was let go, of late
    seen_ns: float = PRIOR_NS  # and what it had of the device in that time

    @property
    def cost(self) -> float:
        """Device time for each moment that it is let go."""
        if self.freed_ns < FREE_NS_MIN:
            return 1.0
        return max(COST_MIN, min(COST_MAX, self.seen_ns / self.freed_ns))

    def runs(self, now_ns: int) -> bool:
        """Whether it is let go now."""
        return now_ns < self.free_until_ns


def pace(state: Pace, *, share: float, seen_ns: int | None, suspended: bool, now_ns: int) -> Pace:
    """One step; to be taken again at ``due_ns``. It is stopped at first, until it has paid what the arbiter holds against it.

    Args:
        share: the part of the device's time, 0..1, that it was given.
        seen_ns: what the driver saw of it in a window that ends now; None between windows.
        suspended: the arbiter has it wait.
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
    least_ns = int(state.cost * FREE_NS_MIN)  # what the shortest time that it can be let go is worth
    state = replace(state, debt_ns=max(KEPT_DEBT_NS - max(int(share * PERIOD_NS), least_ns), state.debt_ns))
    if not suspended:
        state = replace(state, was_admitted=True, debt_ns=min(FORGIVEN_NS, state.debt_ns))
    if not state.was_admitted:
        return replace(state, free_until_ns=0, next_ns=now_ns + STEP_NS)
    if now_ns < state.next_ns:
        return state
    free_ns = (share * PERIOD_NS - REPAID_RATIO * (state.debt_ns - KEPT_DEBT_NS)) / state.cost
    if free_ns < FREE_NS_MIN:  # it is saved up for
        free_ns = FREE_NS_MIN if state.debt_ns <= KEPT_DEBT_NS - least_ns else 0
    free_ns = min(PERIOD_NS, free_ns)
    return replace(state, free_until_ns=now_ns + int(free_ns), next_ns=now_ns + PERIOD_NS)


def due_ns(state: Pace) -> int:
    """When the next step is to be taken."""
    return state.free_until_ns if state.runs(state.at_ns) else state.next_ns
