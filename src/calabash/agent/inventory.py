"""The cards of this machine and what is known of them: figures, last reading, health.

Drivers are asked by one thread; everybody else reads what was last seen. Health is ``health.decide`` fed with what the
drivers say: events as they come, one answer or miss per reading, the end of a drain, the outcome of a probe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from calabash.agent.health import HealthAction, HealthEvent, decide, xid_event
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.seams.gpu.protocol import DeviceEvent, EventKind, GpuDriver

PROBE_AGAIN_NS = 10_000_000_000

Probe = Callable[[GpuDriver, Device], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """Something about a device that people should know; ``tell`` when its tenants should as well."""

    device: DeviceUuid
    before: Health
    after: Health
    cause: str
    tell: bool


@dataclass(slots=True)
class _Card:
    device: Device
    driver: GpuDriver
    reading: DeviceReading | None = None
    health: Health = Health.HEALTHY
    ecc_uncorrected: int = 0
    cause: str = ""
    probe_not_before_ns: int = 0


def answers(driver: GpuDriver, device: Device) -> bool:
    """The least probe: the driver can read the card."""
    try:
        driver.read(device.uuid)
    except CalabashError:
        return False
    return True


class Inventory:
    """All cards of all drivers, indexed through. Methods may be called from any thread; ``observe`` from one."""

    def __init__(self, drivers: Sequence[GpuDriver], *, probe: Probe = answers) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self._cards: dict[DeviceUuid, _Card] = {}
        self.drivers = tuple(drivers)
        for driver in drivers:
            for device in driver.devices():
                health = Health.LOST if device.health is Health.LOST else Health.HEALTHY
                numbered = replace(device, index=len(self._cards))
                self._cards[device.uuid] = _Card(device=numbered, driver=driver, health=health)
        self.observe(now_ns=0, idle=lambda _: True)

    def devices(self) -> tuple[Device, ...]:
        """Every card with its present health, by index."""
        with self._lock:
            return tuple(replace(card.device, health=card.health) for card in self._cards.values())

    def reading(self, uuid: DeviceUuid) -> DeviceReading | None:
        """The last reading; None when the card does not answer."""
        with self._lock:
            return self._cards[uuid].reading

    def cause(self, uuid: DeviceUuid) -> str:
        """Why the card is not healthy; "" when it is."""
        with self._lock:
            return self._cards[uuid].cause

    def model_of(self, uuid: DeviceUuid) -> str:
        """The model name; "" for a card that is not here."""
        card = self._cards.get(uuid)
        return card.device.model if card else ""

    def driver_of(self, uuid: DeviceUuid) -> GpuDriver:
        """Who speaks to the card."""
        return self._cards[uuid].driver

    def observe(self, *, now_ns: int, idle: Callable[[DeviceUuid], bool]) -> list[HealthChange]:
        """Read every card once and let its health follow.

        Args:
            now_ns: monotonic time; a card whose probe failed is not probed again at once.
            idle: whether nobody has a slice of the card.
        """
        changes: list[HealthChange] = []
        for uuid, card in self._cards.items():
            try:
                reading = card.driver.read(uuid)
            except CalabashError as error:
                with self._lock:
                    card.reading = None
                self._apply(card, HealthEvent.MISSED, error.message, changes)
                continue
            grown = reading.ecc_uncorrected > card.ecc_uncorrected and card.reading is not None
            with self._lock:
                card.reading = reading
                card.ecc_uncorrected = reading.ecc_uncorrected
            if card.device.memory_mib == 0:
                self._learn(card)
            if grown:
                total = reading.ecc_uncorrected
                self._apply(card, HealthEvent.ECC_DOUBLE_BIT, f"{total} uncorrected memory errors", changes)
            if card.health is not Health.RECOVERING or now_ns >= card.probe_not_before_ns:
                self._apply(card, HealthEvent.ANSWERED, "it answers", changes)
                if card.health is Health.RECOVERING:
                    card.probe_not_before_ns = now_ns + PROBE_AGAIN_NS
            if card.health is Health.DRAINING and idle(uuid):
                self._apply(card, HealthEvent.IDLE, "nobody is on it", changes)
        return changes

    def happened(self, event: DeviceEvent) -> list[HealthChange]:
        """What a driver reported by itself."""
        card = self._cards.get(event.uuid)
        if card is None:
            return []
        changes: list[HealthChange] = []
        if event.kind is EventKind.XID:
            self._apply(card, xid_event(event.code), f"XID {event.code}", changes)
        elif event.kind is EventKind.ECC_DOUBLE_BIT:
            self._apply(card, HealthEvent.ECC_DOUBLE_BIT, "double-bit memory error", changes)
        elif event.kind is EventKind.LOST:
            self._apply(card, HealthEvent.GONE, "the driver lost it", changes)
        return changes

    def _apply(self, card: _Card, event: HealthEvent, cause: str, changes: list[HealthChange]) -> None:
        before = card.health
        after, actions = decide(before, event)
        with self._lock:
            card.health = after
            if after is Health.HEALTHY:
                card.cause = ""
            elif after is not before and after is not Health.RECOVERING:
                card.cause = cause
        if HealthAction.RECORD in actions or HealthAction.TELL in actions or before is not after:
            tell = HealthAction.TELL in actions
            changes.append(HealthChange(device=card.device.uuid, before=before, after=after, cause=cause, tell=tell))
        if HealthAction.PROBE in actions:
            passed = self._probe(card.driver, card.device)
            outcome = HealthEvent.PROBE_PASSED if passed else HealthEvent.PROBE_FAILED
            self._apply(card, outcome, "a probe passed" if passed else "a probe failed", changes)

    def _learn(self, card: _Card) -> None:
        """The figures of a card that did not answer when the pool started."""
        for device in card.driver.devices():
            if device.uuid == card.device.uuid and device.memory_mib:
                with self._lock:
                    card.device = replace(device, index=card.device.index)


def no_devices() -> CalabashError:
    """The pool has nothing to give."""
    return CalabashError(
        "this machine has no usable GPU",
        reason=Reason.NO_DEVICES,
        hint="install the driver, or try a simulated node: calabash sim create lab --gpus 2xA100-40GB",
    )
