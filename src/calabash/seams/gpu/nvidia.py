"""NVIDIA cards through NVML, the driver's own library: real ones, or those of a simulated node.

A simulated node differs in one thing, the library that answers: it is loaded by its absolute path before pynvml asks
for ``libnvidia-ml.so.1``, so that the dynamic linker finds that name loaded already. NVML is one per process; so is,
therefore, the node: opening a second one while the first is open is refused. Calls go through ``DeadlineThread``, so
that none of them can hang its caller.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pynvml

from calabash.model.device import Device, DeviceProcess, DeviceReading, DeviceUuid, Health, ProcessUtilization
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import MIB
from calabash.seams.gpu.deadline import DeadlineThread
from calabash.seams.gpu.library import SIM_ENVIRONMENT, simulated_library_dir
from calabash.seams.gpu.protocol import DeviceEvent, DriverOptions, EventKind

_LIBRARY = "libnvidia-ml.so.1"
_XID_LOST = 79
_WAIT_MARGIN_S = 5.0
_WAIT_SLICE_S = 0.2  # a closing driver waits no longer than this for its event thread
_EVENTS_MAX = 256
_NODE = ""  # the thread of questions that are not about one card
_CARD_THREADS_MAX = 64
_NUMA_MASK_WORDS = 4
_CAPABILITIES_OF_64_CORES = ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0))
_EVENTS = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeSingleBitEccError: EventKind.ECC_SINGLE_BIT,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.ECC_DOUBLE_BIT,
}
_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Reason.NO_DEVICES,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Reason.NO_DEVICES,
    pynvml.NVML_ERROR_NOT_FOUND: Reason.NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION: Reason.NOT_PERMITTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: Reason.UNHEALTHY,
    pynvml.NVML_ERROR_RESET_REQUIRED: Reason.UNHEALTHY,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Reason.BAD_FILE,
    pynvml.NVML_ERROR_TIMEOUT: Reason.TIMEOUT,
    pynvml.NVML_ERROR_IN_USE: Reason.CONFLICT,
}
_HINTS = {
    Reason.NO_DEVICES: "install the NVIDIA driver, or try a simulated node: calabash sim create lab --gpus 2xA100-40GB",
    Reason.NOT_PERMITTED: "run as root",
    Reason.UNHEALTHY: "the card needs a reset or a reboot",
}
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA)

T = TypeVar("T")


def _translated(what: str, error: pynvml.NVMLError) -> CalabashError:
    reason = _REASONS.get(error.value, Reason.UNHEALTHY)
    return CalabashError(f"{what}: the NVIDIA driver says {error}", reason=reason, hint=_HINTS.get(reason, ""))


def _optional(call: Callable[[], T], default: T) -> T:
    """A figure that some cards do not have."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return default
        raise


