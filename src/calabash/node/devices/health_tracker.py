"""The health of this machine's cards and of parts of them: what is decided, and that it is kept.

It is ``health.decide`` fed with what the drivers say: events as they come, one answer or miss per reading, what a reading
shows, who is on a card, the outcome of a test; and with what operators want.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from calabash.adapters.clock import SteadyClock
from calabash.adapters.gpu.past_faults import PastFault
from calabash.adapters.gpu.protocol import DeviceEvent, GpuDriver
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health
from calabash.model.errors import CalabashError
from calabash.node.devices.detached import Lent
from calabash.node.devices.device import Card, HealthChange
from calabash.node.devices.maintenance import RESETTING
from calabash.node.devices.partitions import Divisions
from calabash.node.health.conditions import HealthEvent, HealthFacts, Need, restored
from calabash.node.health.policy import HealthPolicy
from calabash.node.health.rules import judged
from calabash.node.health.store import CardEntry, HealthBook


class CardHealth:
    """Of the cards of an inventory, under its lock. Methods may be called from any thread; ``read`` from one.

    Args:
        policy: how faults are judged.
        book: where what is known is kept.
        steady: what deadlines are counted by, so that they stay right when the calendar is set.
    """

    def __init__(
        self,
        cards: Callable[[], Mapping[DeviceUuid, Card]],
        lock: threading.Lock,
        policy: HealthPolicy,
        *,
        book: HealthBook,
        steady: SteadyClock,
        lent: Lent,
        divisions: Divisions,
    ) -> None:
        self._cards = cards
        self._lock = lock
        self._policy = policy
        self._book = book
        self.steady = steady
        self._lent = lent
        self._divisions = divisions
        self._writing = threading.Lock()

    def cause(self, uuid: DeviceUuid) -> str:
        """Why the card is not healthy; "" when it is."""
        with self._lock:
            return self._lent.cause(uuid) or self._cards()[uuid].cause

    def entry(self, uuid: DeviceUuid) -> CardEntry:
        """What is known of it."""
        with self._lock:
            return self._cards()[uuid].entry

    def of_part(self, uuid: DeviceUuid, part: str) -> Health:
        """Health of a part of a card, were the rest of it well."""
        with self._lock:
            found = self._cards()[uuid].entry.parts.get(part)
        return found.health if found is not None else Health.HEALTHY

    def read(
        self, card: Card, reading: DeviceReading | CalabashError, *, idle: Callable[[DeviceUuid], bool]
    ) -> list[HealthChange]:
        """What a card answered when it was read, or why it did not. ``keep`` is to follow when anything changed.

        Args:
            idle: whether nobody has a slice of the card.
        """
        free = card.condition.need is Need.RESET and idle(card.device.uuid)
        now_s = self.steady.now_s()
        with self._lock:
            if not isinstance(reading, CalabashError):
                return card.answered(reading, free=free, divided=self._divided(card), now_s=now_s)
            if self._away(card.driver):
                return []
            card.reading = None
            return _one(card.happened(HealthEvent.MISSED, reading.message, now_s=now_s))

    def reported(self, event: DeviceEvent) -> list[HealthChange]:
        """What a driver said by itself."""
        card = self._cards().get(event.uuid)
        if card is None or self._lent.loan(event.uuid) is not None:
            return []
        fault, cause = judged(event, self._policy, divided=self._divided(card))
        if fault is None:
            return []
        with self._lock:
            card.entry = msgspec.structs.replace(card.entry, reported_s=self.steady.now_s())
        if event.part and fault is not HealthEvent.GONE:
            return self.part_happened(event.uuid, event.part, fault, cause)
        return self.happened(event.uuid, fault, cause)

    def missed(self, past: Iterable[PastFault]) -> list[HealthChange]:
        """What drivers remember: an earlier pool ended before it had written down the last of it, or there was none."""
        cards, ahead_s = self._cards(), self.steady.ahead_s()
        new = [
            fault.event
            for fault in past
            if (card := cards.get(fault.event.uuid)) is not None
            and fault.at_s - ahead_s > max(card.entry.reported_s, self._book.since_s)
        ]
        return [change for event in new for change in self.reported(event)]

    def happened(self, uuid: DeviceUuid, event: HealthEvent, cause: str) -> list[HealthChange]:
        """Something happened to a card."""
        with self._lock:
            changes = _one(self._cards()[uuid].happened(event, cause, now_s=self.steady.now_s()))
        self.keep()
        return changes

    def part_happened(self, uuid: DeviceUuid, part: str, event: HealthEvent, cause: str) -> list[HealthChange]:
        """Something happened to a part of a card, such as a MIG instance or a daemon that serves it: only that part is
        taken out of service, until RESET_DONE and TEST_PASSED, or UNDRAIN, say that it is well again."""
        with self._lock:
            changes = _one(self._cards()[uuid].part_happened(part, event, cause, now_s=self.steady.now_s()))
        self.keep()
        return changes

    def note(self, uuid: DeviceUuid, **fields: object) -> None:
        """Keep something with a card: fields of its ``CardEntry``."""
        with self._lock:
            card = self._cards()[uuid]
            card.entry = msgspec.structs.replace(card.entry, **fields)
        self.keep()

    def returned(self, uuid: DeviceUuid) -> None:
        """It was lent: it takes work when it has passed a test. ``keep`` is to follow."""
        with self._lock:
            card = self._cards().get(uuid)
            if card is not None:
                fresh = replace(card.condition, misses=0, gone=False, need=max(card.condition.need, Need.TEST))
                card.entry = msgspec.structs.replace(card.entry, condition=fresh, cause="it was lent")
                card.test_at_ns = 0

    def keep(self) -> None:
        """Write down what is known."""
        with self._writing:
            with self._lock:
                entries = {str(uuid): card.entry for uuid, card in self._cards().items() if card.entry != CardEntry()}
            self._book.write(entries)

    def _divided(self, card: Card) -> bool:
        return self._divisions.shown(card.device).mig_enabled

    def _away(self, driver: GpuDriver) -> bool:
        """Whether a card of this driver is being reset: meanwhile none of them answers. Under the lock."""
        return any(card.reserved == RESETTING and card.driver is driver for card in self._cards().values())


def entry_at_start(device: Device, known: Mapping[str, CardEntry] | None, *, rebooted: bool) -> CardEntry:
    """What an earlier pool knew of a card; where that is lost, the card must pass a test."""
    found = CardEntry(condition=HealthFacts(need=Need.TEST), cause="what was known of it is lost")
    if known is not None:
        found = known.get(device.uuid, CardEntry())
        found = msgspec.structs.replace(found, condition=restored(found.condition, rebooted=rebooted))
    if device.health is Health.LOST:
        gone = replace(found.condition, gone=True, need=max(found.condition.need, Need.TEST))
        found = msgspec.structs.replace(found, condition=gone, cause=found.cause or "it was lost when the pool started")
    return found


def with_figures(device: Device, entry: CardEntry) -> tuple[Device, CardEntry]:
    """A card and what is kept of it: a lost one has the figures that it had before, which what is held of it is counted by."""
    if device.memory_mib:
        return device, msgspec.structs.replace(entry, device=replace(device, mig_instances=(), health=Health.HEALTHY))
    if entry.device is None or not entry.device.memory_mib:
        return device, entry
    return replace(entry.device, index=device.index, health=device.health), entry


def _one(change: HealthChange | None) -> list[HealthChange]:
    return [] if change is None else [change]
