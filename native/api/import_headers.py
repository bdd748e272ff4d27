"""Importer of `cuda.tsv` and `nvml.tsv` from the headers of the registry packages (a maintainer's tool).

    python native/api/import_headers.py [--include DIRECTORY] [--output DIRECTORY]

cudaTypedefs.h gives base name, version, flavour and parameters; cuda.h gives the exported names. Both list the
versions of one base name in order of age (`cuMemAlloc` is 2000, `cuMemAlloc_v2` is 3020), so the n-th oldest typedef
belongs to the n-th lowest suffix of the same flavour; `tests/native/test_api_table.py` lets the compiler confirm that
every pair has the same type. The OpenGL, EGL and VDPAU headers include headers that are absent on a server: they are
only preprocessed, with empty files in their place.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from api_table import HERE, CudaFunction, NvmlFunction, Parameter, write_cuda, write_nvml
from directions import cuda_direction, nvml_direction

ROOT = Path(__file__).resolve().parents[2]
HEADERS = {
    "cuda": ("cudaTypedefs.h", "cuda.h"),
    "gl": ("cudaGLTypedefs.h", "cudaGL.h"),
    "egl": ("cudaEGLTypedefs.h", "cudaEGL.h"),
    "vdpau": ("cudaVDPAUTypedefs.h", "cudaVDPAU.h"),
    "profiler": ("cudaProfilerTypedefs.h", None),  # cudaProfiler.h comes in another package; it has no versions
}
ABSENT = ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h")

TYPEDEF = re.compile(
    r"typedef\s+(\w+)\s*\(CUDAAPI\s*\*\s*PFN_(\w+?)_v(\d+)(?:_(ptsz|ptds))?\)\s*\((.*?)\)\s*;", re.DOTALL
)
CUDA_PROTOTYPE = re.compile(r"\bCUresult\s+(?:CUDAAPI\s+)?(cu\w+)\s*\(([^;{]*?)\)\s*;")
NVML_PROTOTYPE = re.compile(r"\b(nvmlReturn_t|const\s+char\s*\*)\s*(nvml\w+)\s*\(([^;{]*?)\)\s*;")
SUFFIXES = re.compile(r"(\w+?)(?:_v(\d+))?(?:_(ptsz|ptds))?")


def clean(text: str) -> str:
    """Return C text without comments, Windows-only lines and calling conventions."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return re.sub(r"#ifdef _WIN32.*?#endif", "", text, flags=re.DOTALL)


def preprocess(include: Path, header: str, *defines: str) -> str:
    with tempfile.TemporaryDirectory() as empty:
        for name in ABSENT:
            path = Path(empty, name)
            path.parent.mkdir(exist_ok=True)
            path.touch()
        command = ["gcc", "-E", "-P", *(f"-D{d}" for d in defines), "-I", str(include), "-I", empty]
        result = subprocess.run(
            [*command, "-include", header, "-x", "c", "/dev/null"], capture_output=True, text=True, check=True
        )
    return result.stdout.replace("CUDAAPI", "")


def split_parameters(text: str) -> list[tuple[str, str]]:
    """Return `(C type, name)` of each parameter, the type with one space before its stars."""
    text = " ".join(text.replace("CUDAAPI", "").split())
    if text in ("", "void"):
        return []
    parameters = []
    for part in text.split(","):
        match = re.fullmatch(r"(.*?)(\w+)((?:\[\w*\])?)", part.strip())
        if not match:
            raise SystemExit(f"error: parameter {part!r} is not understood")
        c_type, name, array = match.groups()
        stars = "*" * (c_type.count("*") + (1 if array else 0))
        c_type = " ".join(c_type.replace("*", " ").split())
        parameters.append((f"{c_type} {stars}".strip(), name))
    return parameters


