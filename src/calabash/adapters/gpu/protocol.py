"""What the product asks of a GPU driver, in words that no vendor owns.

A vendor is one module that implements ``GpuDriver`` and one line in a registry. Every method answers from the driver
at the moment of the call, raises ``CalabashError`` when the driver refuses, and returns or raises within a bounded
time even when the driver hangs: a daemon that asks a dying card must go on serving the others.
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
    """What a driver reports without being asked."""

    XID = "xid"
    ECC_SINGLE_BIT = "ecc_single_bit"
    ECC_DOUBLE_BIT = "ecc_double_bit"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """Something that happened to a device; ``code`` is the vendor's own number (NVIDIA: the XID), 0 where none.

    ``part``: the UUID of the part of it that it happened to (NVIDIA: a MIG device); "" for all of it.
    """

    uuid: DeviceUuid
    kind: EventKind
    code: int = 0
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """How to open a driver.

    Args:
        sim_state: state file of a simulated node; None means this machine's own cards.
        library: the driver's management library, for a process whose own loader finds none.
        files: the driver's files, for programs of it that are started.
        call_timeout_s: longest time that one question may take before it is given up.
    """

    sim_state: Path | None = None
    library: Path | None = None
    files: DriverFiles = OWN_FILES
    call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S


@runtime_checkable
class GpuDriver(Protocol):
    """One vendor's driver on one machine. Methods may be called from any thread."""

    @property
    def vendor(self) -> str:
        """The vendor's name in the registry."""

    def driver_version(self) -> str:
        """The driver's own version text."""

    def devices(self) -> tuple[Device, ...]:
        """All cards in the driver's order; a lost card is listed with ``Health.LOST`` as long as it can be named."""

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        """Memory, utilisation, temperature, power, processes and errors of one card. Raises UNHEALTHY when lost."""

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        """Processes that hold memory of the card and that this process can see, by ascending pid."""

    def utilization(self, uuid: DeviceUuid, after_us: int) -> tuple[ProcessUtilization, ...]:
        """How much of the card's time each process had since ``after_us`` (0: lately); () where it is not told."""

    def compute_mode(self, uuid: DeviceUuid) -> ComputeMode:
        """Which processes may use the card: any number, one at a time, or none."""

    def set_compute_mode(self, uuid: DeviceUuid, mode: ComputeMode) -> None:
        """From now on these may; whoever is on it stays."""

    def reset(self, uuid: DeviceUuid) -> None:
        """Resets a card that nobody uses, and whatever is reset with it. Raises CalabashError: CONFLICT while it is in
        use, NOT_PERMITTED, or UNHEALTHY when the driver cannot do it. Takes seconds."""

    def apart(self) -> AbstractContextManager[None]:
        """A context in which this process has nothing of the driver open, so that a card can be taken from it; whoever has a
        question waits meanwhile. Afterwards the driver lists what is there then. Raises TIMEOUT when a call hangs."""

    def wait_events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        """Blocks until something happens to any card, at most ``timeout_s``; () when nothing did."""

    def close(self) -> None:
        """Lets the driver go; safe to call again."""


Opener: TypeAlias = Callable[[DriverOptions], GpuDriver]
