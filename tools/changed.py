"""Run the tests of the packages that a change touches and of the packages that import them.

    python -m tools.changed [--base REF] [--list] [--all-importers] [--complete] [--seconds N] [-- PYTEST ARGUMENTS]

The change is the difference between the working tree and the merge base with ``--base``, with untracked files. The default
base is ``origin/main`` if it exists and is not the commit that is checked out, else ``HEAD`` (only uncommitted work).

Distance
    Each test file has a distance to the change, the number of steps in the import graph of ``calabash``, ``tests``,
    ``bench`` and ``tools``:

    0   the test file has changed;
    1   the test file imports a changed module; or mirrors it (``tests/unit/sched/test_scheduler.py`` for
        ``calabash.sched.scheduler``); or names a changed file that is not Python; or is below a changed ``conftest.py``;
    2   the test file imports a module that imports a changed module; or is in the folder that mirrors a changed package;
    3   one step more; or the folder mirrors a package of which a module imports a changed module; or ``tests/conftest.py``
        has changed.

    Four things count as an import beside the statement. A command that starts a module (``"calabash.pool.daemon"``
    in quotes). A fixture, which counts only for the test files that name it, so that the fixtures of ``tests/conftest.py``
    do not connect all tests with all modules. A package's ``__init__`` that imports its own changed module, which counts
    as changed itself. A statement that imports a deleted module.

    C is not in the import graph. ``NATIVE_TESTS`` names the tests of each folder of ``native/``; those whose name has a
    word of the changed file's name have distance 1, the others 2. Any other file concerns the modules whose text names
    it, by its name or by a pattern (distance 1) or by its folder (distance 2). A changed file that concerns no test is
    named in the output.

Selection
    Changed test files and mirrors of changed modules always run. Up to ``DISTANCE_MAX``, the nearest test files are added
    as long as all of them together need less than ``--seconds`` on this machine's processors: a change of
    ``calabash.model`` concerns most tests, and a run of minutes is what ``make test`` is for. The output says how many
    test files were left out, and why. ``--all-importers`` runs all test files at any distance, and knows no limit.

    The time of a test file is read from ``build/test-times.json`` (seconds by file), which a large run writes. Without
    it, the time is the mean of the folder (``MEAN_S``).

The tests that ``make test`` runs are run (those marked ``quick``; the groups are those of ``tests/conftest.py``). With
``--complete``, tests of all groups are run. The exit code is that of pytest, and 0 if there is nothing to run.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).resolve().parents[1]
TIMES = ROOT / "build" / "test-times.json"
PACKAGES = {"calabash": "src/calabash", "tests": "tests", "bench": "bench", "tools": "tools"}
OWN = ("tools.changed", "tests.unit.tools.test_changed")  # name files without reading them
ROOT_CONFTEST = "tests/conftest.py"
DISTANCE_MAX = 3
READ_WHOLE = ("charts", "docs", "examples")  # folders that some tests read completely
SHOWN = 6  # files in a line of the output
START_S = 10.0  # to start the workers and to import what the tests import

# Mean time of a test file, by folder, where no time was recorded.
MEAN_S = {
    "tests/unit": 2.0,
    "tests/scenarios": 10.0,
    "tests/native": 10.0,
    "tests/daemons": 15.0,
    "tests/console": 60.0,
    "tests/guides": 60.0,
    "tests": 15.0,
}

_REMOTE_CLIENT_SUBJECTS = ("api", "connection", "context", "device", "graph", "launch", "memory", "module", "stream")
_REMOTE_CLIENT_TESTS = (
    "native/test_remote_code.py",
    "native/test_remote_faults.py",
    "native/test_remote_memory.py",
    "native/test_remote_programs.py",
)
_SIM_CUDA_SUBJECTS = ("context", "device", "graph", "launch", "memory", "module", "process", "stream")
_SIM_CUDA_TESTS = ("native/test_sim_cuda*.py", "native/test_sim_checkpoint.py", "native/test_sim_ptx_driver.py")

# Folders of native/, and the tests that compile or execute what is in them. The deepest folder that holds a file counts.
NATIVE_TESTS: Mapping[str, tuple[str, ...]] = {
    "": ("native/test_ccircles.py", "unit/tools/test_wheels.py", "unit/tools/test_changed.py"),
    "api": (
        "native/test_api_*.py",
        "native/test_cards.py",
        "native/test_mig_arithmetic.py",
        "native/test_shim_symbols.py",
    ),
    "image": (
        "native/test_cudart.py",
        "native/test_sim_libraries.py",
        "native/test_sim_ptx*.py",
        "native/test_shim_view.py",
    ),
    "page": (
        "native/test_page_library.py",
        "native/test_shim_charge.py",
        "native/test_shim_slot.py",
        "unit/node/slots/test_pages.py",
    ),
    "remote": ("native/test_remote_*.py",),
    **{f"remote/client/{subject}": _REMOTE_CLIENT_TESTS for subject in _REMOTE_CLIENT_SUBJECTS},
    "remote/enclose": ("native/test_remote_sandbox.py", "native/test_remote_host.py"),
    "remote/nvml": ("native/test_remote_nvml.py",),
    "remote/span": ("native/test_remote_span.py",),
    "remote/span_nvml": ("native/test_remote_span.py", "native/test_remote_nvml.py"),
    "remote/tls": ("native/test_remote_tls.py",),
    "remote/wire": ("native/test_remote_*.py", "unit/broker/server/test_first_record.py"),
    "remote/worker": ("native/test_remote_*.py",),
    "shim": ("native/test_shim_*.py", "native/test_compute*.py", "native/test_examples.py"),
    "sim": ("native/test_sim_*.py", "native/test_simctl.py"),
    "sim/ctl": ("native/test_simctl.py", "native/test_sim_root.py"),
    **{f"sim/cuda/{subject}": _SIM_CUDA_TESTS for subject in _SIM_CUDA_SUBJECTS},
    "sim/mps": ("native/test_sim_mps*.py",),
    "sim/node": ("native/test_sim_*.py", "native/test_simctl.py", "native/test_compute_virtual.py"),
    "sim/nvml": ("native/test_sim_nvml*.py", "native/test_sim_mig_devices.py", "native/test_mig_arithmetic.py"),
    "sim/ptx": ("native/test_sim_ptx*.py",),
    "sim/smi": ("native/test_sim_root.py", "native/test_sim_timeslice.py"),
}


@dataclass(frozen=True, slots=True)
class Concern:
    """A test file that a change concerns: its distance in import steps, and the reason in words."""

    path: str
    distance: int
    reason: str
    must: bool = False  # selected whatever time it needs


@dataclass(slots=True)
class Change:
    """The changed files by kind: modules by dotted name, and the others by path."""

    modules: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    native: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def default_base() -> str:
    """Return ``origin/main`` if it exists and is not the commit that is checked out, else ``HEAD``."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "origin/main^{commit}"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return "origin/main" if found and found != _git("rev-parse", "HEAD").strip() else "HEAD"


