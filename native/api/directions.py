"""Which way a parameter carries data, where its C type does not say.

The rule: a value or a pointer to const goes in; any other pointer comes out. The tables below name the exceptions, by
parameter name for every function, or as `base:parameter` for one function. Base names are those of cuGetProcAddress
for CUDA and exported names for NVML. Host memory that is only handed over by address (`userData`, `p`) goes in.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

CUDA_IN = {
    "args", "attrs", "attrIdxs", "attrsIdxs", "ctxCreateParams", "dataSizes", "dptrs", "dsts", "extra", "jitOptions",
    "kernelParams", "launchParamsList", "libraryOptionValues", "libraryOptions", "mapInfoList", "nodeParams", "opList",
    "options", "osHandle", "p", "paramArray", "paramsArray", "prefetchLocIdxs", "prefetchLocs", "resources", "shareData",
    "sizes", "srcs", "userData", "attributes", "globalAddress", "location", "memcpyAttributes",
    "cuLinkAddData:data", "cuParamSetv:ptr", "cuUserObjectCreate:ptr", "cuTexRefSetBorderColor:pBorderColor",
    "cuStreamUpdateCaptureDependencies:dependencies", "cuMemPoolSetAttribute:value", "cuDeviceSetGraphMemAttribute:value",
    "cuCoredumpSetAttribute:value", "cuCoredumpSetAttributeGlobal:value", "cuCoredumpSetAttribute:size",
    "cuCoredumpSetAttributeGlobal:size", "cuMemRetainAllocationHandle:addr", "cuMemPoolImportFromShareableHandle:handle",
    "cuEGLStreamConsumerConnect:stream", "cuEGLStreamConsumerDisconnect:conn", "cuEGLStreamConsumerReleaseFrame:pStream",
    "cuEGLStreamConsumerAcquireFrame:conn", "cuEGLStreamConsumerReleaseFrame:conn", "cuEGLStreamProducerDisconnect:conn",
    "cuEGLStreamProducerPresentFrame:conn", "cuEGLStreamProducerPresentFrame:pStream",
    "cuEGLStreamProducerReturnFrame:conn", "cuEGLStreamProducerReturnFrame:pStream", "vdpGetProcAddress",
}  # fmt: skip

CUDA_INOUT = {
    "instantiateParams", "jitOptionsValues", "nbGroups", "numDependencies", "numDependentNodes", "numEdges", "numNodes",
    "numRootNodes", "nvSciSyncAttrList", "optionValues", "cuThreadExchangeStreamCaptureMode:mode", "cuGraphAddNode:nodeParams",
    "cuGraphAddMemAllocNode:nodeParams", "cuCoredumpGetAttribute:size", "cuCoredumpGetAttributeGlobal:size",
    "cuLogsDumpToFile:iterator", "cuLogsDumpToMemory:iterator", "cuLogsDumpToMemory:size",
    "cuTensorMapReplaceAddress:tensorMap", "cuEGLStreamConsumerAcquireFrame:pStream",
    "cuEGLStreamConsumerAcquireFrame:pCudaResource",
}  # fmt: skip

CUDA_OUT = {
    "cuGraphKernelNodeGetParams:nodeParams", "cuGraphMemcpyNodeGetParams:nodeParams", "cuGraphMemsetNodeGetParams:nodeParams",
    "cuGraphHostNodeGetParams:nodeParams", "cuGraphBatchMemOpNodeGetParams:nodeParams",
    "cuStreamGetCaptureInfo:numDependencies_out", "cuLogsCurrent:iterator",
}  # fmt: skip


def pointee_is_const(c_type: str) -> bool:
    """True for `const T *`; false for `const T **`, whose pointee (a pointer) is written by the callee."""
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
    """`versioned`: types whose first field is the version that the caller fills in; `pointers`: of the function."""
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
