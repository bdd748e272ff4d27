"""Pool under load: a home of its own, simulated cards, tenants with quotas, and restarts after each death."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.api_client import PathClient

from bench.soak.diary import Diary
from bench.soak.launcher import Launcher, Started
from bench.soak.log import Log
from bench.soak.machine import Machine
from calabash.adapters.gpu import sim
from calabash.model.errors import CalabashError, Reason

SIM = "lab"
PROGRAMS = ("program.py", "talker.py")
CARDS = "3xA100-40GB,1xA100-80GB,1xT4"
PRESSED = "T4"  # the model on which only shares are measured
OTHERS = "A100"
DISK_MIB = 256
HANG_S = 90.0
SETTINGS = """
[journal]
allocations = 1000000
[devices]
spill = true
spill_mib_max = 200000
replicas = 4
[jobs]
least_user = 1
[user]
requests_per_second = 1000
requests_at_once = 5000
"""
HEALTH = """
[flapping]
window_s = 10.0
most = 100
hold_s = 0.5
hold_max_s = 2.0
[recovery]
test_again_s = 2.0
reset_again_s = 3.0
"""
# Name, guarantee, limit, slices that a user of the tenant may have.
TENANTS = (("vision", "1.5", "3"), ("speech", "1", "2"), ("robotics", "0.5", "1.5"))


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(condition: Callable[[], Any], *, within_s: float = HANG_S, every_s: float = 0.05) -> Any:
    """Return the condition's result once it is true, or the last false one after ``within_s``."""
    end = time.monotonic() + within_s
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(every_s)
    return found


