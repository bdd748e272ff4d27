"""Run every benchmark one after the other and write the results to docs/measurements/: ``python -m bench``.

``--quick`` runs the short forms and writes nothing, unless ``--save DIR`` is given. Names limit the run to some.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench._report import ROOT

BENCHES = (
    "shim",
    "shares",
    "shares_workers",
    "memory",
    "recovery",
    "pool",
    "pool_scale",
    "cli",
    "placement",
    "cpu_scarce",
    "cpu_scarce_departures",
    "operate",
    "decisions",
    "queues",
    "topology",
    "cliffs",
    "kube",
    "kube_endures",
    "kube_latency",
    "kube_starts",
    "kube_claims",
    "scale",
    "modes",
    "remote",
    "ptx",
    "net_book",
    "net_changes",
    "net_lab",
    "net_isolation",
)


def main() -> int:
    """Run the benchmarks and print the missed goals; return 1 if a benchmark could not measure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="short forms; nothing is written unless --save is given")
    parser.add_argument("--save", type=Path, metavar="DIR", help="where NAME.json and NAME.md go")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    target = options.save or (None if options.quick else ROOT / "docs" / "measurements")
    failed: list[str] = []
    short: list[str] = []
    for name in options.names or BENCHES:
        if importlib.util.find_spec(f"bench.{name}") is None:
            continue
        print(f"== {name}", flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            command = [sys.executable, "-m", f"bench.{name}", "--json", result.name]
            command += ["--quick"] if options.quick else []
            command += ["--save", str(target)] if target else []
            if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
                failed.append(name)
                continue
            figures = json.loads(Path(result.name).read_text())["figures"]
            short += [f"{name}: {figure['name']}" for figure in figures if figure["ok"] is False]
    for name in failed:
        print(f"could not measure: {name}")
    for name in short:
        print(f"short of its goal: {name}")
    if not failed and not short:
        print("all goals met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
