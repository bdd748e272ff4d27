"""NVML calls about whole cards. Every function calls the driver and may raise NVMLError."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeVar

import pynvml

from calabash.adapters.gpu.nvidia import nvml_mig as mig
from calabash.adapters.gpu.protocol import DeviceEvent, EventKind
from calabash.model.device import (
    ComputeMode,
    Device,
    DeviceProcess,
    DeviceReading,
    DeviceUuid,
    Health,
    ProcessUtilization,
    Slowdown,
)
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import MIB

VENDOR = "nvidia"
_XID_LOST = 79
_NO_INSTANCE = 0xFFFFFFFF
_NUMA_MASK_WORDS = 4
_CAPABILITIES_OF_64_CORES = ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0))
_EVENTS = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeSingleBitEccError: EventKind.ECC_SINGLE_BIT,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.ECC_DOUBLE_BIT,
}
_THROTTLES = {
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: Slowdown.THERMAL,
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: Slowdown.POWER_BRAKE,
    pynvml.nvmlClocksThrottleReasonSwPowerCap: Slowdown.POWER_CAP,
}
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA)


T = TypeVar("T")


def _optional(call: Callable[[], T], default: T) -> T:
    """Return the result of an NVML call, or the default for a card that does not support the call."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return default
        raise


def handle_of(uuid: DeviceUuid) -> object:
    """Return the NVML handle of a card or MIG device. Raises CalabashError(NOT_FOUND) if there is none."""
    try:
        handle: object = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            raise CalabashError(f"no NVIDIA card {uuid}", reason=Reason.NOT_FOUND) from error
        raise
    return handle


def _bus_id(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def all_handles() -> dict[int, object]:
    """Return the handles by index; a card that fell off the bus may be missing."""
    found: dict[int, object] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            if error.value not in _LOST:
                raise
    return found


def _is_lost(handle: object) -> bool:
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            return True
        raise
    return False


def device_of(index: int, handles: dict[int, object], uuids: dict[int, DeviceUuid]) -> Device:
    """Return a card. Its ``memory_mib`` is the total that NVML reports, less the memory that the driver reserves.

    Args:
        index: index of the card.
        handles: NVML handles of all cards, by index; used to find the cards that NVLink connects.
        uuids: UUIDs of all cards, by index.
    """
    handle = handles[index]
    model = _optional(lambda: str(pynvml.nvmlDeviceGetName(handle)), "NVIDIA")
    pci_bus_id = _bus_id(handle)
    if _is_lost(handle):
        return Device(
            uuid=uuids[index],
            index=index,
            vendor=VENDOR,
            model=model,
            memory_mib=0,
            pci_bus_id=pci_bus_id,
            health=Health.LOST,
        )
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    cores = _optional(lambda: int(pynvml.nvmlDeviceGetNumGpuCores(handle)), 0)
    peers = tuple(uuids[i] for i, peer in handles.items() if i != index and _linked(handle, peer))
    return Device(
        uuid=uuids[index],
        index=index,
        vendor=VENDOR,
        model=model,
        memory_mib=(memory.total - memory.reserved) // MIB,
        multiprocessor_count=cores // (64 if capability in _CAPABILITIES_OF_64_CORES else 128),
        compute_capability=(capability[0], capability[1]),
        pci_bus_id=pci_bus_id,
        numa_node=_optional(lambda: _numa_node(handle), -1),
        nvlink_peers=peers,
        reset_peers=peers if peers and not _switched(handle) else (),
        mig_enabled=mig.is_enabled(handle),
        mig=mig.geometry_of(handle),
    )


def _numa_node(handle: object) -> int:
    """Return the NUMA node nearest to the card: the lowest bit of its affinity mask, -1 if the mask is empty."""
    words = pynvml.nvmlDeviceGetMemoryAffinity(handle, _NUMA_MASK_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    mask = sum(int(word) << (64 * i) for i, word in enumerate(words))
    return (mask & -mask).bit_length() - 1


def _linked(handle: object, peer: object) -> bool:
    """Return True if NVLink connects two cards, directly or through switches."""
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(handle, peer, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError as error:
        if error.value in (*_ABSENT, *_LOST):
            return False
        raise
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _switched(handle: object) -> bool:
    """Return True if the card's NVLinks lead to a switch."""
    far = _optional(lambda: int(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, 0)), -1)
    return far == int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)


def processes_on(handle: object) -> tuple[DeviceProcess, ...]:
    """Return each process once, with all memory of the card that it holds (0 if NVML does not report the amount).

    For a card in MIG mode, the UUID of the MIG device that a process uses is part of the process's entry.
    """
    if mig.is_enabled(handle):
        return mig.processes_on_parts(handle)
    used: dict[int, int] = {}
    for process in (
        *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
        *_optional(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), []),
    ):
        used[process.pid] = max(used.get(process.pid, 0), process.usedGpuMemory or 0)
    return tuple(DeviceProcess(pid=pid, used_bytes=used[pid]) for pid in sorted(used))


