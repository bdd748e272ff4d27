"""The most that nodes have free: a bound that refuses a shape without a look at labels, modes, health and scores.

A shape that asks for more of one resource than any schedulable node has free fits nowhere. The converse does not hold: the
maxima of different resources may be those of different nodes. Where few nodes have anything free on their devices, which is
what a full cluster looks like, each of them is compared with a shape that asks for devices.
"""

from __future__ import annotations

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Ints, Rows
from calabash.sched.cluster.shape import Shape

_NONE = -1
# More nodes than these are not compared one by one.
_OPEN_MAX = 256


class Maxima:
    """Free resources of each node of a cluster, and their maxima over schedulable nodes.

    Both are brought up to date when they are asked for; only rows that have changed since are read again.

    Attributes:
        few_open: True if few schedulable nodes had something free on a device when that was looked at last.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.few_open = False
        self._cluster = cluster
        self._cursor = -1
        # [N, G + 3] free compute of the devices in descending order, then free CPU, host memory and memory of a device.
        self._free: Ints = np.empty((0, cluster.width + 3), np.int64)
        self._most: list[int] | None = None  # over schedulable nodes; None: to be computed
        self._most_on: dict[tuple[int, ...], list[int]] = {}  # over nodes that were asked about since a change
        self._open_rows: Rows = np.empty(0, np.intp)  # schedulable nodes with something free on a device
        self._open: Ints = self._free  # of these nodes, if they are few
        self._most_open: list[int] = []  # over them

    def refuse(self, shape: Shape) -> bool:
        """Return True if the shape asks for more than any schedulable node has free, so that it fits nowhere."""
        if self._cursor != self._cluster.position:
            self._renew()
        if shape.gpu_milli > 0 and self.few_open:  # it fits on one of them or nowhere
            return self._exceeds(shape, self._most_open) or (len(self._open) > 1 and not self._fits_open(shape))
        if self._most is None:
            cluster = self._cluster
            free = self._free[cluster.schedulable] if cluster.has_cordoned else self._free
            self._most = free.max(axis=0, initial=_NONE).tolist()
        return self._exceeds(shape, self._most)

    def rows_for(self, shape: Shape) -> Rows | None:
        """Return the only nodes where the shape may fit, if they are few; None if it may fit on any node."""
        if self._cursor != self._cluster.position:
            self._renew()
        return self._open_rows if shape.gpu_milli > 0 and self.few_open else None

    def refuse_on(self, shape: Shape, nodes: tuple[int, ...]) -> bool:
        """Return True if the shape asks for more than any of some nodes has free, schedulable or not."""
        if self._cursor != self._cluster.position:
            self._renew()
        most = self._most_on.get(nodes)
        if most is None:
            most = self._most_on[nodes] = self._free[list(nodes)].max(axis=0, initial=_NONE).tolist()
        return self._exceeds(shape, most)

    def _exceeds(self, shape: Shape, most: list[int]) -> bool:
        width, count = self._cluster.width, shape.gpu_count
        if shape.cpu_milli > most[width] or shape.memory_mib > most[width + 1]:
            return True
        if not count:
            return False
        return count > width or shape.gpu_milli > most[count - 1] or shape.gpu_memory_mib > most[width + 2]

    def _fits_open(self, shape: Shape) -> bool:
        """Return True if one node has free all that the shape asks for."""
        width, free = self._cluster.width, self._open
        enough = free[:, shape.gpu_count - 1] >= shape.gpu_milli
        if shape.cpu_milli:
            enough &= free[:, width] >= shape.cpu_milli
        if shape.memory_mib:
            enough &= free[:, width + 1] >= shape.memory_mib
        if shape.gpu_memory_mib:
            enough &= free[:, width + 2] >= shape.gpu_memory_mib
        return bool(enough.any())

    def _renew(self) -> None:
        cluster = self._cluster
        changed = cluster.changed_since(self._cursor)
        if changed is None or len(self._free) != cluster.node_count:
            self._free = np.empty((cluster.node_count, cluster.width + 3), np.int64)
            self._write(np.arange(cluster.node_count))
        else:
            self._write(np.array(changed if len(changed) == 1 else list(set(changed)), np.intp))
        is_open = self._free[:, 0] > 0
        if cluster.has_cordoned:
            is_open &= cluster.schedulable
        self._open_rows = is_open.nonzero()[0]
        self._most = None
        self._most_on.clear()
        self.few_open = len(self._open_rows) <= _OPEN_MAX
        if self.few_open:
            self._open = self._free[self._open_rows]
            self._most_open = self._open.max(axis=0, initial=_NONE).tolist()
        self._cursor = cluster.position

    def _write(self, rows: Rows) -> None:
        cluster, free, width = self._cluster, self._free, self._cluster.width
        free[rows, :width] = np.sort(cluster.gpu_free_milli[rows], axis=1)[:, ::-1]
        free[rows, width] = cluster.cpu_free_milli[rows]
        free[rows, width + 1] = cluster.memory_free_mib[rows]
        free[rows, width + 2] = cluster.gpu_free_mib[rows].max(axis=1)