def exported_names(include: Path, header: str | None) -> dict[tuple[str, str], list[str]]:
    """Return (base, flavour) -> exported names, lowest suffix first."""
    names: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    if header is None:
        return {}
    for symbol, _ in CUDA_PROTOTYPE.findall(preprocess(include, header, "__CUDA_API_VERSION_INTERNAL")):
        match = SUFFIXES.fullmatch(symbol)
        assert match
        names[match[1], match[3] or "plain"][int(match[2] or 1)] = symbol
    return {key: [symbols[n] for n in sorted(symbols)] for key, symbols in names.items()}


def import_origin(include: Path, origin: str) -> list[CudaFunction]:
    typedefs_header, header = HEADERS[origin]
    typedefs = TYPEDEF.findall(clean((include / typedefs_header).read_text()))
    ages: dict[tuple[str, str], list[int]] = defaultdict(list)
    for _, base, version, flavour, _ in typedefs:
        ages[base, flavour or "plain"].append(int(version))
    exported = exported_names(include, header)
    functions = []
    for returns, base, version, written_flavour, parameters in typedefs:
        flavour = written_flavour or "plain"
        versions = sorted(ages[base, flavour])
        names = exported.get((base, flavour), [base])
        if len(names) != len(versions):
            raise SystemExit(f"error: {base} {flavour}: versions {versions} but exported names {names}")
        functions.append(
            CudaFunction(
                symbol=names[versions.index(int(version))],
                base=base,
                version=int(version),
                flavour=flavour,
                origin=origin,
                returns=returns,
                parameters=tuple(
                    Parameter(direction=cuda_direction(base, c_type, name), c_type=c_type, name=name)
                    for c_type, name in split_parameters(parameters)
                ),
            )
        )
    return functions


def import_nvml(include: Path) -> list[NvmlFunction]:
    text = preprocess(include, "nvml.h", "NVML_NO_UNVERSIONED_FUNC_DEFS")
    structs = re.findall(r"typedef struct\s*\w*\s*\{\s*unsigned int version;[^}]*\}\s*(\w+);", text)
    versioned = set(structs)
    versioned |= {new for old, new in re.findall(r"typedef (nvml\w+) (nvml\w+);", text) if old in versioned}
    functions = []
    for returns, symbol, parameters in NVML_PROTOTYPE.findall(text):
        split = split_parameters(parameters)
        pointers = sum("*" in c_type for c_type, _ in split)
        functions.append(
            NvmlFunction(
                symbol=symbol,
                returns=" ".join(returns.replace("*", " *").split()),
                parameters=tuple(
                    Parameter(
                        direction=nvml_direction(symbol, c_type, name, versioned, pointers), c_type=c_type, name=name
                    )
                    for c_type, name in split
                ),
            )
        )
    return functions


def header_version(include: Path) -> str:
    match = re.search(r"#define CUDA_VERSION\s+(\d+)", (include / "cuda.h").read_text())
    assert match
    return match[1]


def main() -> int:
    default = next(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/include"), None)
    parser = argparse.ArgumentParser(description="write cuda.tsv and nvml.tsv from the headers")
    parser.add_argument("--include", type=Path, default=default, help="directory that holds cuda.h and nvml.h")
    parser.add_argument("--output", type=Path, default=HERE, help="directory for cuda.tsv and nvml.tsv")
    arguments = parser.parse_args()
    include, output = arguments.include, arguments.output
    if include is None or not (include / "cuda.h").exists():
        print("error: no cuda.h found\nhint: run `make setup`, or give --include DIRECTORY", file=sys.stderr)
        return 1
    functions = [f for origin in HEADERS for f in import_origin(include, origin)]
    functions.sort(key=lambda f: (f.base, f.version, f.flavour))
    write_cuda(
        functions, f"CUDA driver API, from the headers of CUDA_VERSION {header_version(include)}", output / "cuda.tsv"
    )
    nvml = sorted(import_nvml(include), key=lambda f: f.symbol)
    write_nvml(nvml, "NVML, from nvml.h", output / "nvml.tsv")
    print(f"{len(functions)} functions of the CUDA driver API, {len(nvml)} of NVML")
    return 0


if __name__ == "__main__":
    sys.exit(main())
