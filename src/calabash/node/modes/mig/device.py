"""MIG instances of one GPU: their discovery, reuse, creation and destruction.

Theory of operation. A GPU instance is *taken* if an allocation holds one of its compute instances or a process uses
one; otherwise it is idle. To provide an instance at a place (a first memory slice), an existing instance of that
profile is reused; if there is none, the idle instances that ``model.mig_plan`` names are destroyed and a new one is
created. Instances that are taken, that the pool did not create, or that belong to an operator's layout are never
destroyed. An allocation of some compute slices shares its GPU instance, and its memory, with others like it; an
allocation of all of them gets a compute instance as large as the GPU instance. The plan decides the first compute
slice; idle compute instances of the pool are destroyed if they overlap it.
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
from calabash.node.modes.mig.records import CreatedInstances

BUSY_S = 3.0  # a probe of a device ends within this time
BUSY_RETRY_S = 0.1

Parts = Collection[DeviceUuid]


class MigCard:
    """MIG instances of one GPU. Every method must be called with ``lock`` held; calls of the driver may take seconds."""

    def __init__(
        self,
        device: Device,
        driver: Partitioning,
        made: CreatedInstances,
        has_failed: Callable[[DeviceUuid], bool] = lambda _: False,
    ) -> None:
        self._has_failed = has_failed  # True for a MIG device that a fault took out of service
        self.device = device
        self.lock = threading.RLock()
        self.layout = CardLayout(enabled=device.mig_enabled)
        self._driver = driver
        self._made = made
        self._uuid = device.uuid

    def learn(self) -> None:
        """Read the present instances from the driver into ``layout``. Raises CalabashError."""
        self.layout = self._driver.layout(self._uuid)

    def poll(self) -> list[str]:
        """Read the present instances, and return one line for each change since the last reading."""
        before = self.layout
        self.learn()
        self._made.prune(self._uuid, self.layout)
        return _differences(before, self.layout, self.device.index)

    def instances(self, held: Parts) -> tuple[MigInstance, ...]:
        """Return the instances for the scheduler.

        An instance is marked ``foreign``, and is not allocated, if one of its MIG devices has failed, or is used by
        processes although no allocation holds it.

        Args:
            held: MIG devices that allocations hold.
        """
        return tuple(
            MigInstance(
                profile=instance.profile,
                start=instance.start,
                uuid=next((part.uuid for part in instance.parts), ""),
                fixed=self._must_stay(instance),
                parts=_parts(instance, kept=self._made.entry(self._uuid, instance) is None),
                foreign=any((p.processes or self._has_failed(p.uuid)) and p.uuid not in held for p in instance.parts),
            )
            for instance in self.layout.instances
        )

    def provide(self, name: str, place: MigPlace, held: Parts) -> tuple[GpuInstance, ComputeInstance]:
        """Return an idle instance of a profile at a position of this GPU, and create it if necessary.

        Args:
            name: the MIG profile.
            place: first memory slice, and first compute slice of a shared instance.
            held: MIG devices that allocations hold.

        Raises:
            CalabashError: the device has no such profile, the instance has failed, instances in use overlap the place,
                or the driver failed.
                Instances created until then stay idle.
        """
        known = self.device.mig.profile(name) if self.device.mig is not None else None
        if known is None:
            raise CalabashError(
                f"device {self.device.index} has no MIG profile {name}", reason=Reason.SELECTOR_MISMATCH
            )
        profile, start = known.instance, place.start
        self._enable()
        self.mend(held)
        instance = self.layout.at(profile, start)
        if instance is not None and any(self._has_failed(part.uuid) for part in instance.parts):
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
        """Destroy all instances and disable MIG, for another sharing mode. Does nothing if MIG is disabled.

        Raises:
            CalabashError: MODE_CONFLICT: an instance is taken, belongs to a layout or was not created by the pool.
        """
        if not self.layout.enabled:
            return
        self.learn()
        for instance in self.layout.instances:
            if self._taken(instance, held) or self._must_stay(instance):
                why, hint = self._obstacle(instance, held)
                raise CalabashError(
                    f"device {self.device.index} is partitioned by MIG, and its {instance.profile} at {instance.start} {why}",
                    reason=Reason.MODE_CONFLICT,
                    hint=hint,
                )
        for instance in self.layout.instances:
            self._destroy(instance)
        self._change(False)

    def arrange(self, places: Sequence[tuple[str, int]], held: Parts) -> None:
        """Set the operator's layout of the GPU: destroy other instances and create the missing ones.

        Args:
            places: profile and first memory slice of each instance.
            held: MIG devices that allocations hold.

        Raises:
            CalabashError: CONFLICT: another instance is taken or was not created by the pool; nothing has been changed.
        """
        self._enable()
        wanted = set(places)
        others = [i for i in self.layout.instances if (i.profile, i.start) not in wanted]
        for instance in others:
            if self._made.entry(self._uuid, instance) is None or self._taken(instance, held):
                why, hint = self._obstacle(instance, held)
                raise CalabashError(
                    f"device {self.device.index}: the {instance.profile} at {instance.start} {why}",
                    reason=Reason.CONFLICT,
                    hint=hint,
                )
        self._made.fix(self._uuid, wanted)
        for instance in others:
            self._destroy(instance)
        self.restore()
        self.learn()

    def restore(self) -> None:
        """Create the missing instances of the operator's layout, each with one compute instance of the full size."""
        missing = [m for m in self._made.fixed(self._uuid) if self.layout.at(m.profile, m.start) is None]
        if not missing or self.device.mig is None:
            return
        self._enable()
        for made in missing:
            known = self.device.mig.profile(made.profile)
            if known is None or self.layout.at(made.profile, made.start) is not None:
                continue
            with _unless_full():  # another instance may occupy the place now
                self._part(self._make(made.profile, made.start), known, 0, ())
        self.learn()

    def mend(self, held: Parts) -> list[str]:
        """Destroy idle instances of the pool that have failed, and create missing instances of the operator's layout.

        An instance that is created again is healthy. Returns one line for each instance that was destroyed. ``held``
        has the MIG devices that allocations hold.
        """
        notes: list[str] = []
        if not self.layout.enabled:
            return notes
        for instance in self.layout.instances:
            failed = any(self._has_failed(part.uuid) for part in instance.parts)
            if failed and not self._taken(instance, held) and self._made.entry(self._uuid, instance) is not None:
                self._destroy(instance)
                notes.append(
                    f"the {instance.profile} at {instance.start} of device {self.device.index} had failed and was destroyed"
                )
        if notes:
            self.learn()
        self.restore()
        return notes

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _taken(self, instance: GpuInstance, held: Parts) -> bool:
        return instance.in_use or any(part.uuid in held for part in instance.parts)

    def _obstacle(self, instance: GpuInstance, held: Parts) -> tuple[str, str]:
        """Return why an instance cannot be destroyed, and a hint, for an instance that is taken or must stay."""
        if self._taken(instance, held):
            return "is in use", "wait until its programs have ended, or request another device"
        if self._made.entry(self._uuid, instance) is None:
            which = f"-i {self._uuid} -gi {instance.id}"
            destroy = f"nvidia-smi mig -dci {which} && nvidia-smi mig -dgi {which}"
            return "was not created by this pool", f"if it is not needed: {destroy}"
        return (
            "belongs to the layout of the device",
            f"to remove the layout: calabash device mig apply {self.device.index}:none",
        )

    def _must_stay(self, instance: GpuInstance) -> bool:
        known = self._made.entry(self._uuid, instance)
        return known is None or known.fixed

    def _enable(self) -> None:
        self.learn()
        if not self.layout.enabled:
            self._change(True)

    def _change(self, enabled: bool) -> None:
        _change_when_idle(self._driver, self._uuid, enabled)
        self.learn()

    def _clear(self, profile: str, start: int, held: Parts) -> None:
        """Destroy the idle instances that overlap a new one. Raises NO_CAPACITY if an overlapping one must stay."""
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
        self._made.about_to_make(self._uuid, profile, start)
        return self._driver.create(self._uuid, profile, start)

    def _destroy(self, instance: GpuInstance) -> None:
        for part in instance.parts:
            self._driver.destroy_part(self._uuid, instance.id, part.id)
        self._driver.destroy(self._uuid, instance.id)
        self._made.destroyed(self._uuid, instance.profile, instance.start)

    def _part(self, instance: GpuInstance, known: MigProfile, first: int, held: Parts) -> ComputeInstance:
        """Return an idle compute instance of the profile; if there is none, create it.

        Idle compute instances that overlap the new one are destroyed if the pool created the GPU instance.

        Args:
            instance: the GPU instance.
            known: the profile.
            first: first compute slice; -1: any.
            held: MIG devices that allocations hold.

        Raises:
            CalabashError: NO_CAPACITY: the compute slices are not free.
        """
        idle = [part for part in instance.parts if part.uuid not in held and not part.processes]
        taken = _mask(part for part in instance.parts if part not in idle)
        first = first if first >= 0 else best_compute_slice(known, taken)
        span = compute_mask(known, max(0, first))
        found = next((part for part in idle if (part.start, part.compute) == (first, known.compute)), None)
        if found is not None:
            return found
        crossed = [part for part in idle if _mask((part,)) & span]
        if first < 0 or span & taken or (crossed and self._made.entry(self._uuid, instance) is None):
            free, at = known.instance_compute - taken.bit_count(), f" at {first}" if known.of and first >= 0 else ""
            raise CalabashError(
                f"the {instance.profile} at {instance.start} of device {self.device.index} has"
                f" {free} of {known.instance_compute} compute slices free, {known.compute} requested{at}",
                reason=Reason.NO_CAPACITY,
            )
        for part in crossed:
            self._driver.destroy_part(self._uuid, instance.id, part.id)
        made = self._driver.create_part(self._uuid, instance.id, known.compute, first)
        self._made.has_part(self._uuid, instance, made.uuid)
        return made


