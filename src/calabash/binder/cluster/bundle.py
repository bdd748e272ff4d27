"""Bundles: several requests that start as one on one node, such as the containers of a pod.

Theory of operation. A *part* is one request of a bundle. The scheduler can start only one kind of shape: a number of
devices, each with the same amounts. A bundle gets such a shape by stacking its parts on abstract devices, called
*columns*. The parts are stacked one after another. A part that requests ``count`` devices takes that many existing
columns if they have its sharing mode and enough free capacity for it in every *phase* in which it runs (a phase is a
set of parts that run at the same time); new columns are added for the rest. The sharing mode decides if a column has
enough capacity. The shape has one device for each column, and each device has the largest amounts that any column needs
in any phase. So the scheduler never reserves less than the parts use. It reserves exactly what they use for a bundle of
one part, and for parts that stack on one device. If the columns have different modes, each takes a whole device,
because the scheduler gives a device one mode.

MIG instances are reserved one by one: a device provides as many instances of each profile as any column needs at once,
and parts that never run together use the same instance. If an idle device cannot hold all of these instances, a whole
device is reserved for the column.
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
from calabash.sharing.protocol import HeldSlice, Misfit, SharingMode, device_mode
from calabash.sharing.registry import RequestModes, mode_named, resolve

PARTS_MAX = 64
DEVICES_MAX = 64
MIXED = ModeName("mixed")
NOWHERE = MigPlace(-1)

Held = tuple[HeldSlice, ...]
Views = tuple[ModeName | None, tuple[Held, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One request of a bundle, such as that of one container; ``name`` identifies it in messages."""

    name: str
    request: GpuRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Requests that start together on one node, or not at all.

    Args:
        parts: the requests. All have the same queue, gang and selector; other terms that apply to the whole bundle,
            such as the priority, are taken from the first part.
        phases: sets of parts that run at the same time, as indexes into ``parts``. Every part is in at least one phase.
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
        """The first part's request, whose queue, priority and other such terms apply to the whole bundle."""
        return self.parts[0].request


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBundle:
    """A bundle with the sharing modes that may serve each part, resolved once by ``resolve_bundle`` and then passed along."""

    bundle: Bundle
    parts: tuple[RequestModes, ...]

    def on(self, device: Device) -> BundleOnDevice:
        """Return the bundle with the mode in which this device would serve each part."""
        return BundleOnDevice(wanted=self, device=device, modes=tuple(part.on(device) for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOnDevice:
    """A bundle on one device; ``modes`` are the sharing modes in which the device would serve the parts."""

    wanted: ResolvedBundle
    device: Device
    modes: tuple[SharingMode, ...]

    @property
    def bundle(self) -> Bundle:
        return self.wanted.bundle

    def fits(
        self, number: int, mode_now: ModeName | None, held: Sequence[HeldSlice], *, place: MigPlace | None = None
    ) -> Slice | Misfit:
        """Return the slice that a part gets of the device, or the reason why it does not fit; see ``RequestModes.fits``."""
        mode = self.modes[number]
        return self.wanted.parts[number].fits(self.device, mode_now, held, mode=mode, place=place)


def resolve_bundle(bundle: Bundle) -> ResolvedBundle:
    """Return the bundle with the modes that may serve each part. Raises as ``registry.resolve``."""
    return ResolvedBundle(bundle=bundle, parts=tuple(resolve(part.request) for part in bundle.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Distribution of a bundle's parts over abstract devices (columns), calculated for one kind of device.

    Args:
        columns: for each device, the parts on it, as indexes into ``Bundle.parts``.
        mode: sharing mode of each device.
        core_milli, memory_mib: compute (1000: the whole device) and memory that the scheduler reserves of each device.
        mig_profile: MIG profiles that the scheduler reserves on each device, joined by "&"; "": none.
        host_mib: host memory that the scheduler reserves for spilling.
        slices: number of slices in use on each device at once; 0 where MIG instances or whole devices are reserved.
        slices_max: number of slices that the sharing mode admits on a device; 0 for no limit, and where MIG instances
            or whole devices are reserved.
        instances: for each part of each column, the index of its MIG instance in ``mig_profile``; () if no instances
            are reserved.
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


def layout(on: BundleOnDevice) -> Layout | Misfit:
    """Return the layout of the bundle on idle devices like this one, or the reason why one of its parts cannot fit."""
    bundle, columns = on.bundle, list[dict[int, Slice]]()
    for number in _largest_first(bundle):
        request = bundle.parts[number].request
        taken = 0
        for column in columns:
            if taken < request.count and isinstance(part := _beside(on, column, number), Slice):
                column[number] = part
                taken += 1
        while taken < request.count:
            alone = on.fits(number, None, ())
            if isinstance(alone, Misfit):
                return alone
            columns.append({number: alone})
            taken += 1
    if len(columns) > DEVICES_MAX:
        return Misfit(
            reason=Reason.TOO_LARGE, message=f"needs {len(columns)} devices, at most {DEVICES_MAX} are one pod's"
        )
    return _reserved(on, [tuple(sorted(column)) for column in columns])


def placed(
    on: Sequence[BundleOnDevice],
    found: Layout,
    held: Sequence[Views],
    *,
    places: Sequence[Sequence[MigPlace]] = (),
) -> list[list[Slice]] | Misfit:
    """Return the slices of each part on the devices that the scheduler chose, or the reason why a sharing mode refuses.

    Args:
        on: the bundle on each of these devices.
        found: layout of the bundle; its columns are on the devices, in this order.
        held: for each device, its mode and the views of the slices that other allocations hold. A new part must fit
            beside the slices of each view; see ``tenancy.HeldSlices.views``.
        places: for each device, the positions at which the scheduler has placed the reserved MIG instances.
    """
    slices: list[list[Slice]] = [[] for _ in on[0].bundle.parts]
    for order, (column, here, (mode_now, views)) in enumerate(zip(found.columns, on, held, strict=True)):
        own: dict[int, Slice] = {}
        for position, number in enumerate(column):
            place = places[order][found.instances[order][position]] if found.instances and places else None
            answers = [_beside(here, own, number, others=view, others_mode=mode_now, place=place) for view in views]
            for answer in answers:
                if isinstance(answer, Misfit):
                    return answer
                own.setdefault(number, answer)
            slices[number].append(own[number])
    return slices


def phases_on(bundle: Bundle, slices: Sequence[tuple[int, Slice]]) -> tuple[Held, ...]:
    """Return for each phase of the bundle the slices that it holds of one device; equal results are returned once.

    Args:
        slices: slices of the bundle on one device, each with the index of its part.
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


# ---- inside -------------------------------------------------------------------------------------------------------


def _largest_first(bundle: Bundle) -> list[int]:
    return sorted(range(len(bundle.parts)), key=lambda n: (-bundle.parts[n].request.count, n))


def _beside(
    on: BundleOnDevice,
    column: Mapping[int, Slice],
    number: int,
    *,
    others: Held = (),
    others_mode: ModeName | None = None,
    place: MigPlace | None = None,
) -> Slice | Misfit:
    """Return the slice that part ``number`` gets on a device which it shares with other parts of its bundle.

    Returns a misfit if the part does not fit in one of the phases in which it runs.

    Args:
        column: slices of the bundle's other parts on the device, by part.
        others, others_mode: slices that other allocations hold on the device, and the mode of these.
        place: position of the MIG instance that the scheduler chose; None: any.
    """
    bundle, mode = on.bundle, device_mode(on.modes[number])
    if any(device_mode(on.modes[other]) != mode for other in column):
        return Misfit(reason=Reason.MODE_CONFLICT, message=f"is in another mode than {mode}")
    answer: Slice | Misfit = Misfit(reason=Reason.BAD_REQUEST, message="never runs")
    for phase in bundle.phases:
        if number in phase:
            beside = list(others)
            for other in column:
                if other in phase:
                    policy = bundle.parts[other].request.policy
                    beside.append(HeldSlice(slice=column[other], policy=policy))
            answer = on.fits(number, others_mode if others else mode, beside, place=place)
            if isinstance(answer, Misfit):
                return answer
    return answer


def _reserved(on: BundleOnDevice, columns: Sequence[tuple[int, ...]]) -> Layout | Misfit:
    bundle, device = on.bundle, on.device
    modes = {device_mode(on.modes[number]) for column in columns for number in column}
    if len(modes) > 1:
        return Layout(
            columns=tuple(columns), mode=MIXED, core_milli=WHOLE_MILLI, memory_mib=0, host_mib=_spilled(bundle)
        )
    mode = mode_named(next(iter(modes)))
    samples = [on.fits(number, None, ()) for number in range(len(bundle.parts))]
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
                    part = samples[number]
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
    """Return the host memory for spilling, in MiB: the largest sum over parts that run at the same time."""
    requests = [part.request for part in bundle.parts]
    return max(sum(requests[n].count * requests[n].spill_mib for n in phase) for phase in bundle.phases)


def _cut(
    bundle: Bundle, device: Device, columns: Sequence[tuple[int, ...]], mode: ModeName, profiles: Sequence[str]
) -> Layout:
    """Return a layout that reserves single MIG instances on each device.

    If an idle device cannot hold these instances together, the layout reserves whole devices.

    Args:
        columns: for each device, the parts on it.
        mode: sharing mode of the devices.
        profiles: MIG profile of each part.
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
    """Return for each part of a column which instance of its profile it uses, counted from 0.

    Two parts of the same profile get different instances if they ever run at the same time.
    """
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
    """Return the position of each MIG instance that is reserved on a device; NOWHERE if no slice uses the instance.

    Args:
        names: profile of each instance.
        slices: slices on the device, which name the positions. Slices at the same position share an instance.

    Raises CONFLICT if the slices use more instances than these.
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
