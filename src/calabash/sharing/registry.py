"""All sharing modes by name, found by looking through this package: a module that defines ``MODE`` is a mode.

Also the one place that turns "no mode named" into a mode, by the isolation and the amounts that were asked, and the
rule that the mode belongs to the device: a device keeps the mode of its first slice until it is idle again.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    """The mode of that name. Raises CalabashError (UNKNOWN_MODE) with the names there are."""
    mode = modes.get(ModeName(name))
    if mode is None:
        raise CalabashError(
            f"sharing mode {name!r} is not known",
            reason=Reason.UNKNOWN_MODE,
            hint=f"one of: {', '.join(sorted(modes))}",
        )
    return mode


def mode_of_device(mode: ModeName, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> ModeName:
    """The mode that a device is in while slices of this mode are on it."""
    known = modes.get(mode)
    return mode if known is None else device_mode(known)


def mode_for(request: GpuRequest, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> SharingMode:
    """The mode that answers the request: the one it names, else the most natural one that isolates enough.

    Raises CalabashError: UNKNOWN_MODE, or MODE_CONFLICT when the named mode isolates less than was asked.
    """
    return _modes_for(request, modes)[0]


def mode_on(device: Device, request: GpuRequest, modes: Mapping[ModeName, SharingMode] = SHARING_MODES) -> SharingMode:
    """The mode in which this device answers the request: the most natural one that it could serve if it were idle.

    Raises CalabashError as ``mode_for`` does.
    """
    candidates = _modes_for(request, modes)
    if device.pinned:
        candidates = [m for m in candidates if device.pinned in {m.name, device_mode(m)}] or candidates
    if len(candidates) == 1:
        return candidates[0]
    idle = replace(device, mig_instances=()) if device.mig_instances else device
    able = (mode for mode in candidates if not isinstance(mode.fits(idle, (), request), Misfit))
    return next(able, candidates[0])


def _modes_for(request: GpuRequest, modes: Mapping[ModeName, SharingMode]) -> list[SharingMode]:
    """All modes that would answer the request, the most natural one first."""
    if request.mode:
        mode = mode_named(request.mode, modes)
        if mode.isolation < request.isolation:
            raise CalabashError(
                f"mode {mode.name} isolates at level {mode.isolation.name.lower()},"
                f" asked {request.isolation.name.lower()}",
                reason=Reason.MODE_CONFLICT,
                hint="leave the mode out and it follows from the isolation",
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
            hint="ask for whole devices, or for a lower isolation",
        )
    if request.standing:  # what can only live as long as a program is no answer to it
        ranked = [entry for entry in ranked if entry[1] in STANDING_MODES] or ranked
    return [mode for _, _, mode in sorted(ranked, key=lambda entry: entry[:2])]


def selected(device: Device, selector: Selector) -> Misfit | None:
    """None when the selector accepts the device, else why not."""
    model = device.model.lower()
    if selector.models and not any(wanted.lower() in model for wanted in selector.models):
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH, message=f"is a {device.model}, asked {' or '.join(selector.models)}"
        )
    excluded = next((word for word in selector.models_excluded if word.lower() in model), None)
    if excluded is not None:
        return Misfit(reason=Reason.SELECTOR_MISMATCH, message=f"is a {device.model}, asked none of {excluded}")
    if device.uuid in selector.uuids_excluded:
        return Misfit(reason=Reason.SELECTOR_MISMATCH, message="is among the devices that are excluded")
    if selector.uuids and device.uuid not in selector.uuids:
        return Misfit(reason=Reason.SELECTOR_MISMATCH, message="is not among the devices asked for")
    return _sized(device, selector)


def _sized(device: Device, selector: Selector) -> Misfit | None:
    """Return why the selector does not accept the size of the device's memory; None when it does."""
    nominal_mib = device.nominal_memory_mib
    if nominal_mib < selector.memory_mib_min or 0 < selector.memory_mib_max < nominal_mib:
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH,
            message=f"is nominally of {format_mib(nominal_mib)}, outside the asked range",
        )
    if device.memory_mib < selector.reported_mib_min:
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH,
            message=f"reports {device.memory_mib} MiB, asked at least {selector.reported_mib_min} MiB",
        )
    return None


def _kept(device: Device, mode: SharingMode) -> Misfit | None:
    """Why a device, idle or not, does not serve a mode now; None when it may."""
    if device.pinned and device.pinned not in {mode.name, device_mode(mode)}:
        message = f"is kept in mode {device.pinned}, asked {mode.name}"
        return Misfit(reason=Reason.MODE_CONFLICT, message=message)
    stays = next((i for i in device.mig_instances if i.stays), None)
    if stays is not None and mode.name != MIG_MODE and not (mode.name in CUT_MODES and device.pinned == mode.name):
        message = f"is cut by MIG, and its {stays.profile} at {stays.start} stays, asked {mode.name}"
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
    """What the request would get of this device, or why nothing; every rule that concerns one device is asked here.

    Args:
        mode_now: the mode that the device is in by the slices that are on it; None when idle.
        place: of a MIG instance, where that is decided already; None leaves it to the mode.
    """
    mode = mode_on(device, request, modes)
    if device.health is not Health.HEALTHY:
        return Misfit(reason=Reason.UNHEALTHY, message=f"is {device.health}")
    mismatch = selected(device, request.selector) or _kept(device, mode)
    if mismatch is not None:
        return mismatch
    if place is not None and place.start >= 0 and device.mig is not None:
        device = replace(device, mig=device.mig.only_at(place))
    if held and mode_now is not None and mode_now != device_mode(mode):
        # A card that could never hold it is the more useful answer than a card that is busy otherwise.
        alone = mode.fits(device, (), request)
        if isinstance(alone, Misfit):
            return alone
        return Misfit(reason=Reason.MODE_CONFLICT, message=f"is in mode {mode_now}, asked {mode.name}")
    return mode.fits(device, held, request)
