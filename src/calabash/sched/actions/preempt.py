"""Preemption at a queue limit: units of lower priority in the same queue that are evicted so that a gang is below the limit."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.actions.victims import EvictionRight, VictimRules, is_borrow_paused
from calabash.sched.amounts import Amount, total
from calabash.sched.decisions import Request
from calabash.sched.queues.gang import Gang, Unit
from calabash.sched.state import SchedulerState


def below_limit(
    state: SchedulerState, rules: VictimRules, gang: Gang, requests: Sequence[Request], need: Amount
) -> list[Unit]:
    """Return units of lower priority in the gang's queue whose eviction keeps the gang within all limits.

    No unit of the result can be left out. The result is empty if preemption is off or not allowed, or if no such units
    were found.

    Args:
        need: charge of the requests.
    """
    priority = max(r.priority for r in requests)
    in_quota = rules.would_be_in_quota(gang.queue, priority, need)
    if not state.options.preempt or (not in_quota and is_borrow_paused(gang, state.now_s)):
        return []

    def over_limit_without(units: Sequence[Unit]) -> bool:
        return state.tree.over_limit(gang.queue, need, total(u.amount for u in units)) is not None

    right = EvictionRight(queue=gang.queue, priority=priority, in_quota=in_quota)
    victims = rules.victims_of_lower_priority(right, gang)
    chosen: list[Unit] = []
    over = True
    for unit in rules.in_order(victims):
        if not over:
            break
        if unit not in chosen:
            if unit.core:
                surplus = (u for u in rules.units_of(unit.gang, victims) if not u.core and u not in chosen)
                chosen.extend(sorted(surplus, key=lambda u: (-u.priority, u.started_at_s, u.sequence)))
            chosen.append(unit)
            over = over_limit_without(chosen)
    for unit in reversed(chosen[:]):
        rest = [u for u in chosen if u is not unit]
        surplus_of_victim = not unit.core and any(u.core and u.gang == unit.gang for u in rest)
        if not surplus_of_victim and not over_limit_without(rest):
            chosen = rest
    freed = total(u.amount for u in chosen)
    cheap = in_quota or freed.gpu_milli <= state.options.evict_ratio_max * need.gpu_milli
    return chosen if cheap and not over_limit_without(chosen) else []
