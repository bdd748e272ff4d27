"""What is known of the health of the cards, kept in a file of the home, so that a pool that starts again knows it too."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.node.health.conditions import HealthFacts

BOOK_FILE = "health.json"
HISTORY_MAX = 32

log = structlog.get_logger(__name__)


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a card, and the state that it was in then."""

    at: float
    health: str
    cause: str


class CardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one card as it is kept. Deadlines are times of ``CardHealth.steady``; moments that have passed are times of
    the calendar.

    ``cause`` and ``since_s``: why and since when it is not healthy. ``drained_why``: what the operator said.
    ``evict_at_s``: when whoever is still on it is ended; 0: never. ``figures``: the best that its tests have measured.
    ``parts``: conditions of parts of it, by name. ``mode``: the one sharing mode that its operator leaves to it.
    ``replicas``, ``interval``, ``spill``: what its operator wants otherwise than for all cards, see ``card_settings``.
    ``reported_s``: when the driver last reported a fault that is in here. ``device``: its figures, as its driver told them
    last; while it is lost it tells none.
    """

    condition: HealthFacts = HealthFacts()
    cause: str = ""
    since_s: float = 0.0
    drained_why: str = ""
    evict_at_s: float = 0.0
    ecc_uncorrected: int = 0
    history: tuple[Happening, ...] = ()
    figures: dict[str, float] = {}
    parts: dict[str, HealthFacts] = {}
    mode: str = ""
    replicas: int = 0
    interval: str = ""
    spill: str = ""
    reported_s: float = 0.0
    device: Device | None = None

    def told(self, happening: Happening) -> CardEntry:
        """With one more happening; the oldest are forgotten."""
        return msgspec.structs.replace(self, history=(*self.history, happening)[-HISTORY_MAX:])


class _Book(msgspec.Struct, frozen=True, kw_only=True):
    """``boot``: which start of the machine it was written in. ``since_s``: when it was begun; 0: not known. ``clock``: the
    start of the clock that deadlines are counted by."""

    boot: str
    clock: tuple[float, int] | None = None
    since_s: float = 0.0
    cards: dict[str, CardEntry]


class HealthBook:
    """The file. Without a home nothing is kept. Not safe for threads by itself.

    ``rebooted``: the machine was restarted since it was written. ``since_s``: from when on what drivers have reported is in
    it. ``clock``: the start of the clock that deadlines are counted by; None: of none yet in this boot. They are known when
    it has been read.
    """

    def __init__(self, home: Path | None, *, boot: str = "", now_s: float = 0.0) -> None:
        self._file = home / BOOK_FILE if home is not None else None
        self._boot = boot
        self._written: bytes | None = None
        self.rebooted = False
        self.since_s = now_s
        self.clock: tuple[float, int] | None = None

    def read(self) -> dict[str, CardEntry] | None:
        """What an earlier pool knew; None when that cannot be read and nothing is known of any card."""
        if self._file is None:
            return {}
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Book)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("what was known of the cards' health is lost", file=str(self._file), error=str(error))
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_suffix(".damaged"))
            return None
        self.rebooted = found.boot != self._boot
        self.since_s = found.since_s or self.since_s
        if self._boot and not self.rebooted:
            self.clock = self.clock or found.clock
        return found.cards

    def write(self, entries: Mapping[str, CardEntry]) -> None:
        """Keep it, if it has changed. A disk that takes nothing delays nobody: it is written with the next change."""
        if self._file is None:
            return
        text = msgspec.json.encode(_Book(boot=self._boot, clock=self.clock, since_s=self.since_s, cards=dict(entries)))
        if text == self._written:
            return
        try:
            write_durably(self._file, text)
        except (OSError, CalabashError) as error:
            log.error("the cards' health cannot be kept", file=str(self._file), error=str(error))
            return
        self._written = text
