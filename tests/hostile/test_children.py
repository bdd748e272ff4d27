"""Attack on the start of a pool: a user leaves modules, programs and libraries where root might load them."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.daemons.traps import Traps
from tests.daemons.world import until
from tests.hostile.people import User
from tests.hostile.world import HostileWorld, stand_aside

_COMMAND = [sys.executable, "-I", "-m", "calabash.cli.main"]


class LuredWorld(HostileWorld):
    """Pool that root starts in the directory of a hostile user, who has left traps there."""

    def _come_up(self, neighbour: bool) -> None:
        self.mallory = User(self.user().uid, self.home)
        self.users.append(self.mallory)
        lured = self.directory / "lured"
        lured.mkdir()
        self.traps = Traps(lured, self.directory / "marks")
        for path in (lured, *lured.rglob("*")):
            os.lchown(path, self.mallory.uid, self.mallory.uid)
        self.environment |= self.traps.environment
        self.environment |= {
            "CALABASH_HOME": str(self.home),
            "PATH": f"{lured / 'bin'}:{self.environment['PATH']}",
            "CALABASH_PROGRAM_PATH": str(lured / "bin"),
            "LD_LIBRARY_PATH": str(lured),
        }
        super()._come_up(neighbour)

    def up(self) -> dict[str, object]:
        with (self.home / "pool.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [*_COMMAND, "up", "--foreground", "--sim", self.sim, "--console", "127.0.0.1:0"],
                cwd=self.traps.directory,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        return self.ready()

    def root_ran(self) -> list[str]:
        return [mark for mark in self.traps.sprung() if mark.endswith(".0")]

    def command_of_root(self, *words: str) -> None:
        """Run a command of root in the directory; its result does not matter."""
        subprocess.run(
            [*_COMMAND, *words],
            cwd=self.traps.directory,
            env=self.environment,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def open_console(self) -> None:
        host, _, port = str(self.client.get("/v1/status")["console"]).removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request("GET", "/login")
            assert connection.getresponse().status == 200
        finally:
            connection.close()

    def child(self, module: str) -> int:
        """Return the pool's child process that runs a module, 0 if there is none."""
        assert self.daemon is not None
        for task in Path(f"/proc/{self.daemon.pid}/task").iterdir():
            with suppress(OSError):
                for pid in (task / "children").read_text().split():
                    if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                        return int(pid)
        return 0


@pytest.fixture(scope="module")
def lured() -> Iterator[LuredWorld]:
    stand_aside()
    made = LuredWorld("1xA100-40GB", neighbour=False)
    yield made
    made.close()


def _springs_traps(directory: str) -> None:
    subprocess.run([f"{directory}/bin/ip"], cwd=directory, env={"PATH": "/usr/bin:/bin"}, check=False)
    if Path("/usr/bin/python3").exists():
        subprocess.run(["/usr/bin/python3", "-c", "import msgspec"], cwd=directory, env={}, check=False)


def _restarted(lured: LuredWorld, module: str) -> None:
    """Kill the pool's child process that runs a module, and wait until another one does."""
    first = until(lambda: lured.child(module), what=f"{module} to run")
    os.kill(first, signal.SIGKILL)
    lured.open_console()  # starts the gateway if it is not running
    until(lambda: lured.child(module) not in {0, first}, what=f"{module} to run again")


def test_a_pool_started_in_a_tenants_directory_runs_nothing_of_the_tenants(lured: LuredWorld) -> None:
    assert lured.root_ran() == []
    lured.open_console()
    _restarted(lured, "calabash.gateway")
    _restarted(lured, "calabash.node.arbiter.main")
    lured.client.post("/v1/devices/0/drain")
    lured.client.post("/v1/devices/0/undrain")
    (lured.home / "network.toml").write_text('northbound = "unix:/nowhere/nb"\nsouthbound = "unix:/nowhere/sb"\n')
    until(lambda: lured.child("calabash.controllers.networks"), what="the network controller to run")
    (lured.home / "network.toml").unlink()
    assert lured.root_ran() == []
    # the traps work for a process that searches there
    lured.mallory.does(_springs_traps, str(lured.traps.directory))
    assert f"ip.{lured.mallory.uid}" in lured.traps.sprung()


def test_programs_that_root_needs_are_not_taken_from_where_a_tenant_can_write(lured: LuredWorld) -> None:
    for words in (
        ("doctor",),
        ("net", "up", "--prefix", "lured", "--host-count", "1", "--gateways", "0", "--dummy", "--host", "none"),
        ("net", "down", "--prefix", "lured"),
        ("device", "vm", "attach", "--device", "0", "--machine", "libvirt:lured"),
        ("status",),
    ):
        lured.command_of_root(*words)
        assert lured.root_ran() == [], words


def test_what_a_request_says_of_its_environment_is_the_tenants_processs_own(lured: LuredWorld) -> None:
    hostile = lured.traps.environment
    until(lambda: {d["health"] for d in lured.devices()} == {"healthy"}, what="the device to pass its test")
    for isolation in ("cooperative", "brokered"):
        program = lured.mallory.runs("/bin/cat", environment=hostile, memory_mib=64, cores=1, isolation=isolation)
        until(partial(lured.running_allocation, program), what="the program to run on its slice")
        program.close()
        until(lambda: not lured.held_by(lured.mallory), what="the slice to end")
    assert lured.root_ran() == []
