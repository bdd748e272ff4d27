"""Residual memory: memory that a device holds for a process beyond what its usage page counts (pure).

Theory of operation. The usage page counts all memory that a process requests, and its contexts with the memory of an
empty context, *before* the driver is called. So the driver's value minus the page's value, if both are read at one
instant, is never more than the residual (code, fragmentation, a context that is larger than an empty one). It is less
only while memory is being reserved or freed. The two values cannot be read at one instant. So the page is read before
and after the driver, and the larger of its two values is subtracted.

* A quiet reading (the page did not change in between, and no memory is being reserved) is exact and is used unchanged.
* If a program reserves or frees memory all the time, the lowest of the last NOISY_READINGS readings is used.
* A rise is published at once, a fall only when two readings agree. One reading alone may be too low, because the driver
  has already freed memory that the page still counts.

So no memory is counted twice, and a program is never refused memory that is free in its slice.
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

    Args:
        driver_bytes: memory of the process according to the driver.
        ledger_before_bytes, ledger_after_bytes: its memory on the usage page, before and after the driver was called.
        transactions_before, transactions_after: number of changes of this value so far; -1: unknown.
        reserving: the process was reserving memory.
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
        """Residual memory in bytes according to this reading; never more than the true residual memory."""
        return max(0, self.driver_bytes - max(self.ledger_before_bytes, self.ledger_after_bytes))


@dataclass(slots=True)
class ProcessResidual:
    """Published residual memory of one process on one device: held by the device, not counted by the usage page."""

    published_bytes: int = 0
    _last_bytes: int | None = None
    _noisy: deque[int] = field(default_factory=lambda: deque(maxlen=NOISY_READINGS))

    def update(self, reading: ProcessReading) -> int:
        """Return the residual memory to publish after a reading, in bytes."""
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
    """Published residual memory of one device of one allocation: the sum over its processes."""

    _processes: dict[ProcessKey, ProcessResidual] = field(default_factory=dict)

    def update(self, readings: Mapping[ProcessKey, ProcessReading]) -> int:
        """Return the residual memory to publish, in bytes, after a reading of all processes.

        Processes that are not in ``readings`` are dropped.
        """
        self._processes = {key: self._processes.get(key, ProcessResidual()) for key in readings}
        return sum(self._processes[key].update(reading) for key, reading in readings.items())
