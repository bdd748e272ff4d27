"""Program that reads commands from standard input, performs each on its device, and prints CUDA's result.

``alloc MIB`` allocates memory and prints ``alloc CODE``; ``write`` fills the memory that was allocated last and waits
until that is done; ``info`` prints free and total MiB.
"""

from __future__ import annotations

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def report(*words: object) -> None:
    print(*words, flush=True)


def main() -> None:
    context = ctypes.c_void_p()
    begun = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    report("begun", begun, count.value)
    pointer, size = ctypes.c_uint64(), 0
    for line in sys.stdin:
        word, _, amount = line.strip().partition(" ")
        if word == "alloc":
            size = int(amount) << 20
            report("alloc", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        elif word == "write":
            written = cuda.cuMemsetD8_v2(pointer, ctypes.c_ubyte(7), ctypes.c_size_t(size)) or cuda.cuCtxSynchronize()
            report("write", written)
        elif word == "info":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            report("info", free.value >> 20, total.value >> 20)
    report("ended")


main()
