"""Program of a tenant that does not know of Calabash: plain CUDA driver API, the standard library, any Python.

It takes memory, asks for more than it may have, keeps the card busy or leaves it alone, and reports in lines of JSON:
``begun`` with the time, ``ended`` with the time, bytes held, allocations refused and launches. A call that fails is reported
with its number, and the exit code is 9.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time

FAILED = 9
OUT_OF_MEMORY = 2
PTX = b""".version 6.0
.target sm_60
.address_size 64
.visible .global .u32 calabash_kernels_by_name; // on a simulated card: take exactly that long
.visible .entry spin_ns(.param .u64 ns)
{
    ret;
}
"""


def report(**words: float | str) -> None:
    print(json.dumps(words), flush=True)


class Driver:
    """Driver calls; one that fails ends the program."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object, allow: tuple[int, ...] = ()) -> int:
        result: int = getattr(self._library, name)(*arguments)
        if result and result not in allow:
            report(failed=result, call=name, at=time.time())
            sys.exit(FAILED)
        return result

    def open(self, index: int) -> ctypes.c_void_p:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return context

    def take(self, limit_bytes: int) -> tuple[int, int]:
        """Allocate up to ``limit_bytes``, or (below 0) until the driver refuses; return bytes held and refusals."""
        held, refused, chunk = 0, 0, 256 << 20
        while chunk >= 4 << 20:
            if limit_bytes >= 0:
                chunk = min(chunk, limit_bytes - held)
                if chunk <= 0:
                    break
            pointer = ctypes.c_uint64()
            if self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(chunk), allow=(OUT_OF_MEMORY,)):
                refused += 1
                chunk //= 2
            else:
                held += chunk
        return held, refused

    def kernel(self) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"spin_ns")
        return function

    def press(self, function: ctypes.c_void_p, seconds: float, kernel_us: int, ahead: int) -> int:
        """Launch kernels so that the card never runs out of work; return the number of launches."""
        duration_ns = ctypes.c_uint64(kernel_us * 1000)
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(duration_ns), ctypes.c_void_p))
        events = [ctypes.c_void_p() for _ in range(ahead)]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 2)
        launches, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            event = events[launches % ahead]
            if launches >= ahead:
                self.call("cuEventSynchronize", event)
            self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
            self.call("cuEventRecord", event, None)
            launches += 1
        self.call("cuCtxSynchronize")
        return launches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--kernel-us", type=int, default=0, help="0: leave the card alone")
    parser.add_argument("--ahead", type=int, default=4, help="launches under way: there is always work for the card")
    parser.add_argument("--memory-mib", type=int, default=-1, help="of each device; below 0: all that is given")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    report(begun=time.time(), tag=options.tag)
    driver = Driver()
    driver.call("cuInit", 0)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    held = refused = launches = 0
    for index in range(options.devices):
        driver.call("cuCtxSetCurrent", driver.open(index))
        driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        function = driver.kernel() if options.kernel_us else None
        more, denied = driver.take(options.memory_mib << 20 if options.memory_mib >= 0 else -1)
        held, refused = held + more, refused + denied
    report(ready=time.time(), total=total.value, held=held, refused=refused)
    if function is not None:
        launches = driver.press(function, options.seconds, options.kernel_us, options.ahead)
    else:
        time.sleep(options.seconds)
        driver.call("cuCtxSynchronize")
    report(ended=time.time(), launches=launches)


if __name__ == "__main__":
    main()
