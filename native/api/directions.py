"""Direction of a parameter (input or output) where its C type does not determine it.

The rule: a value or a pointer to const goes in; any other pointer comes out. The tables below name the exceptions, by
parameter name for every function, or as `base:parameter` for one function. Base names are those of cuGetProcAddress
for CUDA and exported names for NVML. Host memory that is only handed over by address (`userData`, `p`) goes in.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

CUDA_IN = {
    "args", "attrIdxs", "attributes", "attrs", "attrsIdxs", "ctxCreateParams", "dataSizes", "dptrs", "dsts",
    "extra", "globalAddress", "jitOptions", "kernelParams", "launchParamsList", "libraryOptionValues",
    "libraryOptions", "location", "mapInfoList", "memcpyAttributes", "nodeParams", "opList", "options",
    "osHandle", "p", "paramArray", "paramsArray", "prefetchLocIdxs", "prefetchLocs", "resources", "shareData",
    "sizes", "srcs", "userData", "vdpGetProcAddress",
    "cuCoredumpSetAttribute:size", "cuCoredumpSetAttribute:value", "cuCoredumpSetAttributeGlobal:size",
    "cuCoredumpSetAttributeGlobal:value", "cuDeviceSetGraphMemAttribute:value",
    "cuEGLStreamConsumerAcquireFrame:conn", "cuEGLStreamConsumerConnect:stream",
    "cuEGLStreamConsumerDisconnect:conn", "cuEGLStreamConsumerReleaseFrame:conn",
    "cuEGLStreamConsumerReleaseFrame:pStream", "cuEGLStreamProducerDisconnect:conn",
    "cuEGLStreamProducerPresentFrame:conn", "cuEGLStreamProducerPresentFrame:pStream",
    "cuEGLStreamProducerReturnFrame:conn", "cuEGLStreamProducerReturnFrame:pStream", "cuLinkAddData:data",
    "cuMemPoolImportFromShareableHandle:handle", "cuMemPoolSetAttribute:value",
    "cuMemRetainAllocationHandle:addr", "cuParamSetv:ptr", "cuStreamUpdateCaptureDependencies:dependencies",
    "cuTexRefSetBorderColor:pBorderColor", "cuUserObjectCreate:ptr",
}  # fmt: skip

CUDA_INOUT = {
    "instantiateParams", "jitOptionsValues", "nbGroups", "numDependencies", "numDependentNodes", "numEdges",
    "numNodes", "numRootNodes", "nvSciSyncAttrList", "optionValues",
    "cuCoredumpGetAttribute:size", "cuCoredumpGetAttributeGlobal:size",
    "cuEGLStreamConsumerAcquireFrame:pCudaResource", "cuEGLStreamConsumerAcquireFrame:pStream",
    "cuGraphAddMemAllocNode:nodeParams", "cuGraphAddNode:nodeParams", "cuLogsDumpToFile:iterator",
    "cuLogsDumpToMemory:iterator", "cuLogsDumpToMemory:size", "cuTensorMapReplaceAddress:tensorMap",
    "cuThreadExchangeStreamCaptureMode:mode",
}  # fmt: skip

CUDA_OUT = {
    "cuGraphBatchMemOpNodeGetParams:nodeParams", "cuGraphHostNodeGetParams:nodeParams",
    "cuGraphKernelNodeGetParams:nodeParams", "cuGraphMemcpyNodeGetParams:nodeParams",
    "cuGraphMemsetNodeGetParams:nodeParams", "cuLogsCurrent:iterator",
    "cuStreamGetCaptureInfo:numDependencies_out",
}  # fmt: skip


def pointee_is_const(c_type: str) -> bool:
    """Return True for `const T *`; False for `const T **`, whose pointee (a pointer) is written by the callee."""
    return c_type.startswith("const ") and c_type.count("*") == 1


def cuda_direction(base: str, c_type: str, name: str) -> str:
    if "*" not in c_type or pointee_is_const(c_type):
        return "in"
    key = f"{base}:{name}"
    for names, direction in ((CUDA_OUT, "out"), (CUDA_INOUT, "inout"), (CUDA_IN, "in")):
        if key in names:
            return direction
    if name in CUDA_INOUT:
        return "inout"
    return "in" if name in CUDA_IN else "out"


NVML_COUNT = re.compile(r"(?:[cC]ount|[sS]ize|[lL]ength)$")
NVML_SETTER = re.compile(r"^nvml\w*?(?:Set(?!Wait|GetCount)|Clear|Modify|Remove|Free|Update|Activate)[A-Z_]?")
NVML_INOUT = {"nvmlDeviceGetFieldValues:values", "nvmlDeviceClearFieldValues:values"}


def nvml_direction(symbol: str, c_type: str, name: str, versioned: AbstractSet[str], pointers: int) -> str:
    """Return the direction of a parameter.

    `versioned`: types whose first field is the version that the caller sets; `pointers`: number of the function's
    pointers.
    """
    if "*" not in c_type or pointee_is_const(c_type):
        return "in"
    if f"{symbol}:{name}" in NVML_INOUT:
        return "inout"
    if NVML_SETTER.match(symbol):
        return "in"
    if c_type.replace("*", "").strip() in versioned:
        return "inout"
    if c_type.startswith("unsigned int") and pointers > 1 and NVML_COUNT.search(name):
        return "inout"
    return "out"
