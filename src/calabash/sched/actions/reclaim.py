"""Reclaim: what other queues may lose to a gang, because they borrowed it or hold more than their fair share."""

from __future__ import annotations

from calabash.sched.actions.victims import VictimRules
from calabash.sched.queues.fairshare import EPSILON, Amount
from calabash.sched.queues.gang import Gang
from calabash.sched.state import SchedulerState


def takes_back(state: SchedulerState, rules: VictimRules, gang: Gang, need: Amount) -> bool:
    """Return True if a gang may take what other queues borrow, because it stays within what its queue is guaranteed."""
    return state.options.reclaim and rules.would_be_in_quota(gang.queue, None, need)


def above_fair_share(state: SchedulerState, gang: Gang, need: Amount) -> dict[str, float]:
    """Return the queues above their fair share, each with how much it may lose, for a gang within its queue's own."""
    tree = state.tree
    resource = 0 if need.gpu_milli else 1
    used, fair = tree.used(gang.queue), tree.fair(gang.queue)
    if not state.options.reclaim_fair_share or used[resource] + need[resource] > fair[resource] + EPSILON:
        return {}
    budgets: dict[str, float] = {}
    for queue, running in state.registry.running_in.items():
        if running and queue != gang.queue:
            over = tree.used(queue)[resource] - tree.fair(queue)[resource]
            if over > EPSILON:
                budgets[queue] = over
    return budgets


def is_any_above_fair_share(state: SchedulerState) -> bool:
    """Return True if ``above_fair_share`` may name a queue for some gang."""
    if not state.options.reclaim_fair_share:
        return False
    shares, index = state.tree.shares().fair, state.tree.form.index
    for queue, running in state.registry.running_in.items():
        if running:
            used, fair = state.tree.used(queue), shares[index[queue]]
            if used[0] - fair[0] > EPSILON or used[1] - fair[1] > EPSILON:
                return True
    return False
