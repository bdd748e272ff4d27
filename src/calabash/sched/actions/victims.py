"""Who may evict whom: the rules that reclaim and preempt share, and the proof that they never loop.

Theory of operation. Three ways to evict exist and no other:

* reclaim: a gang that would be in quota takes from borrowers of other queues, the youngest first;
* preempt: a gang takes from strictly lower priority in its own queue; in-quota victims only if it becomes in quota;
* fair share: a gang that stays within its queue's fair share takes surplus from queues that stay above theirs.

No loop is possible (A evicts B evicts A). Let V be the in-quota amounts per rank (priority, cores before surplus,
earlier starts first within a rank), highest rank first. A gang that becomes in quota evicts only borrowers or in-quota
units of strictly lower priority, so V grows lexicographically; a gang that borrows evicts only borrowers, so V
stays, and a gang that was evicted does not evict for borrowed room again for ``BORROW_PAUSE_S``. V is bounded, and between
two growths of V every gang evicts for borrowed room at most once, so without outside events the evictions end. Starting
something in free room never lowers V: the newcomer only pushes out of quota what has a lower rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from calabash.sched.actions.quota import mark_in_quota
from calabash.sched.decisions import GangKey
from calabash.sched.queues.fairshare import Amount, total
from calabash.sched.queues.gang import Gang, Unit, units_of
from calabash.sched.state import SchedulerState

BORROW_PAUSE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPool:
    """Units that may go for one gang, how much each queue may lose of the asked resource, and the ratio that is acceptable."""

    in_quota: bool
    eligible: tuple[Unit, ...]
    ratio_max: float
    budgets: dict[str, float] = field(default_factory=dict)


def paused(gang: Gang, now_s: float) -> bool:
    """Whether it was evicted so recently that it does not evict for borrowed room."""
    return gang.evicted_at_s is not None and now_s < gang.evicted_at_s + BORROW_PAUSE_S


class VictimRules:
    """The rules in one cycle; what is known of a queue is kept until something in it starts or stops.

    Args:
        begun: requests that this cycle has started: no decision of the same cycle stops them.

    Attributes:
        spared: whether a unit was left where it is for that reason alone, so that another cycle may decide otherwise.
    """

    def __init__(self, state: SchedulerState, begun: AbstractSet[str] = frozenset()) -> None:
        self.spared = False
        self._begun = begun
        self._state = state
        self._units: dict[str, list[Unit]] = {}
        self._ahead: dict[str, dict[int, Amount]] = {}

    def touch(self, queue: str) -> None:
        """Something in the queue started or stopped."""
        self._units.pop(queue, None)
        self._ahead.pop(queue, None)

    def left(self, gone: Iterable[Unit]) -> None:
        """These units were evicted. What a queue borrows has no part in what of it is in quota, so the marks of others stay."""
        borrowed: dict[str, set[str]] = {}
        for unit in gone:
            if unit.in_quota:
                self.touch(unit.queue)
            else:
                borrowed.setdefault(unit.queue, set()).add(unit.members[0].request.id)
        for queue, names in borrowed.items():
            if queue in self._units:
                self._units[queue] = [u for u in self._units[queue] if u.members[0].request.id not in names]

    def units(self, queue: str) -> list[Unit]:
        """All running units of the queue with their in-quota marks."""
        cached = self._units.get(queue)
        if cached is None:
            gangs = self._state.registry.running_in.get(queue, {})
            found = [unit for gang in gangs.values() for unit in units_of(gang)]
            tree = self._state.tree
            cached = self._units[queue] = mark_in_quota(found, tree.guaranteed(queue), tree.form.managed)
        return cached

    def others(self, queue: str) -> list[str]:
        """All other queues that have jobs of their own."""
        return [name for name in self._state.tree.form.leaves if name != queue]

    def would_be_in_quota(self, queue: str, priority: int, need: Amount) -> bool:
        """Whether the amount, started now at that priority, is within what the queue is guaranteed."""
        known = self._ahead.setdefault(queue, {})
        ahead = known.get(priority)
        if ahead is None:
            ahead = known[priority] = total(
                u.amount for u in self.units(queue) if u.in_quota and u.priority >= priority
            )
        return self._state.tree.within_guaranteed(queue, ahead, need)

    def ripe(self, units: list[Unit], requester: Gang, *, guarded: bool = False) -> list[Unit]:
        """Those that have run long enough and may be evicted; a core only with all of its surplus.

        Args:
            guarded: take those that are guarded as well, where they are borrowed.
        """
        since_s = self._state.now_s - self._state.options.min_run_time_s
        chosen = [
            unit
            for unit in units
            if unit.gang != requester.key
            and all(
                m.request.evictable
                and m.started_at_s <= since_s
                and (not m.request.guarded or (guarded and not unit.in_quota))
                for m in unit.members
            )
        ]
        if self._begun:
            earlier = [unit for unit in chosen if self._begun.isdisjoint(m.request.id for m in unit.members)]
            self.spared |= len(earlier) < len(chosen)
            chosen = earlier
        surplus_there: dict[GangKey, int] = {}
        for unit in chosen:
            if not unit.core:
                surplus_there[unit.gang] = surplus_there.get(unit.gang, 0) + 1
        return [u for u in chosen if not u.core or self._surplus(u) == surplus_there.get(u.gang, 0)]

    def _surplus(self, core: Unit) -> int:
        return len(self._state.registry.gangs[core.gang].running) - len(core.members)
