"""GPU vendor that exists only in tests, to show that a new vendor needs one new module and nothing else."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

from calabash.adapters.gpu.protocol import DeviceEvent, DriverOptions
from calabash.model.device import ComputeMode, Device, DeviceProcess, DeviceReading, DeviceUuid, ProcessUtilization
from calabash.model.errors import CalabashError, Reason

_CARD = Device(
    uuid=DeviceUuid("ORCHID-0001"),
    index=0,
    vendor="orchid",
    model="Orchid O1",
    memory_mib=32768,
    multiprocessor_count=64,
)


class OrchidDriver:
    """Driver with one idle card."""

    vendor = "orchid"

    def __init__(self) -> None:
        self._closed = False
        self._compute_mode = ComputeMode.DEFAULT

    def _check(self, uuid: DeviceUuid | None = None) -> None:
        if self._closed:
            raise CalabashError("the driver is closed", reason=Reason.CONFLICT)
        if uuid is not None and uuid != _CARD.uuid:
            raise CalabashError(f"no Orchid card {uuid}", reason=Reason.NOT_FOUND)

    def driver_version(self) -> str:
        self._check()
        return "1.0"

    def devices(self) -> tuple[Device, ...]:
        self._check()
        return (_CARD,)

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        self._check(uuid)
        return DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=40, power_w=20.0)

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        self._check(uuid)
        return ()

    @property
    def samples_are_exact(self) -> bool:
        return True

    def utilization(self, uuid: DeviceUuid, after_us: int) -> tuple[ProcessUtilization, ...]:
        del after_us
        self._check(uuid)
        return ()

    def compute_mode(self, uuid: DeviceUuid) -> ComputeMode:
        self._check(uuid)
        return self._compute_mode

    def set_compute_mode(self, uuid: DeviceUuid, mode: ComputeMode) -> None:
        self._check(uuid)
        self._compute_mode = mode

    def reset(self, uuid: DeviceUuid) -> None:
        self._check(uuid)

    def released(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_events(self, timeout_s: float) -> tuple[DeviceEvent, ...]:
        self._check()
        time.sleep(timeout_s)
        return ()

    def close(self) -> None:
        self._closed = True


def open_orchid(options: DriverOptions) -> OrchidDriver:
    """Open the driver; this vendor has no simulated nodes, so the options have no effect."""
    del options
    return OrchidDriver()