class _Library:
    """NVML of this process: one library for life, and one node for as long as a driver is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._simulated: bool | None = None  # which library is loaded
        self._node = ""
        self._drivers = 0

    def open(self, options: DriverOptions) -> None:
        """Loads and starts NVML for the node that is asked for, else for the one that the environment names."""
        inherited = os.environ.get(SIM_ENVIRONMENT)
        state = options.sim_state or (Path(inherited) if inherited else None)
        node = str(state.resolve()) if state is not None else ""
        with self._lock:
            if self._simulated not in (None, state is not None) or (self._drivers > 0 and node != self._node):
                raise CalabashError(
                    f"this process already speaks to {self._node or 'the real cards'}",
                    reason=Reason.CONFLICT,
                    hint="one process has one node: close its driver, or start another process",
                )
            if state is not None:
                _load_simulated(state)
                self._simulated = True
            _start(node, inherited)
            self._simulated = state is not None
            self._node = node
            self._drivers += 1

    def close(self) -> None:
        with self._lock:
            self._drivers -= 1
            pynvml.nvmlShutdown()


def _load_simulated(state: Path) -> None:
    library = simulated_library_dir() / _LIBRARY
    if not state.is_file():
        raise CalabashError(
            f"no simulated node at {state}",
            reason=Reason.NOT_FOUND,
            hint="list them with: calabash sim list",
        )
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CalabashError(
            f"cannot load the simulated driver {library}: {error}",
            reason=Reason.NO_DEVICES,
            hint="build it with: make native",
        ) from error


def _start(node: str, inherited: str | None) -> None:
    """The simulated library reads its node from the environment, once, here; children must not inherit ours."""
    try:
        if node:
            os.environ[SIM_ENVIRONMENT] = node
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _translated("cannot start NVML", error) from error
    finally:
        if inherited is None:
            os.environ.pop(SIM_ENVIRONMENT, None)
        else:
            os.environ[SIM_ENVIRONMENT] = inherited


_library = _Library()


class NvidiaDriver:
    """``GpuDriver`` over NVML."""

    vendor = "nvidia"

    def __init__(self, options: DriverOptions) -> None:
        self._timeout_s = options.call_timeout_s
        self._calls = {_NODE: DeadlineThread("nvml")}  # and one for each card: one that hangs must not stop the others
        self._calls_lock = threading.Lock()
        self._events = DeadlineThread("nvml-events")
        self._event_set: tuple[object, dict[int, DeviceUuid]] | None = None
        self._seen: dict[int, Device] = {}
        self._closed = False
        try:
            self._ask("starting the driver", lambda: _library.open(options))
        except CalabashError:
            self._end_threads()
            raise

    def _ask(self, what: str, call: Callable[[], T], *, of: str = _NODE) -> T:
        if self._closed:
            raise CalabashError(f"{what}: the driver is closed", reason=Reason.CONFLICT)
        try:
            return self._thread(of).ask(call, what=what, timeout_s=self._timeout_s)
        except pynvml.NVMLError as error:
            raise _translated(what, error) from error

    def _thread(self, of: str) -> DeadlineThread:
        with self._calls_lock:
            if of not in self._calls and len(self._calls) > _CARD_THREADS_MAX:
                of = _NODE  # uuids of cards that are not there
            if of not in self._calls:
                self._calls[of] = DeadlineThread(f"nvml-{of}")
            return self._calls[of]

    def _end_threads(self) -> None:
        self._events.close()
        with self._calls_lock:
            for thread in self._calls.values():
                thread.close()

    def driver_version(self) -> str:
        return self._ask("driver version", lambda: str(pynvml.nvmlSystemGetDriverVersion()))

    def devices(self) -> tuple[Device, ...]:
        return self._ask("devices", self._devices)

    def _devices(self) -> tuple[Device, ...]:
        """A card that fell off the bus keeps the place and the figures that it had."""
        handles = _handles()
        uuids = {i: DeviceUuid(str(pynvml.nvmlDeviceGetUUID(handle))) for i, handle in handles.items()}
        for index in handles:
            device = _device(index, handles, uuids)
            known = self._seen.get(index)
            if device.health is Health.LOST and known is not None and known.uuid == device.uuid:
                device = replace(known, health=Health.LOST)
            self._seen[index] = device
        for index in self._seen.keys() - handles.keys():
            self._seen[index] = replace(self._seen[index], health=Health.LOST)
        return tuple(self._seen[index] for index in sorted(self._seen))

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        return self._ask(f"reading {uuid}", lambda: _reading(uuid), of=uuid)

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        return self._ask(f"processes of {uuid}", lambda: _processes(_handle(uuid)), of=uuid)

    def utilization(self, uuid: DeviceUuid, after_us: int) -> tuple[ProcessUtilization, ...]:
        return self._ask(f"utilisation of {uuid}", lambda: _utilization(_handle(uuid), after_us), of=uuid)

    def set_exclusive(self, uuid: DeviceUuid, exclusive: bool) -> None:
        mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else pynvml.NVML_COMPUTEMODE_DEFAULT
        self._ask(f"compute mode of {uuid}", lambda: pynvml.nvmlDeviceSetComputeMode(_handle(uuid), mode), of=uuid)

    def wait_events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        if self._closed:
            raise CalabashError("events: the driver is closed", reason=Reason.CONFLICT)
        try:
            return self._events.ask(
                lambda: self._wait(timeout_s), what="waiting for events", timeout_s=timeout_s + _WAIT_MARGIN_S
            )
        except pynvml.NVMLError as error:
            raise _translated("waiting for events", error) from error

    def _wait(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        """Runs in the events' own thread. NVML reports one event at a time: take what there is."""
        if self._event_set is None:
            self._event_set = _register_events()
        handle, senders = self._event_set
        found: list[DeviceEvent] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < _EVENTS_MAX and not self._closed:
            left_s = 0.0 if found else min(deadline - time.monotonic(), _WAIT_SLICE_S)
            try:
                event = _event(pynvml.nvmlEventSetWait_v2(handle, max(1, int(left_s * 1000))), senders)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    raise
                if found or time.monotonic() >= deadline:
                    break
                continue
            if event is not None:
                found.append(event)
        return tuple(found)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        event_set, self._event_set = self._event_set, None
        try:
            if event_set is not None:
                self._events.ask(lambda: pynvml.nvmlEventSetFree(event_set[0]), what="close", timeout_s=self._timeout_s)
            self._calls[_NODE].ask(_library.close, what="close", timeout_s=self._timeout_s)
        except (CalabashError, pynvml.NVMLError):
            pass  # a driver that hangs or is gone cannot be told goodbye
        self._end_threads()


def open_driver(options: DriverOptions) -> NvidiaDriver:
    """Opener of the vendor registry. Raises NO_DEVICES when the machine has no NVIDIA driver."""
    return NvidiaDriver(options)


def _handle(uuid: DeviceUuid) -> object:
    try:
        handle: object = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            raise CalabashError(f"no NVIDIA card {uuid}", reason=Reason.NOT_FOUND) from error
        raise
    return handle


