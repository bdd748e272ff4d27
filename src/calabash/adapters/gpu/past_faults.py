"""What a driver remembers of faults that nobody listened to when they happened.

This is an optional half of ``protocol``: a driver that can do it has an attribute ``past``, and ``past_faults`` asks it. A
fault is told once to whoever listens; who ends before he has written it down has to find it here when he starts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from calabash.adapters.gpu.protocol import DeviceEvent, GpuDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFault:
    """What was reported of a card, and when, by this machine's clock."""

    event: DeviceEvent
    at_s: float


class FaultMemory(Protocol):
    """Where a driver's faults are written down."""

    def faults(self) -> tuple[PastFault, ...]:
        """The latest ones, oldest first; () where nothing is kept, or may be read. Raises CalabashError."""


@runtime_checkable
class RememberingDriver(Protocol):
    """A driver whose faults are written down."""

    past: FaultMemory


def past_faults(driver: GpuDriver) -> tuple[PastFault, ...]:
    """What a driver remembers; () for one that remembers nothing."""
    return driver.past.faults() if isinstance(driver, RememberingDriver) else ()
