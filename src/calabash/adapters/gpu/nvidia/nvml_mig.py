"""NVML calls about MIG: profiles, layout, creating and destroying instances. All may raise NVMLError.

NVML has no list of profiles: all profile numbers up to a bound are queried. It also lists instances only by profile, so
the instances of every profile are queried. The UUID of a compute instance, which programs use, is found in the list of
MIG devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import pynvml

from calabash.adapters.gpu.partitions import CardLayout, ComputeInstance, GpuInstance
from calabash.model.device import DeviceProcess, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigGeometry, MigProfile

_PROFILES_MAX = 64
_INSTANCES_MAX = 32
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_SHARED = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


def geometry_of(handle: object) -> MigGeometry | None:
    """Return all profiles of a card with their placements; None for a card without MIG or without profile data."""
    try:
        pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return None
        raise
    profiles = tuple(p for p in (_profile(handle, info) for info in _infos(handle)) if p is not None)
    if not profiles:
        return None
    return MigGeometry(
        slices=max(p.slices + max(p.starts) for p in profiles),
        compute=max(p.compute for p in profiles),
        profiles=profiles,
    )


def _infos(handle: object) -> Iterator[object]:
    for number in range(_PROFILES_MAX):
        try:
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                return  # the driver knows no more
            if error.value not in _ABSENT:
                raise


def _profile(handle: object, info: object) -> MigProfile | None:
    """Return a profile from NVML's description; None if the driver reports no placements for it.

    Some drivers report placements only while the card is in MIG mode.
    """
    places = _placements(handle, info.id)  # type: ignore[attr-defined]
    if not places:
        return None
    name = _name(info.name)  # type: ignore[attr-defined]
    return MigProfile(
        id=int(info.id),  # type: ignore[attr-defined]
        name=name,
        compute=int(info.sliceCount),  # type: ignore[attr-defined]
        slices=places[0][1],
        starts=tuple(sorted(start for start, _ in places)),
        limit=int(info.instanceCount),  # type: ignore[attr-defined]
        memory_mib=int(info.memorySizeMB),  # type: ignore[attr-defined]
        media="+me" in name,
    )


def _name(text: str | bytes) -> str:
    return (text.decode() if isinstance(text, bytes) else str(text)).removeprefix("MIG ")


def _placements(handle: object, profile: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint(_INSTANCES_MAX)
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _INSTANCES_MAX)()
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, ctypes.byref(count))
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return []
        raise
    return [(int(p.start), int(p.size)) for p in places[: count.value]]


# ---- layout ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _MigDevice:
    """MIG device and its processes."""

    uuid: DeviceUuid
    processes: tuple[DeviceProcess, ...]


def is_enabled(handle: object) -> bool:
    """Return True if the card is in MIG mode; False also for a card without MIG."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return False
        raise


def layout_of(handle: object, geometry: MigGeometry) -> CardLayout:
    """Return the present GPU instances and compute instances of a card, which has the given geometry."""
    if not is_enabled(handle):
        return CardLayout(enabled=False)
    devices = _devices(handle)
    found = [
        _instance(gi, profile, devices) for profile in geometry.profiles for gi in _gpu_instances(handle, profile.id)
    ]
    return CardLayout(enabled=True, instances=tuple(sorted(found, key=lambda i: (i.start, i.id))))


def multiprocessors_of(part: object) -> int:
    """Return the number of multiprocessors of a MIG device; 0 if the driver does not report it."""
    try:
        return int(pynvml.nvmlDeviceGetAttributes(part).multiprocessorCount)
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return 0
        raise


def _gpu_instances(handle: object, profile: int) -> list[object]:
    count = ctypes.c_uint(_INSTANCES_MAX)
    instances = (pynvml.c_nvmlGpuInstance_t * _INSTANCES_MAX)()
    pynvml.nvmlDeviceGetGpuInstances(handle, profile, instances, ctypes.byref(count))
    return list(instances[: count.value])


def _instance(gi: object, profile: MigProfile, devices: dict[tuple[int, int], _MigDevice]) -> GpuInstance:
    info = pynvml.nvmlGpuInstanceGetInfo(gi)
    parts = []
    for number in _compute_profiles(gi).values():
        for ci in _compute_instances(gi, number):
            part = pynvml.nvmlComputeInstanceGetInfo_v2(ci)
            seen = devices.get((info.id, part.id))
            if seen is not None:
                place = part.placement
                parts.append(
                    ComputeInstance(
                        id=part.id, uuid=seen.uuid, compute=place.size, start=place.start, processes=seen.processes
                    )
                )
    return GpuInstance(
        id=info.id,
        profile=profile.name,
        start=info.placement.start,
        parts=tuple(sorted(parts, key=lambda p: (p.start, p.id))),
    )


def _compute_profiles(gi: object) -> dict[int, int]:
    """Return the driver's numbers of the compute instance profiles, by their size in compute slices.

    Args:
        gi: NVML handle of the GPU instance.
    """
    found: dict[int, int] = {}
    for number in range(_PROFILES_MAX):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, number, _SHARED)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                break
            if error.value not in _ABSENT:
                raise
            continue
        found.setdefault(int(info.sliceCount), int(info.id))
    return found


