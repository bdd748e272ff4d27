"""A program of the driver API without any package: `python remote_code_program.py CHECK...` prints one line of JSON.

The tests of the forwarding driver run it in a process of its own, with whatever libcuda.so.1 is found first.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KERNELS = """
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[64];
.visible .entry add_number(.param .u64 add_0, .param .u32 add_1, .param .u32 add_2)
{
    .reg .pred p;
    .reg .b32 n, number, at, old;
    .reg .b64 data, place;
    ld.param.u64 data, [add_0];
    ld.param.u32 n, [add_1];
    ld.param.u32 number, [add_2];
    mov.u32 at, %tid.x;
    setp.ge.u32 p, at, n;
    @p bra done;
    mul.wide.u32 place, at, 4;
    add.s64 place, data, place;
    ld.global.u32 old, [place];
    add.u32 old, old, number;
    st.global.u32 [place], old;
done:
    ret;
}
.visible .entry nothing()
{
    ret;
}
"""
NOT_READY = 600
COUNTERS_ID = bytes.fromhex("c0a1aba500014c6f9d2e5ca1ab1e0001")
COUNTERS = ("commands", "questions", "sent_bytes", "received_bytes", "image_bytes")


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class CallError(Exception):
    """A failed driver call; its text is the result code."""


def call(name: str, *arguments: Any) -> None:
    code = getattr(driver(), name)(*arguments)
    if code:
        raise CallError(f"{name}: {code}")


def code_of(name: str, *arguments: Any) -> int:
    code: int = getattr(driver(), name)(*arguments)
    return code


def counters() -> dict[str, int]:
    table = ctypes.POINTER(ctypes.c_uint64 * 2)()
    call("cuGetExportTable", ctypes.byref(table), COUNTERS_ID)
    values = ctypes.cast(table.contents[1], ctypes.POINTER(ctypes.c_uint64 * len(COUNTERS))).contents
    return dict(zip(COUNTERS, values, strict=True))


def spent(before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in counters().items()}


def start() -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    return context


def load(text: str = KERNELS) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), text.encode())
    return module


def function_of(module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    return function


def memory(numbers: list[int]) -> ctypes.c_uint64:
    address = ctypes.c_uint64()
    data = (ctypes.c_uint32 * len(numbers))(*numbers)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(ctypes.sizeof(data)))
    call("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(ctypes.sizeof(data)))
    return address


def read(address: ctypes.c_uint64, count: int) -> list[int]:
    data = (ctypes.c_uint32 * count)()
    call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(ctypes.sizeof(data)))
    return list(data)


def pointers(*values: Any) -> Any:
    return (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])


def launch_code(function: ctypes.c_void_p, parameters: Any = None, *, block: int = 32, shared: int = 0) -> int:
    return code_of("cuLaunchKernel", function, 1, 1, 1, block, 1, 1, shared, None, parameters, None)


# ---- what can be asked for -------------------------------------------------------------------------------------------


def started() -> Any:
    start()
    return counters()


def first_kernel() -> Any:
    """Measure the time from the start to the end of the first kernel."""
    start()
    launch_code(function_of(load(), "nothing"))
    call("cuCtxSynchronize")
    return counters()


def loaded(text_of: str = "") -> Any:
    start()
    before = counters()
    module = load(Path(text_of).read_text() if text_of else KERNELS)
    at_load = spent(before)
    before = counters()
    function, size, offset, value = (
        function_of(module, "add_number"),
        ctypes.c_size_t(),
        ctypes.c_size_t(),
        ctypes.c_int(),
    )
    layout = []
    for index in range(3):
        call("cuFuncGetParamInfo", function, ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size))
        layout.append([offset.value, size.value])
    call("cuFuncGetAttribute", ctypes.byref(value), 0, function)
    name = ctypes.c_char_p()
    call("cuFuncGetName", ctypes.byref(name), function)
    missing = code_of("cuModuleGetFunction", ctypes.byref(function), module, b"absent")
    return {
        "load": at_load, "after": spent(before), "layout": layout, "threads": value.value,
        "name": (name.value or b"").decode(), "missing": missing,
    }  # fmt: skip


def launched() -> Any:
    start()
    function = function_of(load(), "add_number")
    data, count, number = memory([1, 2, 3, 4]), ctypes.c_uint32(4), ctypes.c_uint32(10)
    before = counters()
    results = [launch_code(function, pointers(data, count, number))]
    packed = bytearray(16)
    packed[0:8] = data.value.to_bytes(8, "little")
    packed[8:12] = (4).to_bytes(4, "little")
    packed[12:16] = (100).to_bytes(4, "little")
    buffer, size = ctypes.create_string_buffer(bytes(packed), 16), ctypes.c_size_t(16)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    results.append(code_of("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, None, extra))
    both = code_of("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, pointers(data, count, number), extra)
    return {"results": results, "both": both, "spent": spent(before), "values": read(data, 4)}


def refused() -> Any:
    """Return the results of launches that a driver refuses at once.

    The forwarding driver must return what a local driver returns.
    """
    context = start()
    function = function_of(load(), "nothing")
    codes = {
        "good": launch_code(function),
        "block too large": launch_code(function, block=4096),
        "no block": launch_code(function, block=0),
        "shared memory too much": launch_code(function, shared=1 << 20),
        "no function": launch_code(ctypes.c_void_p(0xDEAD0)),
        "no stream": code_of("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(0xDEAD0), None, None),
        "no parameters": launch_code(function_of(load(), "add_number")),
    }
    call("cuCtxSetCurrent", None)
    codes["no context"] = launch_code(function)
    call("cuCtxSetCurrent", context)
    codes["good again"] = launch_code(function)
    codes["end"] = code_of("cuCtxSynchronize")
    return codes


def occupied() -> Any:
    start()
    function = function_of(load(), "add_number")
    before, found = counters(), []
    for _ in range(20):
        blocks = ctypes.c_int()
        call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), function, 128, ctypes.c_size_t(0))
        found.append(blocks.value)
    asked = spent(before)
    grid, block, sizes = ctypes.c_int(), ctypes.c_int(), []

    def shared_of(size: int) -> int:
        sizes.append(size)
        return size * 16

    of = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(shared_of)
    call(
        "cuOccupancyMaxPotentialBlockSize", ctypes.byref(grid), ctypes.byref(block), function, of, ctypes.c_size_t(0), 0
    )
    return {"found": sorted(set(found)), "asked": asked, "best": [grid.value, block.value], "called": bool(sizes)}


def attributes() -> Any:
    start()
    function, value = function_of(load(), "nothing"), ctypes.c_int()
    call("cuFuncSetAttribute", function, 8, 65536)
    before = counters()
    for _ in range(10):
        call("cuFuncSetAttribute", function, 8, 65536)
        call("cuFuncGetAttribute", ctypes.byref(value), 8, function)
    again = spent(before)
    refused_value = code_of("cuFuncSetAttribute", function, 8, 1 << 30)
    return {
        "value": value.value,
        "again": again,
        "refused": refused_value,
        "launch": launch_code(function, shared=65536),
    }


def variable() -> Any:
    start()
    module, address, size = load(), ctypes.c_uint64(), ctypes.c_size_t()
    call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, b"table")
    before = counters()
    for _ in range(10):
        call("cuModuleGetGlobal_v2", ctypes.byref(address), None, module, b"table")
    asked = spent(before)
    data = (ctypes.c_uint32 * 2)(7, 9)
    call("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(8))
    missing = code_of("cuModuleGetGlobal_v2", ctypes.byref(address), None, module, b"absent")
    call("cuModuleGetGlobal_v2", ctypes.byref(address), None, module, b"table")
    return {"bytes": size.value, "asked": asked, "values": read(address, 2), "missing": missing}


def unloaded() -> Any:
    start()
    module = load()
    function = function_of(module, "nothing")
    call("cuModuleUnload", module)
    codes = [
        launch_code(function),
        code_of("cuModuleUnload", module),
        code_of("cuModuleGetFunction", ctypes.byref(function), module, b"nothing"),
    ]
    again = load()
    return {"codes": codes, "launch": launch_code(function_of(again, "nothing")), "end": code_of("cuCtxSynchronize")}


def library() -> Any:
    start()
    handle, kernel, function, found = (ctypes.c_void_p() for _ in range(4))
    call("cuLibraryLoadData", ctypes.byref(handle), KERNELS.encode(), None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", ctypes.byref(kernel), handle, b"add_number")
    call("cuKernelGetFunction", ctypes.byref(function), kernel)
    call("cuKernelGetLibrary", ctypes.byref(found), kernel)
    data, count, number = memory([1, 2]), ctypes.c_uint32(2), ctypes.c_uint32(5)
    codes = [launch_code(each, pointers(data, count, number)) for each in (kernel, function)]
    kernels = ctypes.c_uint()
    call("cuLibraryGetKernelCount", ctypes.byref(kernels), handle)
    values = read(data, 2)
    call("cuLibraryUnload", handle)
    gone = code_of("cuLibraryGetKernel", ctypes.byref(kernel), handle, b"add_number")
    return {
        "codes": codes,
        "values": values,
        "same": found.value == handle.value,
        "kernels": kernels.value,
        "gone": gone,
    }


def compiled_badly() -> Any:
    """Return the log of a failed compilation, and that of a successful one."""
    start()
    results = {}
    for name, text in {"bad": KERNELS.replace("ret;", "rte;"), "good": KERNELS}.items():
        log, module = ctypes.create_string_buffer(b"\xff" * 511, 512), ctypes.c_void_p()
        options = (ctypes.c_int * 3)(5, 6, 7)
        values = (ctypes.c_void_p * 3)(ctypes.addressof(log), 512, 2)
        code = code_of("cuModuleLoadDataEx", ctypes.byref(module), text.encode(), 3, options, values)
        results[name] = [code, log.value.decode(), values[1] or 0, values[2]]
    return results


def linked() -> Any:
    start()
    state, cubin, size, module = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    log = ctypes.create_string_buffer(512)
    options, values = (ctypes.c_int * 2)(5, 6), (ctypes.c_void_p * 2)(ctypes.addressof(log), 512)
    call("cuLinkCreate_v2", 2, options, values, ctypes.byref(state))
    text = KERNELS.encode() + b"\0"
    call("cuLinkAddData_v2", state, 1, text, ctypes.c_size_t(len(text)), b"a.ptx", 0, None, None)
    call("cuLinkComplete", state, ctypes.byref(cubin), ctypes.byref(size))
    image = ctypes.string_at(cubin, size.value)
    before = counters()
    call("cuModuleLoadData", ctypes.byref(module), image)
    at_load = spent(before)
    call("cuLinkDestroy", state)
    gone = code_of("cuLinkDestroy", state)
    data, count, number = memory([1]), ctypes.c_uint32(1), ctypes.c_uint32(41)
    code = launch_code(function_of(module, "add_number"), pointers(data, count, number))
    return {"launch": code, "values": read(data, 1), "load": at_load, "gone": gone, "bytes": size.value}


def cooperative() -> Any:
    start()
    function = function_of(load(), "nothing")
    fits = code_of("cuLaunchCooperativeKernel", function, 2, 1, 1, 32, 1, 1, 0, None, None)
    before = counters()
    for _ in range(10):
        call("cuLaunchCooperativeKernel", function, 2, 1, 1, 32, 1, 1, 0, None, None)
    return {"fits": fits, "again": spent(before), "end": code_of("cuCtxSynchronize")}


def resolved() -> Any:
    start()
    answers = {}
    for name, version, flags in (
        ("cuMemAlloc", 3020, 0), ("cuMemAlloc", 2000, 0), ("cuCtxCreate", 13000, 0), ("cuLaunchKernel", 12000, 2),
        ("cuLaunchKernel", 12000, 0), ("cuLaunchKernel", 12000, 3), ("cuNoSuchFunction", 12000, 0),
        ("cuGraphAddNode", 1000, 0),
    ):  # fmt: skip
        address, status = ctypes.c_void_p(), ctypes.c_int()
        code = code_of(
            "cuGetProcAddress_v2",
            name.encode(),
            ctypes.byref(address),
            version,
            ctypes.c_uint64(flags),
            ctypes.byref(status),
        )
        answers[f"{name} {version} {flags}"] = [code, status.value, address.value is not None]
    table = ctypes.c_void_p()
    integrity = bytes.fromhex("d4082055bde6704b8d34ba123c66e1f2")
    answers["authenticity"] = [code_of("cuGetExportTable", ctypes.byref(table), integrity)]
    return answers


def devices() -> Any:
    code = code_of("cuInit", 0)
    if code:
        return {"init": code}
    count, names, uuids = ctypes.c_int(), [], []
    call("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        name, uuid = ctypes.create_string_buffer(100), ctypes.create_string_buffer(16)
        call("cuDeviceGetName", name, 100, ordinal)
        call("cuDeviceGetUuid", uuid, ordinal)
        names.append(name.value.decode())
        uuids.append(uuid.raw.hex())
    return {"init": 0, "names": names, "uuids": uuids}


def _made(name: str) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    call(name, ctypes.byref(made), 0)
    return made


def _until_done(query: str, what: ctypes.c_void_p | None) -> int:
    """Query until done; return how often it was not."""
    asked = 0
    while (code := code_of(query, what)) == NOT_READY:
        asked += 1
    if code:
        raise CallError(f"{query}: {code}")
    return asked


def stepped() -> Any:
    """Do what an eager step of a framework does beside its kernels, step after step, without reading a result."""
    start()
    function, stream, other = function_of(load(), "add_number"), _made("cuStreamCreate"), _made("cuStreamCreate")
    data, count, number = memory([0]), ctypes.c_uint32(1), ctypes.c_uint32(1)
    parameters, batch = pointers(data, count, number), (ctypes.c_uint32 * 1024)()
    room, status = memory([0] * 1024), ctypes.c_int()
    _until_done("cuEventQuery", _made("cuEventCreate"))
    before, copied = counters(), _made("cuEventCreate")
    for _ in range(50):
        call("cuStreamIsCapturing", stream, ctypes.byref(status))
        call("cuMemcpyHtoDAsync_v2", room, batch, ctypes.c_size_t(4096), other)
        call("cuEventRecord", copied, other)
        call("cuStreamWaitEvent", stream, copied, 0)
        for _ in range(20):
            call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, None)
        call("cuMemsetD32Async", room, 0, ctypes.c_size_t(16), stream)
        freed = _made("cuEventCreate")
        call("cuEventRecord", freed, stream)
        _until_done("cuEventQuery", freed)
        call("cuEventSynchronize", freed)
        call("cuEventDestroy_v2", freed)
    return {"spent": spent(before), "values": read(data, 1)}


def polled() -> Any:
    """Poll streams: the default one, the thread's own, and another."""
    start()
    function = function_of(load(), "add_number")
    data, count, number = memory([0]), ctypes.c_uint32(1), ctypes.c_uint32(1)
    parameters, told = pointers(data, count, number), {}
    for name, stream in {"default": None, "thread": ctypes.c_void_p(2), "other": _made("cuStreamCreate")}.items():
        before = counters()
        for _ in range(10):
            call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, None)
            _until_done("cuStreamQuery", stream)
            for _ in range(10):
                call("cuStreamQuery", stream)
            call("cuStreamSynchronize", stream)
        told[name] = spent(before)["questions"]
    return {"questions": told, "values": read(data, 1)}


