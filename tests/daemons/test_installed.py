"""The wheel in an empty environment: a plain installation is small, needs no compiler, and runs the demo and a pool."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.daemons.demo import demo, processes_of, require_limits_held
from tools import wheel

from calabash.model.extras import WITHOUT_PLACEMENT

INSTALLED_MB_MAX = 150  # with byte code, which pip compiles; half of it is NumPy
PROGRAM = "/usr/bin/true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An environment with the wheel and nothing else.

    Args:
        added_bytes: size of the files that the installation added to the empty environment.
    """

    directory: Path
    added_bytes: int

    @property
    def path(self) -> str:
        """The PATH for its commands, on which there is no compiler."""
        return str(self.directory / "bin")

    def run(self, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the installation with a home of its own."""
        environment = {"PATH": self.path, "HOME": str(home), "CALABASH_HOME": str(home), "LANG": "C.UTF-8"}
        command = [str(self.directory / "bin" / "calabash"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def bytes_of(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*"))


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """Yield an environment in which the wheel is installed, with packages from the index that pip is configured with."""
    with tempfile.TemporaryDirectory(prefix="installed-") as scratch:
        directory = Path(scratch) / "environment"
        made = wheel.build(Path(scratch), platform.machine())
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        empty = bytes_of(directory)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run(
            [str(directory / "bin" / "pip"), "install", "--quiet", "--only-binary", ":all:", str(made)],
            env=environment | {"PATH": str(directory / "bin")},
            check=True,
        )
        yield Installation(directory=directory, added_bytes=bytes_of(directory) - empty)


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield an empty directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="home-") as made:
        yield Path(made)


def test_a_plain_installation_is_small_and_has_no_compiler_on_its_path(installation: Installation) -> None:
    assert installation.added_bytes / 1e6 < INSTALLED_MB_MAX
    assert [name for name in ("cc", "gcc", "clang", "ld") if shutil.which(name, path=installation.path)] == []


def test_the_demo_of_a_plain_installation_finds_no_limit_exceeded(installation: Installation, home: Path) -> None:
    calabash = (str(installation.directory / "bin" / "calabash"),)
    with demo(home, "--seconds", "7", calabash=calabash, path=installation.path) as process:
        require_limits_held(process)
    assert list(home.iterdir()) == []
    assert processes_of(home) == []


def test_a_plain_installation_runs_a_pool_and_its_programs(installation: Installation, home: Path) -> None:
    def ran(*words: str) -> str:
        done = installation.run(home, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    ran("sim", "create", "lab", "--gpus", "1xT4")
    said = ran("up", "--sim", "lab")
    try:
        assert (home / "pool.log").read_text().count(WITHOUT_PLACEMENT) == 1
        assert "no console: the console is not installed; pip install 'calabash[console]'" in said
        assert ran("run", "--memory", "1GiB", "--", PROGRAM) == ""
        assert "Tesla T4" in ran("smi")
        assert "Tesla T4" in ran("top", "--once")
        assert ran("ps", "-o", "name") == ""
        refused = installation.run(home, "why", "nothing")
        assert refused.stderr.startswith("error: there is no allocation 'nothing'"), refused.stderr
    finally:
        ran("down", "--force")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("serve", "planner"), "kubernetes"),
        (("remote", "server", "up"), "remote"),
        (("net", "up"), "networks"),
        (("demo", "--svg", "picture.svg"), "reports"),
    ],
)
def test_a_command_of_a_plain_installation_names_the_extra_that_it_needs(
    installation: Installation, home: Path, words: tuple[str, ...], extra: str
) -> None:
    done = installation.run(home, *words)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: this command needs the packages of the extra {extra!r}, which are not installed",
        f"hint: pip install 'calabash[{extra}]'",
    ]
