"""Tests of the driver API table against NVIDIA's headers, and of the generated resolver against cuGetProcAddress."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "native" / "api"
HEADERS_13 = next(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/include"))
HEADERS_12 = next(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cuda_runtime/include"))
STRICT = ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla", "-Werror"]


def load(name: str) -> ModuleType:
    """Load a script of native/api as a module; the scripts import each other by plain name."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, API / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


api_table = load("api_table")
load("cards")
load("c_text")
generate = load("generate")
CUDA: list[Any] = api_table.load_cuda()
NVML: list[Any] = api_table.load_nvml()


def compile_c(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["gcc", "-std=gnu11", *map(str, arguments)], capture_output=True, text=True, check=False)


def squeeze(c_type: str) -> str:
    return re.sub(r"\s*\*\s*", "*", " ".join(c_type.split()))


def header_typedefs(include: Path) -> dict[tuple[str, int, str], list[tuple[str, str]]]:
    """(base, version, flavour) -> [(type, name)], read from cudaTypedefs.h independently of the importer."""
    found: dict[tuple[str, int, str], list[tuple[str, str]]] = {}
    for line in (include / "cudaTypedefs.h").read_text().splitlines():
        head, marker, tail = line.partition("*PFN_")
        if not marker or not head.strip().startswith("typedef"):
            continue
        name, parameters = tail.rstrip().removesuffix(");").split(")(", 1)
        base, versioned, version = name.rpartition("_v")
        if not versioned:
            continue  # four typedefs of 12.9 were written without a version, which 13.0 mended
        version, _, flavour = version.partition("_")
        split = [re.fullmatch(r"(.*\W)(\w+)", p.strip()) for p in parameters.split(",") if p.strip() != "void"]
        found[base, int(version), flavour or "plain"] = [(squeeze(m[1]).strip(), m[2]) for m in split if m]
    return found


def declared_symbols(include: Path, header: str, *defines: str) -> set[str]:
    result = compile_c("-E", "-P", *defines, "-I", include, "-include", header, "-x", "c", "/dev/null")
    return set(re.findall(r"\b((?:cu|nvml)[A-Z]\w*)\s*\(", result.stdout))


@pytest.fixture(scope="session")
def facts() -> tuple[dict[tuple[str, int, str], list[tuple[str, str]]], set[str]]:
    return header_typedefs(HEADERS_13), declared_symbols(HEADERS_13, "cuda.h", "-D__CUDA_API_VERSION_INTERNAL")


Facts = tuple[dict[tuple[str, int, str], list[tuple[str, str]]], set[str]]


def disagreements(table: Iterable[Any], facts: Facts) -> list[str]:
    """Return one line for each row from cuda.h that differs from the headers."""
    typedefs, symbols = facts
    rows = [f for f in table if f.origin == "cuda"]
    found = [f"missing {key}" for key in typedefs.keys() - {(f.base, f.version, f.flavour) for f in rows}]
    found += [f"missing {symbol}" for symbol in symbols - {f.symbol for f in rows}]
    suffixes: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for f in rows:
        expected = typedefs.get((f.base, f.version, f.flavour))
        if f.symbol not in symbols:
            found.append(f"{f.symbol}: not declared by cuda.h")
        if expected != [(squeeze(p.c_type), p.name) for p in f.parameters]:
            found.append(f"{f.symbol}: parameters differ from {expected}")
        match = re.fullmatch(re.escape(f.base) + r"(?:_v(\d))?(?:_(ptsz|ptds))?", f.symbol)
        if match is None or (match[2] or "plain") != f.flavour or f.returns != "CUresult":
            found.append(f"{f.symbol}: not a symbol of {f.base} {f.flavour}")
        else:
            suffixes[f.base, f.flavour].append((f.version, int(match[1] or 1)))
        found += [f"{f.symbol}: {p.name} cannot go {p.direction}" for p in f.parameters if not possible(p)]
    for key, pairs in suffixes.items():
        ages = [suffix for _, suffix in sorted(pairs)]
        if ages != sorted(ages) or len({version for version, _ in pairs}) != len(pairs):
            found.append(f"{key}: symbols {pairs} are not in order of age")
    return found


