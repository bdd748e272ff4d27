"""Print the memory of the device as CUDA reports it to a program."""

from __future__ import annotations

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
size = ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0) == 0
print(size.value >> 20, "MiB")
