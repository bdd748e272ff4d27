"""Division of the running units of a queue into those in quota and those that are borrowed.

The running units of a queue are sorted by priority, cores before surplus, oldest first. A unit is *in quota* if it fits into
the part of the guaranteed amount that the in-quota units before it leave; otherwise it is *borrowed*.

Small slices are those that are charged by their number and not by their size (``charges``). Together they would fill
few devices, but a single one prevents others from using its device as a whole. They are therefore in quota on as many
devices as they would fill together (at least one), and borrowed on all other devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from calabash.sched.amounts import EPSILON
from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.columns import Bools, Rows
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.queues.gang import Unit
from calabash.sched.state import SchedulerState

NO_ROWS: Bools = np.zeros(0, np.bool_)


def mark_in_quota(units: Iterable[Unit], guaranteed: Sequence[float], managed: Sequence[bool]) -> list[Unit]:
    """Return the units with ``in_quota`` set, in the order in which the guaranteed amount is given to them.

    Args:
        units: all running units of one queue.
        guaranteed: guaranteed amount of the queue, per resource.
        managed: for each resource, True if any queue has a deserved amount of it. If it is False for all resources, all
            units are borrowed.
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
    """Return the devices of a unit as (row of the node, index of the device)."""
    return {(member.placement.node, device) for member in unit.members for device in member.placement.devices}


class _SmallSlices:
    """Devices on which small slices of one queue are in quota.

    Small slices are charged by their number and not by their size. They are in quota on no more devices than they would
    fill together.
    """

    def __init__(self) -> None:
        self._devices: set[tuple[int, int]] = set()
        self._milli = 0.0

    def fit(self, unit: Unit) -> bool:
        """Add a unit to the units in quota if possible, and return True.

        Returns False if the unit consists of small slices and the slices in quota would be on more devices than they
        would fill together. Returns True for a unit that is not of small slices, without adding it.
        """
        if not all(is_charged_by_count(m.request.shape, m.charge) for m in unit.members):
            return True
        devices = self._devices | devices_of(unit)
        milli = self._milli + unit.amount.gpu_milli
        if len(devices) > max(1, math.ceil((milli - EPSILON) / WHOLE_MILLI)):
            return False
        self._devices, self._milli = devices, milli
        return True


class MarkedQueues:
    """In-quota marks: for each row of the ``UnitTable`` True if its unit is in quota.

    The marks of a queue are cached until ``invalidate`` is called for the queue.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._table = state.units
        self._marks = NO_ROWS
        self._known: dict[str, Rows] = {}
        self._unknown: set[str] | None = (
            None  # queues whose marks must be computed; None for all that are not in _known
        )

    def invalidate(self, queue: str) -> None:
        """Drop the marks of a queue, so that they are computed again when they are next needed."""
        self._known.pop(queue, None)
        if self._unknown is not None:
            self._unknown.add(queue)

    def invalidate_all(self) -> None:
        """Drop all in-quota marks, because the rows of the table were renumbered."""
        self._known.clear()
        self._unknown = None
        self._marks = NO_ROWS

    def rows_appended(self, new: range) -> None:
        """Drop the in-quota marks of the queues to which new rows belong, because new units may displace others."""
        if len(self._marks) < self._table.size:
            self._marks = np.concatenate((self._marks, np.zeros(self._table.size - len(self._marks), np.bool_)))
        if new:
            for number in np.unique(self._table.queue[new.start : new.stop]).tolist():
                self.invalidate(self._table.queue_name(number))

    def is_marked(self, row: int) -> bool:
        """Return True if the unit of the row is in quota, as last computed by ``marks`` or ``marks_of_all``."""
        return bool(self._marks[row])

    def marks(self, queues: Iterable[str]) -> Bools:
        """Compute the in-quota marks of some queues, and return the marks of all rows.

        The marks of rows of other queues may be outdated.
        """
        unknown = [queue for queue in queues if queue not in self._known]
        if unknown:
            self._mark(unknown)
        return self._marks

    def marks_of_all(self, running: Mapping[str, object]) -> Bools:
        """Compute and return the in-quota marks of all rows.

        Args:
            running: mapping whose keys are the queues with running requests.
        """
        if self._unknown is None:
            self._unknown = set(running)
        marks = self.marks([queue for queue in self._unknown if queue in running])
        self._unknown.clear()
        return marks

    def rows(self, queue: str) -> Rows:
        """Return the rows of the units of a queue that still run. The marks of the queue must have been computed."""
        rows = self._known[queue]
        return rows[self._table.alive[rows]]

    def _mark(self, queues: Sequence[str]) -> None:
        """Compute the in-quota marks of some queues, if they are not cached."""
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
        """Return those rows of one queue that are in quota.

        Units are examined one by one only if the guaranteed amount is too small for all of them.
        """
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
