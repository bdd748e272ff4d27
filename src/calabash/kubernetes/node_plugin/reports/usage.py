"""Rate limit for reports of used amounts of devices to the API server.

Every report is a write to the API server's store and an event for each watcher. A node therefore reports at most every
``every_s`` seconds, and only if an amount has changed by at least a tenth of a device's time or a sixteenth of its
memory since the last report. Smaller changes are reported ``REST_S`` seconds after the last report. Users who need
precise amounts can read them from NVML on the node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from calabash.node.snapshot import NodeSnapshot

EVERY_S = 15.0
REST_S = 300.0
_STEP_PERCENT = 10
_STEPS_OF_MEMORY = 16
_STEP_MIB_MIN = 64


class SeenUse(NamedTuple):
    """Used memory and compute of a device or of a slice.

    Args:
        memory_mib: used memory; None if unknown.
        of_mib: total memory.
        percent: used compute; None if unknown.
    """

    memory_mib: int | None = None
    percent: int | None = None
    of_mib: int = 0

    def is_far_from(self, other: SeenUse) -> bool:
        """Return True if an amount differs so much from that of ``other`` that it is worth a report."""
        if (self.memory_mib is None) != (other.memory_mib is None) or (self.percent is None) != (other.percent is None):
            return True
        step_mib = max(_STEP_MIB_MIN, self.of_mib // _STEPS_OF_MEMORY)
        far = abs((self.memory_mib or 0) - (other.memory_mib or 0)) >= step_mib
        return far or abs((self.percent or 0) - (other.percent or 0)) >= _STEP_PERCENT


NO_USE = SeenUse()
Uses = Mapping[tuple[str, str], SeenUse]
"""Used amounts by allocation ("" for the whole device) and device UUID."""


def read_uses(snapshot: NodeSnapshot) -> dict[tuple[str, str], SeenUse]:
    """Return the used amounts of all devices and slices whose use is known."""
    found: dict[tuple[str, str], SeenUse] = {}
    total = {}
    for state in snapshot.devices:
        total[state.device.uuid] = state.device.memory_mib
        if state.reading is not None:
            seen = SeenUse(
                max(0, state.reading.memory_used_mib),
                max(0, min(100, state.reading.utilization_percent)),
                state.device.memory_mib,
            )
            found["", state.device.uuid] = seen
    for held in snapshot.allocations:
        for part, use in zip(held.record.placement.slices, held.use, strict=False):
            of_mib = part.memory_mib or total.get(part.device, 0)
            seen = SeenUse(max(0, use.memory_used_mib), max(0, round(use.core_used_percent)), of_mib)
            found[held.record.id, part.device] = seen
    return found


class UseReportLimit:
    """Decide when used amounts are reported.

    Args:
        every_s: least number of seconds between two reports; 0 to never report used amounts.
        now_s: returns monotonic time in seconds.
    """

    def __init__(self, every_s: float = EVERY_S, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._now_s = now_s
        self._told: Uses = {}
        self._told_at_s = float("-inf")

    @property
    def enabled(self) -> bool:
        """Return True if used amounts are reported at all."""
        return self._every_s > 0

    def due(self, uses: Uses) -> bool:
        """Return True if the used amounts should be reported now, even if the rest of the status has not changed."""
        rested_s = self._now_s() - self._told_at_s
        if not self.enabled or rested_s < self._every_s:
            return False
        if rested_s >= REST_S:
            return uses != self._told
        if uses.keys() != self._told.keys():
            return True
        return any(use.is_far_from(self._told[key]) for key, use in uses.items())

    def reported(self, uses: Uses) -> None:
        """Record that these amounts were reported."""
        self._told, self._told_at_s = uses, self._now_s()
