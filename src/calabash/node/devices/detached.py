"""Cards that somebody else drives for now: their own driver does not see them, and that is no fault of theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from calabash.model.device import Device, DeviceUuid, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """To whom a card is lent; ``ending`` while it is on its way back and takes no work yet."""

    to: str
    ending: bool = False


class Lent:
    """The cards that are lent, and whether drivers are asked at all just now. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loans: dict[DeviceUuid, Loan] = {}
        self._quiet = 0
        self._mark = 0

    def lend(self, uuid: DeviceUuid, *, to: str) -> None:
        """From now on nobody asks its driver of it."""
        with self._lock:
            self._loans[uuid] = Loan(to=to)

    def ending(self, uuid: DeviceUuid) -> None:
        """Its borrower is gone and it is being fetched back."""
        with self._lock:
            loan = self._loans.get(uuid)
            if loan is not None:
                self._loans[uuid] = Loan(to=loan.to, ending=True)

    def back(self, uuid: DeviceUuid) -> None:
        """It is here again."""
        with self._lock:
            self._loans.pop(uuid, None)

    def loan(self, uuid: DeviceUuid) -> Loan | None:
        """None when it is here."""
        with self._lock:
            return self._loans.get(uuid)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Drivers may be away meanwhile: that one does not answer says nothing about its cards."""
        with self._lock:
            self._quiet += 1
        try:
            yield
        finally:
            with self._lock:
                self._quiet -= 1
                self._mark += 1

    def mark(self) -> int:
        """To be given to ``counts`` with answers to questions that were asked after it."""
        with self._lock:
            return self._mark

    def counts(self, uuid: DeviceUuid, *, since: int, answered: bool) -> bool:
        """Whether an answer about this card, or none, says something about it."""
        with self._lock:
            if uuid in self._loans:
                return False
            return answered or (not self._quiet and self._mark == since)

    # -- what people see ---------------------------------------------------------------------------------------

    def shown(self, device: Device) -> Device:
        """As people and schedulers see it: on its way back it takes no work."""
        loan = self.loan(device.uuid)
        ending = loan is not None and loan.ending and device.health is Health.HEALTHY
        return replace(device, health=Health.DRAINING) if ending else device

    def cause(self, uuid: DeviceUuid) -> str:
        """Why it takes no work; "" when it is here."""
        loan = self.loan(uuid)
        return "it is on its way back from a virtual machine" if loan is not None and loan.ending else ""
