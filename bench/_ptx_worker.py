"""Run the kernels of the PTX benchmark in a process on one processor; prints the processor time of each as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

from bench._ptx_kernels import IN_A_LOOP, LOOPS, OVERHEAD, long_text, loop, sgemm
from bench._reference import cpu_unit_s

THREADS, BLOCKS = 256, 8
SIZE = 192


class Driver:
    """The calls of the CUDA driver that a launch needs."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.must(self._cuda.cuInit(0))
        self.must(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        self.must(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.must(self._cuda.cuCtxSetCurrent(context))

    @staticmethod
    def must(result: int) -> None:
        """End the program if the driver reports an error."""
        if result:
            raise SystemExit(f"the driver answers {result}")

    def memory(self, count: int) -> ctypes.c_uint64:
        """Allocate zeroed memory of ``count`` elements of 4 bytes."""
        address = ctypes.c_uint64()
        self.must(self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * count)))
        self.must(self._cuda.cuMemsetD32_v2(address, 0, ctypes.c_size_t(count)))
        return address

    def load(self, text: str) -> ctypes.c_void_p:
        """Load a module."""
        module = ctypes.c_void_p()
        self.must(self._cuda.cuModuleLoadData(ctypes.byref(module), text.encode()))
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        """Unload a module."""
        self.must(self._cuda.cuModuleUnload(module))

    def launch(
        self,
        module: ctypes.c_void_p,
        grid: tuple[int, int],
        block: tuple[int, int],
        *values: ctypes.c_uint64 | ctypes.c_uint32,
    ) -> float:
        """Launch kernel ``k`` and return its processor time in seconds."""
        function = ctypes.c_void_p()
        self.must(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        began = time.process_time()
        self.must(self._cuda.cuLaunchKernel(function, *grid, 1, *block, 1, 0, None, pointers, None))
        self.must(self._cuda.cuCtxSynchronize())
        return time.process_time() - began


def rate(driver: Driver, name: str, rounds: int, repeats: int) -> float:
    """Return the thread instructions per second of processor time: the best of several repeats, since the machine is shared."""
    module, memory = driver.load(loop(name)), driver.memory(THREADS * BLOCKS)
    executed = THREADS * BLOCKS * rounds * (IN_A_LOOP.get(name, 8) + OVERHEAD)
    seconds = min(
        driver.launch(module, (BLOCKS, 1), (THREADS, 1), memory, ctypes.c_uint32(rounds)) for _ in range(repeats)
    )
    driver.unload(module)
    return executed / seconds


def measure(quick: bool) -> dict[str, float]:
    """Measure all figures."""
    driver, repeats = Driver(), 3 if quick else 7
    before_s = cpu_unit_s()
    found = {name: rate(driver, name, 1500 if quick else 5000, repeats) for name in LOOPS}
    found["cpu_unit_s"] = (before_s + cpu_unit_s()) / 2
    module, matrices = driver.load(sgemm()), [driver.memory(SIZE * SIZE) for _ in range(3)]
    tiles = SIZE // 16
    size = ctypes.c_uint32(SIZE)
    seconds = min(driver.launch(module, (tiles, tiles), (16, 16), *matrices, size) for _ in range(repeats))
    found["sgemm"] = 2 * SIZE**3 / seconds
    text = long_text(40)
    times = []
    for _ in range(repeats):
        began = time.process_time()
        driver.unload(driver.load(text))
        times.append(time.process_time() - began)
    found["compile"] = min(times) / (len(text) / 1024)
    return found


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps(measure("--quick" in sys.argv)))
