"""Who may evict whom: the rules that reclaim and preempt share, and the proof that they never loop.

Theory of operation. Three ways to evict exist and no other:

* reclaim: a gang that would be in quota takes from borrowers of other queues, the youngest first;
* preempt: a gang takes from strictly lower priority in its own queue; in-quota victims only if it becomes in quota;
* fair share: a gang that stays within its queue's fair share takes surplus from queues that stay above theirs.

No loop is possible (A evicts B evicts A). Let V be the in-quota amounts per rank (priority, cores before surplus,
earlier starts first within a rank), highest rank first. A gang that becomes in quota evicts only borrowers or in-quota
units of strictly lower priority, so V grows lexicographically. Whether it becomes in quota is judged at its place: a slice
that is charged by its number may be in quota on one device and borrowed on another. A gang that borrows evicts only
borrowers, so V stays, and a gang that was evicted does not evict for borrowed room again for ``BORROW_PAUSE_S``. V is
bounded, and between two growths of V every gang evicts for borrowed room at most once, so without outside events the
evictions end. Starting something in free room never lowers V: the newcomer only pushes out of quota what has a lower rank.

The rules are vectors over the rows of the ``UnitTable``: what an eviction changes is a few rows of them.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from calabash.sched.actions.plan import Placed
from calabash.sched.actions.quota import NO_ROWS, MarkedQueues, devices_of, mark_in_quota
from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.columns import Bools, Rows
from calabash.sched.decisions import GangKey, Request, Running
from calabash.sched.queues.fairshare import ZERO, Amount
from calabash.sched.queues.gang import Gang, Unit, unit_of
from calabash.sched.state import SchedulerState

BORROW_PAUSE_S = 600.0


def paused(gang: Gang, now_s: float) -> bool:
    """Whether it was evicted so recently that it does not evict for borrowed room."""
    return gang.evicted_at_s is not None and now_s < gang.evicted_at_s + BORROW_PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Units that a gang may evict, by one of its rights.

    Attributes:
        queue, priority: its own; of its queue it may evict lower priority.
        in_quota: it would be in quota, and may evict what is in quota of its queue.
        others: it may evict what all others borrow (True), or some other queues.
        beside: only units on devices where small slices of the queue are in quota.
    """

    queue: str
    priority: int
    in_quota: bool
    others: bool | frozenset[str] = False
    beside: bool = False