def possible(parameter: Any) -> bool:
    stars = parameter.c_type.count("*")
    return stars > 1 or (stars == 1 and not parameter.c_type.startswith("const ")) or parameter.direction == "in"


def test_table_holds_every_function_of_the_headers_and_nothing_else(facts: Facts) -> None:
    assert disagreements(CUDA, facts) == []
    assert len(facts[0]) == 634
    assert len([f for f in CUDA if f.origin == "cuda"]) == 634


def edited(symbol: str, /, **changes: Any) -> list[Any]:
    return [replace(f, **changes) if f.symbol == symbol else f for f in CUDA]


def named(symbol: str) -> Any:
    return next(f for f in CUDA if f.symbol == symbol)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param([f for f in CUDA if f.symbol != "cuMemAlloc_v2"], id="row deleted"),
        pytest.param(edited("cuMemAlloc_v2", version=3030), id="version changed"),
        pytest.param(edited("cuLaunchKernel_ptsz", flavour="plain"), id="flavour changed"),
        pytest.param(edited("cuCtxCreate_v2", symbol="cuCtxCreate_v9"), id="symbol misspelt"),
        pytest.param(edited("cuInit", parameters=()), id="parameter dropped"),
        pytest.param(edited("cuMemFree_v2", parameters=named("cuMemFree").parameters), id="type of an older version"),
        pytest.param(
            edited("cuMemFree_v2", parameters=(replace(named("cuMemFree_v2").parameters[0], name="pointer"),)),
            id="parameter renamed",
        ),
        pytest.param(
            edited("cuInit", parameters=(replace(named("cuInit").parameters[0], direction="out"),)),
            id="value that goes out",
        ),
        pytest.param(
            [
                replace(f, symbol={"cuCtxDestroy": "cuCtxDestroy_v2", "cuCtxDestroy_v2": "cuCtxDestroy"}[f.symbol])
                if f.base == "cuCtxDestroy"
                else f
                for f in CUDA
            ],
            id="two versions of one type swapped",
        ),
    ],
)
def test_wrongly_edited_row_is_noticed(table: list[Any], facts: Facts) -> None:
    assert disagreements(table, facts) != []


