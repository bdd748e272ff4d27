"""Delay Ctrl-C and termination to the next point at which the demo can stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Context in which the signals that end a program are recorded; ``wait`` and ``check`` raise KeyboardInterrupt then."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._former = {
            number: signal.signal(number, self._record)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        """Wait. Raises KeyboardInterrupt as soon as the demo is to end."""
        self._requested.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if the demo is to end."""
        if self._requested.is_set():
            raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._requested.set()
