"""MIG on this node: instances are made when they are granted, kept for reuse when their tenant leaves, and given back to
the card when another shape or another mode needs their room.

Who holds what follows from the journal and the slots; which instances are ours from ``mig_book``. Instances are gone when
the machine was restarted: what a held allocation had is made again at the same place, and its slot then names the new MIG
device; where that cannot be, the allocation ends with a reason.
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
from calabash.node.modes.mig.records import MigBook
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.content import SlotDevice
from calabash.sharing.protocol import Edits

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one slice of an allocation has: a MIG device, and the numbers of its instances, -1 when not known."""

    uuid: DeviceUuid
    instance: int = -1
    part: int = -1


class MigExecutor(ViewOnly):
    """A view of MIG devices, which are made for it."""

    name = MIG_MODE

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._book = MigBook(tools.home / "mig.json")
        self._cards: dict[DeviceUuid, MigCard] = {}
        self._cards_lock = threading.Lock()
        self._held: dict[AllocationId, tuple[_Part, ...]] = {}

    def start(self) -> None:
        """What stands on the cards, and what layouts of operators say should."""
        for card in self._all_cards():
            with card.lock:
                try:
                    card.learn()
                    card.restore()
                except CalabashError as error:
                    log.warning("a card's MIG instances are not known", device=card.device.uuid, error=error.message)
            self._publish(card)

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        for part in record.placement.slices:
            card = self._card(part.device)
            if not part.profile or part.start < 0:
                raise CalabashError(
                    f"device {card.device.index}: the slice names no MIG profile and place", reason=Reason.BAD_REQUEST
                )
        return super().prepare(record)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        found: list[_Part] = []
        for index, part in enumerate(record.placement.slices):
            card = self._card(part.device)
            try:
                with card.lock:
                    found.append(self._known(record, index, card) or self._provided(card, part))
                    self._held[record.id] = tuple(found)  # at once: the next one on this card must see it
            finally:
                self._publish(card)  # also who was in the way
        return tuple(SlotDevice(uuid=part.uuid, metered=True) for part in found)  # NVML tells no use of instances

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
        """The instances stay where they are, idle."""
        self._held.pop(record.id, None)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """Slots say which MIG devices; whether they still stand is seen to by ``verify``."""
        slots = {slot.limits.allocation: slot.limits.uuids for slot in self._tools.open_slots()}
        standing = {u: c.layout.part(u) for c in list(self._cards.values()) for u in c.layout.uuids}
        for record in held:
            uuids = slots.get(record.id, ())
            self._held[record.id] = tuple(_numbered(uuid, standing.get(uuid)) for uuid in uuids)
        for card in list(self._cards.values()):
            self._tell(card)  # until now those who hold something were strangers on it

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        told: list[str] = []
        for card in self._all_cards():
            if not card.lock.acquire(blocking=False):
                continue  # something is being made on it
            try:
                told += card.look()
                self._yield(card)
                told += card.mend(self._uuids())
                for record in held:
                    for index, part in enumerate(record.placement.slices):
                        if part.device == card.device.uuid:
                            told += self._kept(card, record, index)
            except CalabashError as error:
                log.debug("a card's MIG instances are not known", device=card.device.uuid, error=error.message)
            finally:
                card.lock.release()
            self._publish(card)
            self._forget_ills(card)
        return told

    def vacate(self, record: AllocationRecord) -> None:
        for part in record.placement.slices:
            card = self._cards.get(part.device)
            if card is None or not card.layout.enabled or part.profile:
                continue  # whoever is given an instance takes it as it stands
            with card.lock:
                card.vacate(self._uuids())
            self._publish(card)

    def arrange(self, device: DeviceUuid, places: Sequence[tuple[str, int]]) -> None:
        """Cut a card as an operator wants it: these instances (profile, first memory slice) stand from now on, also after
        a restart, and are given out as they are. Raises CalabashError; CONFLICT where others are in the way."""
        card = self._card(device)
        with card.lock:
            card.arrange(places, self._uuids())
        self._publish(card)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _all_cards(self) -> list[MigCard]:
        """Cards that can be cut; one that did not answer at first is found later."""
        with self._cards_lock:
            for device in self._tools.inventory.devices():
                if device.mig is not None and device.uuid not in self._cards:
                    driver = partitioning_of(self._tools.inventory.driver_of(device.uuid))
                    if driver is not None:
                        self._cards[device.uuid] = MigCard(device, driver, self._book, ill=self._ill(device.uuid))
            return list(self._cards.values())

    def _card(self, uuid: DeviceUuid) -> MigCard:
        self._all_cards()
        card = self._cards.get(uuid)
        if card is None:
            raise CalabashError(f"device {uuid} cannot be cut by MIG", reason=Reason.SELECTOR_MISMATCH)
        return card

    def _uuids(self) -> set[DeviceUuid]:
        return {part.uuid for parts in list(self._held.values()) for part in parts}

    def _known(self, record: AllocationRecord, index: int, card: MigCard) -> _Part | None:
        """What it has already, when it is asked again."""
        return next((p for p in self._held.get(record.id, ())[index : index + 1] if p.uuid in card.layout.uuids), None)

    def _provided(self, card: MigCard, part: Slice) -> _Part:
        found = card.provide(part.profile, part.place, self._uuids())
        return _numbered(found[1].uuid, found)

    def _publish(self, card: MigCard) -> None:
        """What schedulers and the census see of the card; other places may be free now."""
        if self._tell(card):
            self._tools.changed()

    def _tell(self, card: MigCard) -> bool:
        return self._tools.inventory.divisions.set(
            card.device.uuid,
            enabled=card.layout.enabled,
            instances=card.instances(self._uuids()),
            parts=card.layout.uuids,
        )

    def _kept(self, card: MigCard, record: AllocationRecord, index: int) -> list[str]:
        """What a held allocation has still stands, or stands again."""
        parts = self._held.get(record.id, ())
        if index >= len(parts):
            return []  # it is just being made, or has no slot
        found = card.layout.part(parts[index].uuid)
        if found is None:
            return self._made_again(card, record, index)
        self._set(record.id, index, _numbered(parts[index].uuid, found))
        return []

    def _made_again(self, card: MigCard, record: AllocationRecord, index: int) -> list[str]:
        slice_ = record.placement.slices[index]
        place = f"{slice_.profile} at {slice_.start} of device {card.device.index}"
        try:
            part = self._provided(card, slice_)
        except CalabashError as error:
            why = f"its {place} is gone and cannot be made again: {error.message}"
            self._tools.end(record.id, error.reason, why)
            return []
        self._set(record.id, index, part)
        for slot in self._tools.open_slots():
            if slot.limits.allocation == record.id:
                slot.limits.set_uuid(index, part.uuid)
        return [f"the {place} of allocation {record.id} was gone and stands again"]

    def _yield(self, card: MigCard) -> None:
        """A card that its operator keeps in another mode is one card again, as soon as nothing is left on it."""
        if not card.layout.enabled:
            return
        shown = next(d for d in self._tools.inventory.devices() if d.uuid == card.device.uuid)
        if shown.pinned not in ("", MIG_MODE):
            with suppress(CalabashError):  # not yet
                card.vacate(self._uuids())

    def _ill(self, card: DeviceUuid) -> Callable[[DeviceUuid], bool]:
        return lambda part: self._tools.inventory.health.of_part(card, part) is not Health.HEALTHY

    def _forget_ills(self, card: MigCard) -> None:
        """A part that does not stand any more has no health."""
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
    """CUDA shows a process one MIG device, however many it was given; parts of an instance share its memory."""
    told = [f"a process sees one of its {len(slices)} MIG devices: start one for each"] if len(slices) > 1 else []
    parts = dict.fromkeys(part.profile for part in slices if part.part >= 0)
    told += [f"{name} shares the memory of its {split_profile(name)[1]} with others, without a limit" for name in parts]
    return tuple(told)


def _numbered(uuid: DeviceUuid, found: tuple[GpuInstance, ComputeInstance] | None) -> _Part:
    return _Part(uuid=uuid, instance=found[0].id, part=found[1].id) if found is not None else _Part(uuid=uuid)


def _nodes(tools: NodeTools, card: MigCard | None, part: _Part) -> tuple[Path, ...]:
    """The capabilities that open a MIG device; nodes of simulated cards are none."""
    if tools.device_root is None or card is None or tools.environment or part.instance < 0:
        return ()
    return mig_nodes_of(tools.device_root, card.device.pci_bus_id, part.instance, part.part)


def open_mode(tools: NodeTools) -> MigExecutor:
    """The executor of this mode."""
    return MigExecutor(tools)