class World:
    """One pool. Create it before there are threads."""

    def __init__(self, machine: Machine, log: Log, diary: Diary) -> None:
        self.machine, self.log, self.diary = machine, log, diary
        self.launcher = Launcher()
        self.directory = Path(tempfile.mkdtemp(prefix="cbs-"))
        self.directory.chmod(0o755)
        self.home = self.directory / "home"
        self.scratch = self.directory / "out"
        self.client = PathClient(self.home)
        self.console = f"127.0.0.1:{free_port()}"
        self.over = threading.Event()
        self.calm = threading.Event()  # no faults are injected, and only ``shares`` makes requests
        self.starting = threading.Lock()  # one start or stop of the pool at a time
        self._numbers = iter(range(1, 1 << 40))
        self._numbering = threading.Lock()

    # -- coming and going ------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Create home, cards, pool and tenants."""
        self.home.mkdir()
        if self.machine.tmpfs:
            options = f"size={DISK_MIB}m,mode=0711"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "soak", self.home], check=True)
        self.scratch.mkdir(mode=0o755)
        for program in PROGRAMS:
            shutil.copy(Path(__file__).with_name(program), self.directory)
            (self.directory / program).chmod(0o644)
        (self.home / "pool.toml").write_text(f'{SETTINGS}[console]\nlisten = "{self.console}"\n')
        (self.home / "health.toml").write_text(HEALTH)
        cards = self.directory / "sim"
        cards.mkdir(mode=0o755)
        (self.home / "sim").symlink_to(
            cards
        )  # only the pool's files are on the disk that fills up, not the memory of cards
        self.expect("sim", "create", SIM, "--gpus", CARDS)
        if not self.up(within_s=30):
            raise RuntimeError(f"the pool does not start: {(self.home / 'pool.log').read_text()[-500:]}")
        for number, (name, guarantee, limit) in enumerate(TENANTS):
            users = self.machine.accounts[number : number + 1]
            self.expect(
                "tenant", "create", name, "--guarantee", guarantee, "--limit", limit, *(f"--users={u}" for u in users)
            )
            self.expect("tenant", "project", "create", name, "night")

    def user_of(self, tenant: str) -> str:
        """Return the account of a tenant, or "" if all tenants use this process's account."""
        index = next((i for i, one in enumerate(TENANTS) if one[0] == tenant), -1)
        return self.machine.accounts[index] if 0 <= index < len(self.machine.accounts) else ""

    def up(self, *, within_s: float = HANG_S) -> bool:
        """Start the pool; return True if it answers in time. A failed start (the disk may be full) is repeated and logged."""
        words = [sys.executable, "-m", "calabash.cli.main", "up", "--sim", SIM]
        end = time.monotonic() + within_s
        while True:
            done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, check=False)
            if done.returncode == 0 or self.status() is not None:
                return True
            self.log.line("pool", f"did not start: {done.stderr.strip()}")
            if time.monotonic() > end:
                self.diary.violation("the pool starts again", done.stderr.strip()[-500:])
                return False
            time.sleep(0.5)

    def pid(self) -> int:
        """Return the pool's process, or 0 if there is none."""
        try:
            pid = int((self.home / "pool.lock").read_text())
            return pid if b"calabash.pool.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes() else 0
        except (OSError, ValueError):
            return 0

    def end_pool(self, number: signal.Signals) -> None:
        """Send a signal to the pool and wait for its end."""
        pid = self.pid()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            if not until(lambda: self.pid() != pid):
                self.diary.violation("the pool ends", f"{number.name} had not ended process {pid} after {HANG_S:g} s")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # -- asking ----------------------------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": os.environ.get("HOME", str(self.scratch)),  # the directory to which OVN was fetched
            "CALABASH_HOME": str(self.home),
        } | more

    def ask(self, path: str, *, timeout_s: float = 10.0) -> Any:
        """Return the pool's answer; None if it is not running."""
        try:
            return self.client.get(path, timeout_s=timeout_s)
        except CalabashError as error:
            if error.reason in (Reason.POOL_DOWN, Reason.TIMEOUT, Reason.DISK_FULL, Reason.STORE_UNAVAILABLE):
                return None
            raise

    def status(self) -> Any:
        return self.ask("/v1/status", timeout_s=5.0)

    def node(self) -> sim.SimNode:
        """Return the state and accounts of the simulated cards."""
        return sim.show_node(sim.find_node(self.home, SIM))

    def inject(self, gpu: str, *what: str) -> None:
        sim.inject(sim.find_node(self.home, SIM), gpu, *what)

    def number(self) -> int:
        with self._numbering:
            return next(self._numbers)

    def launch(self, words: Sequence[str], *, user: str = "", name: str, **environment: str) -> Started:
        """Start a command that goes on; both its output streams go into one file."""
        output = self.scratch / f"{name}.out"
        return self.launcher.start(words, user=user, environment=self.environment(**environment), output=output)

    def command(self, *words: str, user: str = "", within_s: float = HANG_S, **environment: str) -> tuple[int, str]:
        """Run a command to its end; return the exit code and its output, or its error output if it fails."""
        place = self.scratch / f"c{self.number()}"
        output, errors = place.with_suffix(".out"), place.with_suffix(".err")
        started = self.launcher.start(
            words, user=user, environment=self.environment(**environment), output=output, errors=errors
        )
        if not started.ended.wait(within_s):
            self.diary.violation("commands end", f"calabash {' '.join(words)}: not within {within_s:g} s")
            with suppress(ProcessLookupError):
                os.kill(started.pid, signal.SIGKILL)
            started.ended.wait(5)
        said = "".join(
            path.read_text(errors="replace") for path in ((errors,) if started.code else (output,)) if path.exists()
        )
        for path in (output, errors):
            path.unlink(missing_ok=True)
        if "Traceback" in said:
            self.diary.violation("errors are one line", f"calabash {' '.join(words)}: {said[-800:]}")
        return started.code if started.code is not None else -9, said

    def expect(self, *words: str) -> str:
        """Run a command that must succeed while there is no fault; return its output."""
        code, said = self.command(*words)
        if code:
            raise RuntimeError(f"calabash {' '.join(words)} ended with {code}: {said[-500:]}")
        return said

    # -- the end ---------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove everything of this soak from the machine, whatever the result."""
        if self.pid():  # the soak was broken off
            self.command("remote", "server", "down", "--force")
            self.command("down", "--force")
        self.end_pool(signal.SIGKILL)
        for path in (self.home / "alloc").glob("*") if self.home.is_dir() else ():
            subprocess.run(["umount", "-l", path], capture_output=True, check=False)
        if self.machine.tmpfs:
            subprocess.run(["umount", "-l", self.home], capture_output=True, check=False)
        self.launcher.close()
        shutil.rmtree(self.directory, ignore_errors=True)
