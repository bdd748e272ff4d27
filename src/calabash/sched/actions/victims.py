"""Who may evict whom: turns queues, shares and what runs into the units that a blocked gang may take.

The rules and the proof that they never loop are in ``preempt``. Everything here is computed for one cycle and cached;
``touch`` forgets what is known of a queue when something in it started or stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from calabash.sched.actions.preempt import BORROW_PAUSE_S, mark_in_quota
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.fairshare import EPSILON, Amount
from calabash.sched.queues.registry import Gang, GangKey, GangRegistry, Unit, total, units_of
from calabash.sched.queues.tree import QueueTree


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """Units that may go for one gang, how much each queue may lose, and how much eviction is acceptable."""

    in_quota: bool
    eligible: tuple[Unit, ...]
    budgets: dict[str, float]
    ratio_max: float


class VictimRules:
    """The claims of one cycle."""

    def __init__(self, tree: QueueTree, registry: GangRegistry, options: Options, now_s: float) -> None:
        self._tree = tree
        self._registry = registry
        self._options = options
        self._now_s = now_s
        self._units: dict[str, list[Unit]] = {}
        self._ahead: dict[tuple[str, int], Amount] = {}
        self._by_queue: dict[str, list[Gang]] | None = None

    def touch(self, queue: str) -> None:
        self._units.pop(queue, None)
        self._ahead.clear()
        self._by_queue = None

    def units(self, queue: str) -> list[Unit]:
        """All running units of the queue with their in-quota marks."""
        cached = self._units.get(queue)
        if cached is None:
            if self._by_queue is None:
                self._by_queue = {}
                for gang in self._registry.gangs.values():
                    if gang.running:
                        self._by_queue.setdefault(gang.queue, []).append(gang)
            found = [unit for gang in self._by_queue.get(queue, ()) for unit in units_of(gang)]
            cached = mark_in_quota(found, self._tree.guaranteed(queue), self._tree.managed)
            self._units[queue] = cached
        return cached

    def would_be_in_quota(self, queue: str, priority: int, need: Amount) -> bool:
        """Whether the amount, started now at that priority, is within what the queue is guaranteed."""
        ahead = self._ahead.get((queue, priority))
        if ahead is None:
            ahead = total(u.amount for u in self.units(queue) if u.in_quota and u.priority >= priority)
            self._ahead[queue, priority] = ahead
        return self._within(queue, ahead, need)

    def of(self, gang: Gang, requests: Sequence[Request], need: Amount) -> Iterator[VictimPool]:
        """The claims that the gang has, the strongest first."""
        priority = max(a.priority for a in requests)
        if self.would_be_in_quota(gang.queue, priority, need):
            yield from self._in_quota(gang, priority, need)
            return
        if self._paused(gang):
            return
        yield from self._borrowed(gang, priority, need)

    def within_own(self, gang: Gang, requests: Sequence[Request], need: Amount) -> list[Unit]:
        """The fewest units of its own queue that must go so that no limit refuses the gang; empty when none do it."""
        if not self._options.preempt:
            return []
        priority = max(a.priority for a in requests)
        in_quota = self.would_be_in_quota(gang.queue, priority, need)
        if not in_quota and self._paused(gang):
            return []
        lower = [u for u in self.units(gang.queue) if u.priority < priority and (in_quota or not u.in_quota)]
        chosen: list[Unit] = []
        for unit in sorted(self._ripe(lower, gang), key=lambda u: u.order):
            if self._tree.over_limit(gang.queue, need.minus(total(u.amount for u in chosen))) is None:
                break
            if unit not in chosen:
                chosen.extend(u for u in lower if unit.core and u.gang == unit.gang and not u.core and u not in chosen)
                chosen.append(unit)
        for unit in reversed(chosen[:]):
            rest = [u for u in chosen if u is not unit]
            alone = not unit.core and any(u.core and u.gang == unit.gang for u in rest)
            if not alone and self._tree.over_limit(gang.queue, need.minus(total(u.amount for u in rest))) is None:
                chosen = rest
        freed = total(u.amount for u in chosen)
        cheap = in_quota or freed.gpu_milli <= self._options.evict_ratio_max * need.gpu_milli
        enough = self._tree.over_limit(gang.queue, need.minus(freed)) is None
        return chosen if cheap and enough else []

    def _paused(self, gang: Gang) -> bool:
        return gang.evicted_at_s is not None and self._now_s < gang.evicted_at_s + BORROW_PAUSE_S

    def _in_quota(self, gang: Gang, priority: int, need: Amount) -> Iterator[VictimPool]:
        eligible: list[Unit] = []
        own = self.units(gang.queue)
        if self._options.reclaim and self._within(gang.queue, total(u.amount for u in own if u.in_quota), need):
            for queue in self._tree.leaves():
                if queue != gang.queue:
                    eligible.extend(u for u in self.units(queue) if not u.in_quota)
        if self._options.preempt:
            eligible.extend(u for u in own if u.priority < priority)
        eligible = self._ripe(eligible, gang)
        if eligible:
            yield VictimPool(in_quota=True, eligible=tuple(eligible), budgets={}, ratio_max=math.inf)

    def _borrowed(self, gang: Gang, priority: int, need: Amount) -> Iterator[VictimPool]:
        eligible: list[Unit] = []
        budgets: dict[str, float] = {}
        if self._options.preempt:
            eligible.extend(u for u in self.units(gang.queue) if u.priority < priority and not u.in_quota)
        resource = 0 if need.gpu_milli else 1
        used, fair = self._tree.used(gang.queue), self._tree.fair(gang.queue)
        if self._options.reclaim_fair_share and used[resource] + need[resource] <= fair[resource] + EPSILON:
            for queue in self._tree.leaves():
                over = self._tree.used(queue)[resource] - self._tree.fair(queue)[resource]
                if queue != gang.queue and over > EPSILON:
                    budgets[queue] = over
                    eligible.extend(u for u in self.units(queue) if not u.in_quota)
        eligible = self._ripe(eligible, gang)
        if eligible:
            yield VictimPool(
                in_quota=False, eligible=tuple(eligible), budgets=budgets, ratio_max=self._options.evict_ratio_max
            )

    def _ripe(self, units: list[Unit], requester: Gang) -> list[Unit]:
        """Those that have run long enough and may be evicted; a core only with all of its surplus."""
        since_s = self._now_s - self._options.min_run_time_s
        green = set()
        for unit in units:
            if unit.gang == requester.key or not all(
                m.request.evictable and m.started_at_s <= since_s for m in unit.members
            ):
                green.add(unit.members[0].request.id)
        chosen = [u for u in units if u.members[0].request.id not in green]
        surplus_there: dict[GangKey, int] = {}
        for unit in chosen:
            if not unit.core:
                surplus_there[unit.gang] = surplus_there.get(unit.gang, 0) + 1
        return [u for u in chosen if not u.core or self._surplus(u) == surplus_there.get(u.gang, 0)]

    def _surplus(self, core: Unit) -> int:
        return len(self._registry.gangs[core.gang].running) - len(core.members)

    def _within(self, queue: str, used: Amount, need: Amount) -> bool:
        guaranteed = self._tree.guaranteed(queue)
        managed = [r for r, on in enumerate(self._tree.managed) if on]
        return any(need[r] > 0 for r in managed) and all(
            used[r] + need[r] <= guaranteed[r] + EPSILON for r in managed if need[r] > 0
        )
