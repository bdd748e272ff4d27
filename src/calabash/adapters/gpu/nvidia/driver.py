"""NVIDIA driver over NVML, for real cards and for those of a simulated node.

For a simulated node, the simulated library is loaded by its absolute path before pynvml asks for ``libnvidia-ml.so.1``;
the dynamic linker then finds that name loaded already. A process has one NVML and therefore one node: opening a second
node while the first is open is refused. Calls go through ``DeadlineThread``, so that none of them can block its caller.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pynvml

from calabash.adapters.gpu.deadline import DeadlineThread
from calabash.adapters.gpu.gate import DriverGate
from calabash.adapters.gpu.library import SIM_ENVIRONMENT, simulated_library_dir
from calabash.adapters.gpu.nvidia import nvml_cards as cards
from calabash.adapters.gpu.nvidia import nvml_mig
from calabash.adapters.gpu.nvidia import reset as nvidia_reset
from calabash.adapters.gpu.nvidia.mig import NvidiaPartitioning
from calabash.adapters.gpu.nvidia.nvml_gpm import InstanceTimes
from calabash.adapters.gpu.nvidia.past_faults import NvidiaPast
from calabash.adapters.gpu.protocol import DeviceEvent, DriverOptions
from calabash.model.device import (
    ComputeMode,
    Device,
    DeviceProcess,
    DeviceReading,
    DeviceUuid,
    Health,
    ProcessUtilization,
)
from calabash.model.errors import CalabashError, Reason

_LIBRARY = "libnvidia-ml.so.1"
_WAIT_MARGIN_S = 5.0
_QUIET_S = 10.0  # a call that has not returned by then is taken for hung
_WAIT_SLICE_S = 0.2  # a closing driver waits at most this long for its event thread
_EVENTS_MAX = 256
_NODE = ""  # key of the thread for calls that are not about one card
_CARD_THREADS_MAX = 64

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
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: Reason.NO_CAPACITY,
}
_HINTS = {
    Reason.NO_DEVICES: "install the NVIDIA driver, or try a simulated node: calabash sim create lab --gpus 2xA100-40GB",
    Reason.NOT_PERMITTED: "run as root",
    Reason.UNHEALTHY: "the card needs a reset or a reboot",
}

T = TypeVar("T")


class _Library:
    """NVML library of this process, which is loaded once.

    All drivers that are open at the same time use the same cards: the real ones, or those of one simulated node.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._simulated: bool | None = None  # which library is loaded
        self._node = ""
        self._drivers = 0
        self.gate = DriverGate()  # held exclusively while NVML is shut down

    @contextmanager
    def unloaded(self) -> Iterator[None]:
        """Context in which NVML is shut down in this process; other calls wait.

        Raises CalabashError(TIMEOUT) if a call hangs.
        """
        with self.gate.exclusive(_QUIET_S), self._lock:
            for _ in range(self._drivers):
                pynvml.nvmlShutdown()
            try:
                yield
            finally:
                for _ in range(self._drivers):
                    _start(self._node, os.environ.get(SIM_ENVIRONMENT))

    def open(self, options: DriverOptions) -> None:
        """Load and start NVML for a simulated node or for real cards.

        The node is the one in ``options``, or else in the environment. If neither has one, real cards are used.
        Raises CalabashError(CONFLICT) if another node is open.
        """
        inherited = os.environ.get(SIM_ENVIRONMENT)
        state = options.sim_state or (Path(inherited) if inherited else None)
        node = str(state.resolve()) if state is not None else ""
        with self._lock:
            if self._simulated not in (None, state is not None) or (self._drivers > 0 and node != self._node):
                raise CalabashError(
                    f"this process already uses {self._node or 'the real cards'}",
                    reason=Reason.CONFLICT,
                    hint="one process has one node: close its driver, or start another process",
                )
            if state is not None:
                _load_simulated(state)
                self._simulated = True
            elif options.library is not None:
                _load_of_host(options.library)
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


def _load_of_host(library: Path) -> None:
    """Load NVML from the host's files if this process's dynamic loader does not find it.

    pynvml then finds the loaded library by its name.

    Args:
        library: path of NVML in the host's files.
    """
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise CalabashError(
                f"cannot load the host's driver library {library}: {error}",
                reason=Reason.BAD_FILE,
                hint="give the agent's pod NVIDIA's container runtime: agent.runtimeClassName=nvidia",
            ) from error


def _start(node: str, inherited: str | None) -> None:
    """Start NVML for a node.

    The simulated library reads its node from an environment variable when NVML is started. The variable is set for
    that moment only, so that child processes do not inherit the node.

    Args:
        node: state file of a simulated node; "" for real cards.
        inherited: earlier value of the variable, which is restored; None if it was not set.
    """
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


def _with_nvml(call: Callable[[], T]) -> Callable[[], T]:
    """Return a function that makes the call and prevents that NVML is shut down meanwhile."""

    def ask() -> T:
        with _library.gate.shared():
            return call()

    return ask


