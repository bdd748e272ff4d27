"""Faults that a driver has recorded, so that an agent also learns of faults that were reported while it did not run.

This is an optional part of ``protocol``: a driver that supports it has an attribute ``past``, and ``past_faults`` reads
it. A driver reports a fault once to each listener. If an agent ends before it has stored a fault, it reads the fault
here when it starts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from calabash.adapters.gpu.protocol import DeviceEvent, GpuDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFault:
    """Recorded fault of a card with its time, in seconds since 1970 by the clock of this machine."""

    event: DeviceEvent
    at_s: float


class FaultMemory(Protocol):
    """Record of a driver's faults."""

    def faults(self) -> tuple[PastFault, ...]:
        """Return the latest faults, oldest first; () if nothing is recorded or may be read. Raises CalabashError."""


@runtime_checkable
class RememberingDriver(Protocol):
    """Driver that records faults."""

    past: FaultMemory


def past_faults(driver: GpuDriver) -> tuple[PastFault, ...]:
    """Return the recorded faults of a driver; () for a driver that records none."""
    return driver.past.faults() if isinstance(driver, RememberingDriver) else ()
