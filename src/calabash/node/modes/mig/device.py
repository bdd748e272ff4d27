"""One card that MIG cuts: what stands on it, whose it is, and how a place on it is come by.

Theory of operation. An instance is *taken* when a tenant holds one of its parts or a process is on one, else it is
idle. A place is had in this order: the instance that stands there already; else the idle instances of ours that
``model.mig_plan`` names are destroyed and a new one is made. What is taken, what is not ours and what a layout of an
operator has is never destroyed. A tenant of some compute slices shares its GPU instance, and its memory, with others
like it; whoever wants all of them gets a part as large as the instance. Where in there a part begins is decided when it is
planned; idle parts of ours leave for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from calabash.adapters.gpu.partitions import CardLayout, ComputeInstance, GpuInstance, Partitioning
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigInstance, MigPart, MigPlace, MigProfile, best_compute_slice, compute_mask, mig_state
from calabash.model.mig_plan import instances_to_destroy
from calabash.node.modes.mig.records import MigBook

BUSY_S = 3.0  # whoever tries a card out has left it by then
BUSY_LOOK_S = 0.1

Parts = Collection[DeviceUuid]


class MigCard:
    """One card. Every method is called with ``lock`` held, for as long as the driver takes."""

    def __init__(
        self, device: Device, driver: Partitioning, book: MigBook, ill: Callable[[DeviceUuid], bool] = lambda _: False
    ) -> None:
        self._ill = ill  # whether a fault has taken a part out of service
        self.device = device
        self.lock = threading.RLock()
        self.layout = CardLayout(enabled=device.mig_enabled)
        self._driver = driver
        self._book = book
        self._uuid = device.uuid

    def learn(self) -> None:
        """What stands on it now, whoever made it."""
        self.layout = self._driver.layout(self._uuid)

    def look(self) -> list[str]:
        """The same; what somebody else has changed since the last time, one line each."""
        before = self.layout
        self.learn()
        self._book.prune(self._uuid, self.layout)
        return _differences(before, self.layout, self.device.index)

    def instances(self, held: Parts) -> tuple[MigInstance, ...]:
        """What stands on it, for those who plan. ``held``: parts that tenants hold. One that has failed is as if strangers
        were on it: nobody gets it."""
        return tuple(
            MigInstance(
                profile=instance.profile,
                start=instance.start,
                uuid=next((part.uuid for part in instance.parts), ""),
                fixed=self._stays(instance),
                parts=_parts(instance, kept=self._book.entry(self._uuid, instance) is None),
                foreign=any((p.processes or self._ill(p.uuid)) and p.uuid not in held for p in instance.parts),
            )
            for instance in self.layout.instances
        )

    def provide(self, name: str, place: MigPlace, held: Parts) -> tuple[GpuInstance, ComputeInstance]:
        """What has this name at this place, and nobody has. Raises CalabashError; what was made until then is idle."""
        known = self.device.mig.profile(name) if self.device.mig is not None else None
        if known is None:
            raise CalabashError(
                f"device {self.device.index} has no MIG profile {name}", reason=Reason.SELECTOR_MISMATCH
            )
        profile, start = known.instance, place.start
        self._enable()
        self.mend(held)
        instance = self.layout.at(profile, start)
        if instance is not None and any(self._ill(part.uuid) for part in instance.parts):
            raise CalabashError(
                f"the {profile} at {start} of device {self.device.index} has failed and is still in use",
                reason=Reason.UNHEALTHY,
            )
        if instance is None:
            self._clear(profile, start, held)
            instance = self._make(profile, start)
        part = self._part(instance, known, place.part if known.of else 0, held)
        self.learn()
        return instance, part

    def vacate(self, held: Parts) -> None:
        """Be one card again, for another sharing mode. Raises CONFLICT while anything on it is taken or not ours."""
        if not self.layout.enabled:
            return
        self.learn()
        for instance in self.layout.instances:
            if self._taken(instance, held) or self._stays(instance):
                why = "is in use" if self._taken(instance, held) else "is to stay"
                raise CalabashError(
                    f"device {self.device.index} is cut by MIG, and its {instance.profile} at {instance.start} {why}",
                    reason=Reason.MODE_CONFLICT,
                    hint="destroy what you do not need of it: nvidia-smi mig -dci && nvidia-smi mig -dgi",
                )
        for instance in self.layout.instances:
            self._destroy(instance)
        self._change(False)

    def arrange(self, places: Sequence[tuple[str, int]], held: Parts) -> None:
        """Cut it as an operator wants it. Raises CONFLICT, and changes nothing, where what is taken or not ours is in the
        way."""
        self._enable()
        wanted = set(places)
        others = [i for i in self.layout.instances if (i.profile, i.start) not in wanted]
        for instance in others:
            known = self._book.entry(self._uuid, instance)
            if known is None or self._taken(instance, held):
                raise CalabashError(
                    f"device {self.device.index}: the {instance.profile} at {instance.start}"
                    f" {'is not ours' if known is None else 'is in use'}",
                    reason=Reason.CONFLICT,
                )
        self._book.fix(self._uuid, wanted)
        for instance in others:
            self._destroy(instance)
        self.restore()
        self.learn()

    def restore(self) -> None:
        """Make what the operator's layout has and does not stand, with a part as large as each."""
        missing = [m for m in self._book.fixed(self._uuid) if self.layout.at(m.profile, m.start) is None]
        if not missing or self.device.mig is None:
            return
        self._enable()
        for made in missing:
            known = self.device.mig.profile(made.profile)
            if known is None or self.layout.at(made.profile, made.start) is not None:
                continue
            with _unless_full():  # something else stands there now
                self._part(self._make(made.profile, made.start), known, 0, ())
        self.learn()

    def mend(self, held: Parts) -> list[str]:
        """Destroy idle instances of ours that have failed: made anew, they are well again. What was done, one line each.
        What a layout of an operator has stands again where there is room."""
        told: list[str] = []
        if not self.layout.enabled:
            return told
        for instance in self.layout.instances:
            failed = any(self._ill(part.uuid) for part in instance.parts)
            if failed and not self._taken(instance, held) and self._book.entry(self._uuid, instance) is not None:
                self._destroy(instance)
                told.append(
                    f"the {instance.profile} at {instance.start} of device {self.device.index} had failed, it is made anew"
                )
        if told:
            self.learn()
        self.restore()
        return told

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _taken(self, instance: GpuInstance, held: Parts) -> bool:
        return instance.in_use or any(part.uuid in held for part in instance.parts)

    def _stays(self, instance: GpuInstance) -> bool:
        known = self._book.entry(self._uuid, instance)
        return known is None or known.fixed

    def _enable(self) -> None:
        self.learn()
        if not self.layout.enabled:
            self._change(True)

    def _change(self, enabled: bool) -> None:
        _change_when_idle(self._driver, self._uuid, enabled)
        self.learn()

    def _clear(self, profile: str, start: int, held: Parts) -> None:
        """Destroy what has to leave for an instance here."""
        geometry = self.device.mig
        assert geometry is not None
        standing = {(i.profile, i.start): i for i in self.layout.instances}
        taken = [place for place, instance in standing.items() if self._taken(instance, held)]
        idle = [i for i in self.instances(held) if i.place not in taken]
        gone = instances_to_destroy(geometry, profile, start, mig_state(geometry, taken), idle)
        if gone is None:
            there = ", ".join(f"{name} at {at}" for name, at in standing)
            raise CalabashError(
                f"device {self.device.index} has no room for a {profile} at {start} beside {there or 'nothing'}",
                reason=Reason.NO_CAPACITY,
            )
        for place in gone:
            self._destroy(standing[place.place])

    def _make(self, profile: str, start: int) -> GpuInstance:
        self._book.about_to_make(self._uuid, profile, start)
        return self._driver.create(self._uuid, profile, start)

    def _destroy(self, instance: GpuInstance) -> None:
        for part in instance.parts:
            self._driver.destroy_part(self._uuid, instance.id, part.id)
        self._driver.destroy(self._uuid, instance.id)
        self._book.destroyed(self._uuid, instance.profile, instance.start)

    def _part(self, instance: GpuInstance, known: MigProfile, first: int, held: Parts) -> ComputeInstance:
        """The part of this profile from this compute slice on (-1: anywhere): an idle one, or a new one in place of idle ones
        of ours."""
        idle = [part for part in instance.parts if part.uuid not in held and not part.processes]
        taken = _mask(part for part in instance.parts if part not in idle)
        first = first if first >= 0 else best_compute_slice(known, taken)
        span = compute_mask(known, max(0, first))
        found = next((part for part in idle if (part.start, part.compute) == (first, known.compute)), None)
        if found is not None:
            return found
        crossed = [part for part in idle if _mask((part,)) & span]
        if first < 0 or span & taken or (crossed and self._book.entry(self._uuid, instance) is None):
            free, at = known.instance_compute - taken.bit_count(), f" at {first}" if known.of and first >= 0 else ""
            raise CalabashError(
                f"the {instance.profile} at {instance.start} of device {self.device.index} has"
                f" {free} of {known.instance_compute} compute slices free, asked {known.compute}{at}",
                reason=Reason.NO_CAPACITY,
            )
        for part in crossed:
            self._driver.destroy_part(self._uuid, instance.id, part.id)
        made = self._driver.create_part(self._uuid, instance.id, known.compute, first)
        self._book.has_part(self._uuid, instance, made.uuid)
        return made


