"""Lock that driver calls hold shared and that a reset of the driver holds exclusively."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from calabash.model.errors import CalabashError, Reason


class DriverGate:
    """Shared/exclusive lock for threads; not reentrant."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._inside = 0
        self._shut = False

    def wait_open(self, within_s: float) -> bool:
        """Wait until no thread holds the lock exclusively; return False if that takes longer than ``within_s``."""
        if not self._shut:  # ``shared`` checks again, under the lock
            return True
        with self._moved:
            return self._moved.wait_for(lambda: not self._shut, within_s)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Context in which the caller holds the lock shared. Waits first while another thread holds it exclusively."""
        with self._moved:
            if self._shut:
                self._moved.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            with self._moved:
                self._inside -= 1
                if self._shut:  # else no thread waits for it
                    self._moved.notify_all()

    @contextmanager
    def exclusive(self, within_s: float) -> Iterator[None]:
        """Context in which the caller holds the lock exclusively.

        Raises CalabashError: CONFLICT if another thread holds the lock exclusively; TIMEOUT if shared holders do not
        release the lock within ``within_s`` seconds. After TIMEOUT the lock can be held shared again.
        """
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
