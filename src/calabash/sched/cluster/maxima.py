"""Largest free amounts of the nodes: a quick check that a shape fits nowhere, without labels, modes, health and scores.

A shape that needs more of one resource than any schedulable node has free fits nowhere. The converse does not hold, because the
maxima of different resources may belong to different nodes. If only few nodes have free compute on a device, as in a full
cluster, a shape that needs devices is compared with each of them.
"""

from __future__ import annotations

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Ints, Rows
from calabash.sched.cluster.shape import Shape

_NONE = -1
# Most nodes that are compared one by one.
_OPEN_MAX = 256


class Maxima:
    """Free resources of each node of a cluster, and their maxima over the schedulable nodes.

    Every query updates both from the change log of the cluster.

    Attributes:
        few_open: True if few schedulable nodes had free compute on a device at the last query.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.few_open = False
        self._cluster = cluster
        self._cursor = -1
        # By row: free compute of the devices in descending order, then free CPU, host memory and memory of a device.
        self._free: Ints = np.empty((0, cluster.width + 3), np.int64)
        self._most: list[int] | None = None  # maxima over the schedulable nodes; None if not computed
        self._most_on: dict[tuple[int, ...], list[int]] = {}  # maxima over some nodes, since the last change
        self._open_rows: Rows = np.empty(0, np.intp)  # schedulable nodes with free compute on a device
        self._open: Ints = self._free  # rows of _free for them, if they are few
        self._most_open: list[int] = []  # maxima over them

    def exceeded(self, shape: Shape) -> bool:
        """Return True if the shape needs more than any schedulable node has free, so that it fits nowhere."""
        if self._cursor != self._cluster.position:
            self._renew()
        if shape.gpu_milli > 0 and self.few_open:  # it fits on an open node or nowhere
            return self._exceeds(shape, self._most_open) or (len(self._open) > 1 and not self._fits_open(shape))
        if self._most is None:
            cluster = self._cluster
            free = self._free[cluster.schedulable] if cluster.has_cordoned else self._free
            self._most = free.max(axis=0, initial=_NONE).tolist()
        return self._exceeds(shape, self._most)

    def rows_for(self, shape: Shape) -> Rows | None:
        """Return the rows to which the search for the shape can be restricted, if they are few; None for all rows."""
        if self._cursor != self._cluster.position:
            self._renew()
        return self._open_rows if shape.gpu_milli > 0 and self.few_open else None

    def exceeded_on(self, shape: Shape, nodes: tuple[int, ...]) -> bool:
        """Return True if the shape needs more of a resource than each of the given nodes has free.

        Nodes that are not schedulable count too.
        """
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
        """Return True if one of the nodes with free compute on a device has enough of all resources free."""
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
