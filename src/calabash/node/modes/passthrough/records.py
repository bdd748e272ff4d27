"""File of the devices that are attached to virtual machines, written before the first change and after the last one.

After a crash the next pool finds here the attachments that had begun, their allocations, and the properties of devices that
the driver does not show while they are attached.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably
from calabash.model.device import Device
from calabash.model.request import AllocationId

log = structlog.get_logger(__name__)


class GivenKind(StrEnum):
    """Way in which a device is attached, which determines how it is detached."""

    CARD = "card"  # bound to VFIO; its host driver is bound again afterwards
    FUNCTION = "function"  # a virtual function bound to VFIO; it has no host driver
    FUNCTIONS = "functions"  # all virtual functions are about to be created; ``name`` is the address of the device
    TYPE = "type"  # a function that its own driver made a virtual GPU
    MEDIATED = "mediated"  # a mediated device; ``name`` is its UUID


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """One PCI function or mediated device that is attached for an allocation.

    Args:
        allocation: the allocation.
        device: UUID of the device.
        kind: way of attachment.
        name: PCI address, or the UUID of a mediated device.
        driver: the host driver before; "" for none.
        parent: PCI address of the device if this is a part of it; otherwise "".
        made: True if the device's virtual functions were created by the pool; they are removed with the last attachment.
        card: properties of a whole device, which its driver does not show while it is attached.
        main: True for a requested device, False for another function in its IOMMU group.
    """

    allocation: str
    device: str
    kind: GivenKind
    name: str
    driver: str = ""
    parent: str = ""
    made: bool = False
    card: Device | None = None
    main: bool = True


class GivenDevices:
    """The file of attached devices. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._given = self._read()

    def all(self) -> Sequence[Given]:
        """Return all attachments in the order in which they were made."""
        with self._lock:
            return tuple(self._given)

    def of_allocation(self, allocation: AllocationId) -> list[Given]:
        """Return the attachments of an allocation."""
        return [given for given in self.all() if given.allocation == allocation]

    def add(self, entries: Sequence[Given], *, instead_of: Given | None = None) -> None:
        """Record attachments durably. Raises OSError.

        They replace earlier attachments with the same names, and ``instead_of``.
        """
        with self._lock:
            names = {given.name for given in entries}
            kept = [given for given in self._given if given.name not in names and given != instead_of]
            self._write(kept + list(entries))

    def remove(self, given: Given) -> None:
        """Remove a device that has been detached. Raises OSError."""
        with self._lock:
            self._write([entry for entry in self._given if entry != given])

    def _read(self) -> list[Given]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Given])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of attached devices cannot be read", file=str(self._file), error=str(error))
            return []

    def _write(self, given: list[Given]) -> None:
        if given:
            write_durably(self._file, msgspec.json.encode(given))
        else:
            self._file.unlink(missing_ok=True)
        self._given = given