def changed_files(base: str) -> list[str]:
    """Return the paths that differ from the merge base with ``base``; of a renamed file both, and untracked files."""
    fork = _git("merge-base", base, "HEAD").strip()
    listed = _git("diff", "--name-only", "--no-renames", "-z", fork)
    listed += _git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in listed.split("\0") if path})


def module_of(path: str) -> str | None:
    """Return the dotted name of the module in a file, or None if the file is no module of the import graph."""
    for package, folder in PACKAGES.items():
        if path.startswith(f"{folder}/") and path.endswith(".py"):
            inside = path.removeprefix(folder).removesuffix(".py").replace("/", ".")
            return (package + inside).removesuffix(".__init__")
    return None


def sort_files(paths: Iterable[str]) -> Change:
    """Divide changed files by the rule that finds their tests."""
    change = Change()
    for path in paths:
        name = module_of(path)
        if name is not None:
            (change.modules if (ROOT / path).exists() else change.deleted).add(name)
        elif path.startswith("native/"):
            change.native.add(path)
        else:
            change.others.add(path)
    return change


def is_test_file(path: str) -> bool:
    """Return True if pytest collects the file."""
    return path.startswith("tests/") and PurePosixPath(path).match("test_*.py")


class Sources:
    """The Python files of the repository, their texts and their import graph."""

    def __init__(self) -> None:
        self.files = {
            name: path.relative_to(ROOT).as_posix()
            for folder in PACKAGES.values()
            for path in (ROOT / folder).rglob("*.py")
            if (name := module_of(path.relative_to(ROOT).as_posix()))
        }
        self.tests = sorted(path for path in self.files.values() if is_test_file(path))

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The text of each file, by module."""
        return {name: (ROOT / path).read_text() for name, path in self.files.items()}

    @cached_property
    def importers(self) -> Mapping[str, set[str]]:
        """The modules that import a module, that start it by a command, or whose tests use a fixture that needs it."""
        for folder in (ROOT, ROOT / "src"):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
        graph = grimp.build_graph(
            *(package for package, folder in PACKAGES.items() if (ROOT / folder).is_dir()),
            exclude_type_checking_imports=True,
            cache_dir=str(ROOT / "build" / "import-graph"),
        )
        found = defaultdict(set, {name: set(graph.find_modules_that_directly_import(name)) for name in graph.modules})
        for name, text in self.texts.items():
            for started in re.findall(r"[\"']((?:calabash|tests|bench|tools)(?:\.\w+)+)[\"']", text):
                for module in (started, f"{started}.__main__"):
                    if module in self.files and module != name:
                        found[module].add(name)
        conftests = {name for name, path in self.files.items() if PurePosixPath(path).name == "conftest.py"}
        for imported in found:
            found[imported] -= conftests
        for name in conftests:
            for test, needed in self._fixture_imports(self.files[name]):
                found[needed].add(test)
            if self.files[name] != ROOT_CONFTEST:
                found[name] = {str(module_of(test)) for test in self.below(self.files[name])}
        return found

    def below(self, conftest: str) -> Iterator[str]:
        """Yield the test files for which pytest loads a ``conftest.py``."""
        folder = str(PurePosixPath(conftest).parent)
        return (path for path in self.tests if path.startswith(f"{folder}/"))

    def _fixture_imports(self, conftest: str) -> Iterator[tuple[str, str]]:
        """Yield the test modules that use a name of a ``conftest.py``, with each module that this name needs."""
        needs, always = fixtures_of(self.texts[str(module_of(conftest))])
        resolved = {name: {m for m in map(self._existing, modules) if m} for name, modules in needs.items()}
        named = {name: re.compile(rf"\b{re.escape(name)}\b") for name, modules in resolved.items() if modules}
        for path in self.below(conftest):
            test = str(module_of(path))
            for name, pattern in named.items():
                if name in always or pattern.search(self.texts[test]):
                    yield from ((test, imported) for imported in resolved[name])

    def _existing(self, name: str) -> str | None:
        """Return the module that ``package.module`` or ``package.module.attribute`` means, or None if there is none."""
        parent = name.rpartition(".")[0]
        return name if name in self.files else parent if parent in self.files else None

    def naming(self, path: str) -> dict[str, int]:
        """Return the modules whose text names a file, with the distance: 1 for its name or pattern, 2 for its folder."""
        file = PurePosixPath(path)
        folders = [_folder_pattern(f) for f in file.parents if len(f.parts) > 1 or str(f) in READ_WHOLE]
        found: dict[str, int] = {}
        for name, text in self.texts.items():
            if name in OWN:
                continue
            if any(re.search(pattern, text) for pattern in self._name_patterns(file, PurePosixPath(self.files[name]))):
                found[name] = 1
            elif any(re.search(pattern, text) for pattern in folders):
                found[name] = 2
        return found

    def _name_patterns(self, file: PurePosixPath, reader: PurePosixPath) -> Iterator[str]:
        """Yield the patterns by which a Python file may name another file."""
        yield rf"[\"'/]{re.escape(file.name)}[\"'#]"
        # In the same folder of tests, a C source is also named without its suffix, and a data file by a pattern.
        if reader.parts[0] == "tests" and len(reader.parts) > 2 and file.parts[:2] == reader.parts[:2]:
            yield rf"[\"']{re.escape(file.stem)}[\"']"
            if file.suffix not in ("", ".c", ".h") and file.is_relative_to(reader.parent):
                yield rf"[\"'/]\*{re.escape(file.suffix)}[\"']"


def _folder_pattern(folder: PurePosixPath) -> str:
    """Return the pattern of a quoted path of this folder, ``"docs" / "how-to"`` or ``"docs/how-to"``, that ends there."""
    parts = r"(?:[\"']?\s*/\s*[\"']?)".join(map(re.escape, folder.parts))
    return rf"[\"'/]{parts}(?:/?[\"'](?!\s*/\s*[\"'])|/\*)"


def fixtures_of(text: str) -> tuple[dict[str, set[str]], set[str]]:
    """Return what the names of a ``conftest.py`` need, as dotted names, and the names that all tests below it use."""
    body = ast.parse(text).body
    bound: dict[str, set[str]] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            bound |= {alias.asname or alias.name: {f"{node.module}.{alias.name}"} for alias in node.names}
        elif isinstance(node, ast.Import):
            bound |= {alias.asname or alias.name: {alias.name} for alias in node.names}
    mentions: dict[str, set[str]] = {}
    always: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            mentions[node.name] = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            mentions[node.name] |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and inner.module:
                    bound |= {a.asname or a.name: {f"{inner.module}.{a.name}"} for a in inner.names}
                    mentions[node.name] |= {a.asname or a.name for a in inner.names}
            if node.name.startswith("pytest_") or any("autouse=True" in ast.unparse(d) for d in node.decorator_list):
                always.add(node.name)

    def needs(name: str, seen: set[str]) -> set[str]:
        if name in seen:
            return set()
        seen.add(name)
        return bound.get(name, set()).union(*(needs(other, seen) for other in mentions.get(name, ())))

    return {name: needs(name, set()) for name in {*bound, *mentions}}, always


def _package(module: str, files: Mapping[str, str]) -> str:
    """Return the package that a module is in; a package is in itself."""
    return module if files.get(module, "").endswith("/__init__.py") else module.rpartition(".")[0]


def mirror(package: str) -> str | None:
    """Return the folder of unit tests that mirrors a package of calabash, or the nearest package above it that has one."""
    parts = package.split(".")[1:]
    for end in range(len(parts), 0, -1):
        folder = "/".join(("tests/unit", *parts[:end]))
        if (ROOT / folder).is_dir():
            return folder
    return None


def native_tests(path: str, tests: Iterable[str]) -> dict[str, int]:
    """Return the tests of a file of ``native/`` by ``NATIVE_TESTS``, with their distances."""
    file = PurePosixPath(path).relative_to("native")
    folder = next(str(f) for f in file.parents if str(f).removeprefix(".") in NATIVE_TESTS).removeprefix(".")
    words = set(file.stem.split("_")) - {"test"}
    found = {}
    for test in tests:
        name = PurePosixPath(test)
        if any(name.match(f"tests/{pattern}") for pattern in NATIVE_TESTS[folder]):
            found[test] = 1 if words.intersection(name.stem.split("_")) else 2
    return found


class Selection:
    """The test files that a change concerns, with distances, and the changed files that concern no test."""

    def __init__(self, change: Change, sources: Sources) -> None:
        self._change = change
        self._sources = sources
        self.concerns: dict[str, Concern] = {}
        self.unmapped: list[str] = []
        self._add_changed_tests()
        self._add_modules()
        self._add_mirrors()
        self._add_native()

    def _add(self, path: str, distance: int, reason: str, *, must: bool = False) -> None:
        known = self.concerns.get(path)
        if known is None or (distance, not must) < (known.distance, not known.must):
            self.concerns[path] = Concern(path, distance, reason, must or (known is not None and known.must))

    def _add_changed_tests(self) -> None:
        for name in self._change.modules:
            path = self._sources.files[name]
            if is_test_file(path):
                self._add(path, 0, "changed", must=True)
            elif path == ROOT_CONFTEST:
                for test in self._sources.tests:
                    self._add(test, DISTANCE_MAX, f"uses {path}")

    def _add_modules(self) -> None:
        """Walk the import graph from the changed modules, and from the modules that name other changed files."""
        starts: dict[str, tuple[int, str]] = dict.fromkeys(self._change.modules, (0, ""))
        for name in self._change.deleted:
            for importer in self._importers_of_deleted(name):
                starts.setdefault(importer, (1, f"imports {name} (deleted)"))
        named: dict[str, set[str]] = {}
        for path in self._change.others:
            named[path] = set()
            for name, distance in self._start_of_file(path).items():
                named[path].add(name)
                if name not in starts or starts[name][0] > distance:
                    starts[name] = (distance, f"names {path}" if distance == 1 else f"reads the folder of {path}")
        reached = walk(starts, self._sources.importers)
        for path in self._sources.tests:
            found = reached.get(str(module_of(path)))
            if found is not None and found[0] > 0:
                self._add(path, *found)
        files = self._sources.files
        modules = {files[name]: {name} for name in self._change.modules if mirror(_package(name, files)) is None}
        self._note_unmapped(modules | named)

    def _start_of_file(self, path: str) -> dict[str, int]:
        """Return the modules that a changed file other than Python concerns, with distances."""
        found = self._sources.naming(path)
        if 1 not in found.values() and path.startswith("src/calabash/"):
            package = next(f for f in PurePosixPath(path).parents if (ROOT / f / "__init__.py").is_file())
            found[str(module_of(f"{package}/__init__.py"))] = 1
        if not found and path.startswith(
            "tests/"
        ):  # a header, a part of a chart: the tests of the nearest folder with tests
            for folder in list(PurePosixPath(path).parents)[:-2]:
                beside = [test for test in self._sources.tests if PurePosixPath(test).parent == folder]
                if beside:
                    return {str(module_of(test)): 2 for test in beside}
        return found

    def _importers_of_deleted(self, name: str) -> Iterator[str]:
        parent, _, last = name.rpartition(".")
        used = re.compile(rf"\b{re.escape(name)}\b|from {re.escape(parent)} import [^\n]*\b{re.escape(last)}\b")
        return (other for other, text in self._sources.texts.items() if used.search(text))

    def _note_unmapped(self, concerned: Mapping[str, set[str]]) -> None:
        for path, names in concerned.items():
            reached = walk(dict.fromkeys(names, (0, "")), self._sources.importers)
            if path != ROOT_CONFTEST and not any(is_test_file(self._sources.files.get(name, "")) for name in reached):
                self.unmapped.append(path)

    def _add_mirrors(self) -> None:
        """Add the tests in the folders that mirror the changed packages and the packages that import changed modules."""
        files = self._sources.files
        product = {name for name in {*self._change.modules, *self._change.deleted} if name.startswith("calabash.")}
        direct = {importer for name in product for importer in self._sources.importers.get(name, ())}
        importing = {_package(name, files) for name in direct if name.startswith("calabash.")}
        folders: dict[str, tuple[int, str]] = {}
        for distance, packages in ((2, {_package(name, files) for name in product}), (3, importing)):
            for package in sorted(packages):
                folder = mirror(package)
                if folder:
                    folders.setdefault(folder, (distance, f"{folder} mirrors {package}"))
        for path in self._sources.tests:
            above = (str(folder) for folder in PurePosixPath(path).parents)
            found = [folders[folder] for folder in above if folder in folders]
            if found:
                self._add(path, *min(found))
        for name in product:
            package, _, last = name.rpartition(".")
            path = f"{mirror(package)}/test_{last.removeprefix('_')}.py"
            if path in self._sources.tests:
                self._add(path, 1, f"mirrors {name}", must=True)

    def _add_native(self) -> None:
        for path in self._change.native:
            found = native_tests(path, self._sources.tests)
            for test, distance in found.items():
                self._add(test, distance, f"native tests of {path}")
            if not found:
                self.unmapped.append(path)


def walk(starts: Mapping[str, tuple[int, str]], importers: Mapping[str, set[str]]) -> dict[str, tuple[int, str]]:
    """Return the distance of each module that imports a start, at any distance, with the chain of imports.

    A package's ``__init__`` that imports a module of the package has the distance of this module.
    """
    reached: dict[str, tuple[int, str]] = {}
    waiting: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for name, (distance, reason) in sorted(starts.items()):
        waiting[distance].append((name, reason))
    for distance in itertools.count():
        if not any(step >= distance for step, names in waiting.items() if names):
            return reached
        for name, reason in waiting[distance]:  # grows while it is read
            if name in reached:
                continue
            reached[name] = (distance, reason)
            link = f"{name}, which {reason}" if reason else f"{name} (changed)"
            for importer in sorted(importers.get(name, ())):
                step = distance if name.startswith(f"{importer}.") else distance + 1
                waiting[step].append((importer, f"imports {link}"))
        waiting[distance] = []
    raise AssertionError("unreachable")


class Times:
    """Recorded seconds of test files, or the mean of their folder."""

    def __init__(self) -> None:
        self._recorded: dict[str, float] = json.loads(TIMES.read_text()) if TIMES.is_file() else {}

    def seconds_of(self, path: str) -> float:
        """Return the seconds that the tests of a file need on one processor."""
        if path in self._recorded:
            return self._recorded[path]
        return next(MEAN_S[str(f)] for f in PurePosixPath(path).parents if str(f) in MEAN_S)


def fit(concerns: Iterable[Concern], times: Times, capacity_s: float) -> list[Concern]:
    """Return the nearest test files that need less than ``capacity_s`` together; of equal distance the shortest."""
    taken, spent_s = [], 0.0
    for concern in sorted(concerns, key=lambda c: (not c.must, c.distance, times.seconds_of(c.path), c.path)):
        if concern.must or spent_s + times.seconds_of(concern.path) <= capacity_s:
            taken.append(concern)
            spent_s += times.seconds_of(concern.path)
    return taken


def default_groups() -> Mapping[str, str]:
    """Return the groups that ``tests/conftest.py`` gives to folders and files below ``tests/``."""
    conftest = ROOT / ROOT_CONFTEST
    groups: dict[str, str] = {}
    for node in ast.parse(conftest.read_text()).body if conftest.is_file() else ():
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if name == "_GROUP_OF_PATH" and isinstance(node, ast.Assign):
            groups = ast.literal_eval(node.value) | groups
    return groups


def has_quick_tests(path: str, groups: Mapping[str, str]) -> bool:
    """Return False if all tests of a file are in other groups, as far as its path and its own markers say."""
    text = (ROOT / path).read_text()
    file = PurePosixPath(path).relative_to("tests")
    group = next((groups[str(place)] for place in (file, *file.parents) if str(place) in groups), "quick")
    if group == "quick":
        return re.search(r"^pytestmark = .*mark\.(complete|system)", text, re.MULTILINE) is None
    return group == "complete" and "mark.quick" in text


def _pytest(paths: list[str], *words: str) -> int:
    code = subprocess.run([sys.executable, "-m", "pytest", *paths, *words], cwd=ROOT, check=False).returncode
    return 0 if code == 5 else code  # 5: no test was selected


def _run(paths: list[str], *, complete: bool, words: list[str]) -> int:
    chosen = ["--dist", "loadscope"] if complete else ["--dist", "worksteal", "-m", "quick"]
    return _pytest(paths, "-n", "auto", *chosen, *words)


def _parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    own, rest = words, []
    if "--" in words:
        own, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tools.changed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", help="compare with the merge base with this commit")
    parser.add_argument("--list", action="store_true", help="print the test files and the reasons, and run nothing")
    parser.add_argument("--all-importers", action="store_true", help="no limit of distance or time")
    parser.add_argument("--complete", action="store_true", help="include the tests of the complete run")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of the estimated time (default 60)")
    return parser.parse_args(own), rest


def _few(paths: Iterable[str]) -> str:
    shown = sorted(paths)
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")


def _summary(taken: list[Concern], total: int, seconds: float, left: Mapping[str, int]) -> str:
    changed = sum(concern.distance == 0 for concern in taken)
    line = f"{len(taken)} of {total} test files: changed {changed}, importers {len(taken) - changed}; about {seconds:.0f} s"
    without = ", ".join(f"{count} {reason}" for reason, count in left.items() if count)
    return f"{line}; left out: {without}" if without else line


def main(words: list[str]) -> int:
    """Select the tests of a change, print the selection, and run it."""
    options, rest = _parse(words)
    base = options.base or default_base()
    paths = changed_files(base)
    if not paths:
        print(f"no file has changed since {base}")
        return 0
    sources, times, workers = Sources(), Times(), len(os.sched_getaffinity(0))
    selection = Selection(sort_files(paths), sources)
    groups = default_groups()
    concerns = [c for c in selection.concerns.values() if options.complete or has_quick_tests(c.path, groups)]
    near = [concern for concern in concerns if concern.distance <= DISTANCE_MAX]
    if options.all_importers:
        taken = sorted(concerns, key=lambda concern: (concern.distance, concern.path))
    else:
        taken = fit(near, times, (options.seconds - START_S) * workers)
    seconds = START_S + sum(times.seconds_of(concern.path) for concern in taken) / workers if taken else 0.0
    left = {
        "for time": max(len(near) - len(taken), 0),
        "for distance": 0 if options.all_importers else len(concerns) - len(near),
        "not quick (--complete)": len(selection.concerns) - len(concerns),
    }
    print(_summary(taken, len(sources.tests), seconds, left))
    slow = [c.path for c in selection.concerns.values() if c.distance == 0 and c not in concerns]
    if slow:
        print(f"changed, but not quick (--complete): {_few(slow)}")
    if selection.unmapped:
        print(f"no test for: {_few(selection.unmapped)}")
    if options.list:
        for concern in taken:
            print(f"{concern.distance} {times.seconds_of(concern.path):6.1f} s  {concern.path}: {concern.reason}")
        return 0
    sys.stdout.flush()
    return _run([concern.path for concern in taken], complete=options.complete, words=rest) if taken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
