"""Places at which unmodified programs of other projects run, and the environment with their libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.remote import RemoteSite
from tests.daemons.world import SIM, World, until
from tests.native.sim_cuda_programs import CudaNode

from calabash.adapters.gpu import sim

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build" / "programs"
SCRIPTS = Path(__file__).with_name("scripts")
DEADLINE_S = 240
CARD = "A100-80GB"
_ASKED = ("run", "--memory", "16GiB", "--wait", "2m")  # the slice of the program before may not be free yet


def python() -> Path:
    """Return the interpreter of the environment with the libraries."""
    found = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / ".complete").exists():
        reason = (
            "no environment with numba-cuda, tinygrad and others in build/programs: tools/bootstrap --tests makes it"
        )
        if os.environ.get("CALABASH_PROGRAMS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def packages() -> Path:
    """Return the directory of the libraries."""
    return next((ENVIRONMENT / "lib").glob("python3.*")) / "site-packages"


class Place(ABC):
    """A card, with programs that find neither a cache of an earlier run nor other files of the user."""

    before: tuple[str, ...] = ()  # the command in front of the program that runs it here

    def __init__(self, home: Path) -> None:
        self.python = python()
        self.home = home
        self._found: dict[str, dict[str, Any]] = {}

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return the user's environment at this place."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Return the memory in use by the card's own accounts, after dead processes have been reaped."""

    @abstractmethod
    def close(self) -> None:
        """End everything that belongs to the place."""

    def run(self, script: Path, **extra: str) -> str:
        """Run a program and return its output; it must succeed."""
        own = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home), "TI_OFFLINE_CACHE": "0"}
        environment = {**self.environment(), **own, **extra}
        libraries = (environment.get("LD_LIBRARY_PATH"), f"{packages()}/nvidia/cu13/lib")
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))  # as a machine with CUDA has it
        done = subprocess.run(
            [*self.before, str(self.python), str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.home,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{script.name}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def results(self, name: str, **extra: str) -> dict[str, Any]:
        """Return the results of one of the tests' programs at this place; it runs once."""
        key = f"{name} {sorted(extra.items())}"
        if key not in self._found:
            self._found[key] = json.loads(self.run(SCRIPTS / f"{name}.py", **extra).splitlines()[-1])
        return self._found[key]


class Local(Place):
    """The simulated driver in the program's own process."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._node = CudaNode(home / "node.state", CARD)

    def environment(self) -> Mapping[str, str]:
        return self._node.environment()

    def used_bytes(self) -> int:
        used: int = self._node.device()["used_bytes"]
        return used

    def close(self) -> None:
        self._node.close()


class Brokered(Place):
    """A worker for the program on the same machine; the program has neither device nor driver."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        home.chmod(0o755)  # a worker is another user
        self.world = World(home / "pool", f"1x{CARD}")
        self.world.up()
        self._user = self.world.environment | {"CALABASH_HOME": str(self.world.home)}
        self.before = (sys.executable, "-m", "calabash.cli.main", *_ASKED, "--isolation", "brokered", "--")

    def environment(self) -> Mapping[str, str]:
        return self._user

    def used_bytes(self) -> int:
        until(lambda: not self.world.allocations(), what="what programs held to be given back")
        return sum(device.used_bytes for device in sim.show_node(sim.find_node(self.world.home, SIM)).devices)

    def close(self) -> None:
        self.world.close()


class Remote(Brokered):
    """A machine without cards for the program, with the card behind a server's port, TLS and a token."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        scratch = home / "site"
        scratch.mkdir()
        self._site = RemoteSite(self.world, scratch)
        self._site.up()
        self._user = self._site.client().environment
        self.before = (sys.executable, "-m", "calabash.cli.main", *_ASKED, "--remote", "--")

    def close(self) -> None:
        self._site.clean()
        self._site.close()
        super().close()


# The same programs and the same results at all places; a new place is added here.
PLACES: Mapping[str, type[Place]] = {"local": Local, "remote": Remote, "brokered": Brokered}
