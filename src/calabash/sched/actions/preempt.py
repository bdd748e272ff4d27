"""Preempt: what lower priority of the same queue may lose to a gang, for room, or for the queue's limit."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.actions.victims import Right, VictimRules, paused
from calabash.sched.decisions import Request
from calabash.sched.queues.fairshare import Amount, total
from calabash.sched.queues.gang import Gang, Unit
from calabash.sched.state import SchedulerState


def below_limit(
    state: SchedulerState, rules: VictimRules, gang: Gang, requests: Sequence[Request], need: Amount
) -> list[Unit]:
    """The fewest units of its own queue that must go so that no limit refuses the gang; empty when none do it."""
    priority = max(r.priority for r in requests)
    in_quota = rules.would_be_in_quota(gang.queue, priority, need)
    if not state.options.preempt or (not in_quota and paused(gang, state.now_s)):
        return []

    def refused_without(units: Sequence[Unit]) -> bool:
        return state.tree.over_limit(gang.queue, need, total(u.amount for u in units)) is not None

    ripe = rules.ripe_below(Right(queue=gang.queue, priority=priority, in_quota=in_quota), gang)
    chosen: list[Unit] = []
    refused = True
    for unit in rules.in_order(ripe):
        if not refused:
            break
        if unit not in chosen:
            if unit.core:
                surplus = (u for u in rules.units_of(unit.gang, ripe) if not u.core and u not in chosen)
                chosen.extend(sorted(surplus, key=lambda u: (-u.priority, u.started_at_s, u.sequence)))
            chosen.append(unit)
            refused = refused_without(chosen)
    for unit in reversed(chosen[:]):
        rest = [u for u in chosen if u is not unit]
        alone = not unit.core and any(u.core and u.gang == unit.gang for u in rest)
        if not alone and not refused_without(rest):
            chosen = rest
    freed = total(u.amount for u in chosen)
    cheap = in_quota or freed.gpu_milli <= state.options.evict_ratio_max * need.gpu_milli
    return chosen if cheap and not refused_without(chosen) else []
