"""How long turns are on cards that are used so: set with the first tenant, put back after the last.

What a card's class was before stands in ``timeslices.json`` in the home before anything is changed, so that it is put back
by the next pool when this one dies. Where the driver does not say it, its default is taken for it, which is what a driver
starts with.
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
    """A card whose class was set: what it was, and what was wanted."""

    before: Interval
    wanted: Interval


class TurnLengths:
    """The cards whose turns we have set. Safe for threads; drivers are asked under its own lock.

    Args:
        wanted: the class that a card's operator wants; "" for none.
    """

    def __init__(self, file: Path, intervals: Intervals, *, wanted: Callable[[DeviceUuid], str]) -> None:
        self._file = file
        self._intervals = intervals
        self._wanted = wanted
        self._lock = threading.Lock()
        self._set = self._read()
        self._wrong: dict[DeviceUuid, str] = {}  # why it could not be set, by card

    def apply(self, uuids: Collection[DeviceUuid]) -> None:
        """Cards that are used in turns from now on. One that cannot be set is used as it is; see ``wrong``."""
        with self._lock:
            for uuid in uuids:
                self._apply(uuid)

    def wrong(self, uuid: DeviceUuid) -> str:
        """Why turns on a card are not as its operator wants them; "" when they are."""
        return self._wrong.get(uuid, "")

    def keep_only(self, used: Callable[[], Collection[DeviceUuid]]) -> None:
        """Put back what all others had; what cannot be put back now is tried again."""
        with self._lock:
            uuids = set(used())  # under the lock: who comes just now sets turns afterwards
            for uuid in [uuid for uuid in self._set if uuid not in uuids]:
                self._put_back(uuid)
            for uuid in self._wrong.keys() - uuids:
                del self._wrong[uuid]

    def check(self, used: Callable[[], Collection[DeviceUuid]], *, ask: bool) -> list[str]:
        """Cards in use whose operator wants another class now, and with ``ask`` those whose class somebody has changed: set
        again; one line each for what somebody else has done."""
        mended = []
        with self._lock:
            for uuid in used():
                ours = self._set.get(uuid)
                if (ours.wanted if ours else "") != self._wanted(uuid):
                    if ask or uuid not in self._wrong:
                        self._apply(uuid)
                elif ask and ours is not None and (found := self._found(uuid)) not in (None, ours.wanted):
                    mended.append(f"turns on {uuid} had been made {found} and are {ours.wanted} again")
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
                log.warning("the length of turns could not be set", device=uuid, error=error.message)
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
            log.warning("the length of turns could not be put back", device=uuid, error=error.message)

    def _found(self, uuid: DeviceUuid) -> Interval | None:
        with contextlib.suppress(CalabashError):
            return self._intervals.interval(uuid)
        return None

    def _write(self, cards: Mapping[DeviceUuid, SetCard]) -> None:
        """Raises CalabashError when it cannot be kept; then nothing is to be changed."""
        try:
            if cards:
                write_durably(self._file, msgspec.json.encode(cards))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise CalabashError(f"{self._file} cannot be written: {error.strerror}") from error
        self._set = dict(cards)

    def _read(self) -> dict[DeviceUuid, SetCard]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[DeviceUuid, SetCard])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("which cards' turns were set is not known", file=str(self._file), error=str(error))
            return {}
