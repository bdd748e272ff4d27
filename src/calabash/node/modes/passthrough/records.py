"""What of this machine is with virtual machines: written down before the first change, and crossed out after the last.

A pool that dies in the middle finds here what it had begun, whose it was, and how the card looks that its driver does not
show now.
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
    """How it is given, and so how it comes back."""

    CARD = "card"  # bound to VFIO; its driver comes back
    FUNCTION = "function"  # the same for a virtual function, which has no host driver
    FUNCTIONS = "functions"  # all functions of a card are about to be made; ``name`` is the card's
    TYPE = "type"  # a function that its own driver made a virtual GPU
    MEDIATED = "mediated"  # a mediated device; ``name`` is its UUID


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an allocation has.

    Args:
        device: UUID of the card that it is, or is of.
        name: PCI address, or the UUID of a mediated device.
        driver: who drove it before; "" nobody.
        parent: address of the card of a part; "".
        made: the card's functions were made for this, and are unmade when the last one is back.
        card: how the card looked; for whole cards, which their driver does not show meanwhile.
        main: it is what was asked for, and not a companion.
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


class PassthroughBook:
    """All of it, on disk. From any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._given = self._read()

    def all(self) -> Sequence[Given]:
        """Everything given, in order of giving."""
        with self._lock:
            return tuple(self._given)

    def of(self, allocation: AllocationId) -> list[Given]:
        """What one allocation has."""
        return [given for given in self.all() if given.allocation == allocation]

    def add(self, entries: Sequence[Given], *, instead_of: Given | None = None) -> None:
        """Durable when it returns. Raises OSError, and then nothing is written down."""
        with self._lock:
            names = {given.name for given in entries}
            kept = [given for given in self._given if given.name not in names and given != instead_of]
            self._write(kept + list(entries))

    def remove(self, given: Given) -> None:
        """It is back."""
        with self._lock:
            self._write([entry for entry in self._given if entry != given])

    def _read(self) -> list[Given]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Given])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("what virtual machines have is not known", file=str(self._file), error=str(error))
            return []

    def _write(self, given: list[Given]) -> None:
        if given:
            write_durably(self._file, msgspec.json.encode(given))
        else:
            self._file.unlink(missing_ok=True)
        self._given = given
