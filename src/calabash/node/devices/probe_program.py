"""Program that tests a card: it creates a context, copies memory both ways, and adds two vectors with a kernel.

The program prints ``context`` when its context exists and continues when its standard input is closed. Then it prints
the durations of its steps as JSON, in microseconds by the card's own clock, or an error as text. It needs only the
interpreter and the driver.

Exit codes: 0 if the card works, 3 if other programs leave it too little memory, 1 if the card has failed.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import sys

NO_ROOM = 3
_NO_ROOM_RESULTS = {2, 46}  # out of memory; the card accepts no other process
COUNT = 1 << 18
BLOCK = 256
TIMES = 20
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %d<10>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.s32 %p, %r4, %r5;
    @%p bra DONE;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    cvta.to.global.u64 %d4, %d1;
    cvta.to.global.u64 %d5, %d2;
    cvta.to.global.u64 %d6, %d3;
    mul.wide.s32 %d7, %r4, 4;
    add.s64 %d4, %d4, %d7;
    add.s64 %d5, %d5, %d7;
    add.s64 %d6, %d6, %d7;
    ld.global.f32 %f1, [%d4];
    ld.global.f32 %f2, [%d5];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d6], %f3;
DONE:
    ret;
}
"""


class _CudaError(Exception):
    def __init__(self, name: str, result: int) -> None:
        super().__init__(f"{name} failed with {result}")
        self.result = result


class _WrongError(Exception):
    """The card has returned a wrong result."""


class _Card:
    """Calls of the CUDA driver library. A call that fails raises _CudaError with the name of the function."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise _CudaError(name, result)

    def memory(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def timed(self, name: str, *arguments: object) -> float:
        """Call a driver function TIMES times; return the shortest duration by the card's clock, in microseconds."""
        begun, ended, took = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        for event in (begun, ended):
            self.call("cuEventCreate", ctypes.byref(event), 0)
        best = float("inf")
        for _ in range(TIMES):
            self.call("cuEventRecord", begun, None)
            self.call(name, *arguments)
            self.call("cuEventRecord", ended, None)
            self.call("cuEventSynchronize", ended)
            self.call("cuEventElapsedTime", ctypes.byref(took), begun, ended)
            best = min(best, took.value * 1000)
        for event in (begun, ended):
            self.call("cuEventDestroy_v2", event)
        return best


def _vectors(card: _Card) -> dict[str, float]:
    size = ctypes.c_size_t(4 * COUNT)
    first = array.array("f", range(COUNT))
    second = array.array("f", range(0, 2 * COUNT, 2))
    wanted = array.array("f", range(0, 3 * COUNT, 3)).tobytes()
    a, b, c = (card.memory(4 * COUNT) for _ in range(3))
    figures = {"copy_to_card": card.timed("cuMemcpyHtoD_v2", a, first.tobytes(), size)}
    card.call("cuMemcpyHtoD_v2", b, second.tobytes(), size)
    back = ctypes.create_string_buffer(4 * COUNT)
    figures["copy_from_card"] = card.timed("cuMemcpyDtoH_v2", back, a, size)
    if back.raw != first.tobytes():
        raise _WrongError("memory does not hold what was written")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    card.call("cuModuleLoadData", ctypes.byref(module), _PTX)
    card.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"vector_add")
    count = ctypes.c_int(COUNT)
    parameters = (ctypes.c_void_p * 4)(*(ctypes.addressof(p) for p in (a, b, c, count)))
    shape = (COUNT // BLOCK, 1, 1, BLOCK, 1, 1)
    figures["kernel"] = card.timed("cuLaunchKernel", kernel, *shape, 0, None, parameters, None)
    card.call("cuMemcpyDtoH_v2", back, c, size)
    if back.raw != wanted:
        raise _WrongError("a kernel has computed something else than it should")
    for pointer in (a, b, c):
        card.call("cuMemFree_v2", pointer)
    return figures


def _tried() -> dict[str, float]:
    card = _Card()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    card.call("cuInit", 0)
    card.call("cuDeviceGet", ctypes.byref(device), 0)
    card.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    card.call("cuCtxSetCurrent", context)
    os.write(1, b"context\n")
    sys.stdin.buffer.read()
    figures = _vectors(card)
    card.call("cuDevicePrimaryCtxRelease_v2", device)
    return figures


def main() -> int:
    """Test the first visible card."""
    try:
        print(json.dumps(_tried()), flush=True)
    except _CudaError as error:
        print(error, flush=True)
        return NO_ROOM if error.result in _NO_ROOM_RESULTS else 1
    except (OSError, _WrongError) as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
