"""Tests of libraries of kernels, as programs of the runtime and of numba use them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.native.ptx_world import kernel
from tests.native.sim_cuda_programs import CudaNode

PROGRAM = """
import ctypes as c, sys
cuda = c.CDLL("libcuda.so.1")
def ask(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
context, library, kernel, module, function, at = (c.c_void_p() for _ in range(6))
ask("cuInit", 0)
ask("cuDevicePrimaryCtxRetain", c.byref(context), 0)
ask("cuCtxSetCurrent", context)
ask("cuLibraryLoadData", c.byref(library), sys.argv[1].encode(), None, None, 0, None, None, 0)
ask("cuLibraryGetModule", c.byref(module), library)
ask("cuModuleGetFunction", c.byref(function), module, b"k")
ask("cuLibraryGetKernel", c.byref(kernel), library, b"k")
assert cuda.cuModuleUnload(module) == 800
ask("cuMemAlloc_v2", c.byref(at), c.c_size_t(128))
arguments = (c.c_void_p * 1)(c.addressof(at))
ask("cuProfilerStart")
ask("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
ask("cuProfilerStop")
ask("cuLibraryUnload", library)
found = (c.c_uint32 * 32)()
ask("cuMemcpyDtoH_v2", found, at, c.c_size_t(128))
assert set(found) == {3_000_000}, set(found)
print("well")
"""

LONG = (
    "mov.u32 %r0, 0;\nLOOP: add.u32 %r0, %r0, 1; setp.lt.u32 %q0, %r0, 3000000; @%q0 bra LOOP;\n"
    "mul.wide.u32 %a0, %i, 4; add.u64 %a0, %a0, %p0; st.global.u32 [%a0], %r0;"
)


def test_library_is_unloaded_when_its_kernels_have_ended_and_has_a_module_in_a_context(tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "A30")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kernel(LONG, 1)],
        capture_output=True,
        text=True,
        env=node.environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


REFUSED = """
import ctypes as c, sys
cuda = c.CDLL("libcuda.so.1")
context, module, function = c.c_void_p(), c.c_void_p(), c.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(c.byref(module), sys.argv[1].encode()) == 0
assert cuda.cuModuleGetFunction(c.byref(function), module, b"k") == 0
assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0
assert cuda.cuCtxSynchronize() == 801
assert cuda.cuCtxSynchronize() == 0
print("well")
"""
ODD = """
.func odd() { .reg .u64 %x; .reg .f32 %y<4>; .reg .s32 %z; tex.1d.v4.f32.s32 {%y0, %y1, %y2, %y3}, [%x, {%z}]; ret; }
"""


def test_what_the_simulation_does_not_know_is_told_once_and_the_program_goes_on(tmp_path: Path) -> None:
    node = CudaNode(tmp_path / "node.state", "A30")
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, kernel("call.uni odd, ();", 0, ODD)],
        capture_output=True,
        text=True,
        env=node.environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    assert "call of 'odd', which has what the simulation does not know: tex.1d.v4.f32.s32" in done.stderr
