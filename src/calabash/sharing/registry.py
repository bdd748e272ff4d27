"""Registry of sharing modes, choice of the mode of a request, and the check if a request fits on a device.

Every module of this package that defines ``MODE`` is a sharing mode. A request without a mode gets the mode that suits its
isolation level and amounts best. A device is in one mode at a time: it keeps the mode of its first slice until it is idle.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast

from calabash import sharing
from calabash.model.device import Device, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigPlace
from calabash.model.request import CUT_MODES, MIG_MODE, STANDING_MODES, GpuRequest, ModeName, Selector, Slice
from calabash.model.units import format_mib
from calabash.sharing.protocol import HeldSlice, Misfit, SharingMode, device_mode


def _discover() -> Mapping[ModeName, SharingMode]:
    modes: dict[ModeName, SharingMode] = {}
    for info in sorted(pkgutil.iter_modules(sharing.__path__), key=lambda i: i.name):
        module = sharing.__name__ + "." + info.name
        if module == __name__:
            continue
        mode = getattr(importlib.import_module(module), "MODE", None)
        if mode is not None:
            modes[mode.name] = cast("SharingMode", mode)
    return MappingProxyType(modes)


SHARING_MODES: Mapping[ModeName, SharingMode] = _discover()


def mode_named(name: str, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> SharingMode:
    """Return the mode with a name. Raises CalabashError(UNKNOWN_MODE) if there is none."""
    mode = modes.get(ModeName(name))
    if mode is None:
        raise CalabashError(
            f"sharing mode {name!r} is not known",
            reason=Reason.UNKNOWN_MODE,
            hint=f"use one of: {', '.join(sorted(modes))}",
        )
    return mode


def mode_of_device(mode: ModeName, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> ModeName:
    """Return the mode that a device has while it has slices of mode ``mode``; see ``device_mode``.

    An unknown mode is returned unchanged.
    """
    known = modes.get(mode)
    return mode if known is None else device_mode(known)


@dataclass(frozen=True, slots=True)
class RequestModes:
    """A request with the sharing modes that may serve it, resolved once by ``resolve`` and then passed along.

    Args:
        candidates: the mode that the request names, or all modes that isolate enough, the best rank first.
    """

    request: GpuRequest
    candidates: tuple[SharingMode, ...]

    @property
    def best(self) -> SharingMode:
        """The mode with the best rank."""
        return self.candidates[0]

    def on(self, device: Device) -> SharingMode:
        """Return the mode in which this device would serve the request.

        It is the mode with the best rank among those in which the request would fit on the device if the device were
        idle. If it would fit in none, it is the mode with the best rank. A pinned device uses its pinned mode if that
        may serve the request.
        """
        candidates: Sequence[SharingMode] = self.candidates
        if device.pinned:
            candidates = [m for m in candidates if device.pinned in {m.name, device_mode(m)}] or candidates
        if len(candidates) == 1:
            return candidates[0]
        idle = replace(device, mig_instances=()) if device.mig_instances else device
        able = (mode for mode in candidates if not isinstance(mode.fits(idle, (), self.request), Misfit))
        return next(able, candidates[0])

    def fits(
        self,
        device: Device,
        mode_now: ModeName | None,
        held: Sequence[HeldSlice],
        *,
        mode: SharingMode | None = None,
        place: MigPlace | None = None,
    ) -> Slice | Misfit:
        """Return the slice that the request gets of a device, or the reason for which it does not fit.

        Applies all rules that concern one device: health, selector, mode and amounts.

        Args:
            mode_now: mode of the device by its current slices; None if it is idle.
            held: current slices of the device.
            mode: mode in which the device would serve the request, if the caller knows it; None: ``on`` determines it.
            place: required position of the MIG instance; None if the mode may choose it.
        """
        mode = mode or self.on(device)
        if device.health is not Health.HEALTHY:
            return Misfit(reason=Reason.UNHEALTHY, message=f"is {device.health}")
        mismatch = selector_misfit(device, self.request.selector) or _mode_misfit(device, mode)
        if mismatch is not None:
            return mismatch
        if place is not None and place.start >= 0 and device.mig is not None:
            device = replace(device, mig=device.mig.only_at(place))
        if held and mode_now is not None and mode_now != device_mode(mode):
            # Report that the device can never serve the request rather than that it is in another mode now.
            alone = mode.fits(device, (), self.request)
            if isinstance(alone, Misfit):
                return alone
            return Misfit(reason=Reason.MODE_CONFLICT, message=f"is in mode {mode_now}, asked {mode.name}")
        return mode.fits(device, held, self.request)


def resolve(request: GpuRequest, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> RequestModes:
    """Return the request with the modes that may serve it.

    Raises:
        CalabashError(UNKNOWN_MODE): the named mode does not exist.
        CalabashError(MODE_CONFLICT): the named mode, or every mode, isolates less than the request requires.
    """
    return RequestModes(request, tuple(_modes_for(request, modes)))


def mode_for(request: GpuRequest, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> SharingMode:
    """Return the mode of a request: the mode it names, else the mode with the best rank. Raises as ``resolve``."""
    return resolve(request, modes).best


def _modes_for(request: GpuRequest, modes: Mapping[ModeName, SharingMode]) -> list[SharingMode]:
    """Return all modes that may serve a request, the best rank first.

    They are the mode that the request names, or all modes that isolate enough and have a rank for the request.
    """
    if request.mode:
        mode = mode_named(request.mode, modes)
        if mode.isolation < request.isolation:
            raise CalabashError(
                f"mode {mode.name} isolates at level {mode.isolation.name.lower()},"
                f" asked {request.isolation.name.lower()}",
                reason=Reason.MODE_CONFLICT,
                hint="leave the mode out, and a mode with that isolation level is chosen",
            )
        return [mode]
    ranked = [
        (rank, mode.name, mode)
        for mode in modes.values()
        if mode.isolation >= request.isolation and (rank := mode.rank(request)) is not None
    ]
    if not ranked:
        raise CalabashError(
            f"no sharing mode isolates at level {request.isolation.name.lower()} for these amounts",
            reason=Reason.MODE_CONFLICT,
            hint="request whole devices, or a lower isolation level",
        )
    if request.standing:  # prefer modes whose allocations need no local program
        ranked = [entry for entry in ranked if entry[1] in STANDING_MODES] or ranked
    return [mode for _, _, mode in sorted(ranked, key=lambda entry: entry[:2])]


def selector_misfit(device: Device, selector: Selector) -> Misfit | None:
    """Return the reason for which the selector does not accept the device; None if it accepts it."""
    model = device.model.lower()
    if selector.models and not any(wanted.lower() in model for wanted in selector.models):
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH, message=f"is a {device.model}, asked {' or '.join(selector.models)}"
        )
    excluded = next((word for word in selector.models_excluded if word.lower() in model), None)
    if excluded is not None:
        return Misfit(reason=Reason.SELECTOR_MISMATCH, message=f"is a {device.model}, asked none of {excluded}")
    if device.uuid in selector.uuids_excluded:
        return Misfit(reason=Reason.SELECTOR_MISMATCH, message="is an excluded device")
    if selector.uuids and device.uuid not in selector.uuids:
        return Misfit(reason=Reason.SELECTOR_MISMATCH, message="is not one of the requested devices")
    return _sized(device, selector)


def _sized(device: Device, selector: Selector) -> Misfit | None:
    """Return the reason for which the selector does not accept the device's memory size; None if it accepts it."""
    nominal_mib = device.nominal_memory_mib
    if nominal_mib < selector.memory_mib_min or 0 < selector.memory_mib_max < nominal_mib:
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH,
            message=f"has a nominal memory of {format_mib(nominal_mib)}, outside the requested range",
        )
    if device.memory_mib < selector.reported_mib_min:
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH,
            message=f"reports {device.memory_mib} MiB, asked at least {selector.reported_mib_min} MiB",
        )
    return None


