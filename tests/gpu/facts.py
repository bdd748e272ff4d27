"""Facts of a real card and its driver: what the product builds on and cannot learn from the simulated driver.

Part of ``tests/gpu/run.sh``. It reads; nothing of the card is set. ``facts.json`` holds figures in the form of the
benchmarks: the versions, the memory of an empty context, and how fast the driver suspends and resumes a program
(``cuCheckpointProcess*``). ``functions.txt`` lists the functions that are named in the driver's libraries.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pynvml
from bench._lab import Lab, real_card
from bench._report import Report, machine_facts

GIB = 1 << 30
CHECKPOINT_GIB = (1, 8)
# A program that holds memory with a known pattern, and checks it when a line comes.
HOLDER = """
import ctypes, sys
cuda, size = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1])
def check(result, what):
    if result: sys.exit(f"{what}: CUDA error {result}")
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0), "cuInit")
check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
if size:
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), "cuMemAlloc")
    check(cuda.cuMemsetD32_v2(address, 0x5eed1e55, ctypes.c_size_t(size // 4)), "cuMemsetD32")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
print("ready", flush=True)
sys.stdin.readline()
if size:
    for at in (0, size // 2, size - 4):
        word = ctypes.c_uint32()
        check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(address.value + at), ctypes.c_size_t(4)), "copy")
        if word.value != 0x5eed1e55: sys.exit(f"at {at}: {word.value:#x}")
print("same", flush=True)
sys.stdin.readline()
"""


class Holder:
    """A process with a context and ``size`` bytes of device memory."""

    def __init__(self, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("ready")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"wanted {word!r}, got {line!r}; exit {self.process.poll()}")

    def continue_(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def used_bytes() -> int:
    """Return the used memory of the card as NVML counts it."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def functions_of(library: str, prefix: str) -> list[str]:
    """Return the names in a library's file that begin with ``prefix`` and a capital letter, as its functions do."""
    ctypes.CDLL(library)
    path = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if f"/{library.split('.so', maxsplit=1)[0]}." in line
    )
    data = Path(path).read_bytes()
    return sorted(
        {name.decode() for name in re.findall(rb"\0(" + prefix.encode() + rb"[A-Z][A-Za-z0-9_]+)(?=\0)", data)}
    )


def add_versions(report: Report) -> None:
    """Record the versions of the driver, and what the machine offers."""
    cuda, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    report.fact("cuda", f"{version.value // 1000}.{version.value % 1000 // 10}")
    report.fact("driver", str(pynvml.nvmlSystemGetDriverVersion()))
    report.fact("model", str(pynvml.nvmlDeviceGetName(card)))
    report.fact("device nodes", " ".join(sorted(path.name for path in Path("/dev").glob("nvidia*"))) or "none")
    programs = ("nvidia-cuda-mps-control", "nvcc", "nv-fabricmanager")
    report.fact("programs", " ".join(name for name in programs if shutil.which(name)) or "none")
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    for name in ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"):
        report.fact(name, "there" if hasattr(nvml, name) else "not in this driver")


def add_context(report: Report) -> None:
    """Measure the memory of an empty context, by NVML before and after."""
    before = used_bytes()
    holder = Holder(0)
    try:
        report.add("memory of an empty context", (used_bytes() - before) / (1 << 20), "MiB")
    finally:
        holder.close()


def add_checkpoint(report: Report, size_gib: int) -> None:
    """Suspend and resume a program that holds ``size_gib`` GiB; the memory must be free meanwhile and the same afterwards."""
    cuda = ctypes.CDLL("libcuda.so.1")
    arguments = (ctypes.c_uint64 * 64)()
    holder = Holder(size_gib * GIB)
    try:
        pid, full = holder.process.pid, used_bytes()
        for name, function in (
            ("lock", "cuCheckpointProcessLock"),
            ("checkpoint", "cuCheckpointProcessCheckpoint"),
            ("restore", "cuCheckpointProcessRestore"),
            ("unlock", "cuCheckpointProcessUnlock"),
        ):
            began = time.perf_counter()
            result = getattr(cuda, function)(pid, ctypes.byref(arguments))
            took = time.perf_counter() - began
            if result:
                report.fact(f"{function}, {size_gib} GiB", f"CUDA error {result}")
                return
            report.add(f"{name} of {size_gib} GiB", took * 1000, "ms")
            if name == "checkpoint":
                report.add(
                    f"{size_gib} GiB: memory free meanwhile", (full - used_bytes()) / GIB, "GiB", at_least=size_gib
                )
        holder.continue_()
        holder.expect("same")
    finally:
        holder.close()


def collect(target: Path) -> int:
    """Collect all facts of this process's card and write them; return 1 if one could not be had."""
    pynvml.nvmlInit()
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    report = Report(name="facts", title="Facts of a card and its driver")
    machine_facts(report)
    add_versions(report)
    names = functions_of("libcuda.so.1", "cu") + functions_of("libnvidia-ml.so.1", "nvml")
    target.with_name("functions.txt").write_text("\n".join(names) + "\n")
    steps = {"context": partial(add_context, report)}
    steps |= {f"checkpoint of {size} GiB": partial(add_checkpoint, report, size) for size in CHECKPOINT_GIB}
    failed = 0
    for name, step in steps.items():
        try:
            step()
        except (RuntimeError, OSError) as error:
            failed = 1
            report.fact(f"{name} failed", str(error))
    target.write_text(report.json_text())
    print(report.json_text())
    return failed


def main() -> int:
    """Collect the facts, in a process on a simulated card if there is no real one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--here", action="store_true", help="of the card of this environment")
    options = parser.parse_args()
    if options.here or real_card():
        return collect(options.json)
    with Lab(arbiter=False) as lab:
        command = [sys.executable, __file__, "--here", "--json", str(options.json)]
        return subprocess.run(command, env=lab.environment(None), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
