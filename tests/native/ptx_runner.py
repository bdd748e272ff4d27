"""Process that runs kernels for tests: requests come by pipe, because an error stays with the process's context."""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any

import numpy as np

LOG_BYTES = 4096


class Driver:
    """The driver calls that running a kernel needs."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        assert self._cuda.cuInit(0) == 0
        assert self._cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self._cuda.cuCtxSetCurrent(context) == 0

    def load(self, text: bytes) -> tuple[int, str, str, ctypes.c_void_p]:
        """Return the result, errors, notes and module of a load."""
        errors, notes = ctypes.create_string_buffer(LOG_BYTES), ctypes.create_string_buffer(LOG_BYTES)
        module = ctypes.c_void_p()
        options = (ctypes.c_int * 4)(5, 6, 3, 4)
        values = (ctypes.c_void_p * 4)(ctypes.addressof(errors), LOG_BYTES, ctypes.addressof(notes), LOG_BYTES)
        result = self._cuda.cuModuleLoadDataEx(ctypes.byref(module), text, 4, options, values)
        return result, errors.value.decode(), notes.value.decode(), module

    def link(self, texts: list[bytes]) -> tuple[int, bytes]:
        state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        assert self._cuda.cuLinkCreate_v2(0, None, None, ctypes.byref(state)) == 0
        for text in texts:
            kind, length = ctypes.c_int(1), ctypes.c_size_t(len(text))
            assert self._cuda.cuLinkAddData_v2(state, kind, text, length, b"part", 0, None, None) == 0
        result = self._cuda.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size))
        made = ctypes.string_at(image.value, size.value) if result == 0 and image.value else b""
        self._cuda.cuLinkDestroy(state)
        return result, made

    def put(self, array: np.ndarray[Any, Any]) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        assert self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 1))) == 0
        data = array.ctypes.data_as(ctypes.c_void_p)
        assert self._cuda.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(array.nbytes)) == 0
        return address

    def fetch(self, address: ctypes.c_uint64, array: np.ndarray[Any, Any]) -> None:
        data = array.ctypes.data_as(ctypes.c_void_p)
        assert self._cuda.cuMemcpyDtoH_v2(data, address, ctypes.c_size_t(array.nbytes)) == 0
        self._cuda.cuMemFree_v2(address)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        text = request["text"]
        if isinstance(text, list):
            result, text = self.link(text)
            if result:
                return {"link": result}
        result, errors, notes, module = self.load(text)
        answer: dict[str, Any] = {"load": result, "errors": errors, "notes": notes}
        if result or request["kernel"] is None:
            return answer
        function = ctypes.c_void_p()
        assert self._cuda.cuModuleGetFunction(ctypes.byref(function), module, request["kernel"].encode()) == 0
        arrays = request["arrays"]
        addresses = [self.put(array) for array in arrays]
        pointers = (ctypes.c_void_p * max(len(arrays), 1))(*(ctypes.addressof(a) for a in addresses))
        grid, block = request["grid"], request["block"]
        shape = (grid, 1, 1, block, 1, 1, request["shared"])
        answer["launch"] = self._cuda.cuLaunchKernel(function, *shape, None, pointers, None)
        answer["result"] = self._cuda.cuCtxSynchronize()
        if answer["launch"] == 0 and answer["result"] == 0:
            for address, array in zip(addresses, arrays, strict=True):
                self.fetch(address, array)
            self._cuda.cuModuleUnload(module)
        answer["arrays"] = arrays
        return answer


def main() -> None:
    driver = Driver()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(driver.run(request), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
