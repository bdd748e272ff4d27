"""Reclaim: what other queues may lose to a gang, because they borrowed it or hold more than their fair share."""

from __future__ import annotations

from calabash.sched.actions.victims import VictimRules
from calabash.sched.queues.fairshare import EPSILON, Amount, total
from calabash.sched.queues.gang import Gang, Unit
from calabash.sched.state import SchedulerState


def deserved_back(state: SchedulerState, rules: VictimRules, gang: Gang, need: Amount) -> list[Unit]:
    """Borrowers of other queues, for a gang that stays within what its queue is guaranteed."""
    in_quota = total(u.amount for u in rules.units(gang.queue) if u.in_quota)
    if not state.options.reclaim or not state.tree.within_guaranteed(gang.queue, in_quota, need):
        return []
    return [u for queue in rules.others(gang.queue) for u in rules.units(queue) if not u.in_quota]


def above_fair_share(
    state: SchedulerState, rules: VictimRules, gang: Gang, need: Amount
) -> tuple[list[Unit], dict[str, float]]:
    """Surplus of queues above their fair share, and how much each may lose, for a gang within its queue's own."""
    tree = state.tree
    resource = 0 if need.gpu_milli else 1
    used, fair = tree.used(gang.queue), tree.fair(gang.queue)
    if not state.options.reclaim_fair_share or used[resource] + need[resource] > fair[resource] + EPSILON:
        return [], {}
    units: list[Unit] = []
    budgets: dict[str, float] = {}
    for queue in rules.others(gang.queue):
        over = tree.used(queue)[resource] - tree.fair(queue)[resource]
        if over > EPSILON:
            budgets[queue] = over
            units.extend(u for u in rules.units(queue) if not u.in_quota)
    return units, budgets
