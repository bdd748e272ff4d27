"""Users of the pool: each is a thread that makes the requests of its kind again and again and records what it observes."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from bench.soak.calm import wait_out
from bench.soak.diary import Run
from bench.soak.launcher import Started
from bench.soak.world import OTHERS, TENANTS, World, until
from calabash.model.units import MIB

Talk = tuple[Run, Started]
PATIENCE_S = 150.0  # beyond what a run may take: the machine is busy, and pools are brought up again


class Actor:
    """One kind of load. ``turn`` is one round of requests; between two rounds lies ``pause_s`` and a random part of it more."""

    name = ""
    pause_s = 1.0
    in_calm = False  # goes on while shares are measured alone

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(f"{seed}/{self.name}")
        self.prepared = threading.Event()
        self.thread = threading.Thread(target=self._act, name=self.name, daemon=True)

    def turn(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the actor, once, before the first turn."""

    def finish(self) -> None:
        """Clean up, once, after the last turn."""

    def log(self, what: str) -> None:
        self.world.log.line(self.name, what)

    def _act(self) -> None:
        try:
            self.prepare()
            self.prepared.set()
            while not self.world.over.is_set():
                if not self.in_calm:
                    wait_out(self.world)
                self.turn()
                self.world.over.wait(self.pause_s * (0.5 + self.random.random()))
            self.finish()
        except Exception as error:  # the failure of an actor fails the soak
            self.world.diary.violation("the soak itself works", f"{self.name}: {error!r}")
            self.world.log.line(self.name, f"failed: {error!r}", aloud=True)
        finally:
            self.prepared.set()

    def updated(self, talk: Talk) -> Run:
        """Read the output of a run; return the run."""
        read(*talk)
        return talk[0]

    # -- runs ------------------------------------------------------------------------------------------------------

    def tenant(self) -> str:
        return self.random.choice(TENANTS)[0]

    def begin(
        self,
        words: Sequence[str],
        program: Sequence[str],
        *,
        tenant: str = "",
        remote: str = "",
        program_file: str = "program.py",
    ) -> Talk:
        """Start ``calabash run`` with these words; ``remote``: the home of a client of another machine."""
        world = self.world
        tenant = tenant or self.tenant()
        tag = f"{self.name}-{world.number()}"
        asked = list(words) if remote else ["--tenant", tenant, *words]
        run = Run(
            tag=tag, actor=self.name, tenant=tenant, words=tuple(asked), asked_at=time.time(), remote=bool(remote)
        )
        command = [world.machine.interpreter, str(world.directory / program_file), "--tag", tag, *program]
        more = {"CALABASH_HOME": remote} if remote else {}
        started = world.launch(
            ["run", *asked, "--", *command], user="" if remote else world.user_of(tenant), name=tag, **more
        )
        run.pid = started.pid
        world.diary.run(run)
        self.log(f"{tag} asks as {tenant}: {' '.join(words)} for {' '.join(program)}")
        return run, started

    def end(self, run: Run, started: Started, *, within_s: float) -> None:
        """Wait for the run's end and read its output."""
        if not started.ended.wait(within_s + PATIENCE_S):
            self.world.diary.violation(
                "runs end", f"{run.tag} had not ended {PATIENCE_S:g} s after its time: {read(run, started)}"
            )
            run.harmed.append("killed by the soak for not ending")
            with suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGKILL)
            started.ended.wait(10)
        run.ended_at = started.ended_at or time.time()
        read(run, started)
        run.code = started.code if started.code is not None else -9
        started.output.unlink(missing_ok=True)
        outcome = "ran" if run.began else "refused"
        self.world.diary.count(f"{self.name}: {outcome}")
        told = next((line for line in run.output.splitlines() if line.startswith("error: ")), "")
        self.log(f"{run.tag} {outcome}, code {run.code}{': ' + told if told else ''}")
        if run.code == 1 and not run.began:
            self.world.over.wait(1.0)  # the pool is not running

    def run(
        self, words: Sequence[str], program: Sequence[str], *, tenant: str = "", remote: str = "", within_s: float = 30
    ) -> Run:
        """Start a run and wait for its end."""
        run, started = self.begin(words, program, tenant=tenant, remote=remote)
        self.end(run, started, within_s=within_s)
        return run

    def seconds(self, most: float = 6.0) -> str:
        return f"{0.3 + self.random.random() ** 2 * most:.1f}"


