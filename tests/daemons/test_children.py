"""Child processes of a product that is started in another user's directory, with an environment that the user chose."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.daemons.traps import Traps
from tests.daemons.world import HANG_S, SIM, World, until

from calabash.model.errors import CalabashError

# Isolated, so that the command itself is not affected; the tests check the processes that it starts.
COMMAND = [sys.executable, "-I", "-m", "calabash.cli.main"]


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    directory = tmp_path / "traps"
    directory.mkdir()
    return Traps(directory, tmp_path / "marks")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    yield made
    with suppress(CalabashError):
        made.client.post("/v1/shutdown", {"force": True}, timeout_s=HANG_S)
    until(lambda: not processes_of(made.home), what="the pool to end")
    made.close()


def processes_of(home: Path) -> dict[int, list[str]]:
    """Return the command lines of the product's processes that serve a home, by process ID."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(word.startswith("calabash.") for word in words) and _serves(entry, home):
                found[int(entry.name)] = words
    return found


def _serves(process: Path, home: Path) -> bool:
    """Return True for a process of that home: its arguments, its environment or its parent's name the home."""
    told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    if str(home).encode() in told:
        return True
    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
    return parent != "1" and str(home).encode() in Path("/proc", parent, "cmdline").read_bytes()


def module_of(words: list[str]) -> str:
    return next(word for word in words if word.startswith("calabash."))


def _run(world: World, traps: Traps, *words: str) -> str:
    environment = world.environment | traps.environment | {"CALABASH_HOME": str(world.home)}
    if os.geteuid() == 0:
        environment["PATH"] = f"{traps.directory / 'bin'}:{environment['PATH']}"
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=traps.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S * 2,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{traps.sprung()}\n{_log(world)}"
    return done.stdout


def _log(world: World) -> str:
    try:
        return (world.home / "pool.log").read_text()[-2000:]
    except OSError:
        return ""


def _open_console(world: World) -> None:
    host, _, port = world.client.get("/v1/status")["console"].removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=HANG_S)
    try:
        connection.request("GET", "/login")
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def test_pool_started_in_a_hostile_directory_runs_no_code_of_it(world: World, traps: Traps) -> None:
    _run(world, traps, "up", "--sim", SIM, "--console", "127.0.0.1:0")
    assert traps.sprung() == []
    _open_console(world)
    (world.home / "network.toml").write_text('northbound = "unix:/nowhere/nb"\nsouthbound = "unix:/nowhere/sb"\n')
    wanted = {"calabash.pool.daemon", "calabash.node.arbiter.main", "calabash.gateway", "calabash.controllers.networks"}

    def modules() -> set[str]:
        return {module_of(words) for words in processes_of(world.home).values()}

    until(lambda: wanted <= modules(), what=f"{wanted} to run")
    _run(world, traps, "remote", "server", "up", "--listen", "127.0.0.1:0")
    try:
        assert "calabash.cli.main" in modules()
        assert traps.sprung() == []
        for pid, words in processes_of(world.home).items():
            assert "-I" in words, words
            assert words[0].startswith("/"), words
            if os.getuid() == 0 or Path(f"/proc/{pid}/environ").stat().st_uid == os.getuid():
                _check_process(pid, words, traps)
    finally:
        _run(world, traps, "remote", "server", "down", "--force")


def _check_process(pid: int, words: list[str], traps: Traps) -> None:
    directory = os.readlink(f"/proc/{pid}/cwd")
    assert directory == "/" or module_of(words) == "calabash.gateway", words
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if entry)
    assert not traps.environment.keys() & environment.keys(), (words, environment)
    assert not [name for name in environment if name.startswith(("PYTHON", "LD_PRELOAD", "LD_AUDIT"))]
    if os.geteuid() == 0:
        assert str(traps.directory) not in environment["PATH"]
    assert not [name for name in os.listdir(f"/proc/{pid}/fd") if str(traps.directory) in _target(pid, name)]


def _target(pid: int, descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def test_pool_in_the_foreground_leaves_the_directory_it_is_started_in(world: World, traps: Traps) -> None:
    environment = world.environment | traps.environment | {"CALABASH_HOME": str(world.home)}
    world.home.mkdir(exist_ok=True)
    with (world.home / "pool.log").open("ab") as log:
        world.daemon = subprocess.Popen(
            [*COMMAND, "up", "--foreground", "--sim", SIM],
            cwd=traps.directory,
            env=environment,
            stdout=log,
            stderr=log,
        )
    world.ready()
    assert os.readlink(f"/proc/{world.daemon.pid}/cwd") == "/"
    assert traps.sprung() == []


def test_relative_path_of_a_database_is_that_of_the_caller_s_directory(world: World, traps: Traps) -> None:
    _run(world, traps, "up", "--sim", SIM, "--db", "sqlite:///here.db")
    assert (traps.directory / "here.db").stat().st_size > 0
    assert traps.sprung() == []


def test_simulation_in_a_hostile_directory_runs_no_code_of_it(traps: Traps, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nnode-1,64000,262144,2,T4\n")
    head = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    (tmp_path / "pods.csv").write_text(f"{head}\npod-1,4000,4096,1,1000,,LS,Running,1,5000,1\n")
    words = ["sim", "openb", "--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]
    done = subprocess.run(
        # Not isolated, as the script of an installation: multiprocessing passes isolation on by itself.
        [sys.executable, "-P", "-m", "calabash.cli.main", *words, "--seeds", "1-4", "--jobs", "2"],
        cwd=traps.directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert traps.sprung() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
@pytest.mark.parametrize("kind", ["directory of another user", "link of another user"])
def test_log_of_a_pool_follows_no_link_of_another_user(world: World, traps: Traps, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    world.home = tmp_path / "lent"
    if kind == "link of another user":
        world.home.symlink_to(target)
        os.lchown(world.home, 4711, 4711)
    else:
        world.home.mkdir()
        (world.home / "pool.log").symlink_to(target / "written")
        os.chown(world.home, 4711, 4711)
    done = subprocess.run(
        [*COMMAND, "up", "--sim", SIM],
        cwd=traps.directory,
        env=world.environment | {"CALABASH_HOME": str(world.home)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode != 0
    assert "belongs to user id 4711" in done.stderr
    assert list(target.iterdir()) == []
    assert target.stat().st_mode & 0o777 == 0o700
