"""Pool of root on a simulated node with an honest tenant, and measurements of both during attacks.

The honest tenant (``Neighbour``) holds half of one card, launches kernels without a pause and allocates and frees
memory all the while. Its time on the card is the simulator's own account. A probe in a third process sends requests to
the pool as the tenant's user and records the cost of each answer: its time, or the processor time of the pool meanwhile
if that is less. So a machine that is busy with other work does not make an answer late.
"""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import os
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.api_client import PathClient
from tests.daemons.processor import Answered
from tests.daemons.world import HANG_S, NATIVE, SIM, World, until
from tests.evidence_sources import rescue
from tests.hostile.belongings import Belongings
from tests.hostile.people import Child, User

from calabash.adapters.gpu.sim import NodeFile, SimNode, show_node
from calabash.model.errors import CalabashError, Reason

ROOT = Path(__file__).resolve().parents[2]
SHARE_PERCENT = 50.0
POINTS = 2.0
LEAVE_S = 40.0
ANSWER_S = 0.200
ANSWER_MAX_S = 1.000  # during the attack, whatever the machine's other load
SAMPLES_MIN = 20
_SMALL = {"memory_mib": 16, "cores": 1, "mode": "vgpu", "policy": "best-effort"}
_SAMPLES_MAX = 1 << 18
_SAMPLES_AT = 16
_UID_FIRST = 200_000 + os.getpid() % 100_000 * 4096  # more than one process makes: two never share a user
_uids = itertools.count(_UID_FIRST)


def stand_aside() -> None:
    """Skip the tests if this process is not root, which it must be to become other users."""
    if os.geteuid() != 0:
        pytest.skip("attacks on a root pool need root, who becomes the other users")


@functools.cache
def _compiled(directory: Path) -> Path:
    """Return the compiled programs of these tests, in a directory where every user can run them."""
    include = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/include"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-isystem", str(include)]
    flags += [f"-I{ROOT / 'native'}", f"-I{ROOT / 'bench/programs'}"]
    for source in sorted((ROOT / "tests/hostile/programs").glob("*.c")):
        subprocess.run(["gcc", *flags, str(source), "-o", str(directory / source.stem), "-ldl"], check=True)
    shutil.copy(ROOT / "bench/programs/kernels.ptx", directory)
    return directory


class Probe:
    """Process that sends requests to the pool as a user; the cost of each answer is in shared memory.

    Their number and the process ID of the pool precede the costs.
    """

    def __init__(self, uid: int, home: Path, daemon: int) -> None:
        self._memory = mmap.mmap(-1, _SAMPLES_AT + 8 * _SAMPLES_MAX)
        self._begun = 0
        self.watch(daemon)
        self._child = Child(uid, lambda: self._ask(home))

    def _ask(self, home: Path) -> None:
        pool = PathClient(home)
        os.set_blocking(1, False)  # no process may be reading
        for number in range(_SAMPLES_MAX):
            try:
                answered = Answered(struct.unpack_from("<Q", self._memory, 8)[0])
                if number % 5:
                    pool.get("/v1/status")
                else:
                    granted = pool.post("/v1/allocations", _SMALL)
                    pool.delete(f"/v1/allocations/{granted['id']}")
            except CalabashError as error:
                if error.reason is Reason.POOL_DOWN:  # the pool is being started again
                    time.sleep(0.03)
                    continue
                with suppress(BlockingIOError):
                    os.write(1, f"refused {error.reason}: {error.message}\n".encode())
            except ProcessLookupError:  # the pool was killed
                time.sleep(0.03)
                continue
            with suppress(ProcessLookupError):
                struct.pack_into("<d", self._memory, _SAMPLES_AT + 8 * number, answered.cost_s())
            struct.pack_into("<Q", self._memory, 0, number + 1)
            time.sleep(0.02)

    def watch(self, daemon: int) -> None:
        """Measure the pool that has this process ID from now on."""
        struct.pack_into("<Q", self._memory, 8, daemon)

    def count(self) -> int:
        found: int = struct.unpack_from("<Q", self._memory)[0]
        return found

    def begin(self) -> None:
        self._begun = self.count()
        self._child.text()  # earlier output belongs to the time before
        self._child.output = b""

    def answers_s(self) -> list[float]:
        """Return the costs since ``begin``, ascending."""
        return sorted(
            found
            for number in range(self._begun, self.count())
            if (found := struct.unpack_from("<d", self._memory, _SAMPLES_AT + 8 * number)[0]) > 0
        )

    def refusals(self) -> str:
        return self._child.text()

    def close(self) -> None:
        self._child.close()
        self._memory.close()


def p99(ascending: list[float]) -> float:
    """Return the 99th percentile of ascending values.

    One value for each hundred, or part of a hundred, is left out: with few values the worst one is not a percentile.
    """
    return ascending[max(0, len(ascending) - 1 - math.ceil(len(ascending) / 100))]


