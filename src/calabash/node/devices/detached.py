"""Cards that another driver uses for now, such as one of a virtual machine; their own driver does not list them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from calabash.model.device import Device, DeviceUuid, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """The allocation to which a card is passed; ``ending`` while the card returns and takes no work yet."""

    to: str
    ending: bool = False


class DetachedCards:
    """Cards that are detached from their driver. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loans: dict[DeviceUuid, Loan] = {}
        self._quiet = 0
        self._mark = 0

    def lend(self, uuid: DeviceUuid, *, to: str) -> None:
        """Mark a card as detached: its driver is not called for it from now on."""
        with self._lock:
            self._loans[uuid] = Loan(to=to)

    def ending(self, uuid: DeviceUuid) -> None:
        """Mark a detached card as returning: the program that used it has ended."""
        with self._lock:
            loan = self._loans.get(uuid)
            if loan is not None:
                self._loans[uuid] = Loan(to=loan.to, ending=True)

    def back(self, uuid: DeviceUuid) -> None:
        """Mark a card as attached to its own driver again."""
        with self._lock:
            self._loans.pop(uuid, None)

    def loan(self, uuid: DeviceUuid) -> Loan | None:
        """Return the loan of a card; None if it is attached to its own driver."""
        with self._lock:
            return self._loans.get(uuid)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Context in which drivers may be unavailable: an unanswered call says nothing about a card."""
        with self._lock:
            self._quiet += 1
        try:
            yield
        finally:
            with self._lock:
                self._quiet -= 1
                self._mark += 1

    def mark(self) -> int:
        """Return a value to be passed to ``counts`` with the answers to calls made after it."""
        with self._lock:
            return self._mark

    def counts(self, uuid: DeviceUuid, *, since: int, answered: bool) -> bool:
        """Return True if an answer about a card, or its absence, says something about the health of the card."""
        with self._lock:
            if uuid in self._loans:
                return False
            return answered or (not self._quiet and self._mark == since)

    # -- as shown to users ---------------------------------------------------------------------------------------

    def shown(self, device: Device) -> Device:
        """Return the card as users and schedulers see it: DRAINING while it returns."""
        loan = self.loan(device.uuid)
        ending = loan is not None and loan.ending and device.health is Health.HEALTHY
        return replace(device, health=Health.DRAINING) if ending else device

    def cause(self, uuid: DeviceUuid) -> str:
        """Return the reason why a returning card takes no work; "" if it is attached or still detached."""
        loan = self.loan(uuid)
        return "returning from a virtual machine" if loan is not None and loan.ending else ""
