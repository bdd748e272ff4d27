"""Bundles: several requests that start as one on one node, such as the containers of a pod.

Theory of operation. The scheduler knows one shape for what it starts: a number of devices, each with the same amounts.
A bundle gets such a shape by stacking. Abstract devices (*columns*) are filled one part after another: a part takes
``count`` columns among those that are of its sharing mode and have room for it in every *phase* in which it runs (a
phase is a set of parts that run at the same time), else new ones; the sharing mode decides if there is room. The shape
has one device for each column, each with the most that any column needs in any phase. So the scheduler never reserves
less than the parts use; it reserves exactly that for a bundle of one part, and for parts that stack on one device.
Columns of different modes take whole devices, because the scheduler gives a device one mode.

MIG instances are reserved one by one: a device gives as many of each profile as any column needs at once; parts that
never run together use the same one. Where an idle device has no room for all of these, a whole device is partitioned
for the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigPlace, MigProfile, MigState
from calabash.model.mig_plan import place_together
from calabash.model.request import MIG_MODE, GpuRequest, ModeName, Slice
from calabash.sched import WHOLE_MILLI
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_named, mode_of_device, mode_on

PARTS_MAX = 64
DEVICES_MAX = 64
MIXED = ModeName("mixed")
NOWHERE = MigPlace(-1)

Held = tuple[HeldSlice, ...]
Views = tuple[ModeName | None, tuple[Held, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One request of a bundle."""

    name: str
    request: GpuRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Requests that start as one.

    Args:
        parts: they agree in queue, gang and selector; the first one's terms count for all.
        phases: sets of parts, by number, that run at the same time. Every part is in one of them at least.
    """

    parts: tuple[Part, ...]
    phases: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise CalabashError(f"{len(self.parts)} requests in one bundle", hint=f"1 to {PARTS_MAX}")
        if {number for phase in self.phases for number in phase} != set(range(len(self.parts))):
            raise CalabashError(
                "a request is in no phase, or a phase is of no request", hint="every request has a phase"
            )
        first = self.request
        for part in self.parts:
            other = part.request
            if (other.selector, other.queue, other.gang) != (first.selector, first.queue, first.gang):
                raise CalabashError(
                    f"{part.name} asks for other devices, queue or gang than {self.parts[0].name}",
                    hint="use one selector, queue and gang for all of them",
                )

    @classmethod
    def single(cls, name: str, request: GpuRequest) -> Bundle:
        """Return a bundle of one request."""
        return cls(parts=(Part(name=name, request=request),), phases=((0,),))

    @property
    def request(self) -> GpuRequest:
        """The request whose terms count for all."""
        return self.parts[0].request


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A bundle on abstract devices, for one kind of device.

    Args:
        columns: the parts on each device, by number.
        mode, core_milli, memory_mib, mig_profile: what the scheduler reserves of each device.
        host_mib: host memory that it reserves for spilling.
        slices, slices_max: slices that each device gives at once, and how many the sharing mode admits on a device; 0
            where it does not count them.
        instances: for each part of each column, the index of its MIG instance; () where none is reserved.
    """

    columns: tuple[tuple[int, ...], ...]
    mode: ModeName
    core_milli: int
    memory_mib: int
    mig_profile: str = ""
    host_mib: int = 0
    slices: int = 0
    slices_max: int = 0
    instances: tuple[tuple[int, ...], ...] = ()


def layout(bundle: Bundle, device: Device) -> Layout | Misfit:
    """Return how the bundle stacks on idle devices like this one, or why one of its parts never fits there."""
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
    found: Layout,
    devices: Sequence[Device],
    held: Sequence[Views],
    *,
    places: Sequence[Sequence[MigPlace]] = (),
) -> list[list[Slice]] | Misfit:
    """Return the slices of each part, column by column on these devices.

    Args:
        held: for each device its mode and the views of what others hold: a new part must fit beside each view.
        places: for each device, where the scheduler has placed the MIG instances that it reserves.
    """
    slices: list[list[Slice]] = [[] for _ in bundle.parts]
    for order, (column, device, (device_mode, views)) in enumerate(zip(found.columns, devices, held, strict=True)):
        own: dict[int, Slice] = {}
        for position, number in enumerate(column):
            place = places[order][found.instances[order][position]] if found.instances and places else None
            answers = [
                _beside(bundle, device, own, number, others=view, others_mode=device_mode, place=place)
                for view in views
            ]
            for answer in answers:
                if isinstance(answer, Misfit):
                    return answer
                own.setdefault(number, answer)
            slices[number].append(own[number])
    return slices