class Neighbour:
    """The honest tenant: half a card, a little memory."""

    def __init__(self, world: HostileWorld) -> None:
        self.user = world.user()
        self._world = world
        stats = world.directory / "neighbour.stats"
        stats.write_bytes(bytes(32))
        os.chown(stats, self.user.uid, -1)
        with stats.open("rb") as file:
            self._stats = mmap.mmap(file.fileno(), 32, access=mmap.ACCESS_READ)
        program = world.programs_at / "neighbour"
        kernels = world.programs_at / "kernels.ptx"
        body: dict[str, Any] = {"memory_mib": 2048, "cores": int(SHARE_PERCENT), "policy": "fixed"}
        self.program = self.user.runs(program, stats, kernels, "1000", "64", "16", **body)
        assert self.program.line() == "ready"
        self.allocation = until(lambda: world.running_allocation(self.program), what="the neighbour to run")

    def counted(self) -> tuple[int, int, int]:
        """Return kernels done, allocations that succeeded, and allocations refused."""
        launches, taken, refused, _ = struct.unpack_from("<4Q", self._stats)
        return launches, taken, refused

    def mark(self) -> tuple[float, int]:
        """Return the monotonic time in seconds, and the nanoseconds for which the tenant has kept its card busy so far."""
        before = time.monotonic()
        card_state = self._world.card_state()
        now = (before + time.monotonic()) / 2
        busy = [d.busy_ns for p in card_state.processes if p.pid == self.program.pid for d in p.devices]
        return now, sum(busy)

    def card_busy_ns(self) -> int:
        """Return how long the device of the honest tenant has been busy, for any process, in nanoseconds."""
        index = self.allocation["slices"][0]["device_index"]
        return next(d.busy_ns for d in self._world.card_state().devices if d.index == index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of the honest tenant in one interval.

    Args:
        share_percent: time of the card that it had.
        p50_s, p99_s: percentiles of the cost of the pool's answers to the probe.
        answers: number of these answers.
    """

    share_percent: float
    p50_s: float
    p99_s: float
    answers: int

    def prompt(self) -> bool:
        return self.p50_s <= ANSWER_S and self.p99_s <= ANSWER_MAX_S

    def good(self, points: float) -> bool:
        return self.p99_s <= ANSWER_S and self.share_percent >= SHARE_PERCENT - points

    def __str__(self) -> str:
        times = f"p50 {self.p50_s * 1000:.0f} ms, p99 {self.p99_s * 1000:.0f} ms"
        return f"share {self.share_percent:.1f} %, {times} of {self.answers} answers"


class Window:
    """Interval of measurement, which begins when the object is created."""

    def __init__(self, neighbour: Neighbour, probe: Probe) -> None:
        self._neighbour, self._probe = neighbour, probe
        probe.begin()
        self._mark = neighbour.mark()

    def measured(self, seconds: float) -> Measured:
        """Wait until the window is at least so long; return the measurements."""
        begun, busy = self._mark
        time.sleep(max(0.0, begun + seconds - time.monotonic()))
        until(lambda: len(self._probe.answers_s()) >= SAMPLES_MIN, what="the probe to be answered")
        now, busy_now = self._neighbour.mark()
        answers = self._probe.answers_s()
        return Measured(
            share_percent=(busy_now - busy) / (now - begun) / 1e7,
            p50_s=answers[len(answers) // 2],
            p99_s=p99(answers),
            answers=len(answers),
        )


class HostileWorld(World):
    """Pool of root with the honest tenant on its first card.

    Args:
        options: further command-line options of the daemon.
        settings: content of ``pool.toml``.
    """

    def __init__(
        self,
        gpus: str = "2xA100-40GB",
        *,
        neighbour: bool = True,
        options: tuple[str, ...] = (),
        settings: str = "",
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="calabash-hostile-"))
        self.directory.chmod(0o755)
        self.programs_at = _compiled(self.directory)
        self.users: list[User] = []
        self.probe: Probe | None = None
        self.neighbour: Neighbour | None = None
        super().__init__(self.directory / "home", gpus, options=options)
        if settings:
            (self.home / "pool.toml").write_text(settings)
        try:
            self._come_up(neighbour)
        except BaseException as error:
            rescue(self, error)
            self.close()
            raise

    def up(self) -> dict[str, Any]:
        status = super().up()
        if self.probe is not None and self.daemon is not None:
            self.probe.watch(self.daemon.pid)
        return status

    def _come_up(self, neighbour: bool) -> None:
        self.up()
        if neighbour:
            self.neighbour = Neighbour(self)
            assert self.daemon is not None
            self.probe = Probe(self.neighbour.user.uid, self.home, self.daemon.pid)
            probe = self.probe
            until(lambda: probe.count() > SAMPLES_MIN, what="the probe to be answered")
        self.at_rest = self.belongings()

    # -- queries -----------------------------------------------------------------------------------------------

    def card_state(self) -> SimNode:
        return show_node(NodeFile(name=SIM, state=self.state_file))

    def running_allocation(self, child: Child) -> dict[str, Any] | None:
        """Return the allocation whose program this is, if it runs."""
        assert child.alive(), child.text()
        return next((a for a in self.allocations() if child.pid in a["pids"] and a["state"] == "running"), None)

    def slot_of(self, child: Child) -> Path:
        """Return the slot of a program, once it runs."""
        found: dict[str, Any] = until(lambda: self.running_allocation(child), what="the program to run")
        return self.slot_path(str(found["id"]))

    def held_by(self, user: User) -> list[dict[str, Any]]:
        return [a for a in self.allocations() if a["uid"] == user.uid]

    def belongings(self) -> Belongings:
        assert self.daemon is not None
        return Belongings.of_pool(self.daemon.pid, self.home)

    def node_of(self, index: int) -> Path:
        """Return the device node of a card."""
        return self.state_file.parent / "root/dev" / f"nvidia{index}"

    def environment_of_node(self) -> dict[str, str]:
        """Return the environment of a program that uses the cards without a slice."""
        return {
            "CALABASH_SIM": str(self.state_file),
            "LD_LIBRARY_PATH": str(NATIVE / "simgpu"),
            "PATH": "/usr/bin:/bin",
        }

    # -- users -------------------------------------------------------------------------------------------------

    def user(self) -> User:
        """Return a new user."""
        user = User(next(_uids), self.home)
        self.users.append(user)
        return user

    def program(self, name: str) -> Path:
        return self.programs_at / name

    @property
    def kernels(self) -> Path:
        return self.programs_at / "kernels.ptx"

    # -- the neighbour -----------------------------------------------------------------------------------------

    @contextmanager
    def unharmed(self, *, seconds: float = 1.0, points: float = POINTS) -> Iterator[None]:
        """Check that the honest tenant keeps its share, its memory and quick answers while the context lasts.

        During the attack, half of the pool's answers must come within ANSWER_S and 99 % within ANSWER_MAX_S. If the
        share is too small, it is measured again, because other work of the machine may be the cause. An attack that
        continues would affect all measurements.

        Args:
            seconds: shortest duration of the measurement.
            points: tolerance of the share in percentage points.
        """
        neighbour, probe = self.neighbour, self.probe
        assert neighbour is not None
        assert probe is not None
        refused = neighbour.counted()[2]
        window = Window(neighbour, probe)
        yield
        found = [window.measured(seconds)]
        assert found[0].prompt(), f"{found[0]}; {probe.refusals()[-300:]}"
        deadline = time.monotonic() + HANG_S
        while not found[-1].good(points) and time.monotonic() < deadline:
            found.append(Window(neighbour, probe).measured(seconds))
        assert neighbour.program.alive(), neighbour.program.text()
        now_refused = neighbour.counted()[2] - refused
        assert now_refused == 0, f"{now_refused} allocations of the neighbour were refused"
        assert found[-1].good(points), f"{', then '.join(str(m) for m in found)}; {probe.refusals()[-300:]}"

    # -- the end -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End all other users; check that the pool is alive and nothing of them is left."""
        honest = self.neighbour.user if self.neighbour else None
        for user in [u for u in self.users if u is not honest]:
            user.vanish()
            self.users.remove(user)
        mine = {self.neighbour.allocation["id"]} if self.neighbour else set()
        uid = honest.uid if honest else -1

        def alone() -> bool:
            return all(a["id"] in mine or a["uid"] == uid for a in self.allocations())

        until(alone, what="the attackers' allocations to be gone")
        found, deadline = self.belongings(), time.monotonic() + LEAVE_S
        fewest = found.descriptors
        while left := found.more_than(self.at_rest):
            assert time.monotonic() < deadline, self._told(f"left behind: {left}")
            time.sleep(0.01)
            found = self.belongings()
            if found.descriptors < fewest:  # what was asked for at once is still answered at the pace of its user
                fewest, deadline = found.descriptors, time.monotonic() + LEAVE_S
        for queue in self.client.get("/v1/queues")["items"]:
            if queue["name"] != "default":
                self.client.delete(f"/v1/queues/{queue['name']}")
        assert all(d["health"] == "healthy" for d in self.devices())
        if self.neighbour:
            assert self.neighbour.program.alive(), self.neighbour.program.text()

    def _told(self, what: str) -> str:
        """Return a message with the state of the pool and the probe."""
        held = [(a["id"], a["uid"], a["state"], a["reason"], a["pids"]) for a in self.allocations()]
        said = self.probe.refusals()[-2000:] if self.probe else ""
        open_now = Path(f"/proc/{self.daemon.pid}/fd").iterdir() if self.daemon else ()
        kinds = dict(Counter(_kind(path) for path in open_now))
        log = (self.home / "pool.log").read_text()[-3000:]
        return f"{what}\nheld: {held}\ndescriptors: {kinds}\nthe probe: {said}\nthe log: {log}"

    def close(self) -> None:
        if self.probe is not None:
            self.probe.close()
        for user in self.users:
            user.vanish()
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _kind(descriptor: Path) -> str:
    """Return the kind of a descriptor: its target without numbers."""
    try:
        return re.sub(r"[0-9]+", "N", os.readlink(descriptor))
    except OSError:
        return "closed just now"
