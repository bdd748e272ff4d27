"""A door that many go through at once, and that one may shut when nobody is inside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from calabash.model.errors import CalabashError, Reason


class DriverGate:
    """Safe for threads; not reentrant."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._inside = 0
        self._shut = False

    def wait_open(self, within_s: float) -> bool:
        """Wait outside until it is open; False when it is still shut by then."""
        if not self._shut:  # ``inside`` asks again, under the lock
            return True
        with self._moved:
            return self._moved.wait_for(lambda: not self._shut, within_s)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be inside, as soon as it is open."""
        with self._moved:
            if self._shut:
                self._moved.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            with self._moved:
                self._inside -= 1
                if self._shut:  # else nobody waits for this
                    self._moved.notify_all()

    @contextmanager
    def shut(self, within_s: float) -> Iterator[None]:
        """Be alone. Raises TIMEOUT when somebody does not come out in time; then it is open again."""
        with self._moved:
            if self._shut:
                raise CalabashError("the driver is being restarted already", reason=Reason.CONFLICT)
            self._shut = True
            alone = self._moved.wait_for(lambda: self._inside == 0, within_s)
            if not alone:
                self._shut = False
                self._moved.notify_all()
                raise CalabashError(
                    f"the driver has not answered an earlier call within {within_s:g} s", reason=Reason.TIMEOUT
                )
        try:
            yield
        finally:
            with self._moved:
                self._shut = False
                self._moved.notify_all()
