"""Tries a card out: a process of its own makes a context, writes memory and reads it back.

The process also tells what an empty context costs on that card: while it waits, the driver is asked how much it holds.
That figure is charged to a tenant's first context until its real cost has been seen, so that a cap holds from the first
millisecond. A card that hangs costs the probe, never the pool.

Vendors whose cards are not tried this way are only asked for a reading.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from calabash.agent.inventory import answers
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.model.units import MIB
from calabash.seams.gpu.protocol import GpuDriver

TIMEOUT_S = 10.0
_PATTERN = 0xA5
_BLOCK_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What came out; ``context_bytes`` 0 when it could not be measured.

    ``why``: what failed. ``figures``: how long parts of it took on the card, in microseconds, by name.
    """

    passed: bool
    context_bytes: int = 0
    why: str = ""
    figures: dict[str, float] = field(default_factory=dict)


def try_card(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> Probed:
    """Try one card, within TIMEOUT_S."""
    return _TRIES.get(device.vendor, _read_only)(driver, device, environment)


def _read_only(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> Probed:
    del environment
    return Probed(passed=answers(driver, device))


def _cuda(driver: GpuDriver, device: Device, environment: Mapping[str, str]) -> Probed:
    if not answers(driver, device):
        return Probed(passed=False)
    child = subprocess.Popen(
        [sys.executable, "-m", "calabash.agent.probe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment, "CUDA_VISIBLE_DEVICES": device.uuid},
    )
    try:
        context_bytes = _measured(driver, device, child)
        child.communicate(timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, CalabashError):
        return Probed(passed=False)
    finally:
        child.kill()
        child.wait()
    return Probed(passed=child.returncode == 0, context_bytes=context_bytes if child.returncode == 0 else 0)


def _measured(driver: GpuDriver, device: Device, child: subprocess.Popen[bytes]) -> int:
    """What the child's context holds, once it says that it stands; it goes on when its standard input ends."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    deadline = time.monotonic() + TIMEOUT_S
    while not child.stdout.read():
        if child.poll() is not None:
            return 0
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(child.args, TIMEOUT_S)
        time.sleep(0.005)
    held = {p.pid: p.used_mib for p in driver.processes(device.uuid)}
    return held.get(child.pid, 0) * MIB


_TRIES: Mapping[str, Callable[[GpuDriver, Device, Mapping[str, str]], Probed]] = {"nvidia": _cuda}


class _CudaError(Exception):
    pass


def main() -> int:
    """In the child: 0 when memory that was written could be read back."""
    try:
        _round_trip(ctypes.CDLL("libcuda.so.1"))
    except (OSError, _CudaError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _round_trip(cuda: ctypes.CDLL) -> None:
    def call(name: str, *arguments: object) -> None:
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            raise _CudaError(f"{name} failed with {result}")

    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    os.write(1, b"context\n")
    sys.stdin.buffer.read()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(_BLOCK_BYTES))
    call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(_PATTERN), ctypes.c_size_t(_BLOCK_BYTES))
    back = ctypes.create_string_buffer(_BLOCK_BYTES)
    call("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(_BLOCK_BYTES))
    if back.raw != bytes([_PATTERN]) * _BLOCK_BYTES:
        raise _CudaError("memory does not hold what was written")
    call("cuMemFree_v2", pointer)
    call("cuDevicePrimaryCtxRelease_v2", device)


if __name__ == "__main__":
    sys.exit(main())
