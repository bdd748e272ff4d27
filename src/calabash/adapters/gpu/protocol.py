"""Vendor-neutral interface of a GPU driver.

A vendor is one module that implements ``GpuDriver`` and one line in the registry. Every method asks the driver at the
moment of the call, raises ``CalabashError`` if the driver refuses, and returns or raises within a bounded time even if
the driver hangs, so that a daemon with one failing card continues to serve the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.model.device import ComputeMode, Device, DeviceProcess, DeviceReading, DeviceUuid, ProcessUtilization

DEFAULT_CALL_TIMEOUT_S = 5.0


class EventKind(StrEnum):
    """Kind of an event that a driver reports."""

    XID = "xid"
    ECC_SINGLE_BIT = "ecc_single_bit"
    ECC_DOUBLE_BIT = "ecc_double_bit"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """Event of a device.

    Args:
        code: the vendor's number (NVIDIA: the XID); 0 if there is none.
        part: UUID of the partition concerned (NVIDIA: a MIG device); "" for the whole device.
    """

    uuid: DeviceUuid
    kind: EventKind
    code: int = 0
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """Options for opening a driver.

    Args:
        sim_state: state file of a simulated node; None for this machine's cards.
        library: path of the driver's management library, for a process whose dynamic loader does not find one.
        files: the driver's files on the host, for starting programs of the driver.
        call_timeout_s: longest time of one call before it is given up.
    """

    sim_state: Path | None = None
    library: Path | None = None
    files: DriverFiles = OWN_FILES
    call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S


@runtime_checkable
class GpuDriver(Protocol):
    """Driver of one vendor on one machine. Methods may be called from any thread."""

    @property
    def vendor(self) -> str:
        """Name of the vendor in the registry."""

    def driver_version(self) -> str:
        """Return the driver's version as text."""

    def devices(self) -> tuple[Device, ...]:
        """Return all cards in the driver's order; a lost card has ``Health.LOST`` as long as its UUID is known."""

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        """Return memory, utilisation, temperature, power, processes and errors of a card.

        Raises CalabashError(UNHEALTHY) if the card is lost.
        """

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        """Return the processes that hold memory of the card and that this process can see, by ascending pid."""

    def utilization(self, uuid: DeviceUuid, after_us: int) -> tuple[ProcessUtilization, ...]:
        """Return each process's share of the card's time; () if the driver does not report it.

        Args:
            after_us: begin of the time, in microseconds since 1970; 0 for the recent past.
        """

    @property
    def samples_are_exact(self) -> bool:
        """True if ``utilization`` says how long each process used the card also while several share it."""

    def compute_mode(self, uuid: DeviceUuid) -> ComputeMode:
        """Return which processes may use the card: any number, one at a time, or none."""

    def set_compute_mode(self, uuid: DeviceUuid, mode: ComputeMode) -> None:
        """Set the compute mode; processes that use the card already are not affected."""

    def reset(self, uuid: DeviceUuid) -> None:
        """Reset a card that is not in use, with the cards that are reset together with it; takes seconds.

        Raises CalabashError: CONFLICT while it is in use, NOT_PERMITTED, UNHEALTHY if the driver cannot reset it.
        """

    def released(self) -> AbstractContextManager[None]:
        """Context in which this process has no file of the driver open, so that a card can be detached.

        Other calls wait meanwhile. Afterwards ``devices`` lists the cards that are then present.
        Raises CalabashError(TIMEOUT) if a call hangs.
        """

    def wait_events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events of any card for at most ``timeout_s``; return () if there was none."""

    def close(self) -> None:
        """Close the driver; may be called again."""


Opener: TypeAlias = Callable[[DriverOptions], GpuDriver]
