"""One soak: its pool, its actors and faults, and the verdict."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from bench._report import Report, machine_facts, save
from bench.soak import actors, faults, networks, remote
from bench.soak.calm import Calm
from bench.soak.diary import STARVED, Diary, Violation
from bench.soak.ending import Ending
from bench.soak.faults import Faults
from bench.soak.judging import Judges
from bench.soak.log import Log
from bench.soak.machine import examine
from bench.soak.networks import Networks
from bench.soak.operators import operators
from bench.soak.remote import Remote
from bench.soak.shares import Shares
from bench.soak.stalls import Stalls
from bench.soak.world import World, until
from calabash.node.modes.mps.services import service_directory

FAULTS_LEAST, CHECKS_LEAST, LONGER_S = 8, 6, 120.0  # of the short form

TITLE = "Everything together under load, with faults"


class Soak:
    """A soak of ``seconds`` of load and faults, followed by the checks of the end."""

    def __init__(
        self, *, seed: int, seconds: float, log: Path, short: bool = False, networks: bool = True, quiet: bool = False
    ) -> None:
        self.seed, self.seconds, self.short = seed, seconds, short
        self.machine = examine(networks=networks)
        self.log = Log(log, quiet=quiet)
        self.diary = Diary(
            lambda one: self.log.line("judges", f"VIOLATION {one.promise}: {one.what}", aloud=True),
            lambda one: self.log.line("fault", f"{one.kind}{': ' if one.what else ''}{one.what}", aloud=True),
        )
        self.checks = 0
        self.stalls: list[str] = []

    def run(self) -> list[Violation]:
        """Run the soak and return all violations."""
        say = self.log.line
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        say("soak", f"{begun}: seed {self.seed}, {self.seconds / 60:g} minutes, log {self.log.path}", aloud=True)
        for aside in self.machine.aside:
            say("soak", f"left out: {aside}", aloud=True)
        world = World(self.machine, self.log, self.diary)
        try:
            world.make()
            self._load(world)
        except (SystemExit, KeyboardInterrupt):
            say("soak", "ended by a signal: nothing is counted", aloud=True)
            world.over.set()
            if not world.pid():  # a fault: the next pool ends what is left of this one
                world.up()
            raise
        finally:
            world.over.set()
            if self.machine.networks:  # left over from a soak that was broken off
                world.command("net", "down", "--prefix", networks.prefix_of(world))
            world.remove()
        self._verdict()
        self.log.close()
        return self.diary.violations()

    def _load(self, world: World) -> None:
        judges, stalls = Judges(world), Stalls(world)
        stalls.start()
        kinds: tuple[type[actors.Actor], ...] = (*actors.KINDS, Shares, Remote, *operators())
        more: tuple[faults.Kind, ...] = remote.FAULTS
        if self.machine.networks:
            kinds, more = (*kinds, Networks), (*more, *networks.FAULTS)
        doing = [kind(world, self.seed) for kind in kinds]
        every_s = 1.0 if self.short else 6.0
        breaking = [
            Faults(world, self.seed, "processes", (*faults.PROCESSES, *more), every_s=every_s),
            Faults(world, self.seed, "cards", faults.CARDS, every_s=every_s),
        ]
        for one in doing:
            one.thread.start()
        for one in doing:
            one.prepared.wait()
        self.log.line("soak", f"{len(doing)} actors are there: faults begin", aloud=True)
        later = [judges.thread, Calm(world).thread, *(one.thread for one in breaking)]
        for thread in later:
            thread.start()
        world.over.wait(self.seconds)
        if self.short:  # on a machine with other work less happens in the same time
            until(lambda: self.faults().total() >= FAULTS_LEAST and judges.checks >= CHECKS_LEAST, within_s=LONGER_S)
        world.over.set()
        self.log.line("soak", "nobody asks any more; what runs ends", aloud=True)
        for thread in (*(one.thread for one in doing), *later):
            thread.join()
        stalls.stop()
        self.checks, self.stalls = judges.checks, stalls.shown
        self.log.line(
            "soak", f"the count begins: {judges.checks} checks, {judges.unanswered} without an answer", aloud=True
        )
        try:
            Ending(world, judges).judge()
        except Exception as error:
            self.diary.violation("the soak itself works", f"the count: {error!r}")
        if self.diary.violations():
            self._keep(world)

    def _keep(self, world: World) -> None:
        """Copy the logs of the pool and of its MPS services, for an analysis of the cause."""
        logs = service_directory(world.home, make=False).glob("*/log/*.log")
        named = {f"mps-{path.parent.parent.name}-{path.name}": path for path in logs}
        for name, path in (named | {name: world.home / name for name in ("pool.log", "pool.db")}).items():
            self.log.path.with_suffix(f".{name}").write_bytes(path.read_bytes())

    def _verdict(self) -> None:
        for name, count in sorted(self.diary.counts().items()):
            self.log.line("soak", f"{count:6d}  {name}", aloud=True)
        for kind, count in sorted(self.faults().items()):
            self.log.line("soak", f"{count:6d}  fault: {kind}", aloud=True)
        starved = self.diary.faults(STARVED)
        if starved:
            seconds = sum(fault.until - fault.at for fault in starved)
            self.log.line("soak", f"the pool got no processor {len(starved)} times, {seconds:.0f} s in all", aloud=True)
        found = self.diary.violations()
        for stall in self.stalls[:3] if found else ():
            self.log.line("soak", stall, aloud=True)
        for one in found:
            self.log.line("soak", f"VIOLATION {one.promise}: {one.what}", aloud=True)
        self.log.line(
            "soak",
            f"{len(self.diary.runs())} runs, {self.faults().total()} faults, {self.checks} checks: {len(found)} violations",
            aloud=True,
        )

    def faults(self) -> Counter[str]:
        """Return the number of injected faults by kind."""
        return Counter(fault.kind for fault in self.diary.faults() if fault.kind != STARVED)

    def save(self, directory: Path) -> None:
        """Write the report as benchmarks do."""
        report = Report(name="soak", title=TITLE, quick=self.short)
        machine_facts(report)
        report.fact("seed", str(self.seed))
        for number, aside in enumerate(self.machine.aside):
            report.fact(f"left out {number + 1}", aside)
        report.add("minutes", round(self.seconds / 60, 1), "min")
        report.add("runs", len(self.diary.runs()), "runs")
        for name, count in sorted(self.diary.counts().items()):
            report.add(name, count, "times")
        for kind, count in sorted(self.faults().items()):
            report.add(f"fault: {kind}", count, "times")
        report.add("checks of the judges", self.checks, "checks")
        report.add("violations", len(self.diary.violations()), "", at_most=0)
        save(report, directory)
        minutes = f"{self.seconds / 60:g}"
        command = f"make soak MINUTES={minutes} SEED={self.seed}"
        if self.short:
            command = f"python -m bench.soak --short --minutes {minutes} --seed {self.seed}"
        page = directory / "soak.md"
        lines = page.read_text().splitlines(keepends=True)
        lines[2] = f"`{command}`\n"  # the line with a benchmark's own command
        page.write_text("".join(lines))
