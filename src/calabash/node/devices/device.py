"""One card as the inventory keeps it: what it is, what was last read of it, and what is known of its health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import Device, DeviceReading, DeviceUuid, Health
from calabash.node.devices.settings import CardSettings
from calabash.node.health.conditions import HealthEvent, HealthFacts, Need, decide, stand
from calabash.node.health.policy import HealthPolicy
from calabash.node.health.rules import Findings, Watched, judge
from calabash.node.health.store import CardEntry, Happening

_TOLD = {Health.DRAINING, Health.LOST}
_STEPS = {HealthEvent.TEST_PASSED, HealthEvent.RESET_DONE}
_NEED_OF = {HealthEvent.NEEDS_RESET: Need.RESET, HealthEvent.NEEDS_REPLACE: Need.OPERATOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """Something about a device that people should know; ``tell`` when its tenants should as well.

    ``part``: the part of the device that it is about; "" for all of it. ``fault``: it is no doing of an operator.
    """

    device: DeviceUuid
    before: Health
    after: Health
    cause: str
    tell: bool
    part: str = ""
    fault: bool = True


@dataclass(slots=True, kw_only=True)
class Card:
    """Used under the inventory's lock.

    Args:
        reserved: what is just being done with it; nobody gets it meanwhile. "" when nothing is.
        test_at_ns, reset_at_ns: when that may be tried again, monotonic.
        ahead_s: by how much the calendar is ahead of the clock that ``now_s`` of the methods is read from.
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
        """With its present health, and as its operator wants it."""
        health = self.condition.health
        if self.reserved and health is Health.HEALTHY:
            health = Health.RECOVERING
        if self.ill_services and health is Health.HEALTHY:
            health = Health.SUSPECT
        return replace(self.settings.shown(self.device, self.entry), health=health)

    @property
    def cause(self) -> str:
        """Why it is not healthy; "" when it is."""
        if self.condition.health is Health.HEALTHY:
            return self.reserved or ", ".join(f"{name} is {facts.health}" for name, facts in self.ill_services)
        return self.entry.cause

    @property
    def ill_services(self) -> tuple[tuple[str, HealthFacts], ...]:
        """Daemons that serve it and are not well: it takes nothing new meanwhile. A MIG device is its own matter."""
        found = self.entry.parts.items()
        return tuple((n, f) for n, f in found if not n.startswith("MIG-") and f.health is not Health.HEALTHY)

    def happened(self, event: HealthEvent, cause: str, *, now_s: float) -> HealthChange | None:
        """Take an event; what people should know of it."""
        before = self.condition
        if event in _NEED_OF and before.need >= _NEED_OF[event]:
            return None  # nothing new has to be done
        after = decide(before, event, now_s=now_s, flapping=self.policy.damping())
        return self._became(before, after, cause, now_s=now_s, event=event)

    def answered(self, reading: DeviceReading, *, free: bool, divided: bool, now_s: float) -> list[HealthChange]:
        """Take a reading. ``free``: nobody is on it. ``divided``: by MIG."""
        self.reading = reading
        told = [self.happened(HealthEvent.ANSWERED, "it answers", now_s=now_s)]
        told += self.found(*judge(self.watched, reading, self.policy, now_s=now_s, divided=divided), now_s=now_s)
        event = HealthEvent.IDLE if free else HealthEvent.IN_USE
        told.append(self.happened(event, "nobody is on it" if free else "it is in use", now_s=now_s))
        if 0 < self.condition.hold_until_s <= now_s:
            told.append(self.happened(HealthEvent.HOLD_OVER, "it has stayed well", now_s=now_s))
        for part in [name for name, facts in self.entry.parts.items() if 0 < facts.hold_until_s <= now_s]:
            told.append(self.part_happened(part, HealthEvent.HOLD_OVER, "it has stayed well", now_s=now_s))
        self.entry = msgspec.structs.replace(self.entry, ecc_uncorrected=reading.ecc_uncorrected)
        return [change for change in told if change is not None]

    def found(self, watched: Watched, findings: Findings, *, now_s: float) -> list[HealthChange]:
        """Take what a reading says."""
        self.watched = watched
        changes = [self.happened(event, cause, now_s=now_s) for event, cause in findings.faults]
        before = self.condition
        names = tuple(name for name, _ in findings.standing)
        after = stand(before, names, now_s=now_s, flapping=self.policy.damping())
        if after != before:
            cause = "; ".join(cause for _, cause in findings.standing) or "it has passed"
            changes.append(self._became(before, after, cause, now_s=now_s))
        return [change for change in changes if change is not None]

    def part_happened(self, part: str, event: HealthEvent, cause: str, *, now_s: float) -> HealthChange | None:
        """Take an event of a part of it; the rest goes on."""
        before = self.entry.parts.get(part, HealthFacts())
        after = decide(before, event, now_s=now_s, flapping=self.policy.damping())
        parts = {name: c for name, c in self.entry.parts.items() if name != part}
        if after != HealthFacts():
            parts[part] = after
        self.entry = msgspec.structs.replace(self.entry, parts=parts)
        if after.health is before.health and event is not HealthEvent.APP_FAULT:
            return None
        self._tell(after.health, f"{part}: {cause}", now_s)
        told = after.health in _TOLD and after.health is not before.health
        return HealthChange(
            device=self.device.uuid, before=before.health, after=after.health, cause=cause, tell=told, part=part
        )

    def _became(
        self, before: HealthFacts, after: HealthFacts, cause: str, *, now_s: float, event: HealthEvent | None = None
    ) -> HealthChange | None:
        entry = msgspec.structs.replace(self.entry, condition=after)
        changed = after.health is not before.health
        if after.health is Health.HEALTHY:
            entry = msgspec.structs.replace(entry, cause="", since_s=0.0)
        elif changed and after.health is not Health.RECOVERING:
            at_s = now_s + self.ahead_s()
            since_s = at_s if before.health is Health.HEALTHY else entry.since_s or at_s
            entry = msgspec.structs.replace(entry, cause=_latched(before, after, cause), since_s=since_s)
        self.entry = entry
        if not changed and event not in _STEPS and event is not HealthEvent.APP_FAULT:
            return None
        cause = _latched(before, after, cause)
        self._tell(after.health, cause, now_s)
        tell = changed and (after.health in _TOLD or (after.health is Health.SUSPECT and bool(after.standing)))
        return HealthChange(
            device=self.device.uuid,
            before=before.health,
            after=after.health,
            cause=cause,
            tell=tell,
            fault=event is not HealthEvent.DRAIN and not (after.drained and after.health is Health.DRAINING),
        )

    def _tell(self, health: Health, cause: str, now_s: float) -> None:
        self.entry = self.entry.told(Happening(at=now_s + self.ahead_s(), health=health, cause=cause))


def _latched(before: HealthFacts, after: HealthFacts, cause: str) -> str:
    if after.latched and not before.latched:
        return f"{cause}; failed {len(after.left_at)} times in a short time, stays out until `calabash device undrain`"
    return cause
