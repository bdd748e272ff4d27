"""Residual memory: what a device holds for an allocation beyond what its ledger counts. Pure.

Theory of operation. The driver's figure and the ledger cannot be read in the same instant. Each look therefore reads
the ledger before and after the driver and subtracts the smaller value: whatever was allocated in between makes the
estimate too high, never too low. The residual itself (contexts, modules) moves slowly, so

* a quiet look (ledger equal before and after, nothing being reserved) is taken as it is;
* noisy looks are upper bounds: the smallest of the last few is taken;
* a rise is published at once, a fall only when two looks agree, because a free that the driver has done and the ledger
  has not yet booked makes one look too low.

So the cap may be held too tightly for a moment and, but for that instant twice in a row, never too loosely.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

NOISY_LOOKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at one device of one allocation, in bytes. Ledgers are without reservations and provisional contexts."""

    driver_bytes: int
    ledger_before_bytes: int
    ledger_after_bytes: int
    reserving: bool

    @property
    def quiet(self) -> bool:
        """Nothing moved while we looked."""
        return not self.reserving and self.ledger_before_bytes == self.ledger_after_bytes

    @property
    def estimate_bytes(self) -> int:
        """At least the residual, but for frees in flight."""
        return max(0, self.driver_bytes - min(self.ledger_before_bytes, self.ledger_after_bytes))


@dataclass(slots=True)
class Residual:
    """What is published for one device of one allocation."""

    published_bytes: int = 0
    _last_bytes: int | None = None
    _noisy: deque[int] = field(default_factory=lambda: deque(maxlen=NOISY_LOOKS))

    def see(self, look: Look) -> int:
        """The residual to publish after this look."""
        if look.quiet:
            self._noisy.clear()
            candidate = look.estimate_bytes
        else:
            self._noisy.append(look.estimate_bytes)
            if len(self._noisy) < NOISY_LOOKS:
                return self.published_bytes
            candidate = min(self._noisy)
        if candidate >= self.published_bytes:
            self.published_bytes = candidate
        elif self._last_bytes is not None:
            self.published_bytes = min(self.published_bytes, max(candidate, self._last_bytes))
        self._last_bytes = candidate
        return self.published_bytes