def read(run: Run, started: Started) -> str:
    """Read the output of a run into its record in the diary."""
    with suppress(OSError):
        run.output = started.output.read_text(errors="replace")
    for line in run.output.splitlines():
        with suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                run.said |= {name: value for name, value in said.items() if isinstance(value, int | float)}
                run.began_at = run.said.get("begun", run.began_at)
    return run.output[-300:]


class Slices(Actor):
    """Slices with memory to the MiB and compute to the percent, filled up to the limit and asked for beyond it."""

    name = "slices"
    pause_s = 0.7

    def turn(self) -> None:
        choose = self.random.choice
        memory_mib = self.random.randrange(600, 9000)
        words = ["--memory", f"{memory_mib}MiB", "--cores", str(self.random.randrange(3, 40)), "--model", OTHERS]
        words += ["--policy", choose(("fixed", "burst", "best-effort"))]
        words += choose(((), ("--wait", "10s"), ("--on-fault", "SIGTERM"), ("--project", "night")))
        kernels = choose(("0", "1000", "5000"))
        run = self.run(words, ["--seconds", self.seconds(), "--kernel-us", kernels])
        if "total" in run.said and run.said["total"] != memory_mib << 20:
            self.world.diary.violation(
                "a program sees its slice", f"{run.tag}: {run.said['total']} bytes of {memory_mib} MiB"
            )
        if "held" in run.said and not (0.7 * memory_mib * MIB - 700 * MIB <= run.said["held"] <= memory_mib << 20):
            self.world.diary.violation(
                "a slice can be filled", f"{run.tag}: {run.said['held'] / MIB:.0f} of {memory_mib} MiB"
            )


class Crowd(Slices):
    """The same load as ``Slices``, so that cards are always shared."""

    name = "crowd"


class Partitions(Actor):
    """MIG instances that are created on demand and reused."""

    name = "mig"
    pause_s = 2.0

    def turn(self) -> None:
        words = self.random.choice(
            (
                ("--mig", "1g.5gb", "--model", "A100-SXM4-40GB"),
                ("--mig", "2g.10gb", "--model", "A100-SXM4-40GB"),
                ("--mig", "3g.40gb"),
                ("--mig", "1g.10gb"),
                ("--mode", "mig", "--memory", "9GiB", "--cores", "15"),
                ("--isolation", "hardware", "--memory", "4GiB"),
            )
        )
        waits = self.random.choice(((), ("--wait", "15s")))
        self.run(
            [*words, *waits, *(() if "--model" in words else ("--model", OTHERS))],
            ["--seconds", self.seconds(), "--kernel-us", "2000"],
        )


class Together(Actor):
    """Two or three tenants of mode MPS at the same time on one card."""

    name = "mps"
    pause_s = 3.0

    def turn(self) -> None:
        begun = [
            self.begin(
                ["--mode", "mps", "--cores", str(cores), "--memory", "3GiB", "--model", OTHERS, "--wait", "10s"],
                ["--seconds", self.seconds(4), "--kernel-us", "2000"],
            )
            for cores in self.random.choice(((50, 30), (40, 30, 30), (25,)))
        ]
        for run, started in begun:
            self.end(run, started, within_s=30)


class Turns(Actor):
    """Tenants of mode time-slicing, with a memory limit and without one."""

    name = "turns"
    pause_s = 2.0

    def turn(self) -> None:
        amount = self.random.choice(((), ("--memory", "2GiB")))
        self.run(
            ["--mode", "timeslice", *amount, "--model", OTHERS, "--wait", "10s"],
            ["--seconds", self.seconds(4), "--kernel-us", "3000", "--memory-mib", "900"],
        )


class Spilling(Actor):
    """A tenant that uses more memory than is promised on the card."""

    name = "spill"
    pause_s = 4.0

    def turn(self) -> None:
        self.run(
            ["--memory", "24GiB", "--spill", "8GiB", "--cores", "20", "--model", OTHERS, "--wait", "10s"],
            ["--seconds", self.seconds(4), "--kernel-us", "5000"],
        )


