"""Sharing mode ``mps``: NVIDIA's multi-process service (MPS), with a share of the multiprocessors and a memory limit per slice.

Theory of operation. The clients of one MPS server run at the same time, each on its share of the multiprocessors. A share is a
ceiling that the service enforces: idle time of other clients does not raise it. So shares are fixed, and their sum is at most
100%. Memory is counted as in mode ``vgpu``: the sum of all slices plus ``SLICE_RESERVE_MIB`` for each stays within the device
memory. The reserve covers the context of the server and memory that the driver attributes to no process.

A device with a MIG layout that the operator keeps in this mode has one MPS service per GPU instance of the layout. A slice is
placed in one GPU instance, the fullest one that has room. Percentages still refer to the whole device: 30% is 30% of the
device's compute in every GPU instance. Schedulers therefore count such a device like any other; only this module considers its
instances.

A fatal fault of one client hits all clients of the same MPS server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.mig import MigGeometry, MigInstance
from calabash.model.request import MPS_MODE, ComputePolicy, GpuRequest, Isolation, Slice
from calabash.model.units import format_mib
from calabash.sharing.amounts import amounts_misfit, requested_memory_mib
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 64
CLIENTS_MAX = 48  # clients of one server; every process of a tenant is a client


class Mps:
    """Mode ``mps``: slices with a share of the multiprocessors that NVIDIA's multi-process service enforces."""

    name = MPS_MODE
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only if requested by name, because a fault of one client hits all clients

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        refused = _unsupported(request)
        if refused is not None:
            return refused
        wanted_mib = requested_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        wanted = Slice(device=device.uuid, memory_mib=wanted_mib, core_percent=request.core_percent)
        misfit = amounts_misfit(
            device,
            self.occupancy(device, held),
            memory_mib=wanted_mib,
            core_percent=request.core_percent,
            reserve_mib=SLICE_RESERVE_MIB,
            slices_max=CLIENTS_MAX * max(1, len(device.mig_instances)),
        )
        if misfit is not None:
            return misfit
        cut = device.pinned == self.name and any(i.fixed for i in device.mig_instances)
        return _place_in_instance(device, held, wanted) if cut else wanted

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del device, policy
        return Charge(
            core_milli=10 * part.core_percent, memory_mib=part.memory_mib + SLICE_RESERVE_MIB, slices_max=CLIENTS_MAX
        )

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        memory_mib = sum(h.slice.memory_mib for h in held)
        core_percent = sum(h.slice.core_percent for h in held)
        return DeviceOccupancy(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=memory_mib,
            memory_free_mib=max(0, device.memory_mib - memory_mib - SLICE_RESERVE_MIB * (len(held) + 1)),
            core_percent=core_percent,
            core_free_percent=max(0, 100 - core_percent),
            slots_free=max(0, CLIENTS_MAX * max(1, len(device.mig_instances)) - len(held)),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


def service_name(profile: str, start: int) -> str:
    """Return the name of an MPS service of a device in health events; ``profile`` is "" for the whole device."""
    return f"{MPS_MODE} {profile} at {start}" if profile else MPS_MODE


def is_service_name(name: str) -> bool:
    """Return True if the text is the name of an MPS service."""
    return name == MPS_MODE or name.startswith(f"{MPS_MODE} ")


def percent_of_device(geometry: MigGeometry, profile: str) -> int:
    """Return the percentage of the device's compute that a GPU instance has, rounded up: 43% for three of seven slices.

    Returns 0 if the device does not have the profile.
    """
    known = geometry.profile(profile)
    return -(-100 * known.compute // geometry.compute) if known is not None else 0


def _place_in_instance(device: Device, held: Sequence[HeldSlice], wanted: Slice) -> Slice | Misfit:
    """Return the requested slice, placed in the fullest GPU instance in which it fits.

    Of equally full GPU instances the one with the lowest start is taken. If the slice fits in none, the reason is
    returned.

    Args:
        held: existing slices of the device.
        wanted: the slice without a GPU instance.
    """
    instances = list(_free_amounts(device, held))
    fitting = [
        (cores, memory_mib, instance)
        for instance, cores, memory_mib in instances
        if wanted.core_percent <= cores and wanted.memory_mib + SLICE_RESERVE_MIB <= memory_mib
    ]
    if fitting:
        *_, instance = min(fitting, key=lambda entry: (*entry[:2], entry[2].start))
        return replace(wanted, profile=instance.profile, start=instance.start)
    left = " and ".join(
        f"its {i.profile} at {i.start} has {cores}% and {format_mib(max(0, mib - SLICE_RESERVE_MIB))} left"
        for i, cores, mib in instances
    )
    reason = Reason.NO_CORES if all(wanted.core_percent > cores for _, cores, _ in instances) else Reason.NO_MEMORY
    return Misfit(
        reason=reason,
        message=f"{left or 'has no MIG instance with an MPS service'}, asked {wanted.core_percent}% and"
        f" {format_mib(wanted.memory_mib)} of one instance",
    )


def _free_amounts(device: Device, held: Sequence[HeldSlice]) -> Iterator[tuple[MigInstance, int, int]]:
    """Yield each usable GPU instance of the layout with its free compute, in percent of the device, and free memory in MiB."""
    assert device.mig is not None
    for instance in device.mig_instances:
        known = device.mig.profile(instance.profile)
        inside = [h.slice for h in held if (h.slice.profile, h.slice.start) == instance.place]
        if known is None or instance.start not in known.starts or not instance.fixed:
            continue
        if (instance.foreign and not inside) or len(inside) >= CLIENTS_MAX:
            continue  # unmanaged processes use it, or all clients of its server are used
        yield (
            instance,
            percent_of_device(device.mig, instance.profile) - sum(s.core_percent for s in inside),
            known.memory_mib - sum(s.memory_mib + SLICE_RESERVE_MIB for s in inside),
        )


def _unsupported(request: GpuRequest) -> Misfit | None:
    """Return the reason for which no MPS service can serve the request; None if there is none."""
    if request.count > 1:
        return Misfit(
            reason=Reason.MODE_CONFLICT,
            message=f"a program can use the MPS service of one device only, asked {request.count}",
        )
    if request.policy is not ComputePolicy.FIXED:
        return Misfit(
            reason=Reason.MODE_CONFLICT, message=f"mode mps supports policy fixed only, asked {request.policy}"
        )
    return None


MODE = Mps()
