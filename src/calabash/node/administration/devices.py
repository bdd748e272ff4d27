"""What operators do with cards: take them out of service, put them back, test them, reset them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import msgspec

from calabash.adapters.gpu.nvidia.timeslice_intervals import Intervals
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import Mentioned, mentions
from calabash.model.request import AllocationId
from calabash.node import snapshot_reader
from calabash.node.administration.demotion import lower_shares
from calabash.node.allocations.table import holders_of
from calabash.node.audit.process_census import described
from calabash.node.devices.probe import Probed, try_card
from calabash.node.devices.recovery import Recovery
from calabash.node.devices.settings import Wanted, require_possible
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.store import CardEntry
from calabash.node.wiring import NodeParts
from calabash.sharing.timeslice import MODE

TIMESLICE = MODE.name


class Care:
    """The cards of one node, for operators; safe for threads."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._tell = parts.tidings.tell
        self.recovery = Recovery(
            parts.inventory,
            parts.clock,
            probe=lambda driver, device: try_card(driver, device, parts.environment),
            in_use=self.in_use,
            tell=self._tell,
        )

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it called whenever the health of a card has changed; it must not wait for anything."""
        self._parts.tidings.subscribe(changed)

    def find(self, name: str) -> Device:
        """A card by its index, its UUID, or the beginning of it. Raises NOT_FOUND."""
        devices = self._parts.inventory.devices()
        found = [d for d in devices if name in {str(d.index), d.uuid}]
        found = found or [d for d in devices if len(name) >= 4 and d.uuid.startswith(name)]
        if len(found) == 1:
            return found[0]
        raise CalabashError(
            f"there is no device {name[:80]!r}" if not found else f"{len(found)} devices begin with {name!r}",
            reason=Reason.NOT_FOUND,
            hint="see `calabash device list`",
        )

    def entry(self, device: Device) -> CardEntry:
        """Return what is known of the health of a device, with deadlines as the calendar has them now."""
        health = self._parts.inventory.health
        entry, ahead_s = health.entry(device.uuid), health.steady.ahead_s()
        evict_at_s, hold_s = entry.evict_at_s, entry.condition.hold_until_s
        return msgspec.structs.replace(
            entry,
            evict_at_s=evict_at_s + ahead_s if evict_at_s else 0.0,
            condition=replace(entry.condition, hold_until_s=hold_s + ahead_s if hold_s else 0.0),
        )

    def ill_parts(self) -> Mapping[AllocationId, Collection[int]]:
        """Allocations that have an ill part of a card, which may be well itself; by the slices' places in them."""
        return snapshot_reader.ill_parts(self._parts)

    def lower_shares(self, lowered: Collection[AllocationId]) -> tuple[list[AllocationId], list[AllocationId]]:
        """Make the shares of these best-effort, and those of all others what they were granted; whose fell and whose rose."""
        with self._parts.lock:
            return lower_shares(self._parts, lowered)

    def drain(self, device: Device, *, why: str, evict_after_s: float | None) -> None:
        """Nothing new goes there any more; ``evict_after_s``: whoever is still there by then is ended."""
        steady = self._parts.inventory.health.steady
        at_s = steady.now_s() + evict_after_s if evict_after_s is not None else 0.0
        self._parts.inventory.health.note(device.uuid, drained_why=why, evict_at_s=at_s)
        cause = f"drained: {why}" if why else "drained by an operator"
        self._tell(self._parts.inventory.health.happened(device.uuid, HealthEvent.DRAIN, cause))
        self.evict()

    def undrain(self, device: Device) -> None:
        """It is well, the operator says: it goes back to work as soon as it passes a test."""
        inventory = self._parts.inventory
        inventory.health.note(device.uuid, drained_why="", evict_at_s=0.0)
        self._tell(inventory.health.happened(device.uuid, HealthEvent.UNDRAIN, "put back by an operator"))
        for part in inventory.health.entry(device.uuid).parts:
            for event in (HealthEvent.UNDRAIN, HealthEvent.TEST_PASSED):
                self._tell(inventory.health.part_happened(device.uuid, part, event, "put back by an operator"))
        inventory.steps.postpone(device.uuid, test_at_ns=0)

    def test(self, device: Device) -> Probed:
        """Whether it works; an idle card only."""
        if device.mig_enabled:
            raise CalabashError(
                f"device {device.index} is divided by MIG and cannot be tested as a whole",
                reason=Reason.CONFLICT,
                hint=f"run a program on an instance, or: calabash device mode {device.index} vgpu",
            )
        return self.recovery.test(device.uuid)

    def reset(self, device: Device) -> None:
        """Reset it; an idle card only. It goes back to work when it passes a test."""
        inventory = self._parts.inventory
        self.recovery.reset(device.uuid)
        if device.health is not Health.HEALTHY:
            inventory.steps.postpone(device.uuid, test_at_ns=0)

    def set(self, device: Device, wanted: Wanted) -> None:
        """Give a card out otherwise than the others. Raises CalabashError."""
        with self._parts.lock:
            held = [r for r in self._parts.allocations.records() if r.placement.mode == TIMESLICE]
            sharers = sum(part.device == device.uuid for r in held for part in r.placement.slices)
        intervals = Intervals(self._parts.environment, self._parts.driver_files)
        require_possible(
            device,
            wanted,
            self._parts.inventory.settings,
            sharers=sharers,
            interval_of=lambda: intervals.of(device.uuid),
        )
        self._parts.inventory.health.note(device.uuid, **wanted.entry_fields())
        self._parts.events.tell(
            "set", device=device.uuid, message=f"device {device.index}: {wanted.said() or 'nothing'}"
        )
        self._parts.events.changed()

    def round(self) -> None:
        """Whatever is due now."""
        self.evict()
        self.recovery.round()

    @property
    def is_resting(self) -> bool:
        """Return True if all cards are healthy and none is to be emptied: only a change of their health makes a step due."""
        health = self._parts.inventory.health
        return all(
            device.health is Health.HEALTHY and not entry.evict_at_s and entry.condition.step is None
            for device in self._parts.inventory.devices()
            for entry in (health.entry(device.uuid),)
        )

    def evict(self) -> None:
        """End whoever is on a card that was to be empty by now."""
        now_s = self._parts.inventory.health.steady.now_s()
        for device in self._parts.inventory.devices():
            entry = self._parts.inventory.health.entry(device.uuid)
            if not entry.evict_at_s or now_s < entry.evict_at_s or not entry.condition.drained:
                continue
            for allocation in self.holders(device.uuid):
                with self._parts.lock:
                    if not self._parts.allocations.ending(allocation):
                        explanation = f"device {device.index} is {entry.cause or 'drained'}"
                        self._parts.allocations.end(allocation, reason=Reason.DRAINED, explanation=explanation)

    def in_use(self, device: DeviceUuid) -> str:
        """Who is on a card, for people; "" when nobody is."""
        held = self.holders(device)
        if held:
            return mentions(Mentioned.REQUEST, held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        strangers = self._parts.truth.strangers(device)
        return described(strangers[0]) if strangers else ""

    def holders(self, device: DeviceUuid) -> list[AllocationId]:
        """Allocations that are on a card, or were and are not off it yet."""
        with self._parts.lock:
            held = holders_of(self._parts.allocations.records(), device)
            return [*dict.fromkeys(held), *self._parts.allocations.orphaned(device)]