class Workers(Actor):
    """Brokered programs, which never touch the card."""

    name = "brokered"
    pause_s = 1.5

    def turn(self) -> None:
        memory_mib = self.random.randrange(700, 4000)
        words = [
            "--mode",
            "brokered",
            "--memory",
            f"{memory_mib}MiB",
            "--cores",
            str(self.random.randrange(5, 30)),
        ]
        run = self.run([*words, "--model", OTHERS], ["--seconds", self.seconds(), "--kernel-us", "3000"])
        if "total" in run.said and run.said["total"] != memory_mib << 20:
            self.world.diary.violation(
                "a program sees its slice", f"{run.tag}: {run.said['total']} bytes of {memory_mib} MiB"
            )


class Gangs(Actor):
    """Gangs that start together or not at all; requests for whole cards that others must leave first; priorities."""

    name = "gangs"
    pause_s = 4.0

    def turn(self) -> None:
        tenant, size = self.tenant(), self.random.choice((2, 3))
        if self.random.random() < 0.4:
            words = ["--gpus", "2", "--mode", "exclusive", "--wait", "15s", "--priority", "10", "--model", OTHERS]
            self.run(
                words,
                ["--seconds", self.seconds(2), "--kernel-us", "5000", "--devices", "2", "--memory-mib", "500"],
                tenant="vision",
            )
            return
        gang = f"g{self.world.number()}"
        missing = self.random.random() < 0.15  # a gang that never has all of its members starts none
        words = [
            "--gang",
            gang,
            "--gang-size",
            str(size),
            "--memory",
            "2GiB",
            "--cores",
            "10",
            "--wait",
            "8s" if missing else "20s",
        ]
        program = ["--seconds", self.seconds(3), "--kernel-us", "5000"]
        begun = [self.begin([*words, "--model", OTHERS], program, tenant=tenant) for _ in range(size - missing)]
        for run, started in begun:
            self.end(run, started, within_s=30)
        if missing and any(run.began for run, _ in begun):
            self.world.diary.violation("gangs start together", f"{gang} of {size} started with {len(begun)} members")


class Borrowers(Actor):
    """A tenant that takes all that it may have beyond its guarantee, while others reclaim theirs."""

    name = "borrowers"
    pause_s = 8.0

    def turn(self) -> None:
        words = ["--mode", "exclusive", "--model", OTHERS, "--priority", "-5"]
        long = ["--seconds", "12", "--kernel-us", "20000", "--memory-mib", "100"]
        begun = [self.begin(words, long, tenant="vision") for _ in range(3)]
        self.world.over.wait(1.0 + self.random.random())
        begun += [
            self.begin(
                ["--mode", "exclusive", "--model", OTHERS, "--wait", "20s"],
                ["--seconds", "1", "--memory-mib", "100"],
                tenant="speech",
            )
        ]
        for run, started in begun:
            self.end(run, started, within_s=40)


class Reservations(Actor):
    """Slices that are kept without a program of this machine, and released or left to expire."""

    name = "reserve"
    pause_s = 6.0

    def turn(self) -> None:
        from calabash.model.errors import CalabashError  # noqa: PLC0415

        body = {
            "isolation": "brokered",
            "standing": True,
            "keep_s": 4.0,
            "memory_mib": 1500,
            "cores": 10,
            "tenant": "robotics",
            "models": [OTHERS],
        }
        tag = f"reserve-{self.world.number()}"
        try:
            granted = self.world.client.post("/v1/allocations", body | {"command": [tag]})
        except CalabashError as error:
            self.log(f"{tag} refused: {error.message}")
            self.world.diary.count("reserve: refused")
            return
        self.log(f"{tag} is {granted['id']}")
        self.world.diary.count("reserve: kept")
        self.world.over.wait(2.0)
        if self.random.random() < 0.5:
            with suppress(CalabashError):
                self.world.client.delete(f"/v1/allocations/{granted['id']}?force=1")
        if not self._gone(granted["id"]):
            self.world.diary.violation("what nobody keeps ends", f"{tag} {granted['id']} is still held after a minute")

    def _gone(self, name: str) -> bool:
        def gone() -> bool:
            listed = self.world.ask("/v1/allocations")
            return listed is not None and all(a["id"] != name for a in listed["items"])

        return bool(until(gone, within_s=90, every_s=0.5))


KINDS: tuple[type[Actor], ...] = (
    Slices, Crowd, Partitions, Together, Turns, Spilling, Workers, Gangs, Borrowers, Reservations,
)  # fmt: skip
