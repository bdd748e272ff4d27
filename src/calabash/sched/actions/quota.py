"""What is in quota and what is borrowed, unit by unit.

Running units of a queue are ordered by priority, cores before surplus, then age; the longest prefix-with-skips that stays
within what the queue is guaranteed is *in quota*, the rest is *borrowed*.

Slices that are charged by their number alone would fill few devices, but one of them keeps a device from everybody who asks for
a whole one. They are in quota on as many devices as they would fill together (one at least), and borrowed on others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.columns import Bools, Rows
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.queues.fairshare import EPSILON
from calabash.sched.queues.gang import Unit
from calabash.sched.state import SchedulerState

NO_ROWS: Bools = np.zeros(0, np.bool_)


def mark_in_quota(units: Iterable[Unit], guaranteed: Sequence[float], managed: Sequence[bool]) -> list[Unit]:
    """The units with ``in_quota`` set; see the theory of operation.

    Args:
        units: all running units of one queue.
        guaranteed: what the queue is guaranteed, per resource.
        managed: resources that anybody deserves; without any, everything is borrowed.
    """
    left = list(guaranteed)
    resources = [r for r, on in enumerate(managed) if on]
    marked = []
    small = _SmallSlices()
    for unit in sorted(units, key=lambda u: (-u.priority, not u.core, u.started_at_s, u.sequence)):
        fits = bool(resources) and all(unit.amount[r] <= left[r] + EPSILON for r in resources) and small.fit(unit)
        if fits:
            for r in resources:
                left[r] -= unit.amount[r]
        marked.append(unit if fits is unit.in_quota else replace(unit, in_quota=fits))
    return marked


def devices_of(unit: Unit) -> set[tuple[int, int]]:
    """Return the devices of a unit, each by the row of its node and its number there."""
    return {(member.placement.node, device) for member in unit.members for device in member.placement.devices}


class _SmallSlices:
    """Devices on which slices that are charged by their number are in quota."""

    def __init__(self) -> None:
        self._devices: set[tuple[int, int]] = set()
        self._milli = 0.0

    def fit(self, unit: Unit) -> bool:
        """Count the unit in, unless its slices are on more devices than all slices counted would fill."""
        if not all(is_charged_by_count(m.request.shape, m.charge) for m in unit.members):
            return True
        devices = self._devices | devices_of(unit)
        milli = self._milli + unit.amount.gpu_milli
        if len(devices) > max(1, math.ceil((milli - EPSILON) / WHOLE_MILLI)):
            return False
        self._devices, self._milli = devices, milli
        return True


class MarkedQueues:
    """Marks of everything that runs, by row of the ``UnitTable``; those of a queue are kept until it is forgotten."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._table = state.units
        self._marks = NO_ROWS
        self._known: dict[str, Rows] = {}
        self._unknown: set[str] | None = None  # None: all that are not known

    def forget(self, queue: str) -> None:
        """The marks of the queue are no longer true."""
        self._known.pop(queue, None)
        if self._unknown is not None:
            self._unknown.add(queue)

    def forget_all(self) -> None:
        """Rows have other numbers."""
        self._known.clear()
        self._unknown = None
        self._marks = NO_ROWS

    def appended(self, new: range) -> None:
        """There are new rows: the marks of their queues are not known."""
        if len(self._marks) < self._table.size:
            self._marks = np.concatenate((self._marks, np.zeros(self._table.size - len(self._marks), np.bool_)))
        if new:
            for number in np.unique(self._table.queue[new.start : new.stop]).tolist():
                self.forget(self._table.queue_name(number))

    def is_marked(self, row: int) -> bool:
        """Return True if the unit of the row is in quota, by the marks as they were last asked for."""
        return bool(self._marks[row])

    def marks(self, queues: Iterable[str]) -> Bools:
        """Return the marks of all rows, with those of these queues made true."""
        unknown = [queue for queue in queues if queue not in self._known]
        if unknown:
            self._mark(unknown)
        return self._marks

    def marks_of_all(self, running: Mapping[str, object]) -> Bools:
        """Return the marks of all rows.

        Args:
            running: by the names of the queues in which something runs.
        """
        if self._unknown is None:
            self._unknown = set(running)
        marks = self.marks([queue for queue in self._unknown if queue in running])
        self._unknown.clear()
        return marks

    def rows(self, queue: str) -> Rows:
        """Return the rows that the queue had when it was marked and that are alive."""
        rows = self._known[queue]
        return rows[self._table.alive[rows]]

    def _mark(self, queues: Sequence[str]) -> None:
        table, tree = self._table, self._state.tree
        alive = np.flatnonzero(table.alive[: table.size])
        numbers = table.queue[alive]
        if len(queues) > 1:
            order = np.argsort(numbers, kind="stable")
            alive, numbers = alive[order], numbers[order]
            starts, ends = (
                np.searchsorted(numbers, [table.queue_number(q) for q in queues], s) for s in ("left", "right")
            )
            found = [alive[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        else:
            found = [alive[numbers == table.queue_number(queues[0])]]
        for queue, rows in zip(queues, found, strict=True):
            self._known[queue] = rows
            self._marks[rows] = False
            if len(rows):
                self._marks[self._in_quota(rows, tree.guaranteed(queue), tree.form.managed)] = True

    def _in_quota(self, rows: Rows, guaranteed: Sequence[float], managed: Sequence[bool]) -> Rows:
        """Return the rows of one queue that are in quota: most are settled without looking at them one by one."""
        table = self._table
        amounts = (table.gpu_milli, table.cpu_milli, table.host_memory_mib)
        resources = [r for r, on in enumerate(managed) if on]
        if not resources:
            return rows[:0]
        for r in resources:
            rows = rows[amounts[r][rows] <= guaranteed[r] + EPSILON]
        all_fit = all(amounts[r][rows].sum() <= guaranteed[r] for r in resources)
        if all_fit and not table.small[rows].any():
            return rows
        marked = mark_in_quota((table.unit(row) for row in rows.tolist()), guaranteed, managed)
        return np.array([table.row(unit) for unit in marked if unit.in_quota], np.intp)
