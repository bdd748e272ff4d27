"""Temporary release of the first ``n`` placements of a sequence, to find the smallest ``n`` after which requests fit.

Theory of operation. A release changes sums over placements (free compute, free memory, users) and values derived from them
(idle devices, sharing modes). So the first ``n`` placements are released by adding their amounts to the columns, for all
devices in one pass. To change ``n`` to ``m``, only the amounts between them are added or subtracted. All amounts are integers,
so this is exactly reversible. Placements with MIG instances are released and placed again one by one.
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
    """Placements of a cluster in the order of their release. ``set_released(0)`` restores the cluster.

    Args:
        taken: placements that are taken on the cluster, the first to be released first.

    Attributes:
        has_mig: True if a placement has MIG instances.
    """

    def __init__(self, cluster: Cluster, taken: Sequence[Taken]) -> None:
        self._cluster = cluster
        self._taken = taken
        self._count = 0
        self._mig = [number for number, (shape, _) in enumerate(taken) if shape.mig_profile]
        self.has_mig = bool(self._mig)
        self._modes = cluster.gpu_mode.copy()
        numbers: dict[Shape, int] = {}
        shape_of = np.array([numbers.setdefault(shape, len(numbers)) for shape, _ in taken], np.intp)
        amounts = np.array([_amounts(shape) for shape in numbers], np.int64).reshape(-1, 5)
        each = np.array([_device_amounts(shape) for shape in numbers], np.int64).reshape(-1, 4)
        self._rows = np.array([placement.node for _, placement in taken], np.intp)
        self._cpu, self._memory, self._kinds, self._with_devices, self._single = amounts[shape_of].T
        counts = [0 if shape.mig_profile else len(placement.devices) for shape, placement in taken]
        self._first_device = [0, *accumulate(counts)]
        devices = [d for shape, placement in taken if not shape.mig_profile for d in placement.devices]
        self._device_rows = np.repeat(self._rows, counts)
        self._at = self._device_rows * cluster.width + np.array(devices, np.intp)
        self._milli, mib, self._slices, whole = each[np.repeat(shape_of, counts)].T
        self._mib = np.where(whole, cluster.gpu_mib.reshape(-1)[self._at], mib)

    @contextmanager
    def released(self, count: int) -> Iterator[None]:
        """Release the first ``count`` placements within the context, and log the changed rows at its begin and end."""
        rows = np.unique(self._rows[:count]).tolist()
        self.set_released(count)
        self._cluster.touch(*rows)
        try:
            yield
        finally:
            self.set_released(0)
            self._cluster.touch(*rows)

    def set_released(self, count: int) -> None:
        """Release exactly the first ``count`` placements, and place the others again. Does not log the changed rows."""
        cluster = self._cluster
        low, high = sorted((self._count, count))
        sign = 1 if count > self._count else -1
        self._count = count
        if low == high:
            return
        span, device_span = slice(low, high), slice(self._first_device[low], self._first_device[high])
        rows, at = self._rows[span], self._at[device_span]
        for column, amounts in (
            (cluster.cpu_free_milli, self._cpu),
            (cluster.memory_free_mib, self._memory),
            (cluster.users, -self._single),
        ):
            np.add.at(column, rows, sign * amounts[span])
        np.add.at(cluster.kind_users, (rows, self._kinds[span]), (-sign * self._with_devices[span]).astype(np.int32))
        np.add.at(cluster.gpu_sum_milli, self._device_rows[device_span], sign * self._milli[device_span])
        for matrix, amounts in (
            (cluster.gpu_free_milli, self._milli),
            (cluster.gpu_free_mib, self._mib),
            (cluster.gpu_slices, -self._slices),
            (cluster.gpu_users, np.full(len(self._at), -1)),
            (cluster.gpu_best_effort, -((self._milli == 0) & (self._mib > 0)).astype(np.int64)),
        ):
            np.add.at(matrix.reshape(-1), at, (sign * amounts[device_span]).astype(matrix.dtype))
        touched = np.unique(self._device_rows[device_span])
        cluster.gpu_whole_free[touched] = (cluster.gpu_free_milli[touched] == WHOLE_MILLI).sum(axis=1)
        if cluster.has_modes:
            idle = (cluster.gpu_users.reshape(-1)[at] == 0) & ~cluster.gpu_pinned.reshape(-1)[at]
            cluster.gpu_mode.reshape(-1)[at] = np.where(idle, MODE_UNSET, self._modes.reshape(-1)[at])
        self._change_mig(low, high, sign)

    def _change_mig(self, low: int, high: int, sign: int) -> None:
        """Release or place again the placements with MIG instances, to change the number of released placements.

        Args:
            low, high: the smaller and the larger number of released placements, before and after the change.
            sign: 1 to release placements, -1 to place them again.
        """
        between = [number for number in self._mig if low <= number < high]
        for number in between[::sign]:
            shape, placement = self._taken[number]
            if sign > 0:
                self._cluster.release(shape, placement)
            else:
                self._cluster.place(shape, placement, held=True)


def _amounts(shape: Shape) -> tuple[int, int, int, int, int]:
    """Return the amounts that the release of a placement adds to its node.

    These are CPU milli, host memory in MiB, ``Shape.kind``, 1 if the placement is counted in ``kind_users``, and 1 for
    the placement itself. All are 0 for MIG shapes, which are released one by one.
    """
    if shape.mig_profile:
        return (0, 0, 0, 0, 0)
    return (shape.cpu_milli, shape.memory_mib, shape.kind if shape.gpu_count else 0, int(shape.gpu_count > 0), 1)


def _device_amounts(shape: Shape) -> tuple[int, int, int, int]:
    """Return the compute milli, MiB and slices that a placement takes of each device, and 1 if it takes all memory."""
    return (WHOLE_MILLI if shape.whole else shape.gpu_milli, shape.gpu_memory_mib, shape.gpu_slices, int(shape.whole))
