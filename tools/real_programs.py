"""Run the test suite of numba-cuda, as a program of others, on a simulated node and record the results.

``python -m tools.real_programs`` makes the environment, gives every test module a process of its own with a deadline,
repeats one by one the tests that a crash left open, and writes ``docs/measurements/programs.json`` and ``.md``. A failure
that ``CAUSES`` explains is counted under its cause; other failures are listed by name. ``--place brokered`` and ``--place
remote`` run the same tests with each program's driver in a worker, behind a ring of shared memory or a TCP connection, and
write ``programs_brokered`` and ``programs_remote``, with the differences from the local run. If modules are named, nothing
is written without ``--write``. A run works on a copy of the libraries, so that a build at the same time does not disturb it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from calabash.adapters.gpu.library import remote_library_dir, simulated_library_dir

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "tests" / "programs" / "plugins"
ENVIRONMENT = ROOT / "build" / "programs"
OUT = ROOT / "docs" / "measurements"
SUITE = "numba.cuda.tests"
STATE, SOCKET, PORT = "node.state", "workers.sock", "workers.port"
MODULE_S, TEST_S = 3600, 600  # two cores that others use as well

# What a failure's text says, and what that means. The first that matches counts.
CAUSES: tuple[tuple[str, str], ...] = (
    ("cuIpcGetMemHandle", "memory below 1 MiB has no handle for other processes: it shares its block with strangers"),
    ("test_external_cooperative_func|doesnt_link_cudadevrt", "`cuda::barrier` is `mbarrier`, which is not simulated"),
    ("peer_copy", "a copy between cards by plain addresses needs peer access here"),
    ("test_efficient_launch_configuration", "another warning than the expected one: nvJitLink is not installed"),
    ("test_cpu_and_cuda_(reuse|targets)", "about numba's cache of functions for the CPU, which asks no driver"),
    ("graph_builder_launch_user_facing", "reads the result without waiting for the stream; a real card is faster"),
    ("test_many_args", "the simulated card takes kernels of up to 64 parameters, a card those of 32,764 bytes"),
    (
        "test_pinned_memory|cuMemHostRegister results in CUDA_ERROR_NOT_SUPPORTED",
        "with a worker, no card is given pages of the program's own",
    ),
    (r"Timeout \(>|TimeoutExpired", "deadline: the kernel or the compiler takes long, or the machine is busy"),
)


_PLACES = re.compile(r'File "[^"]*/(?:site-packages|python[0-9.]+)/')  # where this machine has them concerns nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A test's name, its result (passed, failed, skipped or expected failure) and its message."""

    name: str
    result: str
    said: str = ""

    @property
    def cause(self) -> str:
        """Return the cause of the failure by ``CAUSES``, or "" if no pattern matches."""
        return next((cause for pattern, cause in CAUSES if re.search(pattern, f"{self.name}\n{self.said}")), "")


def python() -> Path:
    """Return the interpreter of the environment that has the libraries."""
    return ENVIRONMENT / "bin" / "python"


def prepare() -> None:
    """Make the environment if needed and install what the suites need beside the libraries."""
    own = ROOT / ".tools/bin/uv"
    uv = own if own.exists() else Path("uv")
    if not python().exists():
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, ENVIRONMENT], check=True)
    subprocess.run(
        [uv, "pip", "install", "-q", "-p", python(), "--group", f"{ROOT}/pyproject.toml:program-suites"], check=True
    )


def environment(directory: Path, place: str) -> dict[str, str]:
    """Return the environment variables of a program at a place (``local``, ``brokered``, ``remote``)."""
    if place != "local":
        address = f"unix:{directory / SOCKET}" if place == "brokered" else (directory / PORT).read_text()
        own = {"CALABASH_REMOTE": address, "LD_LIBRARY_PATH": str(directory / "remote")}
    else:
        own = {"CALABASH_SIM": str(directory / STATE), "LD_LIBRARY_PATH": str(directory / "simgpu")}
    return os.environ | own | {"PYTHONPATH": str(PLUGINS)}


