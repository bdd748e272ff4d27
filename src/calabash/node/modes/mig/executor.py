"""Executor of mode mig: creates MIG instances for allocations and keeps idle ones for reuse.

An idle instance is destroyed when an instance of another profile, or another sharing mode, needs its part of the GPU.
Journal and slots tell which allocation holds an instance; the file of ``records`` lists the instances that the pool
created. A restart of the machine destroys all instances. Instances of held allocations are then created again at the
same places, and the new MIG devices are written to the slots; if that is impossible, the allocation is ended with a
reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from calabash.adapters.gpu.partitions import ComputeInstance, GpuInstance, partitioning_of
from calabash.adapters.host.pci.device_nodes import mig_nodes_of
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import split_profile
from calabash.model.request import MIG_MODE, AllocationId, Slice
from calabash.node.health.conditions import HealthEvent
from calabash.node.modes.mig.device import MigCard
from calabash.node.modes.mig.records import CreatedInstances
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.content import SlotDevice
from calabash.sharing.protocol import Edits

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """MIG device of one slice of an allocation, with the IDs of its GPU instance and compute instance; -1 if unknown."""

    uuid: DeviceUuid
    instance: int = -1
    part: int = -1


class MigExecutor(ViewOnly):
    """Executor of allocations of MIG devices."""

    name = MIG_MODE

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._made = CreatedInstances(tools.home / "mig.json")
        self._cards: dict[DeviceUuid, MigCard] = {}
        self._cards_lock = threading.Lock()
        self._held: dict[AllocationId, tuple[_Part, ...]] = {}

    def start(self) -> None:
        """Read the instances of all GPUs, and create the missing ones of the operators' layouts."""
        for card in self._all_cards():
            with card.lock:
                try:
                    card.learn()
                    card.restore()
                except CalabashError as error:
                    log.warning("the MIG instances cannot be read", device=card.device.uuid, error=error.message)
            self._publish(card)

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Check the slices. Raises CalabashError if a device has no MIG, or a slice has no MIG profile and position."""
        for part in record.placement.slices:
            card = self._card(part.device)
            if not part.profile or part.start < 0:
                raise CalabashError(
                    f"device {card.device.index}: the slice has no MIG profile and place", reason=Reason.BAD_REQUEST
                )
        return super().prepare(record)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        found: list[_Part] = []
        for index, part in enumerate(record.placement.slices):
            card = self._card(part.device)
            try:
                with card.lock:
                    found.append(self._existing(record, index, card) or self._provided(card, part))
                    self._held[record.id] = tuple(found)  # at once, for the next allocation on this GPU
            finally:
                self._publish(card)  # also after a failure, which may have changed instances
        return tuple(SlotDevice(uuid=part.uuid, metered=True) for part in found)  # NVML reports no use of MIG devices

    def edits(self, record: AllocationRecord) -> Edits:
        parts = self._held.get(record.id, ())
        uuids = ",".join(part.uuid for part in parts)
        if not uuids:
            return Edits()
        held = zip(record.placement.slices, parts, strict=False)
        nodes = [str(node) for s, part in held for node in _nodes(self._tools, self._cards.get(s.device), part)]
        names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
        return Edits(environment=tuple((name, uuids) for name in names), device_nodes=tuple(nodes))

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        return _warnings(record.placement.slices)

    def leave(self, record: AllocationRecord) -> None:
        """Mark the allocation's instances as idle. They are kept for reuse."""
        self._held.pop(record.id, None)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """Read the MIG devices of held allocations from their slots. ``verify`` checks that they still exist."""
        slots = {slot.limits.allocation: slot.limits.uuids for slot in self._tools.allocations.open_slots()}
        standing = {u: c.layout.part(u) for c in list(self._cards.values()) for u in c.layout.uuids}
        for record in held:
            uuids = slots.get(record.id, ())
            self._held[record.id] = tuple(_numbered(uuid, standing.get(uuid)) for uuid in uuids)
        for card in list(self._cards.values()):
            self._update_inventory(card)  # until now the processes of held allocations counted as unmanaged

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        notes: list[str] = []
        for card in self._all_cards():
            if not card.lock.acquire(blocking=False):
                continue  # an instance is being created on it
            try:
                notes += card.poll()
                self._disable_if_pinned(card)
                notes += card.mend(self._uuids())
                for record in held:
                    for index, part in enumerate(record.placement.slices):
                        if part.device == card.device.uuid:
                            notes += self._ensure_exists(card, record, index)
            except CalabashError as error:
                log.debug("the MIG instances cannot be read", device=card.device.uuid, error=error.message)
            finally:
                card.lock.release()
            self._publish(card)
            self._clear_failures(card)
        return notes

    def vacate(self, record: AllocationRecord) -> None:
        for part in record.placement.slices:
            card = self._cards.get(part.device)
            if card is None or not card.layout.enabled or part.profile:
                continue  # a slice of an existing instance needs no change of the GPU
            with card.lock:
                card.vacate(self._uuids())
            self._publish(card)

    def arrange(self, device: DeviceUuid, places: Sequence[tuple[str, int]]) -> None:
        """Set the operator's layout of a GPU, which is also restored after a restart.

        Args:
            device: the GPU.
            places: profile and first memory slice of each instance.

        Raises:
            CalabashError: CONFLICT: an instance that must be kept is in the way.
        """
        card = self._card(device)
        with card.lock:
            card.arrange(places, self._uuids())
        self._publish(card)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _all_cards(self) -> list[MigCard]:
        """Return the GPUs that support MIG, including those that have been added to the inventory since the last call."""
        with self._cards_lock:
            for device in self._tools.inventory.devices():
                if device.mig is not None and device.uuid not in self._cards:
                    driver = partitioning_of(self._tools.inventory.driver_of(device.uuid))
                    if driver is not None:
                        self._cards[device.uuid] = MigCard(
                            device, driver, self._made, has_failed=self._has_failed(device.uuid)
                        )
            return list(self._cards.values())

    def _card(self, uuid: DeviceUuid) -> MigCard:
        self._all_cards()
        card = self._cards.get(uuid)
        if card is None:
            raise CalabashError(f"device {uuid} cannot be partitioned by MIG", reason=Reason.SELECTOR_MISMATCH)
        return card

    def _uuids(self) -> set[DeviceUuid]:
        return {part.uuid for parts in list(self._held.values()) for part in parts}

    def _existing(self, record: AllocationRecord, index: int, card: MigCard) -> _Part | None:
        """Return the MIG device that was created for the slice earlier; None if there is none or it was destroyed."""
        return next((p for p in self._held.get(record.id, ())[index : index + 1] if p.uuid in card.layout.uuids), None)

    def _provided(self, card: MigCard, part: Slice) -> _Part:
        found = card.provide(part.profile, part.place, self._uuids())
        return _numbered(found[1].uuid, found)

    def _publish(self, card: MigCard) -> None:
        """Update the inventory; if the instances have changed, announce that capacity may have been freed."""
        if self._update_inventory(card):
            self._tools.events.changed()

    def _update_inventory(self, card: MigCard) -> bool:
        return self._tools.inventory.divisions.set(
            card.device.uuid,
            enabled=card.layout.enabled,
            instances=card.instances(self._uuids()),
            parts=card.layout.uuids,
        )

    def _ensure_exists(self, card: MigCard, record: AllocationRecord, index: int) -> list[str]:
        """Create the MIG device of a slice again if it does not exist. Return one line if it was created."""
        parts = self._held.get(record.id, ())
        if index >= len(parts):
            return []  # the MIG device is being created, or the allocation has no slot
        found = card.layout.part(parts[index].uuid)
        if found is None:
            return self._create_again(card, record, index)
        self._set(record.id, index, _numbered(parts[index].uuid, found))
        return []

    def _create_again(self, card: MigCard, record: AllocationRecord, index: int) -> list[str]:
        slice_ = record.placement.slices[index]
        place = f"{slice_.profile} at {slice_.start} of device {card.device.index}"
        try:
            part = self._provided(card, slice_)
        except CalabashError as error:
            why = f"its {place} does not exist any more and cannot be created again: {error.message}"
            self._tools.allocations.end(record.id, error.reason, why)
            return []
        self._set(record.id, index, part)
        for slot in self._tools.allocations.open_slots():
            if slot.limits.allocation == record.id:
                slot.limits.set_uuid(index, part.uuid)
        return [f"the {place} of allocation {record.id} did not exist any more and was created again"]

    def _disable_if_pinned(self, card: MigCard) -> None:
        """Disable MIG on a GPU that its operator pins to another mode, once all instances are idle."""
        if not card.layout.enabled:
            return
        shown = next(d for d in self._tools.inventory.devices() if d.uuid == card.device.uuid)
        if shown.pinned not in ("", MIG_MODE):
            with suppress(CalabashError):  # not yet
                card.vacate(self._uuids())

    def _has_failed(self, card: DeviceUuid) -> Callable[[DeviceUuid], bool]:
        return lambda part: self._tools.inventory.health.of_part(card, part) is not Health.HEALTHY

    def _clear_failures(self, card: MigCard) -> None:
        """Clear the health of MIG devices that do not exist any more."""
        uuid = card.device.uuid
        for name in self._tools.inventory.health.entry(uuid).parts:
            if name.startswith("MIG-") and name not in card.layout.uuids:
                for event in (HealthEvent.UNDRAIN, HealthEvent.TEST_PASSED):
                    self._tools.part_happened(uuid, name, event, "it was destroyed", ())

    def _set(self, allocation: AllocationId, index: int, part: _Part) -> None:
        parts = self._held.get(allocation)
        if parts is not None:
            self._held[allocation] = (*parts[:index], part, *parts[index + 1 :])