def concluded() -> Any:
    """Query events and streams that precede a completed wait; all must be done."""
    start()
    function, stream, event = function_of(load(), "add_number"), _made("cuStreamCreate"), _made("cuEventCreate")
    data, count, number = memory([0]), ctypes.c_uint32(1), ctypes.c_uint32(1)
    parameters, word, later = pointers(data, count, number), ctypes.c_uint32(), _made("cuEventCreate")
    codes: dict[str, list[int]] = {}
    _until_done("cuEventQuery", event)

    def waited(name: str, *arguments: Any) -> None:
        for _ in range(20):
            call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, None)
            call("cuEventRecord", event, stream)
            call("cuEventRecord", later, stream)
            code_of("cuStreamQuery", stream)
            call(name, *arguments)
            found = [code_of("cuEventQuery", event), code_of("cuStreamQuery", stream)]
            codes[name] = sorted({*codes.get(name, []), *found})

    waited("cuCtxSynchronize")
    waited("cuStreamSynchronize", stream)
    waited("cuEventSynchronize", later)
    waited("cuMemcpyDtoH_v2", ctypes.byref(word), data, ctypes.c_size_t(4))
    return {"codes": codes, "values": read(data, 1)}


def doubted() -> Any:
    """Query events whose state is unknown: of a context that has ended, never recorded, or recorded by graphs."""
    start()
    stream, event, graph, made = _made("cuStreamCreate"), _made("cuEventCreate"), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuEventRecord", event, stream)
    _until_done("cuEventQuery", event)
    codes = {"known": [code_of("cuEventQuery", event), code_of("cuStreamQuery", stream)]}
    call("cuStreamBeginCapture_v2", stream, 2)
    call("cuEventRecord", event, stream)
    codes["captured"] = [code_of("cuEventQuery", event)]
    codes["capture"] = [code_of("cuStreamEndCapture", stream, ctypes.byref(graph))]
    call("cuEventRecord", event, stream)
    _until_done("cuEventQuery", event)
    call("cuEventDestroy_v2", event)
    codes["destroyed"] = [code_of("cuEventQuery", event), code_of("cuEventRecord", event, stream)]
    another, lost = ctypes.c_void_p(), _made("cuEventCreate")
    call("cuCtxCreate_v2", ctypes.byref(another), 0, 0)
    event, made = _made("cuEventCreate"), _made("cuStreamCreate")
    call("cuEventRecord", event, made)
    _until_done("cuEventQuery", event)
    call("cuCtxDestroy_v2", another)
    codes["of a context that has ended"] = [code_of("cuEventQuery", event)]
    call("cuEventRecord", lost, stream)
    _until_done("cuEventQuery", lost)
    codes["of one that lives"] = [code_of("cuEventQuery", lost), code_of("cuStreamQuery", stream)]
    return codes


ASKED: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        started, loaded, launched, refused, occupied, attributes, variable, unloaded, library, compiled_badly, linked,
        cooperative, resolved, devices, stepped, polled, concluded, doubted, first_kernel,
    )
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(ASKED[sys.argv[1]](*sys.argv[2:])))
