"""Sharing mode ``mig``: partitions of the device with separate memory, multiprocessors and engines.

Theory of operation. A request names a profile, or amounts: then it gets the smallest profile with at least that memory and that
many compute slices. ``core_percent`` is rounded up to compute slices, with a tolerance of one percent, so that 15% is one of
seven slices. Profiles with a media engine are used only if a request names them. ``model.mig_plan`` chooses the start of an
instance and the idle instances that are destroyed for it.

A request for a compute instance (``1c.3g.40gb``) gets separate compute slices, and shares the memory of the GPU instance with
the other compute instances. The hardware does not isolate them from each other. Therefore a compute instance is refused at
isolation level hardware, and is never chosen for amounts.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.mig import MigGeometry, MigProfile, MigState
from calabash.model.mig_plan import choose_position, plan_positions, used_and_idle
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.model.units import format_mib
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit, shim_environment

# Before a whole device, for requests for less than a device at isolation level hardware.
_RANK = 50


class Mig:
    """Mode ``mig``: partitions of the device that the hardware isolates from each other."""

    name = ModeName("mig")
    isolation = Isolation.HARDWARE

    def rank(self, request: GpuRequest) -> int | None:
        part = request.memory_mib is not None or request.memory_milli not in (None, 1000) or request.core_percent < 100
        return _RANK if part and request.isolation > Isolation.COOPERATIVE else None

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        geometry = device.mig
        if geometry is None:
            return Misfit(reason=Reason.SELECTOR_MISMATCH, message=f"{device.model} does not support MIG")
        profile = wanted_profile(geometry, request)
        if profile is None:
            return _profile_misfit(device, geometry, request)
        if profile.of and request.isolation is Isolation.HARDWARE:
            return Misfit(
                reason=Reason.MODE_CONFLICT,
                message=f"cannot isolate {profile.name} by hardware: it shares the memory of its {profile.of}",
            )
        state, idle = used_and_idle(geometry, used_by(geometry, held), device.mig_instances)
        choice = choose_position(geometry, profile.name, state, idle)
        if choice is None:
            used = _used_positions(device, held)
            return Misfit(reason=Reason.NO_CAPACITY, message=f"has no free position for {profile.name}{used}")
        return Slice(
            device=device.uuid,
            memory_mib=profile.memory_mib,
            core_percent=max(1, 100 * profile.compute // geometry.compute),
            profile=profile.name,
            start=choice.start,
            part=choice.part,
        )

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del device, policy
        return Charge(core_milli=10 * part.core_percent, memory_mib=part.memory_mib)

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        memory_mib = sum(h.slice.memory_mib for h in held)
        core_percent = sum(h.slice.core_percent for h in held)
        return DeviceOccupancy(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=memory_mib,
            memory_free_mib=max(0, device.memory_mib - memory_mib),
            core_percent=core_percent,
            core_free_percent=max(0, 100 - core_percent),
            slots_free=_slots_free(device, held),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


def wanted_profile(geometry: MigGeometry, request: GpuRequest) -> MigProfile | None:
    """Return the profile that the request names, or the smallest profile with the requested amounts; None if there is none."""
    if request.mig:
        return geometry.profile(request.mig)
    memory_mib = request.memory_mib or 0
    slices = -(-geometry.slices * (request.memory_milli or 0) // 1000)
    compute = 1
    if request.core_percent < 100:
        compute = max(1, -(-(request.core_percent - 1) * geometry.compute // 100))
    elif not (memory_mib or slices):
        compute = geometry.compute
    enough = [
        p
        for p in geometry.profiles
        if p.memory_mib >= memory_mib and p.slices >= slices and p.compute >= compute and not p.media
    ]
    return min(enough, key=lambda p: (p.slices, p.compute, p.memory_mib), default=None)


def used_by(geometry: MigGeometry, held: Sequence[HeldSlice]) -> MigState:
    """Return the MIG resources that held slices use. Several slices of one instance count once."""
    state = MigState()
    for place in dict.fromkeys((h.slice.profile, *h.slice.place) for h in held if h.slice.profile):
        state = state.joined(geometry, *place)
    return state


def _profile_misfit(device: Device, geometry: MigGeometry, request: GpuRequest) -> Misfit:
    names = ", ".join(p.name for p in geometry.profiles)
    if request.mig:
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH, message=f"{device.model} has no profile {request.mig}, it has {names}"
        )
    largest = max(geometry.profiles, key=lambda p: p.memory_mib)
    asked = format_mib(request.memory_mib) if request.memory_mib else f"{request.core_percent}% of compute"
    return Misfit(
        reason=Reason.TOO_LARGE,
        message=f"{device.model} has no MIG profile with {asked}, the largest is {largest.name}"
        f" of {format_mib(largest.memory_mib)}",
    )


def _used_positions(device: Device, held: Sequence[HeldSlice]) -> str:
    """Return text like `` beside 3g.40gb at 0 and 1g.10gb at 6``: instances that are used or must not be destroyed."""
    places = [(h.slice.profile, h.slice.start) for h in held if h.slice.profile]
    places += [i.place for i in device.mig_instances if (i.fixed or i.foreign) and i.place not in places]
    stand = " and ".join(f"{name} at {start}" for name, start in sorted(places, key=lambda place: place[1]))
    return f" beside {stand}" if stand else ""


def _slots_free(device: Device, held: Sequence[HeldSlice]) -> int:
    geometry = device.mig
    if geometry is None:
        return 0
    smallest = min(geometry.profiles, key=lambda p: (p.slices, p.compute, p.media))
    state, idle = used_and_idle(geometry, used_by(geometry, held), device.mig_instances)
    return sum(
        choice is not None for choice in plan_positions(geometry, state, idle, [smallest.name] * geometry.slices)
    )


MODE = Mig()
