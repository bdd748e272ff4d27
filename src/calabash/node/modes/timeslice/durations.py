"""Time-slice durations of devices: set with the first allocation of a device, restored after the last.

A *duration class* is one of the time-slice lengths that the driver offers by name (``Interval``).
The previous duration class of a device is written to ``timeslices.json`` in the pool's home before it is changed, so that the
next pool can restore it if this one dies. If the driver does not report the class, the driver's default is assumed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.gpu.nvidia.timeslice_intervals import Intervals
from calabash.adapters.host.files import write_durably
from calabash.model.device import DeviceUuid, Interval
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)


class SetCard(msgspec.Struct, frozen=True, kw_only=True):
    """Time-slice lengths (duration classes) of a device that the pool changed.

    ``wanted`` was set, ``before`` is to be restored.
    """

    before: Interval
    wanted: Interval


class TimeSliceDurations:
    """The devices whose time-slice durations the pool has set. Methods may be called from any thread.

    Args:
        file: file of the duration classes that the devices had before.
        intervals: reads and sets the duration classes of devices.
        wanted: returns the class that the operator set for a device; "" for none.
    """

    def __init__(self, file: Path, intervals: Intervals, *, wanted: Callable[[DeviceUuid], str]) -> None:
        self._file = file
        self._intervals = intervals
        self._wanted = wanted
        self._lock = threading.Lock()
        self._set = self._read()
        self._wrong: dict[DeviceUuid, str] = {}  # why it could not be set, by card

    def apply(self, uuids: Collection[DeviceUuid]) -> None:
        """Set the duration classes that the operator wants for devices. ``wrong`` returns the reasons of failures."""
        with self._lock:
            for uuid in uuids:
                self._apply(uuid)

    def wrong(self, uuid: DeviceUuid) -> str:
        """Return the reason why a device does not have the duration class that the operator set; "" if it has."""
        return self._wrong.get(uuid, "")

    def keep_only(self, used: Callable[[], Collection[DeviceUuid]]) -> None:
        """Restore the previous time-slice durations of devices not in ``used``. The next call retries failures."""
        with self._lock:
            uuids = set(used())  # read with the lock held: a new allocation sets its class afterwards
            for uuid in [uuid for uuid in self._set if uuid not in uuids]:
                self._put_back(uuid)
            for uuid in self._wrong.keys() - uuids:
                del self._wrong[uuid]

    def check(self, used: Callable[[], Collection[DeviceUuid]], *, ask: bool) -> list[str]:
        """Correct the duration classes of used devices that differ from those that the operator set.

        Args:
            used: returns the devices in use.
            ask: also read the classes from the driver, and try devices again that failed.

        Returns:
            One line for each class that was changed from outside the pool.
        """
        mended = []
        with self._lock:
            for uuid in used():
                ours = self._set.get(uuid)
                if (ours.wanted if ours else "") != self._wanted(uuid):
                    if ask or uuid not in self._wrong:
                        self._apply(uuid)
                elif ask and ours is not None and (found := self._found(uuid)) not in (None, ours.wanted):
                    mended.append(
                        f"the time-slice duration of {uuid} had been set to {found} and is {ours.wanted} again"
                    )
                    self._apply(uuid)
        return mended

    # ---- inside, under the lock -----------------------------------------------------------------------------------

    def _apply(self, uuid: DeviceUuid) -> None:
        word = self._wanted(uuid)
        if not word:
            self._put_back(uuid)
            self._wrong.pop(uuid, None)
            return
        known = self._set.get(uuid)
        try:
            before = known.before if known else self._intervals.interval(uuid) or Interval.DEFAULT
            self._write({**self._set, uuid: SetCard(before=before, wanted=Interval(word))})
            self._intervals.set(uuid, Interval(word))
            self._wrong.pop(uuid, None)
        except CalabashError as error:
            if self._wrong.get(uuid) != error.message:
                log.warning("the time-slice duration cannot be set", device=uuid, error=error.message)
            self._wrong[uuid] = error.message
            if known is None:
                with contextlib.suppress(CalabashError):
                    self._write({name: card for name, card in self._set.items() if name != uuid})

    def _put_back(self, uuid: DeviceUuid) -> None:
        ours = self._set.get(uuid)
        if ours is None:
            return
        try:
            self._intervals.set(uuid, ours.before)
            self._write({name: card for name, card in self._set.items() if name != uuid})
        except CalabashError as error:
            log.warning("the time-slice duration cannot be restored", device=uuid, error=error.message)

    def _found(self, uuid: DeviceUuid) -> Interval | None:
        with contextlib.suppress(CalabashError):
            return self._intervals.interval(uuid)
        return None

    def _write(self, cards: Mapping[DeviceUuid, SetCard]) -> None:
        """Write the previous duration classes. Raises CalabashError; the devices must not be changed then."""
        try:
            if cards:
                write_durably(self._file, msgspec.json.encode(cards))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise CalabashError(f"cannot write {self._file}: {error.strerror}") from error
        self._set = dict(cards)

    def _read(self) -> dict[DeviceUuid, SetCard]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[DeviceUuid, SetCard])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("the file of time-slice durations cannot be read", file=str(self._file), error=str(error))
            return {}