def test_table_is_what_the_importer_makes_of_the_headers(tmp_path: Path) -> None:
    command = [sys.executable, str(API / "import_headers.py"), "--include", str(HEADERS_13), "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("cuda.tsv", "nvml.tsv"):
        assert (tmp_path / name).read_text() == (API / name).read_text(), f"{name} was edited by hand"


def test_functions_known_to_the_12_9_headers_have_the_same_versions_and_types() -> None:
    table = {(f.base, f.version, f.flavour): f for f in CUDA}
    older = header_typedefs(HEADERS_12)
    assert len(older) > 600
    for key, parameters in older.items():
        assert key in table
        assert [squeeze(p.c_type) for p in table[key].parameters] == [c_type for c_type, _ in parameters], key


def test_parameter_directions_follow_what_the_functions_do() -> None:
    directions = {(f.symbol, p.name): p.direction for f in CUDA for p in f.parameters}
    assert directions["cuMemAlloc_v2", "dptr"] == "out"
    assert directions["cuMemcpyDtoH_v2", "dstHost"] == "out"
    assert directions["cuMemcpyHtoD_v2", "srcHost"] == "in"
    assert directions["cuLaunchKernel", "kernelParams"] == "in"
    assert directions["cuGraphGetNodes", "numNodes"] == "inout"
    assert directions["cuGetErrorString", "pStr"] == "out"
    assert directions["cuLibraryLoadData", "jitOptions"] == "in"
    nvml = {(f.symbol, p.name): p.direction for f in NVML for p in f.parameters}
    assert nvml["nvmlDeviceGetMemoryInfo", "memory"] == "out"
    assert nvml["nvmlDeviceGetMemoryInfo_v2", "memory"] == "inout"
    assert nvml["nvmlDeviceGetComputeRunningProcesses_v3", "infoCount"] == "inout"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated")
    subprocess.run([sys.executable, str(API / "generate.py"), str(directory / "api")], check=True)
    return directory


def test_every_pointer_type_equals_both_prototype_and_typedef_of_the_headers(generated: Path, tmp_path: Path) -> None:
    lines = ['#include "api/cuda_api.h"', "#include <cudaTypedefs.h>", '#include "api/nvml_api.h"']
    for f in CUDA:
        lines.append(same(f"__typeof__({f.symbol}) *", f"cb_fn_{f.symbol}"))
        if f.origin == "cuda":
            flavour = "" if f.flavour == "plain" else f"_{f.flavour}"
            lines.append(same(f"PFN_{f.base}_v{f.version}{flavour}", f"cb_fn_{f.symbol}"))
    lines += [same(f"__typeof__({f.symbol}) *", f"cb_fn_{f.symbol}") for f in NVML]
    source = tmp_path / "types.c"
    source.write_text("\n".join(lines) + "\n")
    result = compile_c(*STRICT, "-fsyntax-only", "-I", generated, "-isystem", HEADERS_13, source)
    assert result.returncode == 0, result.stderr[:4000]
    source.write_text("\n".join([*lines, same("PFN_cuMemAlloc_v2000", "cb_fn_cuMemAlloc_v2")]) + "\n")
    assert compile_c("-fsyntax-only", "-I", generated, "-isystem", HEADERS_13, source).returncode != 0


def same(one: str, other: str) -> str:
    return f'_Static_assert(__builtin_types_compatible_p({one}, {other}), "{other}");'


def test_nvml_table_holds_every_function_of_the_header() -> None:
    declared = declared_symbols(HEADERS_13, "nvml.h", "-DNVML_NO_UNVERSIONED_FUNC_DEFS")
    assert {f.symbol for f in NVML} == declared
    assert len(NVML) > 390


def test_hooked_and_denied_names_are_functions_of_the_table() -> None:
    newer_than_the_header = {"nvmlDeviceSetDriverModel_v2", "nvmlDeviceSetMemoryLimits_v1"}
    known = {f.symbol for f in [*CUDA, *NVML]} | newer_than_the_header
    for name in ("hooks.txt", "denied.txt"):
        lines = (ROOT / "native" / "shim" / name).read_text().split("\n")
        names = [line for line in lines if line and not line.startswith("#")]
        assert names
        assert set(names) <= known, f"{name}: {sorted(set(names) - known)}"


RESOLVE = r"""
#include "api/cuda_resolve.h"
#include <stdio.h>
int main(void)
{
    char base[128];
    int version, per_thread;
    while (scanf("%127s %d %d", base, &version, &per_thread) == 3) {
        CUdriverProcAddressQueryResult status;
        int found = cb_api_resolve(base, version, per_thread, &status);
        printf("%s %d\n", found < 0 ? "-" : cb_cuda_names[found], status);
    }
    return cb_api_resolve("cuMemAlloc_v2", 13000, false, NULL) != -1;
}
"""


@pytest.fixture(scope="session")
def resolver(generated: Path) -> Path:
    source, program = generated / "resolve.c", generated / "resolve"
    source.write_text(RESOLVE)
    sanitize = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    flags: list[str | Path] = [*STRICT, *sanitize, "-I", generated, "-isystem", HEADERS_13]
    result = compile_c(*flags, source, generated / "api" / "cuda_resolve.c", "-o", program)
    assert result.returncode == 0, result.stderr
    return program


def resolve(resolver: Path, questions: list[tuple[str, int, bool]]) -> list[tuple[str, int]]:
    text = "".join(f"{base} {version} {int(per_thread)}\n" for base, version, per_thread in questions)
    output = subprocess.run([resolver], input=text, capture_output=True, text=True, check=True).stdout
    return [(line.split()[0], int(line.split()[1])) for line in output.splitlines()]


@pytest.mark.parametrize(
    ("base", "version", "per_thread", "answer"),
    [
        ("cuCtxCreate", 2000, False, ("cuCtxCreate", 0)),
        ("cuCtxCreate", 3020, False, ("cuCtxCreate_v2", 0)),
        ("cuCtxCreate", 11040, False, ("cuCtxCreate_v3", 0)),
        ("cuCtxCreate", 12050, False, ("cuCtxCreate_v4", 0)),
        ("cuCtxCreate", 13000, False, ("cuCtxCreate_v4", 0)),
        ("cuMemAlloc", 12000, True, ("cuMemAlloc_v2", 0)),
        ("cuMemAlloc", 3019, False, ("cuMemAlloc", 0)),
        ("cuLaunchKernel", 12000, False, ("cuLaunchKernel", 0)),
        ("cuLaunchKernel", 12000, True, ("cuLaunchKernel_ptsz", 0)),
        ("cuLaunchKernel", 6000, True, ("cuLaunchKernel", 0)),
        ("cuLaunchKernel", 3020, False, ("-", 2)),
        ("cuMemcpyHtoD", 12090, True, ("cuMemcpyHtoD_v2_ptds", 0)),
        ("cuGetProcAddress", 11030, False, ("cuGetProcAddress", 0)),
        ("cuGetProcAddress", 12000, False, ("cuGetProcAddress_v2", 0)),
        ("cuCtxSynchronize", 13000, False, ("cuCtxSynchronize_v2", 0)),
        ("cuCtxSynchronize", 12090, False, ("cuCtxSynchronize", 0)),
        ("cuStreamGetCaptureInfo", 12030, True, ("cuStreamGetCaptureInfo_v3_ptsz", 0)),
        ("cuMemAlloc_v2", 13000, False, ("-", 1)),
        ("cuNoSuchThing", 13000, False, ("-", 1)),
    ],
)
def test_youngest_function_that_the_caller_can_know_is_chosen(
    resolver: Path, base: str, version: int, per_thread: bool, answer: tuple[str, int]
) -> None:
    assert resolve(resolver, [(base, version, per_thread)]) == [answer]


def test_resolver_agrees_with_its_rule_for_every_name_and_version(resolver: Path) -> None:
    versions = sorted({f.version + step for f in CUDA for step in (-1, 0)} | {13010})
    bases = sorted({f.base for f in CUDA})
    questions = [(base, version, flag) for base in bases for version in versions for flag in (False, True)]
    variants: dict[str, list[Any]] = defaultdict(list)
    for f in CUDA:
        variants[f.base].append(f)
    for (base, version, per_thread), answer in zip(questions, resolve(resolver, questions), strict=True):
        allowed = sorted((f for f in variants[base] if f.version <= version), key=lambda f: int(f.version))
        plain = [f.symbol for f in allowed if f.flavour == "plain"]
        threaded = [f.symbol for f in allowed if f.flavour != "plain"]
        choice = (threaded if per_thread and threaded else plain)[-1:]
        assert answer == ((choice[0], 0) if choice else ("-", 2)), (base, version, per_thread)


SERVED = r"""
#include "api/sim_stubs.h"
__thread int per_thread_default;
static int last, depth;
CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuStreamQuery(CUstream stream) { (void)stream; depth = per_thread_default; return CUDA_SUCCESS; }
CUresult cb_sim_unserved(int function) { last = function; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuDriverGetVersion(int *version) { *version = last; last = -1; return CUDA_SUCCESS; }
CUresult cuProfilerStart(void) { return (CUresult)depth; }
CUresult cuProfilerStop(void) { return cb_sim_cuda_address[CB_CUDA_cuInit] == (void *)cuInit ? CUDA_SUCCESS : 1; }
"""


@pytest.fixture(scope="session")
def stub_library(generated: Path) -> Path:
    source, library = generated / "served.c", generated / "libcuda-stubs.so"
    source.write_text(SERVED)
    api = generated / "api"
    objects = [api / name for name in ("sim_cuda_stubs.c", "sim_cuda_table.c", "cuda_resolve.c")]
    flags = ["-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-z,defs", "-Wl,-Bsymbolic", *STRICT]
    linker_map = f"-Wl,--version-script={api / 'sim_cuda.map'}"
    result = compile_c(*flags, linker_map, "-I", generated, "-isystem", HEADERS_13, source, *objects, "-o", library)
    assert result.returncode == 0, result.stderr
    return library


def test_simulated_driver_exports_exactly_the_names_of_the_table(stub_library: Path) -> None:
    listing = subprocess.run(["nm", "-D", "--defined-only", stub_library], capture_output=True, text=True, check=True)
    kinds = {line.split()[2]: line.split()[1] for line in listing.stdout.splitlines()}
    assert set(kinds) == {f.symbol for f in CUDA}
    assert kinds["cuInit"] == "T"
    assert kinds["cuMemAlloc_v2"] == "W"


def test_what_nobody_serves_answers_not_supported_and_names_itself(stub_library: Path) -> None:
    library = ctypes.CDLL(str(stub_library))
    served = {"cuInit", "cuStreamQuery", "cuDriverGetVersion", "cuProfilerStart", "cuProfilerStop"}
    number = ctypes.c_int()
    for index, f in enumerate(CUDA):
        if f.symbol in served or f.flavour != "plain" or "CUeglFrame_v1" in (p.c_type for p in f.parameters):
            continue
        assert getattr(library, f.symbol)(*[None] * len(f.parameters)) == 801, f.symbol
        library.cuDriverGetVersion(ctypes.byref(number))
        assert number.value == index, f.symbol


def test_served_function_wins_over_its_stub_and_its_per_thread_twin_calls_it(stub_library: Path) -> None:
    library = ctypes.CDLL(str(stub_library))
    assert (library.cuInit(0), library.cuInit(1)) == (0, 1)
    assert library.cuStreamQuery(None) == 0
    assert library.cuProfilerStart() == 0
    assert library.cuStreamQuery_ptsz(None) == 0
    assert library.cuProfilerStart() == 1, "the twin was not told that stream 0 is the thread's own"


def test_preloaded_library_of_the_same_names_does_not_reach_the_drivers_own_table(
    stub_library: Path, tmp_path: Path
) -> None:
    source, preload = tmp_path / "preload.c", tmp_path / "preload.so"
    source.write_text("int cuInit(unsigned flags) { (void)flags; return 7; }\n")
    assert compile_c("-shared", "-fPIC", source, "-o", preload).returncode == 0
    program = f"import ctypes, sys; sys.exit(ctypes.CDLL({str(stub_library)!r}).cuProfilerStop())"
    environment = {"LD_PRELOAD": str(preload)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_broken_line_of_the_table_is_refused_with_its_place(tmp_path: Path) -> None:
    table = tmp_path / "cuda.tsv"
    good = "cuInit\tcuInit\t2000\tplain\tcuda\tCUresult\tin unsigned int Flags\n"
    table.write_text(good)
    assert api_table.load_cuda(table)[0].parameters[0].c_type == "unsigned int"
    for bad in (good * 2, good.replace("in unsigned", "into unsigned"), good.replace("2000", "two"), "cuInit\n"):
        table.write_text(bad)
        with pytest.raises(api_table.TableError, match=r"cuda\.tsv:[12]: "):
            api_table.load_cuda(table)


def test_generating_again_touches_no_unchanged_file(generated: Path) -> None:
    header = generated / "api" / "cuda_api.h"
    before = header.stat().st_mtime_ns
    subprocess.run([sys.executable, str(API / "generate.py"), str(generated / "api")], check=True)
    assert header.stat().st_mtime_ns == before
