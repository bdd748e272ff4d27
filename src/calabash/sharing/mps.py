"""MPS: NVIDIA's multi-process service, with a share of the multiprocessors and a limit of memory for each tenant.

Theory of operation. The clients of one server run at the same time, each on its part of the multiprocessors; nobody
waits for a turn. A share is a ceiling that the service holds: idle time of others does not lift it, so shares are fixed
and their sum stays within the card. Memory is promised as software slices promise it: the sum of all slices, with
``SLICE_RESERVE_MIB`` for each, stays within the card. The reserve is for the server's own context and for what the
driver attributes to nobody.

A card that its operator has cut by a MIG layout and keeps in this mode has a service for each instance of the layout. A
slice lies in one instance, the fullest that has room for it; amounts stay those of cards: 30% are 30% of the card's compute
wherever they lie. So the books of a scheduler count such a card as any other, and only this rule knows of instances.

What tenants share beside the card, or the instance, is fate: a fatal fault of one client hits all clients of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.mig import MigGeometry, MigInstance
from calabash.model.request import MPS_MODE, ComputePolicy, GpuRequest, Isolation, Slice
from calabash.model.units import format_mib
from calabash.sharing.amounts import not_left, wanted_memory_mib
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 64
CLIENTS_MAX = 48  # of one server; a tenant with several processes has as many clients


class Mps:
    """Unequal shares at the same time."""

    name = MPS_MODE
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only when asked for by name: a neighbour's fault is everybody's

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        refused = _unserved(request)
        if refused is not None:
            return refused
        wanted_mib = wanted_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        wanted = Slice(device=device.uuid, memory_mib=wanted_mib, core_percent=request.core_percent)
        misfit = not_left(
            device,
            self.division(device, held),
            memory_mib=wanted_mib,
            core_percent=request.core_percent,
            reserve_mib=SLICE_RESERVE_MIB,
            slices_max=CLIENTS_MAX * max(1, len(device.mig_instances)),
        )
        if misfit is not None:
            return misfit
        cut = device.pinned == self.name and any(i.fixed for i in device.mig_instances)
        return _in_an_instance(device, held, wanted) if cut else wanted

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del device, policy
        return Charge(
            core_milli=10 * part.core_percent, memory_mib=part.memory_mib + SLICE_RESERVE_MIB, slices_max=CLIENTS_MAX
        )

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        memory_mib = sum(h.slice.memory_mib for h in held)
        core_percent = sum(h.slice.core_percent for h in held)
        return DeviceDivision(
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


def part_name(profile: str, start: int) -> str:
    """By which the health of a card knows one of its services."""
    return f"{MPS_MODE} {profile} at {start}" if profile else MPS_MODE


def is_part(name: str) -> bool:
    """Whether it is the name of a service."""
    return name == MPS_MODE or name.startswith(f"{MPS_MODE} ")


def percent_of_card(geometry: MigGeometry, profile: str) -> int:
    """How much of the card's compute an instance is, rounded up, so that 43% are three of seven slices."""
    known = geometry.profile(profile)
    return -(-100 * known.compute // geometry.compute) if known is not None else 0


def _in_an_instance(device: Device, held: Sequence[HeldSlice], wanted: Slice) -> Slice | Misfit:
    """The fullest instance with room; the first one among equals."""
    rooms = list(_rooms(device, held))
    fitting = [
        (cores, memory_mib, instance)
        for instance, cores, memory_mib in rooms
        if wanted.core_percent <= cores and wanted.memory_mib + SLICE_RESERVE_MIB <= memory_mib
    ]
    if fitting:
        *_, instance = min(fitting, key=lambda room: (*room[:2], room[2].start))
        return replace(wanted, profile=instance.profile, start=instance.start)
    left = " and ".join(
        f"its {i.profile} at {i.start} has {cores}% and {format_mib(max(0, mib - SLICE_RESERVE_MIB))} left"
        for i, cores, mib in rooms
    )
    reason = Reason.NO_CORES if all(wanted.core_percent > cores for _, cores, _ in rooms) else Reason.NO_MEMORY
    return Misfit(
        reason=reason,
        message=f"{left or 'has no instance that serves'}, asked {wanted.core_percent}% and"
        f" {format_mib(wanted.memory_mib)} of one",
    )


def _rooms(device: Device, held: Sequence[HeldSlice]) -> Iterator[tuple[MigInstance, int, int]]:
    """What is left of each instance of the layout: percent of the card, and MiB."""
    assert device.mig is not None
    for instance in device.mig_instances:
        known = device.mig.profile(instance.profile)
        inside = [h.slice for h in held if (h.slice.profile, h.slice.start) == instance.place]
        if known is None or instance.start not in known.starts or not instance.fixed:
            continue
        if (instance.foreign and not inside) or len(inside) >= CLIENTS_MAX:
            continue  # somebody else is on it, or its service just ends
        yield (
            instance,
            percent_of_card(device.mig, instance.profile) - sum(s.core_percent for s in inside),
            known.memory_mib - sum(s.memory_mib + SLICE_RESERVE_MIB for s in inside),
        )


def _unserved(request: GpuRequest) -> Misfit | None:
    """What the service cannot do, whatever the card."""
    if request.count > 1:
        return Misfit(
            reason=Reason.MODE_CONFLICT,
            message=f"a program reaches the service of one device, asked {request.count} in mode mps",
        )
    if request.policy is not ComputePolicy.FIXED:
        return Misfit(reason=Reason.MODE_CONFLICT, message=f"mps holds a share fixed, asked {request.policy}")
    return None


MODE = Mps()
