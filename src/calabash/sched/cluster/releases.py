"""Placements that are given back in a given order, for a what-if question about the first of them.

Theory of operation. What a release changes are sums over placements (free compute, free memory, users), and what follows from
them (idle devices, sharing modes). So the first ``n`` placements are released by adding their amounts to the columns, all
devices in one pass; from there to the first ``m`` only what lies between is added or subtracted. Integers make this the exact
reverse. Placements with MIG instances are released and taken again one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import MODE_UNSET
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape

Taken = tuple[Shape, NodePlacement]


class Releases:
    """Placements of a cluster in the order of their release; ``to(0)`` leaves the cluster as it was.

    Args:
        taken: placements that hold their resources on the cluster, first released first.

    Attributes:
        has_mig: whether one of them has MIG instances.
    """

    def __init__(self, cluster: Cluster, taken: Sequence[Taken]) -> None:
        self._cluster = cluster
        self._taken = taken
        self._count = 0
        self._mig = [number for number, (shape, _) in enumerate(taken) if shape.mig_profile]
        self.has_mig = bool(self._mig)
        self._modes = cluster.gpu_mode.copy()
        numbers: dict[Shape, int] = {}
        of = np.array([numbers.setdefault(shape, len(numbers)) for shape, _ in taken], np.intp)
        amounts = np.array([_amounts(shape) for shape in numbers], np.int64).reshape(-1, 5)
        each = np.array([_device_amounts(shape) for shape in numbers], np.int64).reshape(-1, 4)
        self._rows = np.array([placement.node for _, placement in taken], np.intp)
        self._cpu, self._memory, self._kinds, self._with_devices, self._single = amounts[of].T
        counts = [0 if shape.mig_profile else len(placement.devices) for shape, placement in taken]
        self._first_device = [0, *accumulate(counts)]
        devices = [d for shape, placement in taken if not shape.mig_profile for d in placement.devices]
        self._device_rows = np.repeat(self._rows, counts)
        self._at = self._device_rows * cluster.width + np.array(devices, np.intp)
        self._milli, mib, self._slices, whole = each[np.repeat(of, counts)].T
        self._mib = np.where(whole, cluster.gpu_mib.reshape(-1)[self._at], mib)

    @contextmanager
    def first(self, count: int) -> Iterator[None]:
        """Release the first so many of them inside, noted in the change log of the cluster."""
        rows = np.unique(self._rows[:count]).tolist()
        self.to(count)
        self._cluster.touch(*rows)
        try:
            yield
        finally:
            self.to(0)
            self._cluster.touch(*rows)

    def to(self, count: int) -> None:
        """Have exactly the first so many released. The change log does not say so."""
        cluster = self._cluster
        low, high = sorted((self._count, count))
        sign = 1 if count > self._count else -1
        self._count = count
        if low == high:
            return
        part, of = slice(low, high), slice(self._first_device[low], self._first_device[high])
        rows, at = self._rows[part], self._at[of]
        for column, amounts in (
            (cluster.cpu_free_milli, self._cpu),
            (cluster.memory_free_mib, self._memory),
            (cluster.users, -self._single),
        ):
            np.add.at(column, rows, sign * amounts[part])
        np.add.at(cluster.kind_users, (rows, self._kinds[part]), (-sign * self._with_devices[part]).astype(np.int32))
        np.add.at(cluster.gpu_sum_milli, self._device_rows[of], sign * self._milli[of])
        for matrix, amounts in (
            (cluster.gpu_free_milli, self._milli),
            (cluster.gpu_free_mib, self._mib),
            (cluster.gpu_slices, -self._slices),
            (cluster.gpu_users, np.full(len(self._at), -1)),
            (cluster.gpu_best_effort, -((self._milli == 0) & (self._mib > 0)).astype(np.int64)),
        ):
            np.add.at(matrix.reshape(-1), at, (sign * amounts[of]).astype(matrix.dtype))
        touched = np.unique(self._device_rows[of])
        cluster.gpu_whole_free[touched] = (cluster.gpu_free_milli[touched] == WHOLE_MILLI).sum(axis=1)
        if cluster.has_modes:
            idle = (cluster.gpu_users.reshape(-1)[at] == 0) & ~cluster.gpu_pinned.reshape(-1)[at]
            cluster.gpu_mode.reshape(-1)[at] = np.where(idle, MODE_UNSET, self._modes.reshape(-1)[at])
        self._to_mig(low, high, sign)

    def _to_mig(self, low: int, high: int, sign: int) -> None:
        between = [number for number in self._mig if low <= number < high]
        for number in between[::sign]:
            shape, placement = self._taken[number]
            if sign > 0:
                self._cluster.release(shape, placement)
            else:
                self._cluster.place(shape, placement, held=True)


def _amounts(shape: Shape) -> tuple[int, int, int, int, int]:
    """CPU, host memory, the class by devices with the number of placements that count there, and the number of placements."""
    if shape.mig_profile:
        return (0, 0, 0, 0, 0)
    return (shape.cpu_milli, shape.memory_mib, shape.kind if shape.gpu_count else 0, int(shape.gpu_count > 0), 1)


def _device_amounts(shape: Shape) -> tuple[int, int, int, int]:
    """Compute, memory and slices of each device, and 1 where all of its memory is taken."""
    return (WHOLE_MILLI if shape.whole else shape.gpu_milli, shape.gpu_memory_mib, shape.gpu_slices, int(shape.whole))
