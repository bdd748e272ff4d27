"""What is in quota and what is borrowed, unit by unit.

Running units of a queue are ordered by priority, cores before surplus, then age; the longest prefix-with-skips that stays
within what the queue is guaranteed is *in quota*, the rest is *borrowed*.

Slices that are charged by their number alone would fill few devices, but one of them keeps a device from everybody who asks for
a whole one. They are in quota on as many devices as they would fill together (one at least), and borrowed on others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from calabash.sched.charges import is_charged_by_count
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.queues.fairshare import EPSILON
from calabash.sched.queues.gang import Unit


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


class _SmallSlices:
    """Devices on which slices that are charged by their number are in quota."""

    def __init__(self) -> None:
        self._devices: set[tuple[int, int]] = set()
        self._milli = 0.0

    def fit(self, unit: Unit) -> bool:
        """Count the unit in, unless its slices are on more devices than all slices counted would fill."""
        if not all(is_charged_by_count(m.request.shape, m.charge) for m in unit.members):
            return True
        devices = self._devices | {(m.placement.node, device) for m in unit.members for device in m.placement.devices}
        milli = self._milli + unit.amount.gpu_milli
        if len(devices) > max(1, math.ceil((milli - EPSILON) / WHOLE_MILLI)):
            return False
        self._devices, self._milli = devices, milli
        return True
