"""Residual memory: memory that a device holds for a process beyond what its usage page counts (pure).

Theory of operation. The usage page counts everything that a process requests, its contexts at their learned cost
included, *before* the driver is called. So ``driver - page``, read at one instant, is never more than the residual
(code, fragmentation, a context that cost more than was known), and lower only by what is being reserved or freed just
then. The two cannot be read at one instant: each reading takes the page before and after the driver and subtracts the
larger value.

* A quiet reading (nothing was counted in between, nothing is being reserved) is exact, and taken as it is.
* From a program that never rests the lowest of the last NOISY_READINGS readings is taken.
* A rise is published at once, a fall only when two readings agree, because memory that the driver has freed and the
page still counts makes one reading too low.

So nothing is counted twice, and a program is never refused memory that its slice has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

NOISY_READINGS = 5

ProcessKey = tuple[int, int]  # index and generation of a process entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """One reading of one process on one device, in bytes.

    ``transactions`` are the numbers of changes that the page has counted so far.
    """

    driver_bytes: int
    ledger_before_bytes: int
    ledger_after_bytes: int
    transactions_before: int
    transactions_after: int
    reserving: bool

    @property
    def quiet(self) -> bool:
        """True if the page did not change during the reading."""
        return not self.reserving and self.transactions_before == self.transactions_after

    @property
    def estimate_bytes(self) -> int:
        """The residual, or a little less."""
        return max(0, self.driver_bytes - max(self.ledger_before_bytes, self.ledger_after_bytes))


@dataclass(slots=True)
class ProcessResidual:
    """Published residual of one process on one device."""

    published_bytes: int = 0
    _last_bytes: int | None = None
    _noisy: deque[int] = field(default_factory=lambda: deque(maxlen=NOISY_READINGS))

    def update(self, reading: ProcessReading) -> int:
        """Return the residual to publish after a reading."""
        if reading.quiet:
            self._noisy.clear()
            candidate = reading.estimate_bytes
        else:
            self._noisy.append(reading.estimate_bytes)
            if len(self._noisy) < NOISY_READINGS:
                return self.published_bytes
            candidate = min(self._noisy)
        if candidate >= self.published_bytes:
            self.published_bytes = candidate
        elif self._last_bytes is not None:
            self.published_bytes = min(self.published_bytes, max(candidate, self._last_bytes))
        self._last_bytes = candidate
        return self.published_bytes


@dataclass(slots=True)
class Residual:
    """Published residual of one device of one allocation: the sum over its processes."""

    _processes: dict[ProcessKey, ProcessResidual] = field(default_factory=dict)

    def update(self, readings: Mapping[ProcessKey, ProcessReading]) -> int:
        """Return the residual to publish after a reading of all processes. Processes that are not included are dropped."""
        self._processes = {key: self._processes.get(key, ProcessResidual()) for key in readings}
        return sum(self._processes[key].update(reading) for key, reading in readings.items())
