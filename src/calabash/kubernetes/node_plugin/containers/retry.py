"""Retry of a grant for which devices are missing while another allocation is about to be released.

The agent retries within the kubelet's call, because the kubelet itself would call again much later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from calabash.adapters.clock import Clock
from calabash.model.errors import CalabashError, Reason

LEAVING_S = 6.0  # the kubelet waits 30 s for an answer, and at least 10 s before it calls again
_POLL_S = 0.05
_TAKEN = frozenset((Reason.NO_CAPACITY, Reason.NO_MEMORY, Reason.NO_CORES, Reason.MODE_CONFLICT))
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Retry of grants that fail because there are not enough free devices.

    Args:
        clock: the clock.
        leaving: returns True if an allocation is about to be released.
        pause: sleeps for a number of seconds.
    """

    clock: Clock
    leaving: Callable[[], bool]
    pause: Callable[[float], None] = time.sleep

    def until_there_is_room(self, attempt: Callable[[], R]) -> R:
        """Call ``attempt`` until it succeeds; return its result.

        The attempt is repeated for at most ``LEAVING_S`` seconds, and only while it fails because of missing capacity
        and an allocation is about to be released.

        Raises:
            CalabashError: the last error of the attempt.
        """
        until_ns = self.clock.monotonic_ns() + int(LEAVING_S * 1e9)
        while True:
            try:
                return attempt()
            except CalabashError as error:
                if error.reason not in _TAKEN or not self.leaving() or self.clock.monotonic_ns() >= until_ns:
                    raise
            self.pause(_POLL_S)
