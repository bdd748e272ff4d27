"""Inventory of the cards of this machine: their drivers, properties and last readings.

One thread reads all cards at the same time, so that a slow card does not delay the others; other threads use the last
results. Attribute ``health`` of the inventory derives the health of a card from its readings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from calabash.adapters.clock import Clock, SystemClock
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import Device, DeviceProcess, DeviceReading, DeviceUuid, VfProfile
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.detached import DetachedCards
from calabash.node.devices.device import Card, HealthChange
from calabash.node.devices.health_tracker import CardHealth, entry_at_start, with_figures
from calabash.node.devices.maintenance import CardSteps
from calabash.node.devices.partitions import CardPartitions
from calabash.node.devices.poller import CardPoller
from calabash.node.devices.settings import CardSettings
from calabash.node.health.policy import HealthPolicy
from calabash.node.health.store import CardEntry, HealthStore

FIRST_ANSWER_S = 10.0
LISTED_NS = 1_000_000_000
UNUSED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """Processes that a driver last listed on a card.

    Args:
        at_ns: time of this list.
        used_ns: time of the last list that was not empty; if all were empty, time of the first.
    """

    processes: tuple[DeviceProcess, ...]
    at_ns: int
    used_ns: int


def answers(driver: GpuDriver, device: Device) -> bool:
    """Return True if the driver can read the card."""
    try:
        driver.read(device.uuid)
    except CalabashError:
        return False
    return True


class Inventory:
    """All cards of all drivers, with consecutive indexes.

    Methods may be called from any thread, except ``observe``, which one thread calls. Attributes: ``health`` tracks the
    health of the cards, ``steps`` contains the tests and resets in progress, ``lent`` the cards that are detached from
    their driver, and ``divisions`` the MIG partitions.

    Args:
        policy: rules by which faults are classified.
        store: file in which the health of the cards is kept.
        settings: default settings of cards.
    """

    def __init__(
        self,
        drivers: Sequence[GpuDriver],
        *,
        policy: HealthPolicy | None = None,
        store: HealthStore | None = None,
        clock: Clock | None = None,
        settings: CardSettings | None = None,
    ) -> None:
        self.policy = policy or HealthPolicy()
        self.settings = settings or CardSettings()
        self._store = store or HealthStore(None)
        self._clock = clock or SystemClock()
        self._listings: dict[DeviceUuid, _Listing] = {}
        self._lock = threading.Lock()
        self._cards: dict[DeviceUuid, Card] = {}
        self.divisions = CardPartitions()
        self.drivers = tuple(drivers)
        self.lent = DetachedCards()
        known = self._store.read()
        self._steady = steady = self._store.continued_clock(self._clock)
        for driver in drivers:
            for device in driver.devices():
                numbered = replace(device, index=len(self._cards))
                entry = entry_at_start(device, known, rebooted=self._store.rebooted)
                numbered, entry = with_figures(numbered, entry)
                card = self._card(numbered, driver, entry)
                card.watched = replace(card.watched, ecc_uncorrected=_counted(device, known))
                self._cards[device.uuid] = card
        self.health = CardHealth(
            lambda: self._cards,
            self._lock,
            self.policy,
            store=self._store,
            steady=steady,
            lent=self.lent,
            divisions=self.divisions,
        )
        self.steps = CardSteps(
            lambda: self._cards, self._lock, self.policy, lent=lambda uuid: self.lent.loan(uuid) is not None
        )
        self._readings = CardPoller({uuid: card.driver for uuid, card in self._cards.items()})
        self.observe(idle=lambda _: False, within_s=FIRST_ANSWER_S)  # allocations are not known yet
        self.health.save()  # the time since when faults are recorded is stored as well

    def _card(self, device: Device, driver: GpuDriver, entry: CardEntry) -> Card:
        """Return a card with the policy, settings and clock of this inventory."""
        return Card(
            device=device,
            driver=driver,
            policy=self.policy,
            settings=self.settings,
            entry=entry,
            ahead_s=self._steady.ahead_s,
        )

    def devices(self) -> tuple[Device, ...]:
        """Return all cards with their present health, by index."""
        with self._lock:
            return tuple(self.lent.shown(self.divisions.shown(card.shown)) for card in self._cards.values())

    def reading(self, uuid: DeviceUuid) -> DeviceReading | None:
        """Return the last reading of a card; None if it does not answer."""
        with self._lock:
            return self._cards[uuid].reading

    def model_of(self, uuid: DeviceUuid) -> str:
        """Return the model name of a card, or of the card of a partition; "" if it is unknown."""
        card = self._cards.get(uuid) or self._cards.get(self.divisions.card_of(uuid))
        return card.device.model if card else ""

    def driver_of(self, uuid: DeviceUuid) -> GpuDriver:
        """Return the driver of a card, or of the card of a partition."""
        card = self._cards.get(uuid) or self._cards[self.divisions.card_of(uuid)]
        return card.driver

    def processes(self, uuid: DeviceUuid, *, within_ns: int = 0) -> tuple[DeviceProcess, ...]:
        """Return the processes that the driver lists on a card or a partition.

        Args:
            within_ns: largest age of an earlier answer that is used again; 0: call the driver.

        Raises:
            CalabashError: the driver does not answer.
            KeyError: there is no such card.
        """
        now_ns, known = self._clock.monotonic_ns(), self._listings.get(uuid)
        if known is not None and within_ns and now_ns - known.at_ns <= within_ns:
            return known.processes
        found = self.driver_of(uuid).processes(uuid)
        used_ns = now_ns if found or known is None else known.used_ns
        self._listings[uuid] = _Listing(processes=found, at_ns=now_ns, used_ns=used_ns)
        return found

    def is_unused(self, uuid: DeviceUuid) -> bool:
        """Return True if the driver has listed no process on a card for UNUSED_NS.

        False if the driver's last list is older than LISTED_NS.
        """
        now_ns, known = self._clock.monotonic_ns(), self._listings.get(uuid)
        return known is not None and now_ns - known.at_ns <= LISTED_NS and now_ns - known.used_ns > UNUSED_NS

    def observe(self, *, idle: Callable[[DeviceUuid], bool], within_s: float | None = None) -> list[HealthChange]:
        """Read every card once and update its health; return the changes of health to report.

        Args:
            idle: returns True if no allocation has a slice of the card.
            within_s: longest time for an answer; None: the time limit in the health policy.
        """
        changes: list[HealthChange] = []
        mark = self.lent.mark()
        answered = self._readings.take(within_s or self.policy.recovery.answer_within_s)
        for uuid, card in self._cards.items():
            reading = answered[uuid]
            if not self.lent.counts(uuid, since=mark, answered=not isinstance(reading, CalabashError)):
                card.reading = None
                continue
            changes += self.health.read(card, reading, idle=idle)
            if card.device.memory_mib == 0 and not isinstance(reading, CalabashError):
                self._learn(card)
        if changes:
            self.health.save()
        return changes

    def remember(self, device: Device) -> None:
        """Add a card that an earlier agent detached, at its old index, because its driver does not list it.

        Does nothing if the card is known or no driver is for its vendor. Must be called before another thread calls
        ``observe``.
        """
        driver = next((d for d in self.drivers if d.vendor == device.vendor), None)
        with self._lock:
            if device.uuid in self._cards or driver is None:
                return
            cards = list(self._cards.values())
            entry = entry_at_start(device, self._store.read(), rebooted=self._store.rebooted)
            card = self._card(device, driver, entry)
            cards.insert(device.index, card)
            self._cards = {}
            for index, card in enumerate(cards):
                card.device = replace(card.device, index=index)
                self._cards[card.device.uuid] = card
        self._readings.add(device.uuid, driver)

    def offer_parts(self, uuid: DeviceUuid, profiles: tuple[VfProfile, ...]) -> None:
        """Set the virtual functions (SR-IOV) that a card can offer to virtual machines, as profiles."""
        with self._lock:
            self._cards[uuid].device = replace(self._cards[uuid].device, vf_profiles=profiles)

    def came_back(self, uuid: DeviceUuid) -> None:
        """Note that a detached card is attached to its driver again. It gets allocations after it passes a test."""
        self.health.returned(uuid)
        self.lent.back(uuid)
        self.health.save()

    def _learn(self, card: Card) -> None:
        """Read the properties of a card that did not answer when the agent started."""
        for device in card.driver.devices():
            if device.uuid == card.device.uuid and device.memory_mib:
                with self._lock:
                    card.device, card.entry = with_figures(replace(device, index=card.device.index), card.entry)


def _counted(device: Device, known: dict[str, CardEntry] | None) -> int | None:
    """Return the count of uncorrected memory errors that an earlier agent read last; None if it read none."""
    return known[device.uuid].ecc_uncorrected if known and device.uuid in known else None


def no_devices() -> CalabashError:
    """Build the error for a machine without a usable GPU."""
    return CalabashError(
        "this machine has no usable GPU",
        reason=Reason.NO_DEVICES,
        hint="install the driver, or try a simulated node: calabash sim create lab --gpus 2xA100-40GB",
    )