class VictimRules:
    """The rules in one cycle; what is known of a queue is kept until something in it starts or stops.

    Args:
        begun: requests that this cycle has started: no decision of the same cycle stops them.

    Attributes:
        spared: whether a unit was left where it is for that reason alone, so that another cycle may decide otherwise.
        table: everything that runs, as of the last question.
    """

    def __init__(self, state: SchedulerState, begun: AbstractSet[str] = frozenset()) -> None:
        self.spared = False
        self.table = state.units
        self._state = state
        self._begun = begun
        self._marked = MarkedQueues(state)
        self._ahead: dict[str, dict[int | None, Amount]] = {}
        self._is_begun = NO_ROWS
        self._versions: dict[str, int] = {}
        self._answers: dict[Hashable, tuple[Bools, Hashable]] = {}  # until something changes

    def touch(self, queue: str) -> None:
        """Something in the queue started or stopped."""
        self._marked.forget(queue)
        self._ahead.pop(queue, None)
        self._versions[queue] = self._versions.get(queue, 0) + 1
        self._answers.clear()

    def version(self, queue: str) -> int:
        """Return a number that changes when something of the queue that is in quota may have changed."""
        return self._versions.get(queue, 0)

    def left(self, gone: Iterable[Unit]) -> None:
        """These units were evicted. What a queue borrows has no part in what of it is in quota, so the marks of others stay."""
        for unit in gone:
            if unit.in_quota:
                self.touch(unit.queue)

    # ---- what is in quota -----------------------------------------------------------------------------------------

    def marks(self) -> Bools:
        """Return for each row whether its unit is in quota. Rows that are not alive have no meaning."""
        self._sync()
        return self._marks_of_all()

    def units(self, queue: str) -> list[Unit]:
        """Return all running units of the queue with their in-quota marks."""
        return [self.unit(row) for row in self._rows(queue)]

    def unit(self, row: int) -> Unit:
        """Return the unit of a row with its in-quota mark."""
        unit = self.table.unit(row)
        return replace(unit, in_quota=True) if self._marked.is_marked(row) else unit

    def in_quota_of(self, queue: str, priority: int | None = None) -> list[Unit]:
        """Return the units of the queue that are in quota, of at least that priority."""
        table, marks = self.table, self._queue_marks(queue)
        found = self._rows(queue)
        found = found[marks[found]]
        return [self.unit(row) for row in found if priority is None or table.priority[row] >= priority]

    def would_be_in_quota(self, queue: str, priority: int | None, need: Amount) -> bool:
        """Return True if the amount, started now at that priority (None: behind all others), is within what the queue is
        guaranteed."""
        if not any(self._state.tree.form.managed):
            return False
        known = self._ahead.setdefault(queue, {})
        ahead = known.get(priority)
        if ahead is None:
            ahead = known[priority] = self._amount_ahead(queue, priority)
        return self._state.tree.within_guaranteed(queue, ahead, need)

    def is_in_quota_at(self, gang: Gang, placed: Sequence[Placed], evicted: Iterable[Unit]) -> bool:
        """Return True if requests of the gang that would be in quota by their amount are so at these places too."""
        if not self.are_small(request for request, _ in placed):
            return True
        state = self._state
        members = tuple(
            Running(
                request=request,
                placement=placement,
                node=state.cluster.names[placement.node],
                started_at_s=state.now_s,
                charge=state.charges.of(request.shape),
                sequence=sys.maxsize,
            )
            for request, placement in placed
        )
        gone = {member.request.id for unit in evicted for member in unit.members}
        left = [u for u in self.units(gang.queue) if u.members[0].request.id not in gone]
        unit = unit_of(gang, members, core=gang.missing > 0)
        marked = mark_in_quota([*left, unit], state.tree.guaranteed(gang.queue), state.tree.form.managed)
        return next(u.in_quota for u in marked if u.members is members)

    def are_small(self, requests: Iterable[Request]) -> bool:
        """Return True if all requests are charged by the number of their slices."""
        return all(is_charged_by_count(r.shape, self._state.charges.of(r.shape)) for r in requests)

    # ---- who may go -----------------------------------------------------------------------------------------------

    def eligible(self, right: Right, requester: Gang, *, guarded: bool = False) -> tuple[Bools, Hashable]:
        """Return the rows of the units that a gang may evict, and a name for them that gangs of nearly the same ones share.

        Args:
            guarded: take those that are guarded as well, where they are borrowed.
        """
        self._sync()
        key = None if self.table.rows_of(requester.key) else (right, guarded)
        found = self._answers.get(key) if key else None
        if found is None:
            units, kind = self._units_of_right(right)
            if right.beside:
                units, kind = self._beside_own_slices(right.queue, units), (kind, right.beside)
            found = (self._ripe(units, requester, guarded=guarded), (kind, right.in_quota, guarded))
            if key:
                self._answers[key] = found
        return found

    def ripe_below(self, right: Right, requester: Gang) -> Bools:
        """Return the rows of the units of its own queue that a gang may evict."""
        return self._ripe(self._lower_priority(right), requester)

    def in_order(self, units: Bools) -> Iterator[Unit]:
        """Yield the units of some rows, those that go first at the beginning."""
        self.table.rank(units)
        rows = np.flatnonzero(units)
        for row in rows[np.argsort(self.table.rank_of[rows])].tolist():
            yield self.unit(row)

    def units_of(self, gang: GangKey, units: Bools) -> list[Unit]:
        """Return those units of a gang whose rows are among some."""
        return [self.unit(row) for row in self.table.rows_of(gang) if units[row]]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _units_of_right(self, right: Right) -> tuple[Bools, Hashable]:
        """Return the rows that a right is about, and a name for them: the queue only says more where it has such rows."""
        if not self._state.registry.running_in.get(right.queue):
            return (self._borrowed(right) if right.others else np.zeros(self.table.size, np.bool_)), ""
        own = self._lower_priority(right)
        if not right.others:
            return own, (right.queue, right.priority)
        others = self._borrowed(right)
        if own.any():
            return own | others, (right.queue, right.priority)
        marks, rows = self._marks_of_all(), self._rows(right.queue)
        return others, (right.queue if len(rows) and not marks[rows].all() else "")

    def _beside_own_slices(self, queue: str, units: Bools) -> Bools:
        """Return those rows whose units have a member on a device where small slices of the queue are in quota."""
        own = {
            device
            for unit in self.in_quota_of(queue)
            if self.are_small(m.request for m in unit.members)
            for device in devices_of(unit)
        }
        found: Bools = np.zeros(len(units), np.bool_)
        for row in np.flatnonzero(units).tolist() if own else ():
            found[row] = not own.isdisjoint(devices_of(self.table.unit(row)))
        return found

    def _lower_priority(self, right: Right) -> Bools:
        """Return the rows of a queue of strictly lower priority; those in quota only if the gang would be in quota."""
        marks, table = self._queue_marks(right.queue), self.table
        rows = slice(0, table.size)
        if not self._state.options.preempt:
            return np.zeros(table.size, np.bool_)
        found: Bools = (table.queue[rows] == table.queue_number(right.queue)) & (table.priority[rows] < right.priority)
        found &= table.alive[rows]
        return found if right.in_quota else found & ~marks

    def _borrowed(self, right: Right) -> Bools:
        """Return the rows of what other queues borrow, all or some of them."""
        marks, table = self._marks_of_all(), self.table
        rows = slice(0, table.size)
        found: Bools = table.alive[rows] & ~marks
        if isinstance(right.others, frozenset):
            chosen = [number for number in map(table.queue_number, right.others) if number >= 0]
            found &= np.isin(table.queue[rows], chosen)
        else:
            found &= table.queue[rows] != table.queue_number(right.queue)
        return found

    def _ripe(self, units: Bools, requester: Gang, *, guarded: bool = False) -> Bools:
        """Return those rows whose units have run long enough and may be evicted; a core only with all of its surplus.

        Args:
            guarded: take those that are guarded as well, where they are borrowed.
        """
        table, rows = self.table, slice(0, self.table.size)
        now_s, rest_s = self._state.now_s, self._state.options.min_run_time_s
        kept = ~table.guarded[rows]
        if guarded:
            kept |= ~self._marks_of_all()
        chosen: Bools = units & table.evictable[rows] & (table.started_at_s[rows] + rest_s <= now_s) & kept
        own = table.rows_of(requester.key)
        chosen[own.start : own.stop] = False
        if self._begun and (chosen & self._is_begun).any():
            self.spared = True
            chosen &= ~self._is_begun
        cores = np.flatnonzero(chosen & (table.surplus[rows] > 0))
        if len(cores):
            surplus = np.bincount(table.gang[rows][chosen & ~table.core[rows]], minlength=table.size)
            chosen[cores[surplus[table.gang[cores]] != table.surplus[cores]]] = False
        return chosen

    def _sync(self) -> None:
        """Bring the table up to what runs."""
        table, generation = self.table, self.table.generation
        if not self._state.registry.has_changed and len(self._is_begun) == table.size:
            return
        new = table.sync(self._state.registry)
        self._answers.clear()
        if table.generation != generation or len(self._is_begun) > table.size:
            self._marked.forget_all()
            new = range(table.size)
            self._is_begun = NO_ROWS
        if len(self._is_begun) < table.size:
            new = range(len(self._is_begun), table.size)
            self._is_begun = np.concatenate((self._is_begun, np.zeros(len(new), np.bool_)))
            self._is_begun[self._begun_rows(new)] = True
        self._marked.appended(new)

    def _begun_rows(self, new: range) -> list[int]:
        """Return those of the new rows that have a member which this cycle has started."""
        table, registry, begun = self.table, self._state.registry, self._begun
        if not begun:
            return []
        rows: Iterable[int] = new
        if len(begun) < len(new):
            keys = {registry.gang_of(name).key for name in begun if name in registry}
            rows = [row for key in keys for row in table.rows_of(key) if row in new]
        return [
            row
            for row in rows
            if table.alive[row] and not begun.isdisjoint(m.request.id for m in table.unit(row).members)
        ]

    def _marks_of_all(self) -> Bools:
        return self._marked.marks_of_all(self._state.registry.running_in)

    def _rows(self, queue: str) -> Rows:
        self._queue_marks(queue)
        return self._marked.rows(queue)

    def _queue_marks(self, queue: str) -> Bools:
        """Return marks that are true of one queue."""
        self._sync()
        return self._marked.marks((queue,))

    def _amount_ahead(self, queue: str, priority: int | None) -> Amount:
        if not self._state.registry.running_in.get(queue):
            return ZERO
        marks, table = self._queue_marks(queue), self.table
        rows = self._marked.rows(queue)
        rows = rows[marks[rows]]
        if priority is not None:
            rows = rows[table.priority[rows] >= priority]
        return Amount(
            float(table.gpu_milli[rows].sum()), int(table.cpu_milli[rows].sum()), int(table.host_memory_mib[rows].sum())
        )
