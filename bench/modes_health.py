"""Failing cards under load: time until a fault of each class is known, effect on other cards, time until a card is back.

A pool on eight simulated cards, each kept busy by a program. A fault is injected on one card after the other; the clock runs
until the pool shows the state that follows. Meanwhile the card time of all other programs is read from the cards' own
accounts. Then the card's program is ended, and the clock runs until the card is healthy again.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.api_client import PathClient

from bench._report import ROOT, Report, run
from calabash.adapters.gpu import sim
from calabash.adapters.gpu.sim import NodeFile, show_node

CARDS = 8
VERDICT_MS = 2000.0
KEPT = 0.95
WITHIN_S = 60.0
NODE = "lab"
POLICY = "[flapping]\nmost = 100\nhold_s = 0.1\nhold_max_s = 0.1\n"  # the same cards fail again and again here


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to inject, the command that ends it if a reset does not, and whether the card recovers by itself."""

    name: str
    words: tuple[str, ...]
    states: tuple[str, ...]
    ended_by: tuple[str, ...] = ()
    back: bool = True


FAULTS = (
    Fault(name="XID, application", words=("xid", "31"), states=("healthy",)),
    Fault(name="XID, reset", words=("xid", "119"), states=("draining",)),
    Fault(name="XID, replace", words=("xid", "54"), states=("lost",), back=False),
    Fault(name="memory error", words=("ecc-double",), states=("draining",)),
    Fault(name="page retirement", words=("page-retirement",), states=("draining",)),
    Fault(name="lost", words=("lost",), states=("lost",), ended_by=("recover",)),
    Fault(name="hang", words=("hang", "3"), states=("suspect", "lost")),
    Fault(name="heat", words=("throttle", "thermal"), states=("suspect",), ended_by=("throttle", "none")),
)


