"""GPU program that does not know of Calabash: plain CUDA driver API through ctypes, no packages.

It takes device memory until the driver refuses, then keeps the card busy, and prints one JSON line: the memory that the
driver reported, the memory that it got, and how long its kernels ran.

    python examples/tenant.py --seconds 10 --kernel-us 1000
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time

CHUNK_BYTES = 64 << 20
PTX = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .global .u32 calabash_kernels_by_name; // on a simulated card: take exactly that long
.visible .entry spin_ns(.param .u64 ns)
{
    .reg .u64 %t<4>;
    .reg .pred %p;
    ld.param.u64 %t0, [ns];
    mov.u64 %t1, %globaltimer;
LOOP:
    mov.u64 %t2, %globaltimer;
    sub.u64 %t3, %t2, %t1;
    setp.lt.u64 %p, %t3, %t0;
    @%p bra LOOP;
    ret;
}
"""


class Driver:
    """The few driver calls that the program makes; any error ends it with the call's name."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *args: object, allow: tuple[int, ...] = ()) -> int:
        """Call a driver function; return its result when it is 0 or allowed."""
        result: int = getattr(self._library, name)(*args)
        if result and result not in allow:
            raise SystemExit(f"{name} answered {result}")
        return result


def take_memory(driver: Driver) -> int:
    """Allocate until the driver says out of memory (2); return the bytes held."""
    held, chunk = 0, CHUNK_BYTES
    while chunk >= 1 << 20:
        pointer = ctypes.c_uint64()
        if driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(chunk), allow=(2,)) == 0:
            held += chunk
        else:
            chunk //= 2
    return held


def load_kernel(driver: Driver) -> ctypes.c_void_p:
    """Load the kernel, which needs device memory too."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), PTX)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"spin_ns")
    return function


def keep_busy(driver: Driver, function: ctypes.c_void_p, seconds: float, kernel_us: int) -> int:
    """Launch kernels back to back, a few in flight, until the time is over; return the number of launches."""
    duration_ns = ctypes.c_uint64(kernel_us * 1000)
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(duration_ns), ctypes.c_void_p))
    launches, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(8):
            driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        driver.call("cuCtxSynchronize")
        launches += 8
    return launches


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kernel-us", type=int, default=1000)
    options = parser.parse_args()
    driver = Driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    function = load_kernel(driver)
    held = take_memory(driver)
    launches = keep_busy(driver, function, options.seconds, options.kernel_us)
    print(
        json.dumps(
            {
                "memory_total_bytes": total.value,
                "memory_free_bytes": free.value,
                "memory_held_bytes": held,
                "launches": launches,
                "kernel_us": options.kernel_us,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