def phases_on(bundle: Bundle, slices: Sequence[tuple[int, Slice]]) -> tuple[Held, ...]:
    """Return the slices that the bundle holds of one device in each of its phases, without duplicates.

    ``slices``: (part, its slice) on the device.
    """
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
    """Return the mode in which a device serves a part."""
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
    place: MigPlace | None = None,
) -> Slice | Misfit:
    """Return the slice of a part on a device beside other parts of its bundle, in every phase in which it runs."""
    request = bundle.parts[number].request
    mode = mode_of_device(mode_of(bundle, number, device))
    if any(mode_of_device(mode_of(bundle, other, device)) != mode for other in column):
        return Misfit(reason=Reason.MODE_CONFLICT, message=f"is in another mode than {mode}")
    answer: Slice | Misfit = Misfit(reason=Reason.BAD_REQUEST, message="never runs")
    for phase in bundle.phases:
        if number in phase:
            beside = list(others)
            for other in column:
                if other in phase:
                    policy = bundle.parts[other].request.policy
                    beside.append(HeldSlice(slice=column[other], policy=policy))
            answer = fits(device, others_mode if others else mode, beside, request, place=place)
            if isinstance(answer, Misfit):
                return answer
    return answer


def _reserved(bundle: Bundle, device: Device, columns: Sequence[tuple[int, ...]]) -> Layout | Misfit:
    modes = {mode_of_device(mode_of(bundle, number, device)) for column in columns for number in column}
    if len(modes) > 1:
        return Layout(
            columns=tuple(columns), mode=MIXED, core_milli=WHOLE_MILLI, memory_mib=0, host_mib=_spilled(bundle)
        )
    mode = mode_named(next(iter(modes)))
    samples = [fits(device, None, (), part.request) for part in bundle.parts]
    profiles = [sample.profile for sample in samples if isinstance(sample, Slice) and sample.profile]
    if mode.name == MIG_MODE and len(profiles) == len(samples):
        return _cut(bundle, device, columns, mode.name, profiles)
    milli = memory_mib = slices = slices_max = 0
    for column in columns:
        for phase in bundle.phases:
            phase_milli = phase_mib = phase_slices = 0
            for number in column:
                if number in phase:
                    request = bundle.parts[number].request
                    part = fits(device, None, (), request)
                    if isinstance(part, Misfit):
                        return part
                    charge = mode.charge(device, part, request.policy)
                    phase_milli += charge.core_milli
                    phase_mib += charge.memory_mib
                    phase_slices += 1
                    slices_max = charge.slices_max
            milli, memory_mib = max(milli, phase_milli), max(memory_mib, phase_mib)
            slices = max(slices, phase_slices)
    return Layout(
        columns=tuple(columns),
        mode=mode.name,
        core_milli=milli,
        memory_mib=memory_mib,
        host_mib=_spilled(bundle),
        slices=slices,
        slices_max=slices_max,
    )


def _spilled(bundle: Bundle) -> int:
    """Return the host memory for what the parts that run at the same time spill together, in MiB."""
    requests = [part.request for part in bundle.parts]
    return max(sum(requests[n].count * requests[n].spill_mib for n in phase) for phase in bundle.phases)


def _cut(
    bundle: Bundle, device: Device, columns: Sequence[tuple[int, ...]], mode: ModeName, profiles: Sequence[str]
) -> Layout:
    """Return the layout for MIG instances, by the profile of each part.

    A whole device where they have no room beside each other.
    """
    turns = [_turns(bundle, column, profiles) for column in columns]
    counts: dict[str, int] = {}
    for column, own in zip(columns, turns, strict=True):
        for number in column:
            counts[profiles[number]] = max(counts.get(profiles[number], 0), own[number] + 1)
    assert device.mig is not None
    known = {name: device.mig.profile(name) for name in counts}
    order = sorted(counts, key=lambda name: _largest(known[name]), reverse=True)
    names = [name for name in order for _ in range(counts[name])]
    if place_together(device.mig, names, MigState(), ()) is None:
        return Layout(columns=tuple(columns), mode=mode, core_milli=WHOLE_MILLI, memory_mib=0)
    instances = tuple(
        tuple(names.index(profiles[number]) + own[number] for number in column)
        for column, own in zip(columns, turns, strict=True)
    )
    reserved = "&".join(names)
    return Layout(
        columns=tuple(columns), mode=mode, core_milli=0, memory_mib=0, mig_profile=reserved, instances=instances
    )


def _turns(bundle: Bundle, column: Sequence[int], profiles: Sequence[str]) -> dict[int, int]:
    """Return the index of the instance of its profile for each part: the first that no part has with which it may run."""
    found: dict[int, int] = {}
    for number in column:
        busy = {
            turn
            for other, turn in found.items()
            if profiles[other] == profiles[number]
            and any(number in phase and other in phase for phase in bundle.phases)
        }
        found[number] = next(turn for turn in range(len(column)) if turn not in busy)
    return found


def _largest(profile: MigProfile | None) -> tuple[int, int, str]:
    return (profile.slices, profile.compute, profile.name) if profile else (0, 0, "")


def places_of(names: Sequence[str], slices: Sequence[Slice]) -> tuple[MigPlace, ...]:
    """Return where the instances of these profiles are on one device, given the slices there.

    Raises CONFLICT if there are more slices than instances.
    """
    found: list[MigPlace] = [NOWHERE] * len(names)
    for part in slices:
        mine = [n for n, name in enumerate(names) if name == part.profile]
        if any(found[n] == part.place for n in mine):
            continue
        free = [n for n in mine if found[n] == NOWHERE]
        if not free:
            raise CalabashError(f"a {part.profile} more than what is asked for", reason=Reason.CONFLICT)
        found[free[0]] = part.place
    return tuple(found)
