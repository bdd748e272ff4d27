"""C text of the functions in the tables."""

from __future__ import annotations

from collections.abc import Iterable

from api_table import CudaFunction, Parameter

# The types of OpenGL, EGL and VDPAU that appear in the driver API, by ABI: a server has none of their headers.
INTEROP_TYPES = """\
typedef unsigned int cb_GLuint, cb_GLenum, cb_CUGLDeviceList;
typedef void *cb_EGLImageKHR, *cb_EGLStreamKHR, *cb_EGLSyncKHR, *cb_CUeglStreamConnection;
typedef int cb_EGLint;
typedef uint32_t cb_VdpDevice, cb_VdpVideoSurface, cb_VdpOutputSurface;
typedef void cb_VdpGetProcAddress;
typedef int cb_CUoutput_mode;
typedef struct {
    void *plane[3];
    unsigned int number[9];
} cb_CUeglFrame_v1;
"""
INTEROP_NAMES = frozenset(word.strip("*,;")[3:] for word in INTEROP_TYPES.split() if word.strip("*").startswith("cb_"))


def c_parameters(parameters: Iterable[Parameter]) -> str:
    declared = []
    for parameter in parameters:
        words = parameter.declaration().split(" ")
        declared.append(" ".join(f"cb_{word}" if word in INTEROP_NAMES else word for word in words))
    return ", ".join(declared) or "void"


def plain_variant(function: CudaFunction) -> str:
    return function.symbol.removesuffix(f"_{function.flavour}")
