"""Judges that run all along: once a second they compare the pool's answers with its promises and with the cards' accounts."""

from __future__ import annotations

import threading
import time
from typing import Any

from bench.soak import promises
from bench.soak.world import World

EVERY_S = 1.0


class Judges:
    """Thread that checks the pool until the soak is over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checks = 0
        self.unanswered = 0
        self.thread = threading.Thread(target=self._go, name="judges", daemon=True)

    def found(self, promise: str, texts: list[str]) -> None:
        for text in texts:
            self.world.diary.violation(promise, text)

    def _go(self) -> None:
        minute = time.monotonic() + 60
        while not self.world.over.wait(EVERY_S):
            try:
                self.check()
            except Exception as error:
                self.found("the soak itself works", [f"judges: {error!r}"])
            if time.monotonic() >= minute:
                minute += 60
                self.summary()

    def check(self) -> None:
        """Check the pool once."""
        world = self.world
        devices, mig, quotas = (world.ask(f"/v1/{what}") for what in ("devices", "mig", "quota"))
        before = world.ask("/v1/allocations")
        processes = {
            p.pid: {d.index: d.alloc_bytes + d.context_bytes for d in p.devices}
            for p in world.node().processes
            if p.pid
        }
        after = world.ask("/v1/allocations")
        if devices is None or mig is None or quotas is None or before is None or after is None:
            self.unanswered += 1
            return
        self.checks += 1
        profiles = {(card["uuid"], one["name"]): one["slices"] for card in mig["items"] for one in card["profiles"]}
        for listed in (before, after):
            self.found("nothing is promised twice", promises.promised(listed["items"], devices["items"], profiles))
        self.found("quotas are kept", promises.above_quota(quotas["items"]))
        held = {a["id"] for a in before["items"]}
        steady = [a for a in after["items"] if a["id"] in held]
        self.found("slices are kept", promises.above_slice(steady, devices["items"], processes))

    def summary(self) -> None:
        listed: Any = self.world.ask("/v1/allocations") or {"items": []}
        states = [a["state"] for a in listed["items"]]
        runs = self.world.diary.runs()
        ended = [run for run in runs if run.code is not None]
        self.world.log.minute(
            f"{len(runs)} runs asked, {sum(r.began for r in ended)} ran, {sum(not r.began for r in ended)} refused; now "
            f"{states.count('running')} run and {states.count('pending')} wait; {len(self.world.diary.faults())} faults, "
            f"{len(self.world.diary.violations())} violations; load {_load()}"
        )


def _load() -> str:
    with open("/proc/loadavg", encoding="ascii") as file:
        return file.read().split()[0]
