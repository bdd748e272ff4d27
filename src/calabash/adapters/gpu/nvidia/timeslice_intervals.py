"""Time-slice classes of NVIDIA cards.

The class of a card is a word, such as ``short``, which selects the length of the time slices on the card; NVIDIA does
not publish the lengths. The driver keeps the class until the driver is loaded again. NVML has no call for classes, so
``nvidia-smi compute-policy`` is used. The driver refuses cards without this feature, and users other than root.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.nvidia.smi import ask_smi
from calabash.model.device import DeviceUuid, Interval
from calabash.model.errors import CalabashError, Reason

ASK_S = 10.0  # seconds; the tool starts the driver if no process has it open
_NUMBERS = {Interval.DEFAULT: 0, Interval.SHORT: 1, Interval.MEDIUM: 2, Interval.LONG: 3}
_WORD = re.compile(r"\b(default|short|medium|long)\b", re.IGNORECASE)
_REASONS = (
    ("permission", Reason.NOT_PERMITTED),
    ("not supported", Reason.UNSUPPORTED),
    ("no devices", Reason.NOT_FOUND),
)
_HINTS = {
    Reason.NOT_PERMITTED: "the pool must run as root",
    Reason.UNSUPPORTED: "leave its interval to the driver: --timeslice auto",
}


class Intervals:
    """Time-slice classes of the cards. Each call is one run of nvidia-smi with a deadline."""

    def __init__(self, environment: Mapping[str, str], files: DriverFiles = OWN_FILES) -> None:
        self._environment = environment
        self._files = files

    def interval(self, uuid: DeviceUuid) -> Interval | None:
        """Return a card's time-slice class; None if nvidia-smi's output is not understood. Raises CalabashError."""
        words = {word.lower() for word in _WORD.findall(self._ask("-i", uuid, "-l"))}
        return Interval(words.pop()) if len(words) == 1 else None

    def set(self, uuid: DeviceUuid, interval: Interval) -> None:
        """Set the time-slice class of a card. Raises CalabashError: UNSUPPORTED, NOT_PERMITTED, NOT_FOUND, TIMEOUT."""
        self._ask("-i", uuid, "--set-timeslice", str(_NUMBERS[interval]))

    def _ask(self, *words: str) -> str:
        answer = ask_smi("compute-policy", *words, timeout_s=ASK_S, environment=self._environment, files=self._files)
        reason = answer.reason(_REASONS)
        if answer.code != 0 or reason is Reason.UNSUPPORTED:  # some versions say so and end with 0
            found = reason or Reason.UNSUPPORTED
            raise CalabashError(answer.said, reason=found, hint=_HINTS.get(found, ""))
        return answer.output
