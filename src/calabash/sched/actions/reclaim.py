"""Reclaim rules: amounts that other queues may lose to a gang, because they borrow or exceed their fair share."""

from __future__ import annotations

from calabash.sched.actions.victims import VictimRules
from calabash.sched.amounts import EPSILON, Amount
from calabash.sched.queues.gang import Gang
from calabash.sched.state import SchedulerState


def may_reclaim(state: SchedulerState, rules: VictimRules, gang: Gang, need: Amount) -> bool:
    """Return True if a gang may evict borrowed units of all other queues.

    It may if it would be within the guaranteed amount of its own queue.

    Args:
        need: charge of the gang's requests that would start.
    """
    return state.options.reclaim and rules.would_be_in_quota(gang.queue, None, need)


def above_fair_share(state: SchedulerState, gang: Gang, need: Amount) -> dict[str, float]:
    """Return the queues above their fair share, each with the amount that it may lose to the gang.

    The amount is device milli, or CPU milli if the gang needs no devices. The result is empty if the gang would raise
    its own queue above its fair share, or if ``Options.reclaim_fair_share`` is off.
    """
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
    """Return True if some queue is above its fair share, so that ``above_fair_share`` may return it for some gang."""
    if not state.options.reclaim_fair_share:
        return False
    shares, index = state.tree.shares().fair, state.tree.form.index
    for queue, running in state.registry.running_in.items():
        if running:
            used, fair = state.tree.used(queue), shares[index[queue]]
            if used[0] - fair[0] > EPSILON or used[1] - fair[1] > EPSILON:
                return True
    return False
