"""Shares of two tenants that keep one card busy: within two points of what was promised, by the card's accounts.

A window counts if both were busy in it: no fault, no idle time of the card, and no late sample. On a machine with other work
programs launch too late to keep a card busy; such windows do not count, and their number is reported. Most of the windows that
count lie in the periods of ``calm``.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from bench.soak.actors import Actor, read
from bench.soak.diary import Fault, Run
from bench.soak.world import PRESSED, until

POINTS = 2.0
WINDOW_S = 2.0
LATE_S = 0.15
PRESSED_PERCENT = 98.0
AFTER_S = 4.0  # the effect of a fault on time windows is over by then
PAIRS = ((50, 50), (70, 30), (40, 60))
DISTURBING = (
    "pool killed", "pool restarted", "pool stopped", "arbiter killed", "arbiter stopped", "tenant stopped", "tenant killed",
    "slice taken back", "disk full",
)  # fmt: skip


@dataclass(slots=True)
class Measured:
    """Windows of one pair: points above the requested share, of each tenant, and the number of windows that did not count."""

    errors: list[tuple[float, ...]] = field(default_factory=list)
    disturbed: int = 0

    def wrong(self) -> float | None:
        """Return the median window's largest error in points if beyond the promise; None with under three windows."""
        if len(self.errors) < 3:
            return None
        middle = max(abs(statistics.median(one)) for one in zip(*self.errors, strict=True))
        return middle if middle > POINTS else None


def disturbed(faults: list[Fault], device: int, since: float, until_: float) -> bool:
    """Return True if a fault that affects time windows, or that card, was near that window."""
    return any(f.meets(since, until_, after_s=AFTER_S) for f in faults if f.kind in DISTURBING or f.device == device)


class Shares(Actor):
    """Pairs with 50/50, 70/30 and 40/60 of a card that no other actor uses."""

    name = "shares"
    pause_s = 1.0
    in_calm = True

    def prepare(self) -> None:
        self.device = next(d.index for d in self.world.node().devices if d.model == PRESSED)

    def turn(self) -> None:
        pair = self.random.choice(PAIRS)
        program = ["--seconds", "16", "--kernel-us", "5000", "--memory-mib", "200", "--ahead", "40"]
        begun = [
            self.begin(
                ["--memory", "2GiB", "--cores", str(cores), "--model", PRESSED, "--wait", "30s", "--mode", "vgpu"],
                program,
                tenant=tenant,
            )
            for cores, tenant in zip(pair, ("speech", "robotics"), strict=True)
        ]

        def both() -> bool:
            for run, started in begun:
                read(run, started)
            return all("ready" in run.said and not started.ended.is_set() for run, started in begun)

        until(lambda: both() or any(s.ended.is_set() for _, s in begun), within_s=60, every_s=0.2)
        measured = Measured()
        while both() and not self.world.over.is_set():
            self._window(measured, [run for run, _ in begun], pair)
        for run, started in begun:
            self.end(run, started, within_s=60)
        self._judge(measured, pair)

    def _busy(self, runs: list[Run]) -> tuple[float, tuple[int, ...]]:
        before = time.monotonic()
        busy_ns = {p.pid: sum(d.busy_ns for d in p.devices) for p in self.world.node().processes}
        return (before + time.monotonic()) / 2, tuple(busy_ns.get(run.pid, -1) for run in runs)

    def _window(self, measured: Measured, runs: list[Run], pair: tuple[int, int]) -> None:
        since, late_s = time.time(), 0.0
        begun_at, before = self._busy(runs)
        while (left_s := begun_at + WINDOW_S - time.monotonic()) > 0:
            began = time.monotonic()
            time.sleep(min(0.05, left_s))
            late_s = max(late_s, time.monotonic() - began - 0.05)
        ended_at, after = self._busy(runs)
        if min(before + after) < 0:
            return  # one of them has just ended
        got = [(b - a) / (ended_at - begun_at) / 1e7 for a, b in zip(before, after, strict=True)]
        if (
            late_s > LATE_S
            or sum(got) < PRESSED_PERCENT
            or disturbed(self.world.diary.faults(), self.device, since, time.time())
        ):
            measured.disturbed += 1
            return
        measured.errors.append(tuple(share - asked for share, asked in zip(got, pair, strict=True)))

    def _judge(self, measured: Measured, pair: tuple[int, int]) -> None:
        diary = self.world.diary
        diary.count("shares: windows that count", len(measured.errors))
        diary.count("shares: windows that were disturbed", measured.disturbed)
        told = "/".join(map(str, pair))
        errors = ", ".join("/".join(f"{points:+.1f}" for points in one) for one in measured.errors)
        self.log(f"{told}: {len(measured.errors)} windows ({errors} points), {measured.disturbed} disturbed")
        if (wrong := measured.wrong()) is not None:
            diary.violation("shares are kept", f"{told}: {wrong:.1f} points off in the middle window of {errors}")