def _mode_misfit(device: Device, mode: SharingMode) -> Misfit | None:
    """Return the reason for which a device cannot be used in a mode, apart from its slices; None if it can."""
    if device.pinned and device.pinned not in {mode.name, device_mode(mode)}:
        message = f"is kept in mode {device.pinned}, asked {mode.name}"
        return Misfit(reason=Reason.MODE_CONFLICT, message=message)
    stays = next((i for i in device.mig_instances if i.stays), None)
    if stays is not None and mode.name != MIG_MODE and not (mode.name in CUT_MODES and device.pinned == mode.name):
        message = f"has the MIG instance {stays.profile} at {stays.start}, which must stay, asked {mode.name}"
        return Misfit(reason=Reason.MODE_CONFLICT, message=message)
    return None


def fits(
    device: Device,
    mode_now: ModeName | None,
    held: Sequence[HeldSlice],
    request: GpuRequest,
    modes: Mapping[ModeName, SharingMode] = SHARING_MODES,
    *,
    place: MigPlace | None = None,
) -> Slice | Misfit:
    """Return the slice that a request gets of a device, or the reason for which it does not fit.

    Resolves the request for this device only. For several devices, call ``resolve`` once and then
    ``RequestModes.fits``, which describes the arguments. Raises as ``resolve``.
    """
    return resolve(request, modes).fits(device, mode_now, held, place=place)
