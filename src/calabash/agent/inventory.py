"""The cards of this machine and what is known of them: figures, last reading, health.

Readings are taken by one thread, of all cards at once, and no card can hold up the others; everybody else reads what was
last seen. Health is ``health.decide`` fed with what the drivers say: events as they come, one answer or miss per reading,
what a reading shows, who is on a card, the outcome of a test; and with what operators want.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from calabash.agent.card import Card, HealthChange
from calabash.agent.card_steps import RESETTING, CardSteps
from calabash.agent.divisions import Divisions
from calabash.agent.health import HealthEvent, HealthFacts, Need, restored
from calabash.agent.health_book import CardEntry, HealthBook
from calabash.agent.health_findings import judged
from calabash.agent.health_policy import HealthPolicy
from calabash.agent.lent import Lent
from calabash.agent.readings import Readings
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health, VfProfile
from calabash.model.errors import CalabashError, Reason
from calabash.seams.clock import Clock, SystemClock
from calabash.seams.gpu.protocol import DeviceEvent, GpuDriver

FIRST_ANSWER_S = 10.0


def answers(driver: GpuDriver, device: Device) -> bool:
    """The least test: the driver can read the card."""
    try:
        driver.read(device.uuid)
    except CalabashError:
        return False
    return True


class Inventory:
    """All cards of all drivers, indexed through. Methods may be called from any thread; ``observe`` from one.

    Args:
        policy: how faults are judged.
        book: where what is known of their health is kept.
        spill_mib: host memory that the node gives for what does not fit on its cards; 0: nothing may be spilled.
    """

    def __init__(
        self,
        drivers: Sequence[GpuDriver],
        *,
        policy: HealthPolicy | None = None,
        book: HealthBook | None = None,
        clock: Clock | None = None,
        spill_mib: int = 0,
    ) -> None:
        self.policy = policy or HealthPolicy()
        self._clock = clock or SystemClock()
        self._book = book or HealthBook(None)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._cards: dict[DeviceUuid, Card] = {}
        self.divisions = Divisions()
        self.drivers = tuple(drivers)
        self.lent = Lent()
        known = self._book.read()
        for driver in drivers:
            for device in driver.devices():
                numbered = replace(device, index=len(self._cards), spill_mib=spill_mib)
                card = Card(
                    device=numbered,
                    driver=driver,
                    policy=self.policy,
                    entry=_entry(device, known, rebooted=self._book.rebooted),
                )
                card.watched = replace(card.watched, ecc_uncorrected=_counted(device, known))
                self._cards[device.uuid] = card
        self.steps = CardSteps(
            lambda: self._cards, self._lock, self.policy, lent=lambda uuid: self.lent.loan(uuid) is not None
        )
        self._readings = Readings({uuid: card.driver for uuid, card in self._cards.items()})
        self.observe(idle=lambda _: False, within_s=FIRST_ANSWER_S)  # who is on them is not known yet

    def devices(self) -> tuple[Device, ...]:
        """Every card with its present health, by index."""
        with self._lock:
            return tuple(self.lent.shown(self.divisions.shown(card.shown)) for card in self._cards.values())

    def reading(self, uuid: DeviceUuid) -> DeviceReading | None:
        """The last reading; None when the card does not answer."""
        with self._lock:
            return self._cards[uuid].reading

    def cause(self, uuid: DeviceUuid) -> str:
        """Why the card is not healthy; "" when it is."""
        with self._lock:
            return self.lent.cause(uuid) or self._cards[uuid].cause

    def entry(self, uuid: DeviceUuid) -> CardEntry:
        """What is known of its health."""
        with self._lock:
            return self._cards[uuid].entry

    def model_of(self, uuid: DeviceUuid) -> str:
        """The model name of a card or of the card of a part; "" for one that is not here."""
        card = self._cards.get(uuid) or self._cards.get(self.divisions.card_of(uuid))
        return card.device.model if card else ""

    def driver_of(self, uuid: DeviceUuid) -> GpuDriver:
        """Who speaks to the card, or to the card that a part is of."""
        card = self._cards.get(uuid) or self._cards[self.divisions.card_of(uuid)]
        return card.driver

    def observe(self, *, idle: Callable[[DeviceUuid], bool], within_s: float | None = None) -> list[HealthChange]:
        """Read every card once and let its health follow.

        Args:
            idle: whether nobody has a slice of the card.
            within_s: what has not answered by then was missed; None: the policy's.
        """
        changes: list[HealthChange] = []
        mark = self.lent.mark()
        answered = self._readings.take(within_s or self.policy.recovery.answer_within_s)
        for uuid, card in self._cards.items():
            reading = answered[uuid]
            if not self.lent.counts(uuid, since=mark, answered=not isinstance(reading, CalabashError)):
                card.reading = None
                continue
            free = card.condition.need is Need.RESET and idle(uuid)
            now_s = self._clock.now_s()
            with self._lock:
                if isinstance(reading, CalabashError):
                    if not self._away(card.driver):
                        card.reading = None
                        changes += _one(card.happened(HealthEvent.MISSED, reading.message, now_s=now_s))
                    continue
                changes += card.answered(reading, free=free, divided=self._divided(card), now_s=now_s)
            if card.device.memory_mib == 0:
                self._learn(card)
        if changes:
            self._keep()
        return changes

    def _divided(self, card: Card) -> bool:
        return self.divisions.shown(card.device).mig_enabled

    def _away(self, driver: GpuDriver) -> bool:
        """Whether a card of this driver is being reset: meanwhile none of them answers. Under the lock."""
        return any(card.reserved == RESETTING and card.driver is driver for card in self._cards.values())

    def happened(self, event: DeviceEvent) -> list[HealthChange]:
        """What a driver reported by itself."""
        card = self._cards.get(event.uuid)
        if card is None or self.lent.loan(event.uuid) is not None:
            return []
        fault, cause = judged(event, self.policy, divided=self._divided(card))
        if fault is None:
            return []
        if event.part and fault is not HealthEvent.GONE:
            return self.part(event.uuid, event.part, fault, cause)
        return self.apply(event.uuid, fault, cause)

    def apply(self, uuid: DeviceUuid, event: HealthEvent, cause: str) -> list[HealthChange]:
        """Something happened to a card."""
        with self._lock:
            changes = _one(self._cards[uuid].happened(event, cause, now_s=self._clock.now_s()))
        self._keep()
        return changes

    def part(self, uuid: DeviceUuid, part: str, event: HealthEvent, cause: str) -> list[HealthChange]:
        """Something happened to a part of a card, such as a MIG instance or a daemon that serves it: only that part is
        taken out of service, until RESET_DONE and TEST_PASSED, or UNDRAIN, say that it is well again."""
        with self._lock:
            changes = _one(self._cards[uuid].part_happened(part, event, cause, now_s=self._clock.now_s()))
        self._keep()
        return changes

    def part_health(self, uuid: DeviceUuid, part: str) -> Health:
        """Health of a part of a card, were the rest of it well."""
        with self._lock:
            found = self._cards[uuid].entry.parts.get(part)
        return found.health if found is not None else Health.HEALTHY

    def note(self, uuid: DeviceUuid, **fields: object) -> None:
        """Keep something with a card: fields of its ``CardEntry``."""
        with self._lock:
            card = self._cards[uuid]
            card.entry = msgspec.structs.replace(card.entry, **fields)
        self._keep()

    def remember(self, device: Device) -> None:
        """A card that was lent before this process began: its driver does not list it, and it has its old place. Before
        anybody observes."""
        driver = next((d for d in self.drivers if d.vendor == device.vendor), None)
        with self._lock:
            if device.uuid in self._cards or driver is None:
                return
            cards = list(self._cards.values())
            entry = _entry(device, self._book.read(), rebooted=self._book.rebooted)
            cards.insert(device.index, Card(device=device, driver=driver, policy=self.policy, entry=entry))
            self._cards = {}
            for index, card in enumerate(cards):
                card.device = replace(card.device, index=index)
                self._cards[card.device.uuid] = card
        self._readings.add(device.uuid, driver)

    def offer_parts(self, uuid: DeviceUuid, profiles: tuple[VfProfile, ...]) -> None:
        """The parts of a card that virtual machines can have."""
        with self._lock:
            self._cards[uuid].device = replace(self._cards[uuid].device, vf_profiles=profiles)

    def came_back(self, uuid: DeviceUuid) -> None:
        """It was lent and is here again: it takes work when it has passed a test."""
        with self._lock:
            card = self._cards.get(uuid)
            if card is not None:
                fresh = replace(card.condition, misses=0, gone=False, need=max(card.condition.need, Need.TEST))
                card.entry = msgspec.structs.replace(card.entry, condition=fresh, cause="it was lent")
                card.test_at_ns = 0
        self.lent.back(uuid)
        self._keep()

    def _keep(self) -> None:
        """Write down what is known."""
        with self._writing:
            with self._lock:
                entries = {str(uuid): card.entry for uuid, card in self._cards.items() if card.entry != CardEntry()}
            self._book.write(entries)

    def _learn(self, card: Card) -> None:
        """The figures of a card that did not answer when the pool started."""
        for device in card.driver.devices():
            if device.uuid == card.device.uuid and device.memory_mib:
                with self._lock:
                    card.device = replace(device, index=card.device.index)


def _entry(device: Device, known: dict[str, CardEntry] | None, *, rebooted: bool) -> CardEntry:
    """What an earlier pool knew of a card; where that is lost, the card must pass a test."""
    found = CardEntry(condition=HealthFacts(need=Need.TEST), cause="what was known of it is lost")
    if known is not None:
        found = known.get(device.uuid, CardEntry())
        found = msgspec.structs.replace(found, condition=restored(found.condition, rebooted=rebooted))
    if device.health is Health.LOST:
        gone = replace(found.condition, gone=True, need=max(found.condition.need, Need.TEST))
        found = msgspec.structs.replace(found, condition=gone, cause=found.cause or "it was lost when the pool started")
    return found


def _counted(device: Device, known: dict[str, CardEntry] | None) -> int | None:
    """Its memory errors when an earlier pool last looked; None when it never did."""
    return known[device.uuid].ecc_uncorrected if known and device.uuid in known else None


def _one(change: HealthChange | None) -> list[HealthChange]:
    return [] if change is None else [change]


def no_devices() -> CalabashError:
    """The pool has nothing to give."""
    return CalabashError(
        "this machine has no usable GPU",
        reason=Reason.NO_DEVICES,
        hint="install the driver, or try a simulated node: calabash sim create lab --gpus 2xA100-40GB",
    )
