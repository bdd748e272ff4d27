"""Rules of eviction: the units that a gang may evict by reclaim or preempt, and the proof that evictions end.

Theory of operation. A gang may evict units in three ways:

* reclaim: a gang that would be in quota evicts borrowed units of other queues, the youngest first;
* preempt: a gang evicts units of strictly lower priority in its own queue; units in quota only if it becomes in quota itself;
* fair share: a gang that keeps its queue within its fair share evicts surplus of queues that stay above theirs.

A loop (A evicts B, B evicts A) is impossible. Let V be the sequence of in-quota amounts by rank (priority, cores before
surplus, earlier starts first within a rank), highest rank first. A gang that becomes in quota evicts only borrowed units or
in-quota units of strictly lower priority, so V grows lexicographically. Whether it becomes in quota is decided for its
placement, because small slices may be in quota on one device and borrowed on another. A gang that borrows evicts only borrowed
units, so V does not change, and an evicted gang does not evict in order to borrow for ``BORROW_PAUSE_S``. V is bounded, and
between two growths of V every gang evicts in order to borrow at most once, so without outside events the evictions end. A start
on free devices never lowers V: it can displace from quota only units of a lower rank.

The rules are computed as vectors over the rows of the ``UnitTable``, of which an eviction changes only a few.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from calabash.sched.actions.plan import Placed
from calabash.sched.actions.quota import NO_ROWS, MarkedQueues, devices_of, mark_in_quota
from calabash.sched.amounts import ZERO, Amount
from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.columns import Bools, Rows
from calabash.sched.decisions import GangKey, Request, Running
from calabash.sched.queues.gang import Gang, Unit, unit_of
from calabash.sched.state import SchedulerState

BORROW_PAUSE_S = 600.0


def is_borrow_paused(gang: Gang, now_s: float) -> bool:
    """Return True if the gang may not evict in order to borrow, because it was evicted less than BORROW_PAUSE_S ago."""
    return gang.evicted_at_s is not None and now_s < gang.evicted_at_s + BORROW_PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRight:
    """The right of a gang to evict units, as far as it depends on the gang's queue, priority and quota.

    Attributes:
        queue, priority: queue and priority of the gang. It may evict units of lower priority in its queue.
        in_quota: the gang would be in quota. It may then evict units of its queue that are in quota too.
        others: other queues whose borrowed units the gang may evict: all (True), none (False), or the named ones.
        beside: restricts the right to units on devices where small slices of the queue are in quota.
    """

    queue: str
    priority: int
    in_quota: bool
    others: bool | frozenset[str] = False
    beside: bool = False


class VictimRules:
    """Decides which running units may be evicted in one cycle, and which requests would be in quota.

    Results are cached by queue until a request of the queue starts or stops.

    Args:
        started: IDs of the requests that this round has started. They may not be evicted in the same round.

    Attributes:
        spared: True if a unit was not eligible only because this round has started it. Another cycle may then evict it.
        table: table of all running units, updated by the queries.
    """

    def __init__(self, state: SchedulerState, started: AbstractSet[str] = frozenset()) -> None:
        self.spared = False
        self.table = state.units
        self._state = state
        self._started = started
        self._marked = MarkedQueues(state)
        self._ahead: dict[str, dict[int | None, Amount]] = {}
        self._is_started = NO_ROWS
        self._versions: dict[str, int] = {}
        self._eligible: dict[Hashable, tuple[Bools, Hashable]] = {}  # cleared with every change

    def queue_changed(self, queue: str) -> None:
        """Drop cached results of a queue in which a request was started, stopped or moved."""
        self._marked.invalidate(queue)
        self._ahead.pop(queue, None)
        self._versions[queue] = self._versions.get(queue, 0) + 1
        self._eligible.clear()

    def version(self, queue: str) -> int:
        """Return a number that increases when the in-quota units of a queue may have changed."""
        return self._versions.get(queue, 0)

    def units_evicted(self, units: Iterable[Unit]) -> None:
        """Drop cached results of the queues whose in-quota units were evicted.

        The eviction of a borrowed unit does not change which other units are in quota.
        """
        for unit in units:
            if unit.in_quota:
                self.queue_changed(unit.queue)

    # ---- units in quota -------------------------------------------------------------------------------------------

    def marks(self) -> Bools:
        """Return for each row of the table True if its unit is in quota; undefined for units that have ended."""
        self._sync()
        return self._marks_of_all()

    def units(self, queue: str) -> list[Unit]:
        """Return all running units of the queue, with ``in_quota`` set."""
        return [self.unit(row) for row in self._rows(queue)]

    def unit(self, row: int) -> Unit:
        """Return the unit of a row, with ``in_quota`` set."""
        unit = self.table.unit(row)
        return replace(unit, in_quota=True) if self._marked.is_marked(row) else unit

    def in_quota_of(self, queue: str, priority: int | None = None) -> list[Unit]:
        """Return the units of the queue that are in quota and have at least ``priority``; None for any priority."""
        table, marks = self.table, self._queue_marks(queue)
        found = self._rows(queue)
        found = found[marks[found]]
        return [self.unit(row) for row in found if priority is None or table.priority[row] >= priority]

    def would_be_in_quota(self, queue: str, priority: int | None, need: Amount) -> bool:
        """Return True if requests of the queue with the charge ``need`` would be in quota if they started now.

        Args:
            priority: only in-quota units of at least this priority use up the guaranteed amount; None for all.
        """
        if not any(self._state.tree.form.managed):
            return False
        known = self._ahead.setdefault(queue, {})
        ahead = known.get(priority)
        if ahead is None:
            ahead = known[priority] = self._amount_ahead(queue, priority)
        return self._state.tree.within_guaranteed(queue, ahead, need)

    def is_in_quota_at(self, gang: Gang, placed: Sequence[Placed], evicted: Iterable[Unit]) -> bool:
        """Return True if requests that fit into the guaranteed amount of their queue are in quota at their placements.

        This is True for all requests but small slices, which are in quota on some devices and borrowed on others. For
        small slices the units in quota are computed again, with the requests added and the units in ``evicted`` left
        out.
        """
        if not self.are_small(request for request, _ in placed):
            return True
        state = self._state
        members = tuple(
            Running(
                request=request,
                placement=placement,
                node=state.cluster.names[placement.node],
                started_at_s=state.now_s,
                charge=state.charges.charge(request.shape),
                sequence=sys.maxsize,
            )
            for request, placement in placed
        )
        evicted_ids = {member.request.id for unit in evicted for member in unit.members}
        left = [u for u in self.units(gang.queue) if u.members[0].request.id not in evicted_ids]
        unit = unit_of(gang, members, core=gang.missing > 0)
        marked = mark_in_quota([*left, unit], state.tree.guaranteed(gang.queue), state.tree.form.managed)
        return next(u.in_quota for u in marked if u.members is members)

    def are_small(self, requests: Iterable[Request]) -> bool:
        """Return True if all requests are small slices: charged by their number of slices and not by their size."""
        return all(is_charged_by_count(r.shape, self._state.charges.charge(r.shape)) for r in requests)

    # ---- eligible victims -----------------------------------------------------------------------------------------

    def eligible(self, right: EvictionRight, requester: Gang, *, guarded: bool = False) -> tuple[Bools, Hashable]:
        """Return the rows of the units that a gang may evict, and a key that is equal for similar sets of rows.

        The caller updates the pool that it has for the key, instead of creating a pool.

        Args:
            right: the rule by which the gang evicts.
            requester: the gang. Its own units are never eligible.
            guarded: include guarded units (``Request.guarded``) that are borrowed.
        """
        self._sync()
        key = None if self.table.rows_of(requester.key) else (right, guarded)
        found = self._eligible.get(key) if key else None
        if found is None:
            units, kind = self._units_of_right(right)
            if right.beside:
                units, kind = self._beside_own_slices(right.queue, units), (kind, right.beside)
            found = (self._evictable(units, requester, guarded=guarded), (kind, right.in_quota, guarded))
            if key:
                self._eligible[key] = found
        return found

    def victims_of_lower_priority(self, right: EvictionRight, requester: Gang) -> Bools:
        """Return the rows of the units of lower priority in its own queue that a gang may evict."""
        return self._evictable(self._lower_priority(right), requester)

    def in_order(self, units: Bools) -> Iterator[Unit]:
        """Yield the units of some rows in eviction order."""
        self.table.rank(units)
        rows = np.flatnonzero(units)
        for row in rows[np.argsort(self.table.rank_of[rows])].tolist():
            yield self.unit(row)

    def units_of(self, gang: GangKey, units: Bools) -> list[Unit]:
        """Return the units of a gang whose rows are selected in ``units``."""
        return [self.unit(row) for row in self.table.rows_of(gang) if units[row]]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _units_of_right(self, right: EvictionRight) -> tuple[Bools, Hashable]:
        """Return the rows to which an eviction right applies, and a key that is equal for similar sets of rows.

        The key names the queue of the right only if the rows depend on it, so that most queues share one key.
        """
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
        """Return those of the rows in ``units`` that are on a device where small slices of the queue are in quota."""
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

    def _lower_priority(self, right: EvictionRight) -> Bools:
        """Return the rows of the units of strictly lower priority in the queue of an eviction right.

        Units in quota are included only if the gang would be in quota too.
        """
        marks, table = self._queue_marks(right.queue), self.table
        rows = slice(0, table.size)
        if not self._state.options.preempt:
            return np.zeros(table.size, np.bool_)
        found: Bools = (table.queue[rows] == table.queue_number(right.queue)) & (table.priority[rows] < right.priority)
        found &= table.alive[rows]
        return found if right.in_quota else found & ~marks

    def _borrowed(self, right: EvictionRight) -> Bools:
        """Return the rows of the borrowed units of the other queues that an eviction right names."""
        marks, table = self._marks_of_all(), self.table
        rows = slice(0, table.size)
        found: Bools = table.alive[rows] & ~marks
        if isinstance(right.others, frozenset):
            chosen = [number for number in map(table.queue_number, right.others) if number >= 0]
            found &= np.isin(table.queue[rows], chosen)
        else:
            found &= table.queue[rows] != table.queue_number(right.queue)
        return found

    def _evictable(self, units: Bools, requester: Gang, *, guarded: bool = False) -> Bools:
        """Return those of the rows in ``units`` whose units may be evicted now.

        Units are left out if they have run for less than ``min_run_time_s``, are not evictable, belong to the
        requester, or were started in this round. The core of a gang is left out if one of the gang's surplus members
        cannot be evicted.

        Args:
            guarded: include guarded units (``Request.guarded``) that are borrowed; False leaves out all guarded units.
        """
        table, rows = self.table, slice(0, self.table.size)
        now_s, rest_s = self._state.now_s, self._state.options.min_run_time_s
        unguarded = ~table.guarded[rows]
        if guarded:
            unguarded |= ~self._marks_of_all()
        chosen: Bools = units & table.evictable[rows] & (table.started_at_s[rows] + rest_s <= now_s) & unguarded
        own = table.rows_of(requester.key)
        chosen[own.start : own.stop] = False
        if self._started and (chosen & self._is_started).any():
            self.spared = True
            chosen &= ~self._is_started
        cores = np.flatnonzero(chosen & (table.surplus[rows] > 0))
        if len(cores):
            surplus = np.bincount(table.gang[rows][chosen & ~table.core[rows]], minlength=table.size)
            chosen[cores[surplus[table.gang[cores]] != table.surplus[cores]]] = False
        return chosen

    def _sync(self) -> None:
        """Update the table of units, and the vectors over its rows, to the units that run now."""
        table, generation = self.table, self.table.generation
        if not self._state.registry.has_changed and len(self._is_started) == table.size:
            return
        new = table.sync(self._state.registry)
        self._eligible.clear()
        if table.generation != generation or len(self._is_started) > table.size:
            self._marked.invalidate_all()
            new = range(table.size)
            self._is_started = NO_ROWS
        if len(self._is_started) < table.size:
            new = range(len(self._is_started), table.size)
            self._is_started = np.concatenate((self._is_started, np.zeros(len(new), np.bool_)))
            self._is_started[self._started_rows(new)] = True
        self._marked.rows_appended(new)

    def _started_rows(self, new: range) -> list[int]:
        """Return the rows in ``new`` whose unit has a member that this round has started."""
        table, registry, started = self.table, self._state.registry, self._started
        if not started:
            return []
        rows: Iterable[int] = new
        if len(started) < len(new):
            keys = {registry.gang_of(name).key for name in started if name in registry}
            rows = [row for key in keys for row in table.rows_of(key) if row in new]
        return [
            row
            for row in rows
            if table.alive[row] and not started.isdisjoint(m.request.id for m in table.unit(row).members)
        ]

    def _marks_of_all(self) -> Bools:
        return self._marked.marks_of_all(self._state.registry.running_in)

    def _rows(self, queue: str) -> Rows:
        self._queue_marks(queue)
        return self._marked.rows(queue)

    def _queue_marks(self, queue: str) -> Bools:
        """Return the in-quota marks of all rows, of which those of the rows of ``queue`` are up to date."""
        self._sync()
        return self._marked.marks((queue,))

    def _amount_ahead(self, queue: str, priority: int | None) -> Amount:
        """Return the sum of the charges of a queue's in-quota units that have at least ``priority`` (None: any)."""
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
