"""Several requests that start as one: the containers of a pod, which share a node and, where they can, devices.

Theory of operation. The scheduler knows one shape for what it starts: so many devices, each with the same amounts. A
bundle is given such a shape by stacking. Abstract devices (*columns*) are filled one part after another: a part takes its
``count`` columns among those that are of its sharing mode and have room for it in every *phase* in which it runs (a phase
is a set of parts that run at the same time), else new ones; what has room says the sharing mode itself. The shape has as
many devices as there are columns, each with the most that any column needs in any phase. So what the scheduler reserves
is never less than what the parts use; it is exactly that for a bundle of one part, and for parts that stack on one
device. Columns of different modes take whole devices, because the scheduler gives a device one mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, ModeName, Slice
from calabash.sched import WHOLE_MILLI
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_named, mode_on

PARTS_MAX = 64
DEVICES_MAX = 64
MIXED = ModeName("mixed")

Held = tuple[HeldSlice, ...]
Views = tuple[ModeName | None, tuple[Held, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the requests of a bundle."""

    name: str
    request: GpuRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Requests that start as one.

    Args:
        parts: they agree in queue, tenant, priority, gang and selector; the first speaks for all.
        phases: which parts, by number, run at the same time. Every part is in one of them at least.
    """

    parts: tuple[Part, ...]
    phases: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise CalabashError(f"{len(self.parts)} requests in one", hint=f"1 to {PARTS_MAX}")
        if {number for phase in self.phases for number in phase} != set(range(len(self.parts))):
            raise CalabashError("a request that never runs, or a phase of none", hint="every request has a phase")
        first = self.request
        for part in self.parts:
            other = part.request
            if (other.selector, other.queue, other.gang) != (first.selector, first.queue, first.gang):
                raise CalabashError(
                    f"{part.name} asks for other devices, queue or gang than {self.parts[0].name}",
                    hint="say these once for all of them",
                )

    @classmethod
    def of(cls, name: str, request: GpuRequest) -> Bundle:
        """One request alone."""
        return cls(parts=(Part(name=name, request=request),), phases=((0,),))

    @property
    def request(self) -> GpuRequest:
        """What speaks for all."""
        return self.parts[0].request


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A bundle on abstract devices, for one kind of device.

    Args:
        columns: the parts on each, by number.
        mode, core_milli, memory_mib, mig_profile: what the scheduler reserves of each device.
        host_mib: what it reserves of the node's own memory, for what is spilled.
    """

    columns: tuple[tuple[int, ...], ...]
    mode: ModeName
    core_milli: int
    memory_mib: int
    mig_profile: str = ""
    host_mib: int = 0


def layout(bundle: Bundle, device: Device) -> Layout | Misfit:
    """How the bundle stacks on idle devices like this one, or why one of its parts never fits there."""
    columns: list[dict[int, Slice]] = []
    for number in _largest_first(bundle):
        request = bundle.parts[number].request
        taken = 0
        for column in columns:
            if taken < request.count and isinstance(part := _beside(bundle, device, column, number), Slice):
                column[number] = part
                taken += 1
        while taken < request.count:
            alone = fits(device, None, (), request)
            if isinstance(alone, Misfit):
                return alone
            columns.append({number: alone})
            taken += 1
    if len(columns) > DEVICES_MAX:
        return Misfit(
            reason=Reason.TOO_LARGE, message=f"needs {len(columns)} devices, at most {DEVICES_MAX} are one pod's"
        )
    return _reserved(bundle, device, [tuple(sorted(column)) for column in columns])


def placed(
    bundle: Bundle,
    columns: Sequence[tuple[int, ...]],
    devices: Sequence[Device],
    held: Sequence[Views],
    *,
    start: int = -1,
) -> list[list[Slice]] | Misfit:
    """The slices of each part, column by column on these devices, beside what is held there in any view of it.

    Args:
        held: for each device its mode and the views of what others hold: a newcomer must fit beside each of them.
        start: the first memory slice that the scheduler has chosen for MIG instances.
    """
    slices: list[list[Slice]] = [[] for _ in bundle.parts]
    for column, device, (device_mode, views) in zip(columns, devices, held, strict=True):
        own: dict[int, Slice] = {}
        for number in column:
            answers = [
                _beside(bundle, device, own, number, others=view, others_mode=device_mode, start=start)
                for view in views
            ]
            for answer in answers:
                if isinstance(answer, Misfit):
                    return answer
                own.setdefault(number, answer)
            slices[number].append(own[number])
    return slices