def _warnings(slices: Sequence[Slice]) -> tuple[str, ...]:
    """Return warnings if an allocation has several MIG devices, of which CUDA shows one, or has compute instances."""
    notes = (
        [f"a process sees one of its {len(slices)} MIG devices: start one process for each"] if len(slices) > 1 else []
    )
    parts = dict.fromkeys(part.profile for part in slices if part.part >= 0)
    notes += [
        f"{name} shares the memory of its {split_profile(name)[1]} with others, without a limit" for name in parts
    ]
    return tuple(notes)


def _numbered(uuid: DeviceUuid, found: tuple[GpuInstance, ComputeInstance] | None) -> _Part:
    return _Part(uuid=uuid, instance=found[0].id, part=found[1].id) if found is not None else _Part(uuid=uuid)


def _nodes(tools: NodeTools, card: MigCard | None, part: _Part) -> tuple[Path, ...]:
    """Return the capability device nodes of a MIG device; none on a simulated node."""
    if tools.device_root is None or card is None or tools.environment or part.instance < 0:
        return ()
    return mig_nodes_of(tools.device_root, card.device.pci_bus_id, part.instance, part.part)


def open_mode(tools: NodeTools) -> MigExecutor:
    """Return the executor of mode mig."""
    return MigExecutor(tools)
