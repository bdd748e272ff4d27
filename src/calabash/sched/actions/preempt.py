"""Preempt: what lower priority of the same queue may lose to a gang, for room, or for the queue's limit."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.sched.actions.victims import VictimRules, paused
from calabash.sched.decisions import Request
from calabash.sched.queues.fairshare import Amount, total
from calabash.sched.queues.gang import Gang, Unit
from calabash.sched.state import SchedulerState


def lower_priority(
    state: SchedulerState, rules: VictimRules, gang: Gang, priority: int, *, in_quota: bool
) -> list[Unit]:
    """Units of strictly lower priority; those in quota only for a gang that becomes in quota itself."""
    if not state.options.preempt:
        return []
    return [u for u in rules.units(gang.queue) if u.priority < priority and (in_quota or not u.in_quota)]


def below_limit(
    state: SchedulerState, rules: VictimRules, gang: Gang, requests: Sequence[Request], need: Amount
) -> list[Unit]:
    """The fewest units of its own queue that must go so that no limit refuses the gang; empty when none do it."""
    priority = max(r.priority for r in requests)
    in_quota = rules.would_be_in_quota(gang.queue, priority, need)
    if not in_quota and paused(gang, state.now_s):
        return []
    lower = lower_priority(state, rules, gang, priority, in_quota=in_quota)

    def refused_without(units: Sequence[Unit]) -> bool:
        return state.tree.over_limit(gang.queue, need, total(u.amount for u in units)) is not None

    chosen: list[Unit] = []
    for unit in sorted(rules.ripe(lower, gang), key=lambda u: u.order):
        if not refused_without(chosen):
            break
        if unit not in chosen:
            chosen.extend(u for u in lower if unit.core and u.gang == unit.gang and not u.core and u not in chosen)
            chosen.append(unit)
    for unit in reversed(chosen[:]):
        rest = [u for u in chosen if u is not unit]
        alone = not unit.core and any(u.core and u.gang == unit.gang for u in rest)
        if not alone and not refused_without(rest):
            chosen = rest
    freed = total(u.amount for u in chosen)
    cheap = in_quota or freed.gpu_milli <= state.options.evict_ratio_max * need.gpu_milli
    return chosen if cheap and not refused_without(chosen) else []
