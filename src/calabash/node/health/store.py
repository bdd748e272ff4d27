"""Store the health of the cards in a file in the pool's home directory, so that it survives a restart of the pool."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.clock import Clock, SteadyClock
from calabash.adapters.host.files import write_durably
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.model.message_codec import decode_text
from calabash.model.messages import Text
from calabash.node.health.conditions import HealthFacts

HEALTH_FILE = "health.json"
HISTORY_MAX = 32

log = structlog.get_logger(__name__)


class HealthRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the history of a card: its time, the health after it, and its cause in its stored form."""

    at: float
    health: str
    cause: str

    @property
    def cause_text(self) -> Text:
        return decode_text(self.cause)


class CardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Stored health and settings of one card.

    Deadlines are times of the clock ``CardHealth.steady``; times of past events are calendar times.

    Args:
        condition: facts from which the health of the card follows.
        cause, since_s: why (in its stored form) and since when the card is not healthy; "" and 0 if it is healthy.
        drained_why: reason of a drain given by the administrator.
        evict_at_s: when the allocations on a drained card are ended; 0: never.
        ecc_uncorrected: uncorrected memory errors at the last reading.
        history: the last changes of health, oldest first.
        figures: shortest durations of the steps of its tests, by name, in microseconds.
        parts: health of its partitions and services, by name; healthy ones are left out.
        mode: the only sharing mode that an administrator permits; "": all.
        replicas, interval, spill: settings that an administrator changed, see ``settings``; 0 and "": the defaults.
        reported_s: time of the last fault reported by the driver that is included in ``condition``.
        device: properties of the card as last read, which are needed because a lost card reports none.
    """

    condition: HealthFacts = HealthFacts()
    cause: str = ""
    since_s: float = 0.0
    drained_why: str = ""
    evict_at_s: float = 0.0
    ecc_uncorrected: int = 0
    history: tuple[HealthRecord, ...] = ()
    figures: dict[str, float] = {}
    parts: dict[str, HealthFacts] = {}
    mode: str = ""
    replicas: int = 0
    interval: str = ""
    spill: str = ""
    reported_s: float = 0.0
    device: Device | None = None

    @property
    def cause_text(self) -> Text:
        return decode_text(self.cause)

    def with_record(self, record: HealthRecord) -> CardEntry:
        """Return the entry with one more record of its history; at most HISTORY_MAX are kept."""
        return msgspec.structs.replace(self, history=(*self.history, record)[-HISTORY_MAX:])


class _HealthFile(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the health file.

    ``boot``: ID of the boot in which it was written. ``since_s``: when it was created; 0: unknown. ``clock``: calendar
    and monotonic time at which the clock of the deadlines was started. ``cards``: entries by UUID.
    """

    boot: str
    clock: tuple[float, int] | None = None
    since_s: float = 0.0
    cards: dict[str, CardEntry]


class HealthStore:
    """The health file of a pool. Nothing is stored if ``home`` is None. Not thread-safe by itself.

    These attributes are valid after ``read``. ``rebooted``: the machine was restarted since the file was written.
    ``since_s``: time of the creation of the file; later faults in the drivers' records count for the health of cards.
    """

    def __init__(self, home: Path | None, *, boot: str = "", now_s: float = 0.0) -> None:
        self._file = home / HEALTH_FILE if home is not None else None
        self._boot = boot
        self._written: bytes | None = None
        self.rebooted = False
        self.since_s = now_s
        self._clock: tuple[float, int] | None = None

    def continued_clock(self, clock: Clock) -> SteadyClock:
        """Return the clock of the deadlines: the stored one if it is of this boot, else a new one, which is stored."""
        steady = SteadyClock(clock, self._clock)
        self._clock = steady.start
        return steady

    def read(self) -> dict[str, CardEntry] | None:
        """Return the stored entries by UUID; None if the file cannot be read.

        A damaged file is renamed to ``health.damaged``.
        """
        if self._file is None:
            return {}
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_HealthFile)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("the stored health of the cards cannot be read", file=str(self._file), error=str(error))
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_suffix(".damaged"))
            return None
        self.rebooted = found.boot != self._boot
        self.since_s = found.since_s or self.since_s
        if self._boot and not self.rebooted:
            self._clock = self._clock or found.clock
        return found.cards

    def write(self, entries: Mapping[str, CardEntry]) -> None:
        """Write the entries if they have changed. After a failure they are written with the next change."""
        if self._file is None:
            return
        text = msgspec.json.encode(
            _HealthFile(boot=self._boot, clock=self._clock, since_s=self.since_s, cards=dict(entries))
        )
        if text == self._written:
            return
        try:
            write_durably(self._file, text)
        except (OSError, CalabashError) as error:
            log.error("the health of the cards cannot be stored", file=str(self._file), error=str(error))
            return
        self._written = text