def _bus_id(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _handles() -> dict[int, object]:
    """Handles by index; a card that fell off the bus may have none."""
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


def _device(index: int, handles: dict[int, object], uuids: dict[int, DeviceUuid]) -> Device:
    """``memory_mib`` is what programs can have: NVML's total less what the driver reserves."""
    handle = handles[index]
    model = _optional(lambda: str(pynvml.nvmlDeviceGetName(handle)), "NVIDIA")
    pci_bus_id = _bus_id(handle)
    if _is_lost(handle):
        return Device(
            uuid=uuids[index],
            index=index,
            vendor=NvidiaDriver.vendor,
            model=model,
            memory_mib=0,
            pci_bus_id=pci_bus_id,
            health=Health.LOST,
        )
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    cores = _optional(lambda: int(pynvml.nvmlDeviceGetNumGpuCores(handle)), 0)
    return Device(
        uuid=uuids[index],
        index=index,
        vendor=NvidiaDriver.vendor,
        model=model,
        memory_mib=(memory.total - memory.reserved) // MIB,
        multiprocessor_count=cores // (64 if capability in _CAPABILITIES_OF_64_CORES else 128),
        compute_capability=(capability[0], capability[1]),
        pci_bus_id=pci_bus_id,
        numa_node=_optional(lambda: _numa_node(handle), -1),
        nvlink_peers=tuple(uuids[i] for i, peer in handles.items() if i != index and _linked(handle, peer)),
        mig_enabled=_optional(lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]), False),
    )


def _numa_node(handle: object) -> int:
    """The host memory nearest to the card: the lowest bit of its affinity mask; -1 when the mask is empty."""
    words = pynvml.nvmlDeviceGetMemoryAffinity(handle, _NUMA_MASK_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    mask = sum(int(word) << (64 * i) for i, word in enumerate(words))
    return (mask & -mask).bit_length() - 1


def _linked(handle: object, peer: object) -> bool:
    """Whether NVLink joins two cards, directly or through switches."""
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(handle, peer, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError as error:
        if error.value in (*_ABSENT, *_LOST):
            return False
        raise
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _processes(handle: object) -> tuple[DeviceProcess, ...]:
    """A process is listed once, with all that it holds of the card; a figure that NVML withholds counts as 0."""
    used: dict[int, int] = {}
    for process in (
        *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
        *_optional(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), []),
    ):
        used[process.pid] = max(used.get(process.pid, 0), process.usedGpuMemory or 0)
    return tuple(DeviceProcess(pid=pid, used_bytes=used[pid]) for pid in sorted(used))


def _utilization(handle: object, after_us: int) -> tuple[ProcessUtilization, ...]:
    """The latest sample of each process. That nobody has worked is no sample; with MIG nobody can tell."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, after_us)
    except pynvml.NVMLError as error:
        if error.value in (*_ABSENT, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
            return ()  # pynvml takes "no samples, success" for an error
        if error.value == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:  # one more process since we asked how many
            return ()
        raise
    latest: dict[int, ProcessUtilization] = {}
    for sample in samples:
        known = latest.get(sample.pid)
        if sample.pid and sample.timeStamp > after_us and (known is None or sample.timeStamp >= known.at_us):
            percent = max(0, min(100, sample.smUtil))
            latest[sample.pid] = ProcessUtilization(pid=sample.pid, percent=percent, at_us=sample.timeStamp)
    return tuple(latest[pid] for pid in sorted(latest))


def _reading(uuid: DeviceUuid) -> DeviceReading:
    handle = _handle(uuid)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return DeviceReading(
        uuid=uuid,
        memory_used_mib=-(-memory.used // MIB),
        utilization_percent=_optional(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0),
        temperature_c=_optional(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)), 0),
        power_w=_optional(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 0.0),
        processes=_processes(handle),
        ecc_uncorrected=_optional(lambda: _ecc_uncorrected(handle), 0),
    )


def _ecc_uncorrected(handle: object) -> int:
    return int(
        pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    )


def _register_events() -> tuple[object, dict[int, DeviceUuid]]:
    """An event set over all cards, and the cards by handle address, to name the sender of an event."""
    event_set = pynvml.nvmlEventSetCreate()
    senders: dict[int, DeviceUuid] = {}
    for handle in _handles().values():
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


def _event(data: object, senders: dict[int, DeviceUuid]) -> DeviceEvent | None:
    """None for an event of a card or of a kind that we did not ask for."""
    uuid = senders.get(_address(data.device))  # type: ignore[attr-defined]
    kind = _EVENTS.get(data.eventType)  # type: ignore[attr-defined]
    if uuid is None or kind is None:
        return None
    code = int(data.eventData) if kind is EventKind.XID else 0  # type: ignore[attr-defined]
    return DeviceEvent(uuid=uuid, kind=EventKind.LOST if code == _XID_LOST else kind, code=code)