class NvidiaDriver:
    """Implementation of ``GpuDriver`` over NVML."""

    vendor = cards.VENDOR

    def __init__(self, options: DriverOptions) -> None:
        self._timeout_s = options.call_timeout_s
        self._calls = {
            _NODE: DeadlineThread("nvml")
        }  # and one for each card: a card that hangs must not block the others
        self._calls_lock = threading.Lock()
        self._events = DeadlineThread("nvml-events")
        self._event_set: tuple[object, dict[int, DeviceUuid]] | None = None
        self._seen: dict[int, Device] = {}
        self._closed = False
        self._parts: dict[DeviceUuid, DeviceUuid] = {}  # cards of MIG devices: one thread makes the calls of both
        self.partitioning = NvidiaPartitioning(self._ask, self._parts)
        self._times: dict[DeviceUuid, InstanceTimes] = {}  # each used in the thread of its card
        inherited = os.environ.get(SIM_ENVIRONMENT)
        self._files = options.files
        self._simulated = options.sim_state or (Path(inherited) if inherited else None)
        self.past = NvidiaPast(self._simulated, self._seen.values)
        try:
            self._ask("starting the driver", lambda: _library.open(options))
        except CalabashError:
            self._end_threads()
            raise

    def _ask(self, what: str, call: Callable[[], T], *, of: str = _NODE) -> T:
        if self._closed:
            raise CalabashError(f"{what}: the driver is closed", reason=Reason.CONFLICT)
        _library.gate.wait_open(nvidia_reset.RESET_S)
        try:
            return self._thread(of).ask(_with_nvml(call), what=what, timeout_s=self._timeout_s)
        except pynvml.NVMLError as error:
            raise _translated(what, error) from error

    def _thread(self, of: str) -> DeadlineThread:
        of = self._parts.get(DeviceUuid(of), of)
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
        """Return all cards; a card that fell off the bus keeps its index and its last known properties."""
        handles = cards.all_handles()
        uuids = {i: DeviceUuid(str(pynvml.nvmlDeviceGetUUID(handle))) for i, handle in handles.items()}
        for index in handles:
            device = cards.device_of(index, handles, uuids)
            known = self._seen.get(index)
            if device.health is Health.LOST and known is not None and known.uuid == device.uuid:
                device = replace(known, health=Health.LOST)
            self._seen[index] = device
        for index in self._seen.keys() - handles.keys():
            self._seen[index] = replace(self._seen[index], health=Health.LOST)
        return tuple(self._seen[index] for index in sorted(self._seen))

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        return self._ask(f"reading {uuid}", lambda: self._reading(uuid), of=uuid)

    def _reading(self, uuid: DeviceUuid) -> DeviceReading:
        handle = cards.handle_of(uuid)
        alone = nvml_mig.parts_alone(handle) if nvml_mig.is_enabled(handle) else ()
        times = self._times.setdefault(uuid, InstanceTimes()).read(handle, alone)
        return replace(cards.reading_of(uuid), parts=times) if times else cards.reading_of(uuid)

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        return self._ask(f"processes of {uuid}", lambda: cards.processes_on(cards.handle_of(uuid)), of=uuid)

    @property
    def samples_are_exact(self) -> bool:
        return self._simulated is not None

    def utilization(self, uuid: DeviceUuid, after_us: int) -> tuple[ProcessUtilization, ...]:
        return self._ask(
            f"utilisation of {uuid}", lambda: cards.utilization_of(cards.handle_of(uuid), after_us), of=uuid
        )

    def compute_mode(self, uuid: DeviceUuid) -> ComputeMode:
        return self._ask(f"compute mode of {uuid}", lambda: cards.compute_mode_of(cards.handle_of(uuid)), of=uuid)

    def set_compute_mode(self, uuid: DeviceUuid, mode: ComputeMode) -> None:
        self._ask(f"compute mode of {uuid}", lambda: cards.set_compute_mode(cards.handle_of(uuid), mode), of=uuid)

    def reset(self, uuid: DeviceUuid) -> None:
        self._ask(f"finding {uuid}", lambda: cards.handle_of(uuid), of=uuid)
        if self._simulated is not None:
            nvidia_reset.reset_simulated(self._simulated, uuid)
            return
        device = next((d for d in self._seen.values() if d.uuid == uuid), None)
        with _library.unloaded():
            self._event_set = None
            nvidia_reset.reset_real([uuid, *(device.reset_peers if device is not None else ())], self._files)

    @contextmanager
    def released(self) -> Iterator[None]:
        with _library.unloaded():
            self._event_set = None
            self._seen.clear()
            yield

    def wait_events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        """Implement ``GpuDriver.wait_events``. Raises CalabashError(CONFLICT) if the driver is closed."""
        if self._closed:
            raise CalabashError("events: the driver is closed", reason=Reason.CONFLICT)
        try:
            return self._events.ask(
                lambda: self._wait(timeout_s), what="waiting for events", timeout_s=timeout_s + _WAIT_MARGIN_S
            )
        except pynvml.NVMLError as error:
            raise _translated("waiting for events", error) from error

    def _wait(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for one event, then return it and all others that are ready. Runs in the thread for events."""
        found: list[DeviceEvent] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < _EVENTS_MAX and not self._closed:
            left_s = 0.0 if found else min(deadline - time.monotonic(), _WAIT_SLICE_S)
            try:
                event = self._next_event(max(1, int(left_s * 1000)))
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    raise
                if found or time.monotonic() >= deadline:
                    break
                continue
            if event is not None:
                found.append(event)
        return tuple(found)

    def _next_event(self, timeout_ms: int) -> DeviceEvent | None:
        with _library.gate.shared():
            if self._event_set is None:
                self._event_set = cards.register_events()
            handle, senders = self._event_set
            return cards.event_of(pynvml.nvmlEventSetWait_v2(handle, timeout_ms), senders)

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
            pass  # a driver that hangs or is gone cannot be closed
        self._end_threads()


def open_driver(options: DriverOptions) -> NvidiaDriver:
    """Open the driver for the vendor registry. Raises CalabashError(NO_DEVICES) if the machine has no NVIDIA driver."""
    return NvidiaDriver(options)


def _translated(what: str, error: pynvml.NVMLError) -> CalabashError:
    """Return a CalabashError with a reason for an NVML error, and with a hint for some; ``what`` is the failed step."""
    reason = _REASONS.get(error.value, Reason.UNHEALTHY)
    return CalabashError(f"{what}: the NVIDIA driver reports {error}", reason=reason, hint=_HINTS.get(reason, ""))
