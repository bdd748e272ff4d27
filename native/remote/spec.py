"""Encoding of each forwarded function: `calls.txt` joined with the table of the driver API.

A parameter is encoded by its *kind*: a word (8 bytes), a blob (its bytes, filled up to whole words), a handle (the number
of an object, see wire/objects.h), a string, or an array of one of these. Handles that an `async` function returns are
numbered by the client; those that a `sync` one returns are numbered by the worker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))

from api_table import CudaFunction, Parameter, load_cuda  # noqa: E402

CALL = re.compile(
    r"(local|async|sync|wrapped|hand) (cu\w+)((?: \w+(?:\[\w+\]|:\w+))*)( anywhere)?( waits(?: unless (cu\w+))?)?"
    r"( unsafe)?"
)
NOTE = re.compile(r"(\w+)(?:\[(\w+)\]|:(\w+))")

HANDLES = {
    "CUcontext": "CONTEXT", "CUstream": "STREAM", "CUevent": "EVENT", "CUmodule": "MODULE", "CUfunction": "FUNCTION",
    "CUlibrary": "LIBRARY", "CUkernel": "KERNEL", "CUmemoryPool": "POOL", "CUgraph": "GRAPH", "CUgraphNode": "NODE",
    "CUgraphExec": "EXEC", "CUarray": "ARRAY", "CUmipmappedArray": "MIPMAP", "CUuserObject": "USER",
    "CUmemGenericAllocationHandle": "ALLOCATION", "CUmemGenericAllocationHandle_v1": "ALLOCATION",
    "CUtexObject_v1": "TEXTURE", "CUsurfObject_v1": "SURFACE",
}  # fmt: skip
WORDS = {
    "int", "unsigned int", "unsigned", "size_t", "unsigned long long", "unsigned short", "unsigned char", "cuuint32_t",
    "cuuint64_t", "CUdevice", "CUdevice_v1", "CUdeviceptr", "CUdeviceptr_v2",
}  # fmt: skip
BLOBS = {
    "CUmemLocation", "CUmemLocation_v1", "CUuuid", "float", "CUipcMemHandle_v1", "CUDA_ARRAY_MEMORY_REQUIREMENTS_v1",
    "CUmemAllocationProp_v1", "CUmemPoolProps_v1", "CUmemAccessDesc_v1", "CUDA_ARRAY_DESCRIPTOR_v2",
    "CUDA_ARRAY3D_DESCRIPTOR_v2", "CUDA_MEMSET_NODE_PARAMS_v1", "CUgraphEdgeData", "CUDA_TEXTURE_DESC_v1",
    "CUDA_RESOURCE_VIEW_DESC_v1", "CUgraphExecUpdateResultInfo",
}  # fmt: skip


class SpecError(Exception):
    """An invalid line of `calls.txt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedParameter:
    """One parameter of a remote call.

    `kind` is word, blob, struct (a pointer to a blob), handle or string; `count` names the parameter
    that counts an array of them.
    """

    parameter: Parameter
    kind: str
    base: str  # the C type without pointer and const
    count: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def out(self) -> bool:
        return self.parameter.direction == "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One function and its encoding.

    ``anywhere``: it needs no current context. ``waits``: it may wait for a device, but not if the function ``unless``, called
    with the same arguments, answers anything but "not ready". ``unsafe``: captures forbid it.
    """

    function: CudaFunction
    style: str
    parameters: tuple[ForwardedParameter, ...]
    anywhere: bool = False
    waits: bool = False
    unless: str = ""
    unsafe: bool = False

    @property
    def generated(self) -> bool:
        return self.style in ("async", "sync", "wrapped")


def load_calls(path: Path = HERE / "calls.txt") -> list[Call]:
    """Return all lines in the order of the file. Raises SpecError with file and line."""
    functions = {f.symbol: f for f in load_cuda()}
    calls: list[Call] = []
    seen: set[str] = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = CALL.fullmatch(line)
        try:
            if match is None:
                raise SpecError("is not `class function [name[count]|name:note]... [anywhere]`")
            function = functions.get(match[2])
            if function is None or function.flavour != "plain" or match[2] in seen:
                raise SpecError(f"{match[2]} is not in the table, is a per-thread flavour, or stands twice")
            seen.add(match[2])
            notes = {n[1]: (n[2] or "", n[3] or "") for n in NOTE.finditer(match[3])}
            parameters = _parameters(function, match[1], notes)
            call = Call(function=function, style=match[1], parameters=parameters)
            call = replace(call, anywhere=bool(match[4]), unsafe=bool(match[7]))
            calls.append(replace(call, waits=bool(match[5]), unless=match[6] or ""))
        except SpecError as error:
            raise SpecError(f"{path.name}:{number}: {error}") from None
    return calls


def _parameters(
    function: CudaFunction, style: str, notes: dict[str, tuple[str, str]]
) -> tuple[ForwardedParameter, ...]:
    unknown = notes.keys() - {p.name for p in function.parameters}
    if unknown:
        raise SpecError(f"{function.symbol} has no parameter {', '.join(sorted(unknown))}")
    if style not in ("async", "sync", "wrapped"):
        return ()
    return tuple(_forwarded_parameter(p, *notes.get(p.name, ("", ""))) for p in function.parameters)


def _forwarded_parameter(parameter: Parameter, count: str, note: str) -> ForwardedParameter:
    stars = parameter.c_type.count("*")
    base = parameter.c_type.replace("*", "").removeprefix("const ").strip()
    kind = next(iter(_kinds(base, parameter.c_type)), "")
    if kind == "blob" and stars == 1 and parameter.direction == "in" and not count:
        kind = "struct"
    pointer = parameter.direction != "in" or bool(count) or kind in ("string", "struct")
    known = kind and stars <= 1 and (stars == 1) == pointer and not (count and parameter.direction != "in")
    if not known or parameter.direction == "inout":
        raise SpecError(f"how {parameter.declaration()} travels is not known")
    return ForwardedParameter(parameter=parameter, kind=kind, base=base, count=count, note=note)


def _kinds(base: str, c_type: str) -> Iterator[str]:
    if c_type == "const char *":
        yield "string"
    elif base in HANDLES:
        yield "handle"
    elif base in BLOBS:
        yield "blob"
    elif base in WORDS or re.fullmatch(r"CU\w+", base):  # what is left are enumerations
        yield "word"