@contextlib.contextmanager
def node(directory: Path, place: str) -> Iterator[None]:
    """Create a simulated node of two cards and, for another place than ``local``, start the server of its workers."""
    for libraries in (simulated_library_dir(), remote_library_dir()):
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
    create = [str(directory / "simgpu" / "calabash-simctl"), "create", str(directory / STATE)]
    subprocess.run([*create, "--gpus", "2xA30", "--seed", "1"], check=True, stdout=subprocess.DEVNULL)
    if place == "local":
        yield
        return
    if place == "remote":
        with _worker_server(directory):
            yield
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / SOCKET))
        listener.listen(64)
        host = subprocess.Popen(
            [directory / "remote" / "calabash-worker", "--listen", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env=environment(directory, "local"),
        )
    try:
        yield
    finally:
        host.terminate()
        host.wait()


@contextlib.contextmanager
def _worker_server(directory: Path) -> Iterator[None]:
    """Serve each TCP connection of this machine by a worker of its own."""
    workers: list[subprocess.Popen[bytes]] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                number = connection.fileno()
                words: list[str | Path] = [directory / "remote" / "calabash-worker", str(number)]
                workers.append(subprocess.Popen(words, pass_fds=[number], env=environment(directory, "local")))
            workers[:] = [worker for worker in workers if worker.poll() is None]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        (directory / PORT).write_text(f"tcp:127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for worker in workers:
                worker.terminate()
                worker.wait()


def modules() -> list[str]:
    """Return the names of the suite's modules."""
    code = (
        "import pathlib, numba_cuda; root = pathlib.Path(numba_cuda.__file__).parent / 'numba/cuda/tests'\n"
        "for p in sorted(root.rglob('test_*.py')):\n"
        "    print(*p.relative_to(root).with_suffix('').parts, sep='.')"
    )
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=True)
    return [f"{SUITE}.{name}" for name in done.stdout.split()]


def command(target: str, junit: Path) -> list[str | Path]:
    """Return the pytest command for a module or for one test of it."""
    options = ["-p", "numba_suite", "-p", "no:cacheprovider", "-o", "consider_namespace_packages=true", "--tb=native"]
    limits = ["--timeout", str(TEST_S), "-q", f"--junitxml={junit}"]
    return [python(), "-m", "pytest", *options, *limits, "--pyargs", target]


def outcomes(module: str, junit: Path) -> list[Outcome]:
    """Read the outcomes from pytest's JUnit file; of the sub-tests of a test the worst counts."""
    rank = ["passed", "skipped", "expected failure", "failed"]
    worst: dict[str, Outcome] = {}
    for case in ET.parse(junit).getroot().iter("testcase"):
        name = f"{module.removeprefix(SUITE + '.')}::{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        found = Outcome(name=name, result="passed")
        for child in case:
            if child.tag in ("failure", "error"):
                said = _PLACES.sub('File "', f"{child.get('message') or ''}\n{child.text or ''}")
                found = Outcome(name=name, result="failed", said=said[-3000:])
            elif child.tag == "skipped":
                kind = "expected failure" if child.get("type") == "pytest.xfail" else "skipped"
                found = Outcome(name=name, result=kind, said=child.get("message") or "")
        if name not in worst or rank.index(found.result) > rank.index(worst[name].result):
            worst[name] = found
    return list(worst.values())


def pytest(target: str, directory: Path, place: str, junit: Path) -> tuple[bool, str]:
    """Run pytest; return True if it came to an end, and its last lines of output."""
    log = junit.with_suffix(".log")
    with log.open("w") as to, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command(target, junit),
            stdout=to,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment(directory, place),
            timeout=MODULE_S,
            check=False,
        )
    return junit.exists(), log.read_text(errors="replace")[-3000:]


def run_module(module: str, directory: Path, place: str, until_s: float) -> list[Outcome] | None:
    """Run the tests of a module, one by one if its process crashes; return None if the deadline is over already."""
    if time.monotonic() > until_s:
        return None
    short = module.removeprefix(SUITE + ".")
    junit = directory / f"{short}.xml"
    ended, said = pytest(module, directory, place, junit)
    if ended:
        found = outcomes(module, junit)
    else:
        listing = subprocess.run(
            [*command(module, junit), "--collect-only"],
            capture_output=True,
            text=True,
            cwd=directory,
            env=environment(directory, place),
            check=False,
        ).stdout
        found = []
        for test in re.findall(r"::(\S+::\S+)", listing):
            one = directory / f"{short}-{test.replace('::', '-')}.xml"
            ended, said = pytest(f"{module}::{test}", directory, place, one)
            name = f"{short}::{test.replace('::', '.')}"
            found += outcomes(module, one) if ended else [Outcome(name=name, result="failed", said=f"crash\n{said}")]
    count = Counter(o.result for o in found)
    print(f"{short:<52} {'  '.join(f'{n} {r}' for r, n in sorted(count.items()))}", flush=True)
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(found: list[Outcome]) -> str:
    """Return the page: totals, then failures by cause, then skipped tests by their reason."""
    count = Counter(o.result for o in found)
    lines = ["| passed | failed | expected failure | skipped | all |", "|---|---|---|---|---|"]
    lines.append(
        f"| {count['passed']} | {count['failed']} | {count['expected failure']} | {count['skipped']} | {len(found)} |"
    )
    lines += ["", "## Failed, by cause", "", "| tests | cause | for example |", "|---|---|---|"]
    causes: dict[str, list[str]] = defaultdict(list)
    for o in found:
        if o.result == "failed":
            causes[o.cause or "not explained: " + (o.said.strip().splitlines() or ["?"])[0][:120]].append(o.name)
    for cause, names in sorted(causes.items(), key=lambda c: -len(c[1])):
        lines.append(f"| {len(names)} | {_cell(cause)} | `{names[0]}` |")
    lines += ["", "## Skipped, by the suite's own words", "", "| tests | why |", "|---|---|"]
    skips = Counter(o.said.splitlines()[0][:120] if o.said else "?" for o in found if o.result == "skipped")
    lines += [f"| {n} | {_cell(why)} |" for why, n in skips.most_common()]
    return "\n".join(lines) + "\n"


