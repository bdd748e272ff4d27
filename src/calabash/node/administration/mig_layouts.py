"""Operations of administrators on sharing modes and MIG layouts: set a mode, show, plan and apply layouts.

The executor of mode ``mig`` changes the cards. This module checks first that each card can have its layout and is idle;
nothing is changed unless all checks pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message
from calabash.model.mig import MigGeometry, MigInstance, MigState, legal_starts, split_profile, with_instance
from calabash.model.mig_plan import MigChoice, apply_choice, plan_positions, used_and_idle
from calabash.model.request import CUT_MODES, MIG_MODE, AllocationId, ModeName, Slice
from calabash.node import snapshot_reader
from calabash.node.administration.devices import DeviceAdministration
from calabash.node.snapshot import DeviceSnapshot
from calabash.node.wiring import NodeParts
from calabash.sharing.mig import used_by
from calabash.sharing.registry import SHARING_MODES

AUTO = "auto"
RELEASE_WAIT_S = 2.0  # longest time from the end of a program until its instance is known to be idle
RELEASE_POLL_S = 0.05
Place = tuple[str, int]


@runtime_checkable
class MigArranger(Protocol):
    """The executor of a mode that creates MIG instances."""

    def arrange(self, device: DeviceUuid, places: Sequence[Place]) -> None:
        """Replace the instances of an idle card by the given ones, which are kept even while no allocation uses them.

        Args:
            places: profile and first memory slice of each instance.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPartition:
    """A compute instance: ``compute`` compute slices of a GPU instance, beginning at compute slice ``start``.

    ``allocation`` is None if it is idle.
    """

    start: int
    compute: int
    uuid: str = ""
    allocation: AllocationId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutInstance:
    """A GPU instance of a card.

    Args:
        place: its profile and first memory slice.
        uuid: its UUID; "" if it does not exist yet, or is divided into compute instances, which have their own.
        state: ``used``, ``idle``, ``fixed`` (idle, and never destroyed) or ``foreign`` (used by unmanaged processes).
        allocations: the allocations that use it.
        parts: its compute instances; empty if it is undivided.
    """

    place: Place
    uuid: str
    state: str
    allocations: tuple[AllocationId, ...] = ()
    parts: tuple[LayoutPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLayout:
    """A card that supports MIG, with its instances in the order of their first memory slice.

    Args:
        geometry: the MIG profiles and positions that the card supports.
        mode: sharing mode of the slices that are held; None if none is held.
        state: positions occupied by instances that are in use.
        idle: existing instances that no allocation uses.
        instances: all instances, used or not.
        taken: True if an allocation, an orphan, an unmanaged process or a foreign instance uses the card.
    """

    device: Device
    geometry: MigGeometry
    mode: ModeName | None
    state: MigState
    idle: tuple[MigInstance, ...]
    instances: tuple[LayoutInstance, ...]
    taken: bool

    @property
    def accepts_instances(self) -> bool:
        """True if the mode of the card permits new instances, regardless of free capacity."""
        free = self.mode == MIG_MODE or not self.taken
        return free and self.device.pinned in ("", MIG_MODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstance:
    """The card and position that an instance of ``profile`` would get; both are None if it fits on no card."""

    profile: str
    card: Device | None
    choice: MigChoice | None


class MigLayouts:
    """Sharing modes and MIG layouts of the cards of one node. Methods may be called from any thread."""

    def __init__(self, parts: NodeParts, administration: DeviceAdministration) -> None:
        self._parts = parts
        self._administration = administration

    def set_mode(self, device: Device, mode: str) -> None:
        """Restrict a card to one sharing mode; ``auto`` removes the restriction.

        Allocations in other modes keep running; the mode changes when they have ended.

        Raises:
            CalabashError: UNKNOWN_MODE; SELECTOR_MISMATCH if the card does not support MIG.
        """
        if mode != AUTO and mode not in SHARING_MODES:
            raise CalabashError(
                f"sharing mode {mode!r} is not known",
                reason=Reason.UNKNOWN_MODE,
                hint=f"one of: {AUTO}, {', '.join(sorted(SHARING_MODES))}",
            )
        if mode == MIG_MODE and device.mig is None:
            raise CalabashError(
                f"device {device.index}, a {device.model}, does not support MIG", reason=Reason.SELECTOR_MISMATCH
            )
        self._parts.inventory.health.note(device.uuid, mode="" if mode == AUTO else mode)
        self._parts.events.emit("mode", device=device.uuid, message=f"device {device.index} serves mode {mode}")
        self._parts.events.changed()

    def cards(self) -> tuple[CardLayout, ...]:
        """Return the layouts of all cards that support MIG."""
        return tuple(card for state in snapshot_reader.devices(self._parts) if (card := _card(state)) is not None)

    def plan(self, profiles: Iterable[str]) -> tuple[PlannedInstance, ...]:
        """Return the card and the position that an instance of each profile would get if all were requested now.

        The result has the order of ``profiles``.
        """
        return plan_instances(self.cards(), tuple(profiles))

    def checked(self, device: Device, wanted: Sequence[Place]) -> tuple[Place, ...]:
        """Return the layout with a start for each instance; a start of -1 in ``wanted`` is chosen.

        Raises:
            CalabashError: the card is in use (CONFLICT), restricted to another mode (MODE_CONFLICT), or cannot have the
                layout.
        """
        card = self._card_when_released(device)
        if card is None:
            raise CalabashError(
                f"device {device.index}, a {device.model}, does not support MIG", reason=Reason.SELECTOR_MISMATCH
            )
        if card.taken:
            raise CalabashError(
                Message(
                    "device {device} is in use by {users}",
                    device=device.index,
                    users=self._administration.in_use(device.uuid) or "instances with processes",
                ),
                reason=Reason.CONFLICT,
                hint=f"drain it first: calabash device drain {device.index}",
            )
        if device.pinned not in ("", *CUT_MODES):
            raise CalabashError(
                f"device {device.index} is kept in mode {device.pinned}",
                reason=Reason.MODE_CONFLICT,
                hint=f"permit MIG: calabash device mode {device.index} mig",
            )
        return complete_layout(card.geometry, wanted, what=f"device {device.index}, a {device.model},")

    def _card_when_released(self, device: Device) -> CardLayout | None:
        """Return the layout of a card; wait up to RELEASE_WAIT_S for allocations whose programs have just ended.

        Returns at once if a process still runs on the card; None if the card does not support MIG.
        """
        deadline = time.monotonic() + RELEASE_WAIT_S
        while True:
            card = next((c for c in self.cards() if c.device.uuid == device.uuid), None)
            if card is None or not card.taken or time.monotonic() > deadline:
                return card
            if any(self._parts.membership.processes(name) for name in self._administration.holders(device.uuid)):
                return card
            time.sleep(RELEASE_POLL_S)

    def apply(self, layouts: Sequence[tuple[Device, Sequence[Place]]]) -> None:
        """Create layouts on idle cards; all are checked before the first card is changed.

        Raises:
            CalabashError: a layout is not possible, a card is in use, or a card is named twice.
        """
        executor = self._parts.modes.get(MIG_MODE)
        if not isinstance(executor, MigArranger):
            raise CalabashError("this node does not serve sharing mode mig", reason=Reason.UNKNOWN_MODE)
        uuids = [device.uuid for device, _ in layouts]
        if len(set(uuids)) < len(uuids):
            raise CalabashError("a card is named by two layouts", hint="write one layout for each card")
        with self._parts.inventory.steps.reserved(uuids, "being partitioned by MIG"):
            complete = [(device, self.checked(device, wanted)) for device, wanted in layouts]
            for device, places in complete:
                executor.arrange(device.uuid, places)
                text = ", ".join(f"{name} at {start}" for name, start in places) or "no instances"
                self._parts.events.emit("layout", device=device.uuid, message=f"device {device.index}: {text}")
        self._parts.events.changed()


def complete_layout(geometry: MigGeometry, wanted: Sequence[Place], *, what: str) -> tuple[Place, ...]:
    """Return a layout with a start for each instance, in the order of the starts.

    Args:
        wanted: profile and first memory slice of each instance; -1: choose one.
        what: name of the card for messages.

    Raises:
        CalabashError: the card cannot have the layout.
    """
    state = MigState()
    for name, start in wanted:
        profile = geometry.profile(name)
        if profile is not None and profile.of:
            raise CalabashError(
                f"profile {name} is a compute instance of a {profile.of}, and a layout consists of GPU instances",
                hint=f"write {profile.of}: compute instances are created in it on request",
            )
        if profile is None:
            names = ", ".join(p.name for p in geometry.profiles)
            raise CalabashError(
                f"{what} has no profile {name!r}", reason=Reason.SELECTOR_MISMATCH, hint=f"it has {names}"
            )
        if start >= 0:
            starts = legal_starts(geometry, profile, state)
            if start not in starts:
                free = ", ".join(map(str, starts)) or "nowhere"
                raise CalabashError(
                    f"{what} cannot have a {name} at {start} in this layout",
                    reason=Reason.CONFLICT,
                    hint=f"possible starts: {free}",
                )
            state = with_instance(state, profile, start)
    largest_first = sorted((name for name, start in wanted if start < 0), key=lambda n: -_slices(geometry, n))
    choices = plan_positions(geometry, state, (), largest_first)
    nowhere = [name for name, choice in zip(largest_first, choices, strict=True) if choice is None]
    if nowhere:
        raise CalabashError(
            f"{what} has no room for {', '.join(nowhere)} in this layout",
            reason=Reason.CONFLICT,
            hint="see which profiles fit together: calabash device mig plan",
        )
    found = [place for place in wanted if place[1] >= 0]
    found += [(choice.profile, choice.start) for choice in choices if choice is not None]
    return tuple(sorted(found, key=lambda place: place[1]))


def plan_instances(cards: Sequence[CardLayout], profiles: Sequence[str]) -> tuple[PlannedInstance, ...]:
    """Plan instances on cards as the scheduler would: prefer the fullest card, then the fewest destroyed instances.

    Returns one entry for each profile, in order.
    """
    now = {card.device.uuid: (card.state, card.idle) for card in cards}
    usable = [card for card in cards if card.accepts_instances]
    found: list[PlannedInstance] = []
    for number, name in enumerate(profiles):
        options = []
        for order, card in enumerate(usable):
            state, idle = now[card.device.uuid]
            choice = plan_positions(card.geometry, state, idle, profiles[number:])[0]
            if choice is not None:
                merit = (not choice.shared, -state.mask.bit_count(), len(choice.destroyed), order)
                options.append((merit, card, choice))
        if not options:
            found.append(PlannedInstance(profile=name, card=None, choice=None))
            continue
        _, card, choice = min(options, key=lambda option: option[0])
        state, idle = now[card.device.uuid]
        now[card.device.uuid] = apply_choice(card.geometry, state, idle, choice)
        found.append(PlannedInstance(profile=name, card=card.device, choice=choice))
    return tuple(found)


def _slices(geometry: MigGeometry, name: str) -> int:
    profile = geometry.profile(name)
    return profile.slices if profile else 0


def _card(seen: DeviceSnapshot) -> CardLayout | None:
    device = seen.device
    geometry = device.mig
    if geometry is None:
        return None
    owners: dict[Place, list[tuple[Slice, AllocationId]]] = {}
    for held, name in zip(seen.held, seen.allocations, strict=True):
        profile = geometry.profile(held.slice.profile) if held.slice.profile else None
        if profile is not None:
            owners.setdefault((profile.instance, held.slice.start), []).append((held.slice, name))
    state, idle = used_and_idle(geometry, used_by(geometry, seen.held), device.mig_instances)
    standing_there = {i.place: i for i in device.mig_instances}
    instances = []
    for place, parts in owners.items():
        shown = _parts(geometry, place, standing_there.get(place), parts)
        uuid = standing_there[place].uuid if place in standing_there and not shown else ""
        names = tuple(name for _, name in parts)
        instances.append(LayoutInstance(place=place, uuid=uuid, state="used", allocations=names, parts=shown))
    foreign = [i for i in device.mig_instances if i.foreign and i.place not in owners]
    for instance in (*idle, *foreign):
        word = "foreign" if instance.foreign else "fixed" if instance.fixed else "idle"
        shown = _parts(geometry, instance.place, instance, ())
        uuid = "" if shown else instance.uuid
        instances.append(LayoutInstance(place=instance.place, uuid=uuid, state=word, parts=shown))
    return CardLayout(
        device=device,
        geometry=geometry,
        mode=seen.mode,
        state=state,
        idle=idle,
        instances=tuple(sorted(instances, key=lambda i: i.place[1])),
        taken=bool(seen.held or foreign or seen.orphans or seen.unmanaged),
    )


def _parts(
    geometry: MigGeometry, place: Place, instance: MigInstance | None, owners: Sequence[tuple[Slice, AllocationId]]
) -> tuple[LayoutPartition, ...]:
    """Return the compute instances of a GPU instance; empty if it is undivided or has none."""
    profile = geometry.profile(place[0])
    whole = profile.compute if profile is not None else 0
    found: dict[int, LayoutPartition] = {}
    for part in instance.parts if instance is not None else ():
        found[part.start] = LayoutPartition(start=part.start, compute=part.compute, uuid=part.uuid)
    for held, name in owners:
        if held.part < 0:
            return ()
        size = split_profile(held.profile)[0]
        for start in [s for s, p in found.items() if s < held.part + size and held.part < s + p.compute]:
            if (start, found[start].compute) != (held.part, size):
                del found[start]  # it is being removed
        uuid = found[held.part].uuid if held.part in found else ""
        found[held.part] = LayoutPartition(start=held.part, compute=size, uuid=uuid, allocation=name)
    if [(p.start, p.compute) for p in found.values()] == [(0, whole)]:
        return ()
    return tuple(found[start] for start in sorted(found))