def _parts(instance: GpuInstance, *, kept: bool) -> tuple[MigPart, ...]:
    return tuple(MigPart(start=p.start, compute=p.compute, uuid=p.uuid, kept=kept) for p in instance.parts)


def _mask(parts: Iterable[ComputeInstance]) -> int:
    """Their compute slices."""
    mask = 0
    for part in parts:
        mask |= ((1 << part.compute) - 1) << part.start
    return mask


@contextmanager
def _unless_full() -> Iterator[None]:
    try:
        yield
    except CalabashError as error:
        if error.reason is not Reason.NO_CAPACITY:
            raise


def _change_when_idle(driver: Partitioning, uuid: DeviceUuid, enabled: bool) -> None:
    """The mode, as soon as the card is idle: something of ours may just be trying it out."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return driver.enable(uuid, enabled)
        except CalabashError as error:
            if error.reason is not Reason.CONFLICT or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_LOOK_S)


def _differences(before: CardLayout, after: CardLayout, index: int) -> list[str]:
    """What one layout has and the other has not, for people."""
    if before.enabled != after.enabled:
        return [f"somebody has turned MIG {'on' if after.enabled else 'off'} on device {index}"]
    found = []
    for verb, these, those in (("made", after, before), ("destroyed", before, after)):
        known = {(i.profile, i.start, tuple(p.uuid for p in i.parts)) for i in those.instances}
        found += [
            f"somebody has {verb} a {i.profile} at {i.start} on device {index}"
            for i in these.instances
            if (i.profile, i.start, tuple(p.uuid for p in i.parts)) not in known
        ]
    return found
