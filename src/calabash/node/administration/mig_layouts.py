"""What operators do with the modes of cards: keep a card in one, look how MIG cuts it, ask what would be, cut it to stay so.

What MIG cuts is done by the executor of that mode; here is what must hold before: the layout is one that the card can have,
and nobody is on it. Everything is checked before anything is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigGeometry, MigInstance, MigState, legal_starts, split_profile, with_instance
from calabash.model.mig_plan import MigChoice, apply_choice, plan_positions, used_and_idle
from calabash.model.request import CUT_MODES, MIG_MODE, AllocationId, ModeName, Slice
from calabash.node import snapshot_reader
from calabash.node.administration.devices import Care
from calabash.node.snapshot import DeviceSnapshot
from calabash.node.wiring import NodeParts
from calabash.sharing.mig import used_by
from calabash.sharing.registry import SHARING_MODES

AUTO = "auto"
LEAVING_S = 2.0  # by then it is known that a program has ended, and that its instance is idle
LEAVING_LOOK_S = 0.05
Place = tuple[str, int]


@runtime_checkable
class Arranging(Protocol):
    """The executor of a mode that cuts cards."""

    def arrange(self, device: DeviceUuid, places: Sequence[Place]) -> None:
        """Exactly these instances (profile, first memory slice) stand on the idle card from now on, and stay."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPart:
    """Some compute slices of an instance, from the ``start``th of them on, and who has them; nobody: it is idle."""

    start: int
    compute: int
    uuid: str = ""
    allocation: AllocationId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutInstance:
    """An instance on a card, and who has it; ``parts`` where they are smaller than it."""

    place: Place
    uuid: str
    state: str
    allocations: tuple[AllocationId, ...] = ()
    parts: tuple[CutPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCard:
    """A card that MIG can cut, with what stands on it by first memory slice."""

    device: Device
    geometry: MigGeometry
    mode: ModeName | None
    state: MigState
    idle: tuple[MigInstance, ...]
    instances: tuple[CutInstance, ...]
    taken: bool

    @property
    def may_be_cut(self) -> bool:
        """Whether a new instance could be had of it, room or not."""
        free = self.mode == MIG_MODE or not self.taken
        return free and self.device.pinned in ("", MIG_MODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Where an instance would go; ``card`` None: nowhere now."""

    profile: str
    card: Device | None
    choice: MigChoice | None


class Cutting:
    """The modes of the cards of one node, for operators; safe for threads."""

    def __init__(self, parts: NodeParts, care: Care) -> None:
        self._parts = parts
        self._care = care

    def keep(self, device: Device, mode: str) -> None:
        """Serve only that mode on a card, as soon as others have left it; ``auto``: any. Raises CalabashError."""
        if mode != AUTO and mode not in SHARING_MODES:
            raise CalabashError(
                f"sharing mode {mode!r} is not known",
                reason=Reason.UNKNOWN_MODE,
                hint=f"one of: {AUTO}, {', '.join(sorted(SHARING_MODES))}",
            )
        if mode == MIG_MODE and device.mig is None:
            raise CalabashError(
                f"device {device.index}, a {device.model}, cannot be cut by MIG", reason=Reason.SELECTOR_MISMATCH
            )
        self._parts.inventory.health.note(device.uuid, mode="" if mode == AUTO else mode)
        self._parts.events.tell("mode", device=device.uuid, message=f"device {device.index} serves mode {mode}")
        self._parts.events.changed()

    def cards(self) -> tuple[CutCard, ...]:
        """All cards that MIG can cut."""
        return tuple(card for state in snapshot_reader.devices(self._parts) if (card := _card(state)) is not None)

    def plan(self, profiles: Iterable[str]) -> tuple[Planned, ...]:
        """Where these would go if they were asked for now, one after the other."""
        return spread(self.cards(), tuple(profiles))

    def checked(self, device: Device, wanted: Sequence[Place]) -> tuple[Place, ...]:
        """The layout with a start for each; -1 leaves it open. Raises CalabashError: in use, or impossible."""
        card = self._left(device)
        if card is None:
            raise CalabashError(
                f"device {device.index}, a {device.model}, cannot be cut by MIG", reason=Reason.SELECTOR_MISMATCH
            )
        if card.taken:
            raise CalabashError(
                f"device {device.index} is in use by {self._care.in_use(device.uuid) or 'instances with processes'}",
                reason=Reason.CONFLICT,
                hint=f"drain it first: calabash device drain {device.index}",
            )
        if device.pinned not in ("", *CUT_MODES):
            raise CalabashError(
                f"device {device.index} is kept in mode {device.pinned}",
                reason=Reason.MODE_CONFLICT,
                hint=f"let it be cut: calabash device mode {device.index} mig",
            )
        return laid_out(card.geometry, wanted, what=f"device {device.index}, a {device.model},")

    def _left(self, device: Device) -> CutCard | None:
        """The card; where nothing runs on it any more, as soon as those whose programs have just ended have left it."""
        deadline = time.monotonic() + LEAVING_S
        while True:
            card = next((c for c in self.cards() if c.device.uuid == device.uuid), None)
            if card is None or not card.taken or time.monotonic() > deadline:
                return card
            if any(self._parts.membership.processes(name) for name in self._care.holders(device.uuid)):
                return card
            time.sleep(LEAVING_LOOK_S)

    def apply(self, layouts: Sequence[tuple[Device, Sequence[Place]]]) -> None:
        """Cut idle cards; all are checked before any is changed. Raises CalabashError."""
        executor = self._parts.modes.get(MIG_MODE)
        if not isinstance(executor, Arranging):
            raise CalabashError("this node cannot cut cards by MIG", reason=Reason.UNKNOWN_MODE)
        uuids = [device.uuid for device, _ in layouts]
        if len(set(uuids)) < len(uuids):
            raise CalabashError("a card stands twice among the layouts", hint="write one layout for each card")
        with self._parts.inventory.steps.reserved(uuids, "being cut by MIG"):
            complete = [(device, self.checked(device, wanted)) for device, wanted in layouts]
            for device, places in complete:
                executor.arrange(device.uuid, places)
                text = ", ".join(f"{name} at {start}" for name, start in places) or "nothing fixed"
                self._parts.events.tell("layout", device=device.uuid, message=f"device {device.index}: {text}")
        self._parts.events.changed()


def laid_out(geometry: MigGeometry, wanted: Sequence[Place], *, what: str) -> tuple[Place, ...]:
    """A whole layout with a start for each instance. Raises CalabashError where the card cannot have it."""
    state = MigState()
    for name, start in wanted:
        profile = geometry.profile(name)
        if profile is not None and profile.of:
            raise CalabashError(
                f"{name} is a part of a {profile.of}, and a layout has whole instances",
                hint=f"write {profile.of}: parts are made in it as they are asked for",
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
                    hint=f"it could begin at {free}",
                )
            state = with_instance(state, profile, start)
    largest_first = sorted((name for name, start in wanted if start < 0), key=lambda n: -_slices(geometry, n))
    choices = plan_positions(geometry, state, (), largest_first)
    nowhere = [name for name, choice in zip(largest_first, choices, strict=True) if choice is None]
    if nowhere:
        raise CalabashError(
            f"{what} has no room for {', '.join(nowhere)} in this layout",
            reason=Reason.CONFLICT,
            hint="see what fits beside what: calabash mig plan",
        )
    found = [place for place in wanted if place[1] >= 0]
    found += [(choice.profile, choice.start) for choice in choices if choice is not None]
    return tuple(sorted(found, key=lambda place: place[1]))


def spread(cards: Sequence[CutCard], profiles: Sequence[str]) -> tuple[Planned, ...]:
    """Instances over cards as the scheduler would place them: the fullest card first, the fewest destroyed."""
    now = {card.device.uuid: (card.state, card.idle) for card in cards}
    usable = [card for card in cards if card.may_be_cut]
    found: list[Planned] = []
    for number, name in enumerate(profiles):
        options = []
        for order, card in enumerate(usable):
            state, idle = now[card.device.uuid]
            choice = plan_positions(card.geometry, state, idle, profiles[number:])[0]
            if choice is not None:
                merit = (not choice.shared, -state.mask.bit_count(), len(choice.destroyed), order)
                options.append((merit, card, choice))
        if not options:
            found.append(Planned(profile=name, card=None, choice=None))
            continue
        _, card, choice = min(options, key=lambda option: option[0])
        state, idle = now[card.device.uuid]
        now[card.device.uuid] = apply_choice(card.geometry, state, idle, choice)
        found.append(Planned(profile=name, card=card.device, choice=choice))
    return tuple(found)


def _slices(geometry: MigGeometry, name: str) -> int:
    profile = geometry.profile(name)
    return profile.slices if profile else 0


def _card(seen: DeviceSnapshot) -> CutCard | None:
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
        instances.append(CutInstance(place=place, uuid=uuid, state="used", allocations=names, parts=shown))
    foreign = [i for i in device.mig_instances if i.foreign and i.place not in owners]
    for instance in (*idle, *foreign):
        word = "foreign" if instance.foreign else "fixed" if instance.fixed else "idle"
        shown = _parts(geometry, instance.place, instance, ())
        uuid = "" if shown else instance.uuid
        instances.append(CutInstance(place=instance.place, uuid=uuid, state=word, parts=shown))
    return CutCard(
        device=device,
        geometry=geometry,
        mode=seen.mode,
        state=state,
        idle=idle,
        instances=tuple(sorted(instances, key=lambda i: i.place[1])),
        taken=bool(seen.held or foreign or seen.orphans or seen.strangers),
    )


def _parts(
    geometry: MigGeometry, place: Place, instance: MigInstance | None, owners: Sequence[tuple[Slice, AllocationId]]
) -> tuple[CutPart, ...]:
    """What an instance is divided into; () for one that is one piece, or nothing yet."""
    profile = geometry.profile(place[0])
    whole = profile.compute if profile is not None else 0
    found: dict[int, CutPart] = {}
    for part in instance.parts if instance is not None else ():
        found[part.start] = CutPart(start=part.start, compute=part.compute, uuid=part.uuid)
    for held, name in owners:
        if held.part < 0:
            return ()
        size = split_profile(held.profile)[0]
        for start in [s for s, p in found.items() if s < held.part + size and held.part < s + p.compute]:
            if (start, found[start].compute) != (held.part, size):
                del found[start]  # it is about to leave
        uuid = found[held.part].uuid if held.part in found else ""
        found[held.part] = CutPart(start=held.part, compute=size, uuid=uuid, allocation=name)
    if [(p.start, p.compute) for p in found.values()] == [(0, whole)]:
        return ()
    return tuple(found[start] for start in sorted(found))
