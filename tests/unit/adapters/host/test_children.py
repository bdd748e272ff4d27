"""Child processes of the product: how they are started, and that only ``adapters.host.children`` starts any."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.traps import Traps

import calabash
from calabash.adapters.host import children
from calabash.adapters.host.children import (
    LIBRARIES,
    child_environment,
    find_program,
    module_command,
    root_alone_writes,
    run_program,
    start_module,
)

SOURCES = Path(calabash.__file__).resolve().parent
STARTER = "adapters/host/children.py"
# Calls that start a program, by module.
_STARTS = {
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "os": {"popen", "posix_spawn", "posix_spawnp", "startfile", "system"}
    | {f"{kind}{how}" for kind in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    "pty": {"fork", "spawn"},
    "subprocess": {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"},
}
_NEVER_IMPORTED = {"multiprocessing", "pty", "concurrent.futures.process", "ctypes.util", "pexpect", "sh"}
# Other starts, with the reason. Most are where a program of a user begins: with the user's rights, environment, directory
# and search for programs.
OTHERS = {
    ("node/ports/entering_process.py", "os.execvpe"): "the program behind a door, as its user",
    ("cli/run/become.py", "os.execvpe"): "calabash run becomes the program",
    ("pool/jobs/program.py", "os.execvpe"): "a job becomes the program, as its account",
    ("sim/runner.py", "import multiprocessing"): "workers of a simulation; sim imports no adapters",
}


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        yield str(path.relative_to(SOURCES)), ast.parse(path.read_text())


def _is_annotation(tree: ast.Module) -> set[int]:
    """Return the IDs of the syntax nodes inside type annotations."""
    found: set[int] = set()
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.AST):
                found |= {id(inner) for inner in ast.walk(part)}
    return found


def starts_in(tree: ast.Module) -> Iterator[str]:
    """Yield each use of a function that starts a program, and each import that could give it another name."""
    annotations = _is_annotation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in annotations:
            if node.attr in _STARTS.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name in _NEVER_IMPORTED or (name.name in _STARTS and name.asname):
                    yield f"import {name.name}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in _NEVER_IMPORTED:
                yield f"import {node.module}"
            for name in node.names:
                if name.name in _STARTS.get(node.module, ()) or f"{node.module}.{name.name}" in _NEVER_IMPORTED:
                    yield f"from {node.module} import {name.name}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import subprocess\nsubprocess.run(['x'])", ["subprocess.run"]),
        ("import subprocess\nx = partial(subprocess.Popen, 1)", ["subprocess.Popen"]),
        ("import subprocess\nx: subprocess.Popen[bytes] | None = None", []),
        ("import subprocess\ndef f(x: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]: ...", []),
        ("import subprocess as s", ["import subprocess"]),
        ("from subprocess import run", ["from subprocess import run"]),
        ("from os import execv", ["from os import execv"]),
        ("import multiprocessing", ["import multiprocessing"]),
        ("import os\nos.posix_spawn('x', [], {})", ["os.posix_spawn"]),
        ("import asyncio\nasyncio.create_subprocess_exec('x')", ["asyncio.create_subprocess_exec"]),
    ],
)
def test_starts_of_programs_are_recognized_in_every_spelling(text: str, found: list[str]) -> None:
    assert list(starts_in(ast.parse(text))) == found


def test_only_the_module_children_starts_processes() -> None:
    found = {(path, start) for path, tree in _sources() if path != STARTER for start in starts_in(tree)}
    assert found == set(OTHERS)


def test_only_the_module_children_looks_programs_up() -> None:
    found = {path for path, tree in _sources() for node in ast.walk(tree) if _is_which(node)}
    assert found == {STARTER}


def _is_which(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "shutil" and any(name.name == "which" for name in node.names)
    return isinstance(node, ast.Attribute) and node.attr == "which"


# -- modules -----------------------------------------------------------------------------------------------------


def _started_modules() -> set[str]:
    """Return the modules of the product that it starts as programs.

    They are found as constants in calls and assignments of files that call a function which starts a module.
    """
    found = set()
    for path, tree in _sources():
        names = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        if not names & {"start_module", "run_module", "run_task", "become_module", "module_command"} or path == STARTER:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("calabash."):
                found.add(node.value)
    return found


def _file_of(module: str) -> Path:
    place = SOURCES.joinpath(*module.split(".")[1:])
    return place / "__main__.py" if place.is_dir() else place.with_suffix(".py")


def test_every_module_that_is_started_is_one_that_can_be() -> None:
    modules = _started_modules()
    assert {"calabash.pool.daemon", "calabash.gateway", "calabash.platform.billing.rating_process"} <= modules
    assert [module for module in modules if not _file_of(module).is_file()] == []


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    directory = tmp_path / "traps"
    directory.mkdir()
    return Traps(directory, tmp_path / "marks")


@pytest.mark.complete
@pytest.mark.parametrize("module", sorted(_started_modules()))
def test_module_in_a_hostile_directory_and_environment_imports_nothing_of_them(
    module: str, traps: Traps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traps.directory)
    for name, value in traps.environment.items():
        monkeypatch.setenv(name, value)
    said = tmp_path / "said"
    with said.open("wb") as file:
        child = start_module(module, "--help", stdout=file, stderr=file, environment={"CALABASH_HOME": str(tmp_path)})
    child.wait(timeout=120)
    text = said.read_text()
    assert "ModuleNotFoundError" not in text
    assert "ImportError" not in text
    assert traps.sprung() == []


def test_module_gets_the_allowed_variables_and_the_root_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CALABASH_SIM", str(tmp_path / "node"))
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/one")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown.py").write_text(
        "import json, os, sys\n"
        "names = sorted(os.environ)\n"
        "print(json.dumps([os.getcwd(), names, sys.flags.isolated, os.readlink('/proc/self/fd/0'), sys.argv[1:]]))\n"
    )
    monkeypatch.setattr(children, "_LAUNCHER", tmp_path / "shown.py")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))])
    monkeypatch.setattr(
        os, "environ", {"LANG": "C.UTF-8", "SSL_CERT_FILE": "/etc/one", "PYTHONPATH": "/x", "HOME": "/y"}
    )
    child = start_module("calabash.node.arbiter.main", "--word", inherit=("SSL_CERT_FILE",), stdout=subprocess.PIPE)
    said, _ = child.communicate(timeout=60)
    directory, names, isolated, stdin, words = json.loads(said)
    assert directory == "/"
    assert set(names) - {"LC_CTYPE"} == {
        "HOME",
        "LANG",
        "PATH",
        "SSL_CERT_FILE",
    }  # the interpreter sets LC_CTYPE itself
    assert isolated == 1
    assert stdin == "/dev/null"
    assert words == ["calabash.node.arbiter.main", "--word"]


def test_search_path_of_a_child_leaves_out_the_directory_and_the_script_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra, script = tmp_path / "extra", tmp_path / "script"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(script), "", ".", str(tmp_path), str(extra), *sys.path])
    command = module_command("calabash.gateway")
    assert command[command.index("--search") + 1] == str(extra)
    assert not {"", ".", str(tmp_path), str(script)} & set(command)


def test_package_on_the_python_path_starts_its_children_from_there(tmp_path: Path) -> None:
    # As with PYTHONPATH=src: an interpreter that does not know the package, whose dependencies are elsewhere.
    copy = tmp_path / "src"
    copy.mkdir()
    (copy / "calabash").symlink_to(SOURCES)
    code = (
        "import subprocess, sys\n"
        "from calabash.adapters.host.children import start_module\n"
        "child = start_module('calabash.cli.main', '--version', stdout=subprocess.PIPE)\n"
        "sys.stdout.write(child.communicate()[0].decode())\n"
    )
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [str(copy), *(entry for entry in sys.path if "site-packages" in entry)]
    done = subprocess.run(
        [base if base.exists() else sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(places), "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert calabash.__version__ in done.stdout, done.stderr


def test_documents_and_messages_start_no_module_from_the_working_directory() -> None:
    root = SOURCES.parents[1]
    places = [root / name for name in ("README.md", "SECURITY.md", "Containerfile", "charts", "docs", "src")]
    files = [f for p in places for f in (p.rglob("*") if p.is_dir() else (p,)) if f.is_file() and f.suffix != ".pyc"]
    unsafe = re.compile(r"python3? (-[a-zA-HJ-OQ-Z]+ )*-m calabash")
    found = [str(f.relative_to(root)) for f in files if unsafe.search(f.read_text(errors="replace"))]
    assert found == []


# -- programs ----------------------------------------------------------------------------------------------------


def _program(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\npwd\n")
    path.chmod(0o755)
    return path


def test_root_finds_programs_in_the_directories_of_the_system_and_not_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    _program(tmp_path, "sh")
    _program(tmp_path, "of-nobody")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_program("sh")
    assert found is not None
    assert str(found.parent) in children.SYSTEM_DIRECTORIES
    assert find_program("of-nobody") is None


def test_ordinary_user_finds_programs_by_the_path_and_never_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    own = _program(tmp_path / "own", "tool")
    _program(tmp_path / "here", "other")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", f":.:{tmp_path / 'own'}:")
    assert find_program("tool") == own
    assert find_program("other") is None
    assert find_program("sh") is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
@pytest.mark.parametrize("wrong", ["owner of the program", "owner of a directory", "mode of a directory", "link"])
def test_directory_that_root_names_counts_only_if_root_alone_can_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    directory = tmp_path / "opt" / "bin"
    program = _program(directory, "tool")
    monkeypatch.setenv(children.PROGRAM_PATH, str(directory))
    assert find_program("tool") == program
    if wrong == "owner of the program":
        os.chown(program, 4711, 4711)
    elif wrong == "owner of a directory":
        os.chown(directory.parent, 4711, 4711)
    elif wrong == "mode of a directory":
        directory.chmod(0o777)
    else:
        elsewhere = _program(tmp_path / "theirs", "tool")
        os.chown(elsewhere.parent, 4711, 4711)
        program.unlink()
        program.symlink_to(elsewhere)
    assert find_program("tool") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_library_path_of_root_keeps_the_directories_that_root_alone_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, theirs, sticky = tmp_path / "own", tmp_path / "theirs", tmp_path / "sticky"
    for directory in (own, theirs, sticky, sticky / "own"):
        directory.mkdir()
    os.chown(theirs, 4711, 4711)
    sticky.chmod(0o1777)
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{theirs}:relative:{own}:{sticky / 'own'}:/nowhere")
    assert child_environment(LIBRARIES)["LD_LIBRARY_PATH"] == f"{own}:{sticky / 'own'}"
    assert "LD_LIBRARY_PATH" not in child_environment()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(theirs))
    assert "LD_LIBRARY_PATH" not in child_environment(LIBRARIES)
    assert root_alone_writes(own)
    assert not root_alone_writes(theirs / "nothing")


def test_program_runs_in_the_root_directory_by_its_absolute_path(tmp_path: Path) -> None:
    program = _program(tmp_path, "tool")
    done = run_program([str(program)], timeout_s=60)
    assert (done.returncode, done.stdout) == (0, "/\n")
    with pytest.raises(FileNotFoundError):
        run_program(["no-such-program-here"], timeout_s=60)
    with pytest.raises(ValueError, match="a path"):
        run_program(["./tool"], timeout_s=60)
