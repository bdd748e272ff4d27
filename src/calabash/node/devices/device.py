"""State of one card in the inventory: its properties, last reading, settings and health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health
from calabash.model.message_codec import encode_text
from calabash.model.messages import Message, Text
from calabash.node.devices.settings import CardSettings
from calabash.node.health.conditions import HealthEvent, HealthFacts, Need, decide, set_standing
from calabash.node.health.policy import HealthPolicy
from calabash.node.health.rules import Findings, Watched, judge_reading
from calabash.node.health.store import CardEntry, HealthRecord

_TOLD = {Health.DRAINING, Health.LOST}
_STEPS = {HealthEvent.TEST_PASSED, HealthEvent.RESET_DONE}
_NEED_OF = {HealthEvent.NEEDS_RESET: Need.RESET, HealthEvent.NEEDS_REPLACE: Need.OPERATOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A change of the health of a device, to be reported.

    Args:
        before, after: the health before and after the change, which are equal if only a step is reported.
        notify_tenants: report it to the tenants that use the device too.
        part: the partition or service whose health has changed; "": the whole device.
        fault: False if an administrator caused the change.
    """

    device: DeviceUuid
    before: Health
    after: Health
    cause: Text
    notify_tenants: bool
    part: str = ""
    fault: bool = True


@dataclass(slots=True, kw_only=True)
class Card:
    """State of one card. Used under the inventory's lock.

    Args:
        settings: default settings; ``entry`` contains those that an administrator has changed.
        entry: stored health and settings of the card.
        reading: last reading of the driver; None before the first.
        watched: values of earlier readings, with which the next reading is compared.
        reserved: operation on the card, such as a test, during which it is not allocated; "": none.
        test_at_ns, reset_at_ns: earliest monotonic time of the next test or reset.
        ahead_s: returns the difference between calendar time and the steady clock of the methods' ``now_s``.
    """

    device: Device
    driver: GpuDriver
    policy: HealthPolicy
    settings: CardSettings = field(default_factory=CardSettings)
    entry: CardEntry = field(default_factory=CardEntry)
    reading: DeviceReading | None = None
    watched: Watched = field(default_factory=Watched)
    reserved: str = ""
    test_at_ns: int = 0
    reset_at_ns: int = 0
    ahead_s: Callable[[], float] = lambda: 0.0

    @property
    def condition(self) -> HealthFacts:
        return self.entry.condition

    @property
    def shown(self) -> Device:
        """The device with its present health and its settings."""
        health = self.condition.health
        if self.reserved and health is Health.HEALTHY:
            health = Health.RECOVERING
        if self.unhealthy_services and health is Health.HEALTHY:
            health = Health.SUSPECT
        return replace(self.settings.shown(self.device, self.entry), health=health)

    @property
    def cause(self) -> Text:
        """Reason why the card is not healthy; "" if it is."""
        if self.condition.health is Health.HEALTHY:
            return self.reserved or ", ".join(f"{name} is {facts.health}" for name, facts in self.unhealthy_services)
        return self.entry.cause_text

    @property
    def unhealthy_services(self) -> tuple[tuple[str, HealthFacts], ...]:
        """Unhealthy daemons that serve the card, such as the MPS daemon. The card takes no new work meanwhile.

        MIG devices are not included, because an unhealthy MIG device does not affect the rest of the card.
        """
        found = self.entry.parts.items()
        return tuple((n, f) for n, f in found if not n.startswith("MIG-") and f.health is not Health.HEALTHY)

    def happened(self, event: HealthEvent, cause: Text, *, now_s: float) -> HealthChange | None:
        """Apply a health event to the card; return the change to report, or None if there is none."""
        before = self.condition
        if event in _NEED_OF and before.need >= _NEED_OF[event]:
            return None  # nothing new has to be done
        after = decide(before, event, now_s=now_s, flapping=self.policy.damping())
        return self._became(before, after, cause, now_s=now_s, event=event)

    def answered(self, reading: DeviceReading, *, free: bool, divided: bool, now_s: float) -> list[HealthChange]:
        """Apply a reading of the driver, which shows that the card answers; return the changes to report.

        Args:
            free: no allocation uses the card.
            divided: the card is in MIG mode.
        """
        self.reading = reading
        told = [self.happened(HealthEvent.ANSWERED, "it answers", now_s=now_s)]
        told += self.found(
            *judge_reading(self.watched, reading, self.policy, now_s=now_s, divided=divided), now_s=now_s
        )
        event = HealthEvent.IDLE if free else HealthEvent.IN_USE
        told.append(self.happened(event, "it is idle" if free else "it is in use", now_s=now_s))
        if 0 < self.condition.hold_until_s <= now_s:
            told.append(self.happened(HealthEvent.HOLD_OVER, "it has stayed well", now_s=now_s))
        for part in [name for name, facts in self.entry.parts.items() if 0 < facts.hold_until_s <= now_s]:
            told.append(self.part_happened(part, HealthEvent.HOLD_OVER, "it has stayed well", now_s=now_s))
        self.entry = msgspec.structs.replace(self.entry, ecc_uncorrected=reading.ecc_uncorrected)
        return [change for change in told if change is not None]

    def found(self, watched: Watched, findings: Findings, *, now_s: float) -> list[HealthChange]:
        """Apply the faults and lasting conditions that a reading shows; return the changes to report.

        ``watched`` replaces the values with which the next reading is compared.
        """
        self.watched = watched
        changes = [self.happened(event, cause, now_s=now_s) for event, cause in findings.faults]
        before = self.condition
        names = tuple(name for name, _ in findings.standing)
        after = set_standing(before, names, now_s=now_s, flapping=self.policy.damping())
        if after != before:
            cause: Text = "; ".join(cause for _, cause in findings.standing) or "it has passed"
            changes.append(self._became(before, after, cause, now_s=now_s))
        return [change for change in changes if change is not None]

    def part_happened(self, part: str, event: HealthEvent, cause: Text, *, now_s: float) -> HealthChange | None:
        """Apply a health event to a partition or service; the rest of the card is not affected."""
        before = self.entry.parts.get(part, HealthFacts())
        after = decide(before, event, now_s=now_s, flapping=self.policy.damping())
        parts = {name: c for name, c in self.entry.parts.items() if name != part}
        if after != HealthFacts():
            parts[part] = after
        self.entry = msgspec.structs.replace(self.entry, parts=parts)
        if after.health is before.health and event is not HealthEvent.APP_FAULT:
            return None
        self._add_record(after.health, Message("{part}: {cause}", part=part, cause=cause), now_s)
        told = after.health in _TOLD and after.health is not before.health
        return HealthChange(
            device=self.device.uuid,
            before=before.health,
            after=after.health,
            cause=cause,
            notify_tenants=told,
            part=part,
        )

    def _became(
        self, before: HealthFacts, after: HealthFacts, cause: Text, *, now_s: float, event: HealthEvent | None = None
    ) -> HealthChange | None:
        entry = msgspec.structs.replace(self.entry, condition=after)
        changed = after.health is not before.health
        if after.health is Health.HEALTHY:
            entry = msgspec.structs.replace(entry, cause="", since_s=0.0)
        elif changed and after.health is not Health.RECOVERING:
            at_s = now_s + self.ahead_s()
            since_s = at_s if before.health is Health.HEALTHY else entry.since_s or at_s
            latched = encode_text(_latched(before, after, cause))
            entry = msgspec.structs.replace(entry, cause=latched, since_s=since_s)
        self.entry = entry
        if not changed and event not in _STEPS and event is not HealthEvent.APP_FAULT:
            return None
        cause = _latched(before, after, cause)
        self._add_record(after.health, cause, now_s)
        notify_tenants = changed and (
            after.health in _TOLD or (after.health is Health.SUSPECT and bool(after.standing))
        )
        return HealthChange(
            device=self.device.uuid,
            before=before.health,
            after=after.health,
            cause=cause,
            notify_tenants=notify_tenants,
            fault=event is not HealthEvent.DRAIN and not (after.drained and after.health is Health.DRAINING),
        )

    def _add_record(self, health: Health, cause: Text, now_s: float) -> None:
        self.entry = self.entry.with_record(
            HealthRecord(at=now_s + self.ahead_s(), health=health, cause=encode_text(cause))
        )


def _latched(before: HealthFacts, after: HealthFacts, cause: Text) -> Text:
    if after.latched and not before.latched:
        return Message(
            "{cause}; failed {times} times in a short time, out of service until `calabash device undrain`",
            cause=cause,
            times=len(after.left_at),
        )
    return cause
