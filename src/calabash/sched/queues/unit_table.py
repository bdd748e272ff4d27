"""Columns over everything that runs, one row per unit, so that questions about all units are answered by vectors.

Theory of operation. The registry notes the gangs that changed. ``sync`` closes the rows of those gangs and appends rows for
their units as they are now, so its cost is proportional to what changed. A row is never written again but to close it: a unit
that changes gets another row, and a reader that keeps a vector over rows sees the change as two rows that differ. Closed rows
are dropped by building the table anew once they are most of it; ``generation`` changes then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.columns import Bools, Floats, Ints
from calabash.sched.decisions import GangKey
from calabash.sched.queues.gang import Gang, Unit, slices_of, units_of
from calabash.sched.queues.registry import GangRegistry

UNRANKED = 1 << 40
NO_DEVICE = -1
_COUNT_MIN = 64
_CLOSED_MIN = 1024
_ROW = (
    ("alive", np.bool_), ("queue", np.int64), ("gang", np.int64), ("core", np.bool_), ("priority", np.int64),
    ("started_at_s", np.float64), ("sequence", np.int64), ("gpu_milli", np.float64), ("cpu_milli", np.float64),
    ("host_memory_mib", np.float64), ("slices", np.int64), ("evictable", np.bool_), ("guarded", np.bool_),
    ("small", np.bool_), ("surplus", np.int64),
)  # fmt: skip
_USE = (
    ("use_row", np.int64), ("use_node", np.int64), ("use_device", np.int64), ("use_count", np.int64),
    ("use_share", np.float64), ("use_slices", np.int64),
)  # fmt: skip


class UnitTable:
    """Units by row. Others read the columns up to ``size``, those of uses up to ``uses``.

    Attributes:
        alive: the unit of the row is as it was. queue: number of the queue. gang: first row that the gang had.
        core, priority, started_at_s, sequence, slices: as of ``Unit``. gpu_milli, cpu_milli, host_memory_mib: its amount.
        evictable: all members may be evicted. guarded: one is guarded. small: all are charged by their number of slices alone.
        surplus: for a core, how many members of the gang run beside it.
        rank_of: position in the order in which units go, ``UNRANKED`` for rows that came after the last ``rank``.
        use_row, use_node, use_device: one entry for each device that a unit is on (``NO_DEVICE`` for a node where the unit
            has none), by row of the unit. use_count: how many of its members use the device. use_slices: slices of the unit,
            on all devices. use_share: the same, divided by its devices on the node.
        generation: changes when rows are numbered anew. ranking: changes when ranks do.
    """

    alive: Bools
    queue: Ints
    gang: Ints
    core: Bools
    priority: Ints
    started_at_s: Floats
    sequence: Ints
    gpu_milli: Floats
    cpu_milli: Floats
    host_memory_mib: Floats
    slices: Ints
    evictable: Bools
    guarded: Bools
    small: Bools
    surplus: Ints
    use_row: Ints
    use_node: Ints
    use_device: Ints
    use_count: Ints
    use_share: Floats
    use_slices: Ints

    def __init__(self) -> None:
        self.generation = 0
        self.ranking = 0
        self._queues: dict[str, int] = {}
        self._queue_names: list[str] = []
        self._clear()

    # ---- changes --------------------------------------------------------------------------------------------------

    def sync(self, registry: GangRegistry) -> range:
        """Bring the rows up to what runs. Return the rows that were appended; all of them if ``generation`` changed."""
        changed = registry.take_changed()
        if changed is None or self._closed > max(_CLOSED_MIN, self.size // 2):
            self._clear()
            gangs = [gang for running in registry.running_in.values() for gang in running.values()]
            self._append(gangs)
            return range(self.size)
        if not changed:
            return range(self.size, self.size)
        for key in changed:
            self._close(key)
        before = self.size
        found = (registry.gangs.get(key) for key in changed)
        self._append([gang for gang in found if gang is not None and gang.running])
        return range(before, self.size)

    def rank(self, chosen: Bools) -> None:
        """Make the ranks of these rows known. The order is ``Unit.order``: lower priority first, then surplus, then the
        youngest."""
        if not (self.rank_of[: len(chosen)][chosen] == UNRANKED).any():
            return
        rows = np.flatnonzero(self.alive[: self.size])
        order = np.lexsort((-self.sequence[rows], -self.started_at_s[rows], self.core[rows], self.priority[rows]))
        self.rank_of[rows[order]] = np.arange(len(rows))
        self.ranking += 1

    # ---- questions ------------------------------------------------------------------------------------------------

    def queue_number(self, queue: str) -> int:
        """Return the number of a queue; -1 when nothing of it ever ran."""
        return self._queues.get(queue, -1)

    def queue_name(self, number: int) -> str:
        """Return the name of the queue of a number."""
        return self._queue_names[number]

    def rows_of(self, gang: GangKey) -> Sequence[int]:
        """Return the rows of a gang's units as they are, its core first."""
        return self._rows_of.get(gang, ())

    def unit(self, row: int) -> Unit:
        """Return the unit of a row that is alive; its mark is not set."""
        return units_of(self._gangs[row])[self._ordinals[row]]

    def row(self, unit: Unit) -> int:
        """Return the row of a unit as it is."""
        first = unit.members[0].sequence
        return next(row for row in self._rows_of[unit.gang] if self.unit(row).members[0].sequence == first)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self.size = self.uses = self._closed = 0
        self.generation += 1
        self._gangs: list[Gang] = []
        self._ordinals: list[int] = []
        self._rows_of: dict[GangKey, list[int]] = {}
        for name, kind in (*_ROW, *_USE):
            setattr(self, name, np.zeros(_COUNT_MIN, kind))
        self.rank_of: Ints = np.full(_COUNT_MIN, UNRANKED)

    def _close(self, key: GangKey) -> None:
        rows = self._rows_of.pop(key, ())
        for row in rows:
            self.alive[row] = False
        self._closed += len(rows)

    def _append(self, gangs: Iterable[Gang]) -> None:
        """Append rows for the units of gangs that have none."""
        rows: list[tuple[Any, ...]] = []
        uses: list[tuple[int, int, int, int, float, int]] = []
        at = self.size
        for gang in gangs:
            queue = self._number(gang.queue)
            first, running = at, gang.running
            if len(running) == 1 and gang.min_member == 1:
                (member,) = running.values()  # most are: this way makes no unit
                shape, charge = member.request.shape, member.charge
                slices = slices_of(shape)
                rows.append(
                    (True, queue, first, True, gang.priority, member.started_at_s, member.sequence, *charge, slices,
                     member.request.evictable, member.request.guarded,
                     bool(shape.gpu_slices_max) and is_charged_by_count(shape, charge), 0)
                )  # fmt: skip
                placement = member.placement
                share = slices / len(placement.devices) if placement.devices else 0.0
                uses.extend((at, placement.node, d, 1, share, slices) for d in placement.devices or (NO_DEVICE,))
                self._ordinals.append(0)
                at += 1
            else:
                units = units_of(gang)
                for ordinal, unit in enumerate(units):
                    rows.append(self._row(unit, queue, first, len(running) - len(unit.members) if unit.core else 0))
                    uses.extend(_uses(at, unit))
                    self._ordinals.append(ordinal)
                    at += 1
            self._gangs.extend([gang] * (at - first))
            self._rows_of[gang.key] = list(range(first, at))
        if rows:
            self._write(_ROW, self.size, rows)
            self._write(_USE, self.uses, uses)
            missing = len(self.alive) - len(self.rank_of)
            self.rank_of = np.concatenate((self.rank_of, np.full(missing, UNRANKED)))
            self.size, self.uses = self.size + len(rows), self.uses + len(uses)

    def _number(self, queue: str) -> int:
        number = self._queues.get(queue)
        if number is None:
            number = self._queues[queue] = len(self._queues)
            self._queue_names.append(queue)
        return number

    @staticmethod
    def _row(unit: Unit, queue: int, first: int, surplus: int) -> tuple[Any, ...]:
        asked = [m.request for m in unit.members]
        return (
            True, queue, first, unit.core, unit.priority, unit.started_at_s, unit.sequence, *unit.amount, unit.slices,
            all(r.evictable for r in asked), any(r.guarded for r in asked),
            all(is_charged_by_count(m.request.shape, m.charge) for m in unit.members), surplus,
        )  # fmt: skip

    def _write(self, names: Sequence[tuple[str, Any]], start: int, rows: Sequence[tuple[Any, ...]]) -> None:
        end = start + len(rows)
        for (name, kind), values in zip(names, zip(*rows, strict=True), strict=True):
            column = getattr(self, name)
            if end > len(column):
                column = np.concatenate((column, np.zeros(2 * end - len(column), kind)))
                setattr(self, name, column)
            column[start:end] = values


def _uses(row: int, unit: Unit) -> Iterable[tuple[int, int, int, int, float, int]]:
    """Devices that a unit is on, in the order of its members."""
    nodes: dict[int, dict[int, int]] = {}
    for member in unit.members:
        on = nodes.setdefault(member.placement.node, {})
        for device in member.placement.devices:
            on[device] = on.get(device, 0) + 1
    for node, devices in nodes.items():
        for device, count in devices.items() or ((NO_DEVICE, 1),):
            yield (row, node, device, count, unit.slices / len(devices) if devices else 0.0, unit.slices)