def _compute_instances(gi: object, profile: int) -> list[object]:
    count = ctypes.c_uint(_INSTANCES_MAX)
    instances = (pynvml.c_nvmlComputeInstance_t * _INSTANCES_MAX)()
    pynvml.nvmlGpuInstanceGetComputeInstances(gi, profile, instances, ctypes.byref(count))
    return list(instances[: count.value])


def _devices(handle: object) -> dict[tuple[int, int], _MigDevice]:
    """Return the MIG devices by the numbers of their GPU instance and compute instance."""
    found: dict[tuple[int, int], _MigDevice] = {}
    for mig in handles_of_parts(handle):
        try:
            place = int(pynvml.nvmlDeviceGetGpuInstanceId(mig)), int(pynvml.nvmlDeviceGetComputeInstanceId(mig))
            found[place] = _MigDevice(DeviceUuid(str(pynvml.nvmlDeviceGetUUID(mig))), _processes(mig))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:  # it was destroyed just now
                raise
    return found


def handles_of_parts(handle: object) -> Iterator[object]:
    """Yield the handles of all MIG devices of a card in MIG mode."""
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                raise


def _processes(mig: object) -> tuple[DeviceProcess, ...]:
    uuid = DeviceUuid(str(pynvml.nvmlDeviceGetUUID(mig)))
    return tuple(
        DeviceProcess(pid=p.pid, used_bytes=p.usedGpuMemory or 0, part=uuid)
        for p in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)
    )


def processes_on_parts(handle: object) -> tuple[DeviceProcess, ...]:
    """Return the processes on the MIG devices of a card, by ascending pid; each names its MIG device."""
    found = [process for seen in _devices(handle).values() for process in seen.processes]
    return tuple(sorted(found, key=lambda p: p.pid))


def parts_alone(handle: object) -> tuple[tuple[int, DeviceUuid], ...]:
    """Return the numbers of the GPU instances that have exactly one MIG device, each with the UUID of that device."""
    places: dict[int, list[DeviceUuid]] = {}
    for (instance, _), seen in _devices(handle).items():
        places.setdefault(instance, []).append(seen.uuid)
    return tuple((instance, uuids[0]) for instance, uuids in places.items() if len(uuids) == 1)


# ---- creating and destroying ----------------------------------------------------------------------------------------


def enable(handle: object, enabled: bool) -> int:
    """Turn the card's MIG mode on or off.

    Returns NVML_SUCCESS, or the NVML status that says why the mode was not changed. A change that would only take
    effect after a reset is withdrawn.
    """
    wanted = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
    status = int(pynvml.nvmlDeviceSetMigMode(handle, wanted))
    now, pending = pynvml.nvmlDeviceGetMigMode(handle)
    if now == wanted:
        return int(pynvml.NVML_SUCCESS)
    if pending != now:
        pynvml.nvmlDeviceSetMigMode(handle, now)
    return status if status != pynvml.NVML_SUCCESS else int(pynvml.NVML_ERROR_RESET_REQUIRED)


def create(handle: object, geometry: MigGeometry, name: str, start: int) -> GpuInstance:
    """Create a GPU instance.

    Args:
        name: name of its profile.
        start: its first memory slice.

    Raises CalabashError if the card has no such profile, or the profile cannot start at that slice.
    """
    profile = geometry.profile(name)
    if profile is None or start not in profile.starts:
        legal = ", ".join(map(str, profile.starts)) if profile else ", ".join(p.name for p in geometry.profiles)
        raise CalabashError(f"this card has no placement {start} for profile {name}", hint=f"available: {legal}")
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.slices)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(place))
    return GpuInstance(id=int(pynvml.nvmlGpuInstanceGetInfo(made).id), profile=name, start=start)


def create_part(handle: object, instance: int, compute: int, start: int = -1) -> ComputeInstance:
    """Create a compute instance in a GPU instance.

    Args:
        instance: number of the GPU instance.
        compute: size of the compute instance in compute slices.
        start: its first compute slice; -1 lets the driver choose. A driver that does not support a choice ignores it.

    Raises CalabashError if the GPU instance does not support the size, or UNHEALTHY if no MIG device appears.
    """
    gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance)
    profiles = _compute_profiles(gi)
    if compute not in profiles:
        raise CalabashError(
            f"GPU instance {instance} has no compute instances of {compute} slices",
            hint=f"supported sizes: {', '.join(map(str, sorted(profiles)))}",
        )
    made = _made_part(gi, profiles[compute], compute, start)
    info = pynvml.nvmlComputeInstanceGetInfo_v2(made)
    seen = _devices(handle).get((instance, int(info.id)))
    if seen is None:
        raise CalabashError(
            f"compute instance {info.id} of GPU instance {instance} did not become a MIG device",
            reason=Reason.UNHEALTHY,
        )
    return ComputeInstance(
        id=int(info.id), uuid=seen.uuid, compute=int(info.placement.size), start=int(info.placement.start)
    )


def _made_part(gi: object, profile: int, compute: int, start: int) -> object:
    if start >= 0:
        place = pynvml.c_nvmlComputeInstancePlacement_t(start, compute)
        try:
            return pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, profile, ctypes.byref(place))
        except pynvml.NVMLError as error:
            if error.value not in (*_ABSENT, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                raise
    return pynvml.nvmlGpuInstanceCreateComputeInstance(gi, profile)


def destroy_part(handle: object, instance: int, part: int) -> None:
    gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, part))


def destroy(handle: object, instance: int) -> None:
    pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(handle, instance))
