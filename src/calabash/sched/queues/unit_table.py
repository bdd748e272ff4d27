"""Columnar table of all running units, one row per unit, for vectorised queries.

Theory of operation. The registry notes the gangs that changed. ``sync`` closes the rows of those gangs and appends rows for
their current units, so its cost is proportional to the number of changes. The values of a row never change; only its ``alive``
flag is cleared. A unit that changes gets a new row, so a reader that keeps a vector over the rows only adds the new rows. When
most rows are closed, the table is rebuilt without them and ``generation`` changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calabash.sched.amounts import RESOURCES
from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.columns import Bools, Floats, Ints
from calabash.sched.decisions import GangKey, Running
from calabash.sched.queues.gang import Gang, Unit, slices_of, units_of
from calabash.sched.queues.registry import GangRegistry

UNRANKED = 1 << 40
NO_DEVICE = -1
_COUNT_MIN = 64
_CLOSED_MIN = 1024
_INTS = ("queue", "gang", "priority", "sequence", "slices", "surplus")
_FLOATS = ("started_at_s", "gpu_milli", "cpu_milli", "host_memory_mib")
_BOOLS = ("alive", "core", "evictable", "guarded", "small")
_USES = ("use_row", "use_node", "use_device", "use_count", "use_slices")
_SHARES = ("use_share",)


class UnitTable:
    """Running units by row. Columns are valid up to ``size``, the ``use_`` columns up to ``uses``.

    Attributes:
        alive: the unit still runs unchanged. queue: number of the queue. gang: first row of the gang.
        core, priority, started_at_s, sequence, slices: as in ``Unit``.
        gpu_milli, cpu_milli, host_memory_mib: amount of the unit.
        evictable: all members may be evicted. guarded: a member is guarded.
        small: all members are small slices, which are charged by their number and not by their size.
        surplus: for a core, the number of surplus members of the gang that run.
        rank_of: position in the eviction order; ``UNRANKED`` for rows that were added after the last ``rank``.
        use_row, use_node, use_device: one entry for each device that a unit is on, with the row of the unit; ``NO_DEVICE`` for
            a node where the unit has no device.
        use_count: number of the unit's members on the device. use_slices: slices of the unit on all its devices.
        use_share: ``use_slices`` divided by the number of the unit's devices on the node.
        generation: changes when the rows are renumbered. ranking: changes when the ranks change.
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
        """Update the table to the registry. Return the rows that were appended: all rows if ``generation`` changed."""
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
        """Compute ``rank_of``, the position in the eviction order, for all rows.

        Does nothing if the chosen rows all have ranks.
        """
        if not (self.rank_of[: len(chosen)][chosen] == UNRANKED).any():
            return
        rows = np.flatnonzero(self.alive[: self.size])
        order = np.lexsort((-self.sequence[rows], -self.started_at_s[rows], self.core[rows], self.priority[rows]))
        self.rank_of[rows[order]] = np.arange(len(rows))
        self.ranking += 1

    # ---- questions ------------------------------------------------------------------------------------------------

    def queue_number(self, queue: str) -> int:
        """Return the number by which the column ``queue`` names a queue; -1 if no unit of the queue has ever run."""
        return self._queues.get(queue, -1)

    def queue_name(self, number: int) -> str:
        """Return the name of the queue with a number of the column ``queue``."""
        return self._queue_names[number]

    def rows_of(self, gang: GangKey) -> range:
        """Return the alive rows of a gang, its core first; empty if the gang does not run."""
        return self._rows_of.get(gang, range(0))

    def unit(self, row: int) -> Unit:
        """Return the unit of an alive row, with ``in_quota`` unset."""
        return units_of(self._gangs[row])[row - self.gang.item(row)]

    def row(self, unit: Unit) -> int:
        """Return the alive row of a unit."""
        first = unit.members[0].sequence
        return next(row for row in self._rows_of[unit.gang] if self.unit(row).members[0].sequence == first)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self.size = self.uses = self._closed = 0
        self.generation += 1
        self._gangs: list[Gang] = []
        self._rows_of: dict[GangKey, range] = {}
        self._matrices: dict[tuple[str, ...], npt.NDArray[Any]] = {}
        self.rank_of: Ints = np.zeros(0, np.int64)
        self._grow(0, 0)

    def _grow(self, rows: int, uses: int) -> None:
        """Grow the columns to at least ``rows`` entries, and the ``use_`` columns to at least ``uses`` entries.

        Columns that are too short are at least doubled; others are left alone.
        """
        if self._matrices and rows <= len(self.alive) and uses <= len(self.use_row):
            return
        for names, kind, count in (
            (_INTS, np.int64, rows), (_FLOATS, np.float64, rows), (_BOOLS, np.bool_, rows),
            (_USES, np.int64, uses), (_SHARES, np.float64, uses),
        ):  # fmt: skip
            old = self._matrices.get(names, np.zeros((len(names), 0), kind))
            if count <= old.shape[1] > 0:
                continue
            matrix = self._matrices[names] = np.zeros((len(names), max(2 * count, _COUNT_MIN)), kind)
            matrix[:, : old.shape[1]] = old
            for name, column in zip(names, matrix, strict=True):
                setattr(self, name, column)
        missing = len(self.alive) - len(self.rank_of)
        self.rank_of = np.concatenate((self.rank_of, np.full(missing, UNRANKED)))

    def _close(self, key: GangKey) -> None:
        rows = self._rows_of.pop(key, range(0))
        self.alive[rows.start : rows.stop] = False
        self._closed += len(rows)

    def _append(self, gangs: Sequence[Gang]) -> None:
        """Append rows for the units of gangs that have no rows."""
        alone = [gang for gang in gangs if gang.min_member == 1 and len(gang.running) == 1]
        self._append_alone(alone, [next(iter(gang.running.values())) for gang in alone])
        if len(alone) < len(gangs):
            for gang in gangs:
                if gang.min_member > 1 or len(gang.running) > 1:
                    self._append_units(gang, units_of(gang))

    def _append_alone(self, gangs: Sequence[Gang], members: Sequence[Running]) -> None:
        """Append rows for gangs of one member, without creating ``Unit`` objects: most gangs have one member."""
        start = self.size
        requests, places = [m.request for m in members], [m.placement for m in members]
        shapes = [r.shape for r in requests]
        distinct = {id(shape): shape for shape in shapes}
        slices_by = {key: slices_of(shape) for key, shape in distinct.items()}
        slices = [slices_by[id(shape)] for shape in shapes]
        small: Sequence[bool] = [False] * len(members)
        if any(shape.gpu_slices_max for shape in distinct.values()):
            small = [is_charged_by_count(m.request.shape, m.charge) for m in members]
        rows = range(start, start + len(members))
        numbers = {queue: self._number(queue) for queue in {gang.queue for gang in gangs}}
        self._write_rows(
            gangs,
            ([numbers[gang.queue] for gang in gangs], rows, [gang.priority for gang in gangs],
             [m.sequence for m in members], slices, [0] * len(members)),
            ([m.started_at_s for m in members], *([m.charge[r] for m in members] for r in range(RESOURCES))),
            ([True] * len(members), [True] * len(members), [r.evictable for r in requests],
             [r.guarded for r in requests], small),
        )  # fmt: skip
        self._rows_of.update(zip([g.key for g in gangs], [range(row, row + 1) for row in rows], strict=True))
        devices = [device for place in places for device in place.devices or (NO_DEVICE,)]
        if len(members) == len(devices):
            self._write_uses((rows, [p.node for p in places], devices, [1] * len(members), slices), slices)
            return
        counts = [len(place.devices) or 1 for place in places]
        row, node, on, each = (
            np.repeat(np.array(column, np.int64), counts) for column in (rows, [p.node for p in places], counts, slices)
        )
        self._write_uses((row, node, devices, np.ones(len(devices)), each), each / on)

    def _append_units(self, gang: Gang, units: Sequence[Unit]) -> None:
        start, queue, asked = self.size, self._number(gang.queue), [[m.request for m in u.members] for u in units]
        surplus = [len(gang.running) - len(u.members) if u.core else 0 for u in units]
        self._write_rows(
            [gang] * len(units),
            ([queue] * len(units), [start] * len(units), [u.priority for u in units], [u.sequence for u in units],
             [u.slices for u in units], surplus),
            ([u.started_at_s for u in units], *([u.amount[r] for u in units] for r in range(RESOURCES))),
            ([True] * len(units), [u.core for u in units], [all(r.evictable for r in members) for members in asked],
             [any(r.guarded for r in members) for members in asked],
             [all(is_charged_by_count(m.request.shape, m.charge) for m in u.members) for u in units]),
        )  # fmt: skip
        self._rows_of[gang.key] = range(start, self.size)
        *uses, shares = zip(*(use for row, unit in enumerate(units, start) for use in _uses(row, unit)), strict=True)
        self._write_uses(uses, shares)

    def _number(self, queue: str) -> int:
        number = self._queues.get(queue)
        if number is None:
            number = self._queues[queue] = len(self._queues)
            self._queue_names.append(queue)
        return number

    def _write_rows(
        self, gangs: Sequence[Gang], ints: Sequence[Any], floats: Sequence[Any], bools: Sequence[Any]
    ) -> None:
        start, end = self.size, self.size + len(gangs)
        self._grow(end, self.uses)
        for names, columns in ((_INTS, ints), (_FLOATS, floats), (_BOOLS, bools)):
            self._matrices[names][:, start:end] = columns
        self._gangs.extend(gangs)
        self.size = end

    def _write_uses(self, ints: Sequence[Any], shares: Any) -> None:
        start, end = self.uses, self.uses + len(ints[0])
        self._grow(self.size, end)
        self._matrices[_USES][:, start:end] = ints
        self.use_share[start:end] = shares
        self.uses = end


def _uses(row: int, unit: Unit) -> Iterator[tuple[int, int, int, int, int, float]]:
    """Yield the values of the ``use_`` columns for each device of a unit: row, node, device, count, slices, share."""
    nodes: dict[int, Counter[int]] = {}
    for member in unit.members:
        nodes.setdefault(member.placement.node, Counter()).update(member.placement.devices)
    for node, devices in nodes.items():
        share = unit.slices / len(devices) if devices else 0.0
        for device, count in devices.items() or ((NO_DEVICE, 1),):
            yield (row, node, device, count, unit.slices, share)
