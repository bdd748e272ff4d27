"""Reading and writing of the tables of driver functions, `cuda.tsv` and `nvml.tsv`.

One line is one exported function. Columns, separated by tabs:

    cuda.tsv   symbol  base  version  flavour  origin  return  parameters
    nvml.tsv   symbol  return  parameters

`base` and `version` are what a program passes to cuGetProcAddress; `flavour` is `plain`, `ptsz` or `ptds` (the two
spellings of a function whose default stream is the thread's own); `origin` is the header that declares the function.
A parameter is `direction type name`, where direction is `in`, `out` or `inout`; parameters are joined by `; `.
Types are written as the header writes them. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CUDA_TABLE = HERE / "cuda.tsv"
NVML_TABLE = HERE / "nvml.tsv"

PARAMETER = re.compile(r"(in|out|inout) (\w[\w ]*?(?: |\s\*+))(\w+)")
FLAVOURS = ("plain", "ptsz", "ptds")
ORIGINS = ("cuda", "gl", "egl", "vdpau", "profiler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    direction: str
    c_type: str
    name: str

    def declaration(self) -> str:
        return f"{self.c_type}{self.name}" if self.c_type.endswith("*") else f"{self.c_type} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFunction:
    symbol: str
    base: str
    version: int
    flavour: str
    origin: str
    returns: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFunction:
    symbol: str
    returns: str
    parameters: tuple[Parameter, ...]


class TableError(Exception):
    """A line of a table that cannot be parsed; the message names file and line."""


def format_parameters(parameters: tuple[Parameter, ...]) -> str:
    return "; ".join(f"{p.direction} {p.declaration()}" for p in parameters) or "void"


def parse_parameters(text: str) -> tuple[Parameter, ...]:
    if text == "void":
        return ()
    parameters = []
    for part in text.split("; "):
        match = PARAMETER.fullmatch(part)
        if not match:
            raise ValueError(f"parameter {part!r} is not 'direction type name'")
        parameters.append(Parameter(direction=match[1], c_type=match[2].rstrip(), name=match[3]))
    return tuple(parameters)


def read_rows(path: Path, columns: int) -> list[tuple[int, list[str]]]:
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#") or not line:
            continue
        cells = line.split("\t")
        if len(cells) != columns:
            raise TableError(f"{path}:{number}: {len(cells)} columns, expected {columns}")
        rows.append((number, cells))
    return rows


def load_cuda(path: Path = CUDA_TABLE) -> list[CudaFunction]:
    functions = []
    seen: set[str] = set()
    for number, (symbol, base, version, flavour, origin, returns, parameters) in read_rows(path, 7):
        if flavour not in FLAVOURS or origin not in ORIGINS or not version.isdecimal() or symbol in seen:
            raise TableError(f"{path}:{number}: bad flavour, origin or version, or {symbol} twice")
        seen.add(symbol)
        try:
            parsed = parse_parameters(parameters)
        except ValueError as error:
            raise TableError(f"{path}:{number}: {error}") from None
        functions.append(
            CudaFunction(
                symbol=symbol,
                base=base,
                version=int(version),
                flavour=flavour,
                origin=origin,
                returns=returns,
                parameters=parsed,
            )
        )
    return functions


def load_nvml(path: Path = NVML_TABLE) -> list[NvmlFunction]:
    functions = []
    seen: set[str] = set()
    for number, (symbol, returns, parameters) in read_rows(path, 3):
        if symbol in seen:
            raise TableError(f"{path}:{number}: {symbol} twice")
        seen.add(symbol)
        try:
            parsed = parse_parameters(parameters)
        except ValueError as error:
            raise TableError(f"{path}:{number}: {error}") from None
        functions.append(NvmlFunction(symbol=symbol, returns=returns, parameters=parsed))
    return functions


def write_cuda(functions: list[CudaFunction], title: str, path: Path) -> None:
    lines = [f"# {title}", "# symbol\tbase\tversion\tflavour\torigin\treturn\tparameters"]
    for f in functions:
        cells = (f.symbol, f.base, str(f.version), f.flavour, f.origin, f.returns, format_parameters(f.parameters))
        lines.append("\t".join(cells))
    path.write_text("\n".join(lines) + "\n")


def write_nvml(functions: list[NvmlFunction], title: str, path: Path) -> None:
    lines = [f"# {title}", "# symbol\treturn\tparameters"]
    lines += ["\t".join((f.symbol, f.returns, format_parameters(f.parameters))) for f in functions]
    path.write_text("\n".join(lines) + "\n")
