"""Cards that are temporarily bound to another driver, for example to be passed to a virtual machine.

The driver of this node does not list such a card meanwhile, which must not count as a fault of the card.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from calabash.model.device import Device, DeviceUuid, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """The allocation to which a card is passed.

    ``ending`` is True while the card is being attached to its own driver again and takes no work yet.
    """

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
        """Mark a card as detached for the allocation ``to``: its driver is not called for the card from now on."""
        with self._lock:
            self._loans[uuid] = Loan(to=to)

    def ending(self, uuid: DeviceUuid) -> None:
        """Mark a detached card as returning to its own driver, because the program that used it has ended."""
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
        """Context in which drivers may be unavailable, so that an unanswered call does not count as a card's fault."""
        with self._lock:
            self._quiet += 1
        try:
            yield
        finally:
            with self._lock:
                self._quiet -= 1
                self._mark += 1

    def mark(self) -> int:
        """Return a value that stands for the present moment; ``counts`` uses it to judge the outcome of a call."""
        with self._lock:
            return self._mark

    def counts(self, uuid: DeviceUuid, *, since: int, answered: bool) -> bool:
        """Return True if the outcome of a driver call may be used to judge the health of a card.

        False while the card is detached, and for a missing answer if drivers were unavailable since the call began.

        Args:
            since: value of ``mark`` before the call.
            answered: the driver answered for the card.
        """
        with self._lock:
            if uuid in self._loans:
                return False
            return answered or (not self._quiet and self._mark == since)

    # -- as shown to users ---------------------------------------------------------------------------------------

    def shown(self, device: Device) -> Device:
        """Return the card as users and schedulers see it: DRAINING while it is returned to its own driver."""
        loan = self.loan(device.uuid)
        ending = loan is not None and loan.ending and device.health is Health.HEALTHY
        return replace(device, health=Health.DRAINING) if ending else device

    def cause(self, uuid: DeviceUuid) -> str:
        """Return the reason why a card takes no work while it is returned to its own driver; "" at other times."""
        loan = self.loan(uuid)
        return "returning from a virtual machine" if loan is not None and loan.ending else ""