@dataclass(slots=True)
class Loaded:
    """A pool whose cards are all busy; ``programs`` by the number of their card."""

    home: Path
    client: PathClient
    programs: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def devices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get("/v1/devices")["items"]
        return found

    def happenings(self, card: int) -> list[str]:
        return [h["cause"] for h in self.client.get(f"/v1/devices/{card}")["history"]]

    def inject(self, card: int, *words: str) -> None:
        sim.inject(NodeFile(name=NODE, state=self.home / "sim" / NODE / sim.STATE_FILE), str(card), *words)

    def busy_ns(self) -> dict[int, int]:
        node = show_node(NodeFile(name=NODE, state=self.home / "sim" / NODE / sim.STATE_FILE))
        return {d.index: d.busy_ns for d in node.devices}

    def load(self) -> None:
        """Start a program on every card that has none."""
        command = [sys.executable, str(ROOT / "examples" / "tenant.py"), "--seconds", "3600", "--kernel-us", "20000"]
        while len(self.programs) < CARDS:
            before = {d["index"] for d in self.devices() if d["allocations"]}
            amounts = ["--memory", "4GiB", "--cores", "100", "--wait", "60s"]  # no two of them on a card
            words = [sys.executable, "-m", "calabash.cli.main", "run", *amounts, "--"]
            program = subprocess.Popen(
                [*words, *command],
                env=_environment(self.home),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            found = waited(lambda before=before: self._new(before))  # type: ignore[misc]
            self.programs[found] = program
        begun = self.busy_ns()
        waited(lambda: all(n > begun[card] for card, n in self.busy_ns().items()))

    def _new(self, before: set[int]) -> int | None:
        now = {d["index"] for d in self.devices() if d["allocations"]} - before
        return now.pop() if now else None

    def end(self, card: int) -> None:
        """End the program of a card."""
        program = self.programs.pop(card)
        program.kill()
        program.wait()

    def close(self) -> None:
        for card in list(self.programs):
            self.end(card)


def waited(condition: Callable[[], Any]) -> Any:
    """Return the first result of the condition that is not empty, within a bound."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        found = condition()
        if found or (found == 0 and found is not False):
            return found
        time.sleep(0.01)
    raise TimeoutError(f"nothing within {WITHIN_S:g} s")


def _environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
    return kept | {"CALABASH_HOME": str(home)}


@contextmanager
def _loaded() -> Iterator[Loaded]:
    home = Path(tempfile.mkdtemp(prefix="calabash-health-"))
    sim.create_node(home, NODE, f"{CARDS}xT4", 1)
    (home / "health.toml").write_text(POLICY)
    words = [sys.executable, "-m", "calabash.pool.daemon", "--home", str(home), "--sim", NODE]
    with (home / "pool.log").open("wb") as log:
        pool = subprocess.Popen(words, env=_environment(home), stdout=log, stderr=log)
    loaded = Loaded(home, PathClient(home))
    try:
        waited(lambda: (home / "pool.sock").exists() and bool(loaded.devices()))
        yield loaded
    finally:
        loaded.close()
        pool.terminate()
        pool.wait(timeout=WITHIN_S)
        shutil.rmtree(home, ignore_errors=True)


def _verdict(loaded: Loaded, card: int, fault: Fault) -> float:
    """Return the milliseconds until the pool shows the state that follows from a fault."""
    told = len(loaded.happenings(card))
    begun = time.monotonic()
    loaded.inject(card, *fault.words)
    if fault.states == ("healthy",):  # only an event tells of it
        waited(lambda: len(loaded.happenings(card)) > told)
    else:
        waited(lambda: loaded.devices()[card]["health"] in fault.states)
    return (time.monotonic() - begun) * 1000


def _back(loaded: Loaded, card: int, fault: Fault) -> float:
    """Return the milliseconds until an emptied card is healthy again."""
    loaded.end(card)
    waited(lambda: not loaded.devices()[card]["allocations"])
    if fault.ended_by:
        loaded.inject(card, *fault.ended_by)
    begun = time.monotonic()
    if not fault.back:
        loaded.client.post(f"/v1/devices/{card}/undrain")
    waited(lambda: loaded.devices()[card]["health"] == "healthy")
    return (time.monotonic() - begun) * 1000


def _rates(loaded: Loaded, seconds: float) -> dict[int, float]:
    """Return the busy fraction of each card over some seconds."""
    before, begun = loaded.busy_ns(), time.monotonic()
    time.sleep(seconds)
    after, took = loaded.busy_ns(), time.monotonic() - begun
    return {card: (after[card] - before[card]) / took / 1e9 for card in after}


def measure_faults(report: Report) -> None:
    """Measure every class of fault, on every card in turn."""
    rounds = 1 if report.quick else 4
    with _loaded() as loaded:
        loaded.load()
        usual = _rates(loaded, 1.0)
        kept: list[float] = []
        for number, fault in enumerate(FAULTS):
            verdicts, backs = [], []
            for turn in range(rounds):
                card = (number + turn) % CARDS
                before, begun = loaded.busy_ns(), time.monotonic()
                verdicts.append(_verdict(loaded, card, fault))
                after, took = loaded.busy_ns(), time.monotonic() - begun
                if took > 0.5:  # less than that says nothing of a rate
                    kept += [(after[c] - before[c]) / took / 1e9 / usual[c] for c in after if c != card]
                elif fault.states == ("healthy",):
                    kept.append(_rates(loaded, 1.0)[card] / usual[card])
                if fault.states != ("healthy",):
                    backs.append(_back(loaded, card, fault))
                    loaded.load()
            detail = f"worst of {rounds}, median {statistics.median(verdicts):.0f} ms; set by the pool's poll interval"
            report.add(f"health: verdict, {fault.name}", max(verdicts), "ms", at_most=VERDICT_MS, detail=detail)
            if backs:
                how = "after it was emptied" if fault.back else "after an operator's word"
                report.add(f"health: back, {fault.name}", statistics.median(backs), "ms", detail=f"median, {how}")
        report.add(
            "health: least share of its usual card time that anybody else got",
            min(kept),
            "ratio",
            at_least=KEPT,
            detail=f"{len(kept)} looks, median {statistics.median(kept):.3f}",
        )


def measure(report: Report) -> None:
    """Measure this section alone."""
    measure_faults(report)


if __name__ == "__main__":
    run("modes_health", "Cards that fail", measure)
