"""Checks on a real card (or a simulated one, with BENCH_CARD=sim): memory cap, the tenant's view, framework programs.

Part of ``tests/gpu/run.sh``. Each check is a line ``name  value unit  goal  ok|short`` in the form of the benchmarks,
so that one summary reads them all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench._lab import KERNELS, Lab
from bench._report import Figure, Report, machine_facts

from calabash.model.request import ComputePolicy

GIB = 1 << 30
CAP_BYTES = 2 * GIB

# Run by the framework's own Python, inside a slice. Each prints one JSON object.
FRAMEWORKS = {
    "torch": """
import json, time, torch
free, total = torch.cuda.mem_get_info()
held, refused = [], False
try:
    while len(held) < 4096:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    refused = True
most = len(held) * (64 << 20)
del held
torch.cuda.empty_cache()
a = torch.randn(2048, 2048, device="cuda")
graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        b = a @ a
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    b = a @ a
def rate(call):
    call(); torch.cuda.synchronize(); began = time.monotonic(); count = 0
    while time.monotonic() - began < 4:
        for _ in range(20): call()
        torch.cuda.synchronize(); count += 20
    return count / (time.monotonic() - began)
print(json.dumps({"total": total, "most": most, "refused": refused, "rate": rate(lambda: a @ a),
                  "graph_rate": rate(graph.replay)}))
""",
    "cupy": """
import json, time, cupy
free, total = cupy.cuda.runtime.memGetInfo()
held, refused = [], False
try:
    while len(held) < 4096:
        held.append(cupy.empty(64 << 20, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError:
    refused = True
most = len(held) * (64 << 20)
del held
cupy.get_default_memory_pool().free_all_blocks()
a = cupy.random.rand(2048, 2048, dtype=cupy.float32)
a @ a; cupy.cuda.Device().synchronize()
began, count = time.monotonic(), 0
while time.monotonic() - began < 4:
    for _ in range(20): a @ a
    cupy.cuda.Device().synchronize(); count += 20
print(json.dumps({"total": total, "most": most, "refused": refused, "rate": count / (time.monotonic() - began)}))
""",
}


def check_memory(report: Report, lab: Lab) -> None:
    """Check the memory that a program can allocate, and the total that it sees."""
    lab.slot("capped", policy=None, memory_limit_bytes=CAP_BYTES)
    tenant = lab.start("capped", "hammer", "--fill")
    tenant.wait_ready()
    result = tenant.result()
    over = max(0, result["most_bytes"] - CAP_BYTES)
    report.add("memory over the cap", over, "bytes", at_most=0)
    report.add("usable of the cap", result["most_bytes"] / CAP_BYTES * 100, "%", at_least=70, detail="less the context")
    report.add("total that the program sees", result["total"] / CAP_BYTES * 100, "% of cap", at_most=100)
    report.add("refusals at the cap", result["denied"], "calls", at_least=1)
    tenants = [lab.start("capped", "hammer", "--gate", "--seconds", 5, "--largest-mib", 64) for _ in range(4)]
    for churning in tenants:
        churning.wait_ready()
    for churning in tenants:
        churning.go()
    results = [churning.result() for churning in tenants]
    for family in ("linear", "pitched", "managed", "async", "physical", "array"):
        report.add(f"granted under pressure, {family}", sum(r[family] for r in results), "calls", at_least=1)
    report.add("errors other than out of memory", sum(r["failed"] for r in results), "calls", at_most=0)
    report.add("left in the ledger", lab.usage("capped").device(0).used_bytes, "bytes", at_most=0)


def check_share(report: Report, lab: Lab) -> None:
    """Measure a rough share; bench.shares is precise."""
    lab.slot("third", core_percent=30)
    tenant = lab.load("third", "--kernel-us", 1000, "--seconds", 4)
    result = tenant.result()
    charged = lab.usage("third").device(0).charged_ns / (result["ended_ns"] - result["began_ns"]) * 100
    report.add("charged time of a 30% tenant", charged, "%", at_most=34)


def check_framework(report: Report, lab: Lab, name: str, python: str) -> None:
    """Check the framework inside slices of 100, 60 and 30 percent: limits, refusals, and speed in proportion."""
    rates: dict[int, dict[str, float]] = {}
    for percent in (100, 60, 30):
        slot = f"{name}{percent}"
        lab.slot(slot, core_percent=percent, policy=ComputePolicy.FIXED, memory_limit_bytes=4 * GIB)
        done = subprocess.run(
            [python, "-c", FRAMEWORKS[name]],
            env=lab.environment(slot),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        report.add(
            f"{name} at {percent}%: exit code", done.returncode, "", at_most=0, detail=done.stderr[-200:].strip()
        )
        lab.drop_slot(slot)
        if done.returncode != 0:
            return
        result = json.loads(done.stdout.splitlines()[-1])
        rates[percent] = {key: result[key] for key in ("rate", "graph_rate") if key in result}
        report.add(f"{name} at {percent}%: over its cap", max(0, result["most"] - 4 * GIB), "bytes", at_most=0)
        report.add(f"{name} at {percent}%: refused at its cap", int(result["refused"]), "", at_least=1)
    for percent in (60, 30):
        for key, rate in rates[percent].items():
            got = rate / rates[100][key] * 100
            report.add(f"{name} at {percent}%: {key} of that at 100%", got, "%", at_most=percent * 1.07)


def summarise(directory: Path) -> int:
    """Print one table of all measurements; return 1 if a goal was missed or a check did not run."""
    bad = 0
    for path in sorted(directory.glob("*.json")):
        document = json.loads(path.read_text())
        for fields in document["figures"]:
            figure = Figure(**fields)
            bad += figure.ok is False
            print(f"{document['name']:<10} {figure.line()}")
    for line in (directory / "results.tsv").read_text().splitlines():
        name, code = line.split("\t")
        if code != "0":
            bad += 1
            print(f"{name:<10} ended with {code}")
    print(f"gpu checks: {'all ok' if not bad else f'{bad} short or failed'}")
    return 1 if bad else 0


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("--python", default=sys.executable, help="the Python that has the framework")
    parser.add_argument("--summary", type=Path, metavar="DIR")
    options = parser.parse_args()
    if options.summary:
        return summarise(options.summary)
    report = Report(name=options.framework or "limits", title="Checks on a card")
    machine_facts(report)
    assert KERNELS.exists()
    with Lab() as lab:
        if options.framework:
            check_framework(report, lab, options.framework, options.python)
        else:
            check_memory(report, lab)
            check_share(report, lab)
    if options.json:
        options.json.write_text(report.json_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
