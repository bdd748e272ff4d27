"""Operations of administrators on devices: drain, undrain, test, reset, and settings of one card."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from calabash.adapters.gpu.nvidia.timeslice_intervals import Intervals
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, RequestName, Text, names
from calabash.model.request import AllocationId
from calabash.node import snapshot_reader
from calabash.node.allocations.table import holders_of
from calabash.node.audit.process_census import describe_process
from calabash.node.devices.device import HealthChange
from calabash.node.devices.probe import ProbeResult, probe_card
from calabash.node.devices.recovery import Recovery
from calabash.node.devices.settings import Wanted, require_possible
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.store import CardEntry
from calabash.node.slots.content import POLICY_CODE
from calabash.node.slots.layout import PagePolicy
from calabash.node.wiring import NodeParts
from calabash.sharing.timeslice import MODE

TIMESLICE = MODE.name
_ENFORCED_BY_ARBITER = frozenset({PagePolicy.FIXED, PagePolicy.BURST, PagePolicy.BEST_EFFORT})


class DeviceAdministration:
    """Operations of administrators on the cards of one node. Methods may be called from any thread."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self.recovery = Recovery(parts.inventory, parts.clock, self)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Register a callback that is called when the health of a card has changed; it must not block."""
        self._parts.health_notifier.subscribe(changed)

    def find(self, name: str) -> Device:
        """Return a card by its index, its UUID, or at least 4 leading characters of its UUID.

        Raises:
            CalabashError: NOT_FOUND if no card or more than one matches.
        """
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
        """Return the stored health and settings of a card, with deadlines converted to calendar time."""
        health = self._parts.inventory.health
        entry, ahead_s = health.entry(device.uuid), health.steady.ahead_s()
        evict_at_s, hold_s = entry.evict_at_s, entry.condition.hold_until_s
        return msgspec.structs.replace(
            entry,
            evict_at_s=evict_at_s + ahead_s if evict_at_s else 0.0,
            condition=replace(entry.condition, hold_until_s=hold_s + ahead_s if hold_s else 0.0),
        )

    def unhealthy_partitions(self) -> Mapping[AllocationId, Collection[int]]:
        """Return by allocation the indexes of the slices whose partition, such as a MIG device, is unhealthy.

        The card of the partition may be healthy.
        """
        return snapshot_reader.unhealthy_partitions(self._parts)

    def lower_shares(self, lowered: Collection[AllocationId]) -> tuple[list[AllocationId], list[AllocationId]]:
        """Set the shares of the given allocations to best-effort and restore those of all others.

        Returns the allocations that were lowered and those that were restored by this call. The granted policy stays in
        the journal; only the policy in the limits page changes, which the arbiter reads at its next poll. Each call
        computes these policies from the journal, so nothing has to be restored after a crash of the pool.
        """
        with self._parts.lock:
            return _lower_shares(self._parts, lowered)

    def drain(self, device: Device, *, why: str, evict_after_s: float | None) -> None:
        """Take a card out of service: it gets no new allocations.

        Args:
            why: reason given by the administrator; may be empty.
            evict_after_s: end the allocations that are still on the card after this time; None: never.
        """
        steady = self._parts.inventory.health.steady
        at_s = steady.now_s() + evict_after_s if evict_after_s is not None else 0.0
        self._parts.inventory.health.note(device.uuid, drained_why=why, evict_at_s=at_s)
        cause = f"drained: {why}" if why else "drained by an operator"
        self.notify(self._parts.inventory.health.happened(device.uuid, HealthEvent.DRAIN, cause))
        self.evict()

    def undrain(self, device: Device) -> None:
        """Clear drain and faults of a card and of its partitions; the card takes work again after it passes a test."""
        inventory = self._parts.inventory
        inventory.health.note(device.uuid, drained_why="", evict_at_s=0.0)
        self.notify(inventory.health.happened(device.uuid, HealthEvent.UNDRAIN, "put back by an operator"))
        for part in inventory.health.entry(device.uuid).parts:
            for event in (HealthEvent.UNDRAIN, HealthEvent.TEST_PASSED):
                self.notify(inventory.health.part_happened(device.uuid, part, event, "put back by an operator"))
        inventory.steps.postpone(device.uuid, test_at_ns=0)

    def test(self, device: Device) -> ProbeResult:
        """Test an idle card and return the result.

        Raises:
            CalabashError: CONFLICT if the card is in use or is divided by MIG.
        """
        if device.mig_enabled:
            raise CalabashError(
                f"device {device.index} is divided by MIG and cannot be tested as a whole",
                reason=Reason.CONFLICT,
                hint=f"run a program on an instance, or: calabash device mode {device.index} vgpu",
            )
        return self.recovery.test(device.uuid)

    def reset(self, device: Device) -> None:
        """Reset an idle card. An unhealthy card takes work again when it passes the test that follows.

        Raises:
            CalabashError: the card is in use or cannot be reset.
        """
        inventory = self._parts.inventory
        self.recovery.reset(device.uuid)
        if device.health is not Health.HEALTHY:
            inventory.steps.postpone(device.uuid, test_at_ns=0)

    def set(self, device: Device, wanted: Wanted) -> None:
        """Change the settings of one card.

        Raises:
            CalabashError: the card cannot have these settings now.
        """
        with self._parts.lock:
            held = [r for r in self._parts.allocations.records() if r.placement.mode == TIMESLICE]
            sharers = sum(part.device == device.uuid for r in held for part in r.placement.slices)
        intervals = Intervals(self._parts.environment, self._parts.driver_files)
        require_possible(
            device,
            wanted,
            self._parts.inventory.settings,
            sharers=sharers,
            interval_of=lambda: intervals.interval(device.uuid),
        )
        self._parts.inventory.health.note(device.uuid, **wanted.entry_fields())
        self._parts.events.emit(
            "set", device=device.uuid, message=f"device {device.index}: {wanted.said() or 'nothing'}"
        )
        self._parts.events.changed()

    def round(self) -> None:
        """Take the steps that are due: evict allocations and recover cards."""
        self.evict()
        self.recovery.round()

    @property
    def is_resting(self) -> bool:
        """True if all cards are healthy and none is drained with a deadline, so no step is due before a change."""
        health = self._parts.inventory.health
        return all(
            device.health is Health.HEALTHY and not entry.evict_at_s and entry.condition.step is None
            for device in self._parts.inventory.devices()
            for entry in (health.entry(device.uuid),)
        )

    def evict(self) -> None:
        """End the allocations on drained cards whose deadline has passed."""
        now_s = self._parts.inventory.health.steady.now_s()
        for device in self._parts.inventory.devices():
            entry = self._parts.inventory.health.entry(device.uuid)
            if not entry.evict_at_s or now_s < entry.evict_at_s or not entry.condition.drained:
                continue
            for allocation in self.holders(device.uuid):
                with self._parts.lock:
                    if not self._parts.allocations.ending(allocation):
                        cause = entry.cause_text or "drained"
                        explanation = Message("device {device} is {cause}", device=device.index, cause=cause)
                        self._parts.allocations.end(allocation, reason=Reason.DRAINED, explanation=explanation)

    def probe(self, driver: GpuDriver, device: Device) -> ProbeResult:
        """Test a card, also one that is in use; ``test`` is the operation of administrators."""
        return probe_card(driver, device, self._parts.environment)

    def notify(self, changes: Sequence[HealthChange]) -> None:
        """Report changes of the health of cards."""
        self._parts.health_notifier.notify(changes)

    def in_use(self, device: DeviceUuid) -> Text:
        """Return a text that names the allocations or unmanaged process on a card; "" if it is idle."""
        held = self.holders(device)
        if held:
            more = f" and {len(held) - 3} more" if len(held) > 3 else ""
            return Message("{allocations}{more}", allocations=names(RequestName, held[:3]), more=more)
        unmanaged = self._parts.audit.unmanaged(device)
        return Message("{process}", process=describe_process(unmanaged[0])) if unmanaged else ""

    def holders(self, device: DeviceUuid) -> list[AllocationId]:
        """Return the allocations that hold a slice of a card, and orphaned ones that still use it."""
        with self._parts.lock:
            held = holders_of(self._parts.allocations.records(), device)
            return [*dict.fromkeys(held), *self._parts.allocations.orphaned(device)]


def _lower_shares(parts: NodeParts, lowered: Collection[AllocationId]) -> tuple[list[AllocationId], list[AllocationId]]:
    """Set the shares of the given allocations to best-effort and restore those of all others.

    Returns the allocations that were lowered and those that were restored by this call. Slices whose share the arbiter
    does not enforce (whole cards, MIG, MPS, time slices of the driver) are unchanged.
    """
    lowered_now: list[AllocationId] = []
    restored: list[AllocationId] = []
    for record in parts.allocations.records():
        promised = POLICY_CODE[record.request.policy]
        wanted = PagePolicy.BEST_EFFORT if record.id in lowered else promised
        try:
            limits = parts.slots.pages(record.id).limits
        except CalabashError:
            continue  # the allocation is being released, or its slot is being created
        changed = False
        for index in range(limits.device_count):
            now = limits.device(index).policy
            if now in _ENFORCED_BY_ARBITER and now != wanted:
                limits.set_policy(index, wanted)
                changed = True
        if changed:
            (lowered_now if record.id in lowered else restored).append(record.id)
    return lowered_now, restored