def differences(found: list[Outcome]) -> str:
    """Return the tests whose result differs from the committed local run, as a part of the page."""
    local = {o["name"]: o["result"] for o in json.loads((OUT / "programs.json").read_text())["not passed"]}
    other = [(o, before) for o in found if o.result != (before := local.get(o.name, "passed"))]
    lines = ["", "## Otherwise than without a worker", ""]
    if not other:
        return "\n".join([*lines, "Nothing.", ""])
    lines += ["| test | without | here | cause |", "|---|---|---|---|"]
    for o, before in other:
        why = o.cause or (o.said.strip().splitlines() or [""])[0][:120]
        lines.append(f"| `{o.name}` | {before} | {o.result} | {_cell(why)} |")
    return "\n".join([*lines, ""])


def versions() -> dict[str, str]:
    """Return the versions of the libraries and of Python."""
    names = ("numba-cuda", "numba", "cuda-core", "cuda-bindings", "nvidia-nvvm", "nvidia-cuda-nvrtc", "numpy")
    code = f"import importlib.metadata as m\nfor n in {names!r}: print(n, m.version(n))"
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines()) | {"Python": platform.python_version()}


def write(found: list[Outcome], place: str, ran_modules: list[str]) -> None:
    """Write the JSON document and the page; of passed tests only the number is kept."""
    name = "programs" if place == "local" else f"programs_{place}"
    where = {"brokered": "through a worker on the same machine", "remote": "through a worker behind TCP"}
    ran, everything = versions(), len(modules())
    document = {
        "versions": ran,
        "modules": "all" if len(ran_modules) == everything else ran_modules,
        "count": Counter(o.result for o in found),
        "not passed": [asdict(o) | {"cause": o.cause, "said": o.said[-400:]} for o in found if o.result != "passed"],
    }
    (OUT / f"{name}.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    head = (
        f"# numba-cuda's own tests {where.get(place, 'on the simulated card')}\n\n"
        f"Written by one run of `python -m tools.real_programs --place {place}`. "
    )
    text = head + ", ".join(f"{k} {v}" for k, v in ran.items()) + ".\n\n"
    if len(ran_modules) < everything:
        text += f"{len(ran_modules)} of {everything} modules: {', '.join(f'`{m}`' for m in ran_modules)}.\n\n"
    text += table(found) + (differences(found) if place != "local" else "")
    (OUT / f"{name}.md").write_text(text)


def main() -> None:
    """Run the whole suite, or the modules that are named."""
    parser = argparse.ArgumentParser(description="Run the test suite of numba-cuda on a simulated node.")
    parser.add_argument("modules", nargs="*", help="names within the suite; all of them, and the pages, without")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--place", choices=("local", "brokered", "remote"), default="local", help="where their driver is"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no module after so long")
    parser.add_argument("--write", action="store_true", help="write the pages for the named modules too")
    parser.add_argument("--keep", type=Path, help="a directory for logs")
    options = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        wanted = [f"{SUITE}.{m}" for m in options.modules] or modules()
        with node(directory, options.place), ThreadPoolExecutor(options.jobs) as pool:
            until_s = time.monotonic() + options.minutes * 60
            parts = list(pool.map(lambda m: run_module(m, directory, options.place, until_s), wanted))
    found = [outcome for part in parts for outcome in part or ()]
    ran = [module.removeprefix(SUITE + ".") for module, part in zip(wanted, parts, strict=True) if part is not None]
    if options.modules:
        print(table(found))
    if options.write or not options.modules:
        write(found, options.place, ran)


if __name__ == "__main__":
    main()