def phases_on(bundle: Bundle, slices: Sequence[tuple[int, Slice]]) -> tuple[Held, ...]:
    """What the bundle holds of one device in each of its phases, given (part, slice) there; equal ones once."""
    found = {
        tuple(
            HeldSlice(slice=part, policy=bundle.parts[number].request.policy)
            for number, part in slices
            if number in phase
        )
        for phase in bundle.phases
    }
    return tuple(phase for phase in found if phase)


def mode_of(bundle: Bundle, number: int, device: Device) -> ModeName:
    """The mode in which a device serves a part."""
    return mode_on(device, bundle.parts[number].request).name


# ---- inside -------------------------------------------------------------------------------------------------------


def _largest_first(bundle: Bundle) -> list[int]:
    return sorted(range(len(bundle.parts)), key=lambda n: (-bundle.parts[n].request.count, n))


def _beside(
    bundle: Bundle,
    device: Device,
    column: Mapping[int, Slice],
    number: int,
    *,
    others: Held = (),
    others_mode: ModeName | None = None,
    start: int = -1,
) -> Slice | Misfit:
    """What a part gets of a device that has these others of its bundle, in every phase in which it runs."""
    request = bundle.parts[number].request
    mode = mode_of(bundle, number, device)
    if any(mode_of(bundle, other, device) != mode for other in column):
        return Misfit(reason=Reason.MODE_CONFLICT, message=f"is in another mode than {mode}")
    answer: Slice | Misfit = Misfit(reason=Reason.BAD_REQUEST, message="never runs")
    for phase in bundle.phases:
        if number in phase:
            beside = list(others)
            for other in column:
                if other in phase:
                    policy = bundle.parts[other].request.policy
                    beside.append(HeldSlice(slice=column[other], policy=policy))
            answer = fits(device, others_mode if others else mode, beside, request, start=start)
            if isinstance(answer, Misfit):
                return answer
    return answer


def _reserved(bundle: Bundle, device: Device, columns: Sequence[tuple[int, ...]]) -> Layout | Misfit:
    modes = {mode_of(bundle, number, device) for column in columns for number in column}
    if len(modes) > 1:
        return Layout(
            columns=tuple(columns), mode=MIXED, core_milli=WHOLE_MILLI, memory_mib=0, host_mib=_spilled(bundle)
        )
    mode = mode_named(next(iter(modes)))
    sample = fits(device, None, (), bundle.request)
    if isinstance(sample, Slice) and sample.profile:
        # The scheduler reserves one instance; several, which may differ, get a whole card that is cut for them.
        alone = len(bundle.parts) == 1
        return Layout(
            columns=tuple(columns),
            mode=mode.name,
            core_milli=0 if alone else WHOLE_MILLI,
            memory_mib=0,
            mig_profile=sample.profile if alone else "",
        )
    milli = memory_mib = 0
    for column in columns:
        for phase in bundle.phases:
            phase_milli = phase_mib = 0
            for number in column:
                if number in phase:
                    request = bundle.parts[number].request
                    part = fits(device, None, (), request)
                    if isinstance(part, Misfit):
                        return part
                    charge = mode.charge(part, request.policy)
                    phase_milli += charge.core_milli
                    phase_mib += charge.memory_mib
            milli, memory_mib = max(milli, phase_milli), max(memory_mib, phase_mib)
    return Layout(
        columns=tuple(columns), mode=mode.name, core_milli=milli, memory_mib=memory_mib, host_mib=_spilled(bundle)
    )


def _spilled(bundle: Bundle) -> int:
    """Memory of the host for what the parts that run at the same time spill together."""
    requests = [part.request for part in bundle.parts]
    return max(sum(requests[n].count * requests[n].spill_mib for n in phase) for phase in bundle.phases)
