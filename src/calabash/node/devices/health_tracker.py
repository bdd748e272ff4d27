"""Track the health of this machine's cards, partitions and services, and store it.

This module passes events of drivers, the outcome of each reading, the use of cards, results of tests, and requests of
administrators to the state machine ``conditions.decide``.
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
from calabash.model.messages import Text
from calabash.node.devices.detached import DetachedCards
from calabash.node.devices.device import Card, HealthChange
from calabash.node.devices.maintenance import RESETTING
from calabash.node.devices.partitions import CardPartitions
from calabash.node.health.conditions import HealthEvent, Need, attached_facts, restored_facts
from calabash.node.health.policy import HealthPolicy
from calabash.node.health.rules import judge_event
from calabash.node.health.store import CardEntry, HealthStore


class CardHealth:
    """Health of the cards of an inventory. Methods may be called from any thread, except ``read`` (one thread only).

    Args:
        cards: returns the cards of the inventory by UUID.
        lock: lock of the inventory, which protects the cards.
        policy: rules by which faults are classified.
        store: file in which health is kept.
        steady: clock of the deadlines, which does not jump when the calendar clock is set.
        lent: cards that are detached from their driver.
        divisions: MIG partitions of the cards.
    """

    def __init__(
        self,
        cards: Callable[[], Mapping[DeviceUuid, Card]],
        lock: threading.Lock,
        policy: HealthPolicy,
        *,
        store: HealthStore,
        steady: SteadyClock,
        lent: DetachedCards,
        divisions: CardPartitions,
    ) -> None:
        self._cards = cards
        self._lock = lock
        self._policy = policy
        self._store = store
        self.steady = steady
        self._lent = lent
        self._divisions = divisions
        self._writing = threading.Lock()

    def cause(self, uuid: DeviceUuid) -> Text:
        """Return the reason why a card is not healthy; "" if it is."""
        with self._lock:
            return self._lent.cause(uuid) or self._cards()[uuid].cause

    def entry(self, uuid: DeviceUuid) -> CardEntry:
        """Return the stored health and settings of a card."""
        with self._lock:
            return self._cards()[uuid].entry

    def of_part(self, uuid: DeviceUuid, part: str) -> Health:
        """Return the health of a partition or service of a card, regardless of the health of the card."""
        with self._lock:
            found = self._cards()[uuid].entry.parts.get(part)
        return found.health if found is not None else Health.HEALTHY

    def read(
        self, card: Card, reading: DeviceReading | CalabashError, *, idle: Callable[[DeviceUuid], bool]
    ) -> list[HealthChange]:
        """Apply the result of reading a card; return the changes. The caller calls ``save`` if there are any.

        Args:
            reading: the answer, or the error if there was none.
            idle: returns True if no allocation has a slice of the card.
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
        """Apply an event that a driver reported; return the changes."""
        card = self._cards().get(event.uuid)
        if card is None or self._lent.loan(event.uuid) is not None:
            return []
        fault, cause = judge_event(event, self._policy, divided=self._divided(card))
        if fault is None:
            return []
        with self._lock:
            card.entry = msgspec.structs.replace(card.entry, reported_s=self.steady.now_s())
        if event.part and fault is not HealthEvent.GONE:
            return self.part_happened(event.uuid, event.part, fault, cause)
        return self.happened(event.uuid, fault, cause)

    def missed(self, past: Iterable[PastFault]) -> list[HealthChange]:
        """Apply faults that happened while no agent ran, from the drivers' own records; return the changes."""
        cards, ahead_s = self._cards(), self.steady.ahead_s()
        new = [
            fault.event
            for fault in past
            if (card := cards.get(fault.event.uuid)) is not None
            and fault.at_s - ahead_s > max(card.entry.reported_s, self._store.since_s)
        ]
        return [change for event in new for change in self.reported(event)]

    def happened(self, uuid: DeviceUuid, event: HealthEvent, cause: Text) -> list[HealthChange]:
        """Apply a health event to a card and store the result; return the changes."""
        with self._lock:
            changes = _one(self._cards()[uuid].happened(event, cause, now_s=self.steady.now_s()))
        self.save()
        return changes

    def part_happened(self, uuid: DeviceUuid, part: str, event: HealthEvent, cause: Text) -> list[HealthChange]:
        """Apply a health event to a partition or service, such as a MIG instance or an MPS daemon; return the changes.

        Only that partition is out of service, until RESET_DONE and TEST_PASSED, or UNDRAIN.
        """
        with self._lock:
            changes = _one(self._cards()[uuid].part_happened(part, event, cause, now_s=self.steady.now_s()))
        self.save()
        return changes

    def note(self, uuid: DeviceUuid, **fields: object) -> None:
        """Set fields of the ``CardEntry`` of a card and store it."""
        with self._lock:
            card = self._cards()[uuid]
            card.entry = msgspec.structs.replace(card.entry, **fields)
        self.save()

    def returned(self, uuid: DeviceUuid) -> None:
        """Note that a detached card has been attached again, so that it must pass a test. The caller calls ``save``."""
        with self._lock:
            card = self._cards().get(uuid)
            if card is not None:
                card.entry = msgspec.structs.replace(
                    card.entry, condition=attached_facts(card.condition), cause="it was used by a virtual machine"
                )
                card.test_at_ns = 0

    def save(self) -> None:
        """Write the health of all cards to the store."""
        with self._writing:
            with self._lock:
                entries = {str(uuid): card.entry for uuid, card in self._cards().items() if card.entry != CardEntry()}
            self._store.write(entries)

    def _divided(self, card: Card) -> bool:
        return self._divisions.shown(card.device).mig_enabled

    def _away(self, driver: GpuDriver) -> bool:
        """Return True if a card of the driver is being reset: the driver answers for no card then. Under the lock."""
        return any(card.reserved == RESETTING and card.driver is driver for card in self._cards().values())


def entry_at_start(device: Device, known: Mapping[str, CardEntry] | None, *, rebooted: bool) -> CardEntry:
    """Return the entry of a card when the agent starts.

    Args:
        known: the stored entries by UUID; None if they are lost, in which case the card must pass a test.
        rebooted: the machine was restarted since they were stored, which has reset every card.
    """
    gone = device.health is Health.LOST
    if known is None:
        return CardEntry(condition=restored_facts(None, gone=gone), cause="its stored health is lost")
    found = known.get(device.uuid, CardEntry())
    condition = restored_facts(found.condition, rebooted=rebooted, gone=gone)
    cause = found.cause or ("it was lost when the pool started" if gone else "")
    return msgspec.structs.replace(found, condition=condition, cause=cause)


def with_figures(device: Device, entry: CardEntry) -> tuple[Device, CardEntry]:
    """Store the properties of a device in its entry, or restore them from it; return device and entry.

    They are restored for a lost device, which reports none: they are needed to count the held capacity.
    """
    if device.memory_mib:
        return device, msgspec.structs.replace(entry, device=replace(device, mig_instances=(), health=Health.HEALTHY))
    if entry.device is None or not entry.device.memory_mib:
        return device, entry
    return replace(entry.device, index=device.index, health=device.health), entry


def _one(change: HealthChange | None) -> list[HealthChange]:
    return [] if change is None else [change]