def _parts(instance: GpuInstance, *, kept: bool) -> tuple[MigPart, ...]:
    return tuple(MigPart(start=p.start, compute=p.compute, uuid=p.uuid, kept=kept) for p in instance.parts)


def _mask(parts: Iterable[ComputeInstance]) -> int:
    """Return the compute slices of some compute instances as a bit mask."""
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
    """Enable or disable MIG, and retry for ``BUSY_S`` while the GPU is busy, for example with a probe of the pool."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return driver.enable(uuid, enabled)
        except CalabashError as error:
            if error.reason is not Reason.CONFLICT or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_RETRY_S)


def _differences(before: CardLayout, after: CardLayout, index: int) -> list[str]:
    """Return the differences of two layouts as sentences."""
    if before.enabled != after.enabled:
        return [f"MIG was {'enabled' if after.enabled else 'disabled'} on device {index} from outside the pool"]
    found = []
    for verb, these, those in (("created", after, before), ("destroyed", before, after)):
        known = {(i.profile, i.start, tuple(p.uuid for p in i.parts)) for i in those.instances}
        found += [
            f"a {i.profile} at {i.start} on device {index} was {verb} from outside the pool"
            for i in these.instances
            if (i.profile, i.start, tuple(p.uuid for p in i.parts)) not in known
        ]
    return found