def utilization_of(handle: object, after_us: int) -> tuple[ProcessUtilization, ...]:
    """Return each process's latest sample after ``after_us`` (microseconds since 1970).

    Returns () if there is no later sample, and for a card in MIG mode.
    """
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, after_us)
    except pynvml.NVMLError as error:
        if error.value in (*_ABSENT, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
            return ()  # pynvml takes "no samples, success" for an error
        if error.value == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:  # a process was added between the two calls
            return ()
        raise
    latest: dict[int, ProcessUtilization] = {}
    for sample in samples:
        known = latest.get(sample.pid)
        if sample.pid and sample.timeStamp > after_us and (known is None or sample.timeStamp >= known.at_us):
            percent = max(0, min(100, sample.smUtil))
            latest[sample.pid] = ProcessUtilization(pid=sample.pid, percent=percent, at_us=sample.timeStamp)
    return tuple(latest[pid] for pid in sorted(latest))


def reading_of(uuid: DeviceUuid) -> DeviceReading:
    handle = handle_of(uuid)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return DeviceReading(
        uuid=uuid,
        memory_used_mib=-(-memory.used // MIB),
        utilization_percent=_optional(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0),
        temperature_c=_optional(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)), 0),
        power_w=_optional(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 0.0),
        processes=processes_on(handle),
        ecc_uncorrected=_optional(lambda: _ecc_uncorrected(handle), 0),
        retired_pages_pending=_optional(lambda: bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)), False),
        throttled=tuple(reason for bit, reason in _THROTTLES.items() if _throttles(handle) & bit),
        nvlinks_up=_nvlinks_up(handle),
        parts=(),
        **_remapping(handle),
    )


def _throttles(handle: object) -> int:
    return _optional(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)), 0)


def _remapping(handle: object) -> dict[str, bool]:
    _, _, pending, failed = _optional(lambda: pynvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
    return {"row_remap_pending": bool(pending), "row_remap_failed": bool(failed)}


def _nvlinks_up(handle: object) -> int:
    """Return the number of NVLinks that are up; -1 for a card without NVLink."""
    up = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            up += pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError as error:
            if error.value not in (*_ABSENT, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                raise
            return up if link else -1
    return up


def _ecc_uncorrected(handle: object) -> int:
    return int(
        pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    )


def register_events() -> tuple[object, dict[int, DeviceUuid]]:
    """Return an event set of all cards, and the UUID of each card by the address of its NVML handle.

    An event has the address of the handle of the card that sent it.
    """
    event_set = pynvml.nvmlEventSetCreate()
    senders: dict[int, DeviceUuid] = {}
    for handle in all_handles().values():
        uuid = DeviceUuid(str(pynvml.nvmlDeviceGetUUID(handle)))
        try:
            wanted = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & sum(_EVENTS)
            pynvml.nvmlDeviceRegisterEvents(handle, wanted, event_set)
        except pynvml.NVMLError as error:
            if error.value not in (*_ABSENT, *_LOST):
                pynvml.nvmlEventSetFree(event_set)
                raise
            continue
        senders[_address(handle)] = uuid
    return event_set, senders


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def event_of(data: object, senders: dict[int, DeviceUuid]) -> DeviceEvent | None:
    """Return an event of NVML as a DeviceEvent; None for a card or a kind of event that was not registered.

    Args:
        data: the event of NVML.
        senders: cards by handle address, from ``register_events``.
    """
    uuid = senders.get(_address(data.device))  # type: ignore[attr-defined]
    kind = _EVENTS.get(data.eventType)  # type: ignore[attr-defined]
    if uuid is None or kind is None:
        return None
    code = int(data.eventData) if kind is EventKind.XID else 0  # type: ignore[attr-defined]
    instances = int(data.gpuInstanceId), int(data.computeInstanceId)  # type: ignore[attr-defined]
    part = _part_of(data.device, *instances) if instances[0] != _NO_INSTANCE else ""  # type: ignore[attr-defined]
    return DeviceEvent(uuid=uuid, kind=EventKind.LOST if code == _XID_LOST else kind, code=code, part=part)


def _part_of(handle: object, gpu_instance: int, compute_instance: int) -> str:
    """Return the UUID of the MIG device of an event.

    If the event names no compute instance, any MIG device of its GPU instance is returned. If no MIG device is found,
    the text ``GPU instance N`` is returned.
    """
    for index in range(_optional(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)), 0)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            instance = pynvml.nvmlDeviceGetComputeInstanceId(part)
            if pynvml.nvmlDeviceGetGpuInstanceId(part) == gpu_instance and compute_instance in (instance, _NO_INSTANCE):
                return str(pynvml.nvmlDeviceGetUUID(part))
        except pynvml.NVMLError:
            continue  # no instance there, or it was just destroyed
    return f"GPU instance {gpu_instance}"


# ---- compute modes --------------------------------------------------------------------------------------------------

_COMPUTE_MODES = {
    ComputeMode.DEFAULT: pynvml.NVML_COMPUTEMODE_DEFAULT,
    ComputeMode.EXCLUSIVE_PROCESS: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    ComputeMode.PROHIBITED: pynvml.NVML_COMPUTEMODE_PROHIBITED,
}
_FOUND_MODES = {number: mode for mode, number in _COMPUTE_MODES.items()} | {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ComputeMode.EXCLUSIVE_PROCESS  # drivers have treated it so for long
}


def compute_mode_of(handle: object) -> ComputeMode:
    """Return the compute mode of a card."""
    return _FOUND_MODES.get(pynvml.nvmlDeviceGetComputeMode(handle), ComputeMode.DEFAULT)


def set_compute_mode(handle: object, mode: ComputeMode) -> None:
    """Set the compute mode of a card."""
    pynvml.nvmlDeviceSetComputeMode(handle, _COMPUTE_MODES[mode])
