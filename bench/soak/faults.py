"""Faults that are injected: one at a time, drawn by the seed; each ends by itself or by an operator's command."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.soak.calm import wait_out
from bench.soak.world import World, until
from calabash.model.errors import CalabashError

WORKER_UIDS = range(64_000, 65_534)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault: its relative frequency and its function."""

    name: str
    weight: float
    hit: Callable[[World, random.Random], None]
    root: bool = False


def processes(*words: bytes) -> list[int]:
    """Return the processes of this machine whose command line has all of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if all(word in line for word in words):
                    found.append(int(entry.name))
    return found


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


def send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# -- processes of the product ----------------------------------------------------------------------------------------


def kill_pool(world: World, chance: random.Random) -> None:
    down_s = chance.choice((0.0, 0.3, 2.0))
    with world.starting, world.diary.fault("pool killed", f"away for {down_s:g} s"):
        world.end_pool(signal.SIGKILL)
        time.sleep(down_s)
        world.up()


def restart_pool(world: World, chance: random.Random) -> None:
    del chance
    with world.starting, world.diary.fault("pool restarted", "SIGTERM under load"):
        world.end_pool(signal.SIGTERM)
        world.up()


def stop_pool(world: World, chance: random.Random) -> None:
    seconds = chance.uniform(0.2, 2.5)
    with world.diary.fault("pool stopped", f"for {seconds:.1f} s"):
        _stop(world.pid(), seconds)


def kill_arbiter(world: World, chance: random.Random) -> None:
    del chance
    status = world.status()
    if status and status["arbiter_pid"]:
        with world.diary.fault("arbiter killed", f"process {status['arbiter_pid']}"):
            send(status["arbiter_pid"], signal.SIGKILL)
            time.sleep(0.5)


def stop_arbiter(world: World, chance: random.Random) -> None:
    status = world.status()
    if status and status["arbiter_pid"]:
        seconds = chance.uniform(0.2, 2.0)
        with world.diary.fault("arbiter stopped", f"for {seconds:.1f} s"):
            _stop(status["arbiter_pid"], seconds)


def children_with(pid: int, *words: bytes) -> list[int]:
    """Return the children of a process whose command line has all of these words."""
    found = processes(*words)
    return [child for child in children(pid) if child in found]


def kill_gateway(world: World, chance: random.Random) -> None:
    del chance
    for pid in children_with(world.pid(), b"calabash.gateway"):
        with world.diary.fault("gateway killed", f"process {pid}"):
            send(pid, signal.SIGKILL)


def kill_mps(world: World, chance: random.Random) -> None:
    found = [pid for pid in processes(b"nvidia-cuda-mps") if str(world.home).encode() in environment_of(pid)]
    if found:
        pid = chance.choice(found)
        with world.diary.fault("mps killed", f"process {pid}"):
            send(pid, signal.SIGKILL)
            time.sleep(1.0)


def kill_worker(world: World, chance: random.Random) -> None:
    """Kill a worker that serves a program, or the host of workers."""
    listed = world.ask("/v1/allocations")
    tags = {run.tag for run in world.diary.live()}
    served = [a for a in (listed or {"items": []})["items"] if a["mode"] == "brokered" and tags & set(a["command"])]
    if not served:
        return
    allocation = chance.choice(served)
    tag = next(iter(tags & set(allocation["command"])))
    workers = [pid for pid in allocation["pids"] if _uid(pid) in WORKER_UIDS or not world.machine.root]
    own = {run.pid for run in world.diary.live()}
    workers = [pid for pid in workers if pid not in own]
    if workers:
        world.diary.harm(tag, "its worker was killed")
        with world.diary.fault("worker killed", f"of {tag}"):
            send(chance.choice(workers), signal.SIGKILL)


# -- tenants ---------------------------------------------------------------------------------------------------------


def kill_tenant(world: World, chance: random.Random) -> None:
    live = world.diary.live()
    if live:
        run = chance.choice(live)
        world.diary.harm(run.tag, "killed")
        with world.diary.fault("tenant killed", run.tag):
            send(run.pid, signal.SIGKILL)


def stop_tenant(world: World, chance: random.Random) -> None:
    live = world.diary.live()
    if live:
        run, seconds = chance.choice(live), chance.uniform(0.2, 3.0)
        with world.diary.fault("tenant stopped", f"{run.tag} for {seconds:.1f} s"):
            _stop(run.pid, seconds)


def release(world: World, chance: random.Random) -> None:
    """Release a slice as an administrator."""
    listed = world.ask("/v1/allocations")
    tags = {run.tag for run in world.diary.live()}
    held = [a for a in (listed or {"items": []})["items"] if tags & set(a["command"])]
    if held:
        allocation = chance.choice(held)
        tag = next(iter(tags & set(allocation["command"])))
        world.diary.harm(tag, "taken back")
        with world.diary.fault("slice taken back", tag):
            world.command("release", "--force", allocation["id"])


# -- cards -----------------------------------------------------------------------------------------------------------


def _card(*what: str, lasts_s: float = 0.0, heal: tuple[str, ...] = ()) -> Callable[[World, random.Random], None]:
    def hit(world: World, chance: random.Random) -> None:
        devices = world.node().devices
        index = chance.randrange(len(devices))
        with world.diary.fault(f"card: {' '.join(what)}", f"device {index}", device=index):
            world.inject(str(index), *what)
            if heal:
                time.sleep(lasts_s * (0.3 + chance.random()))
                world.inject(str(index), *heal)
            _wait_until_healthy(world, index)

    return hit


def _wait_until_healthy(world: World, index: int) -> None:
    """Wait until a card is healthy; put it back to work as an operator if it does not recover by itself.

    A card that does not recover at all is a violation.
    """
    began = time.monotonic()

    def healthy() -> bool:
        listed = world.ask("/v1/devices")
        device = next((d for d in (listed or {"items": []})["items"] if d["index"] == index), None)
        if device is None or device["health"] == "healthy":
            return device is not None
        if time.monotonic() - began > 20:
            with suppress(CalabashError):
                world.client.post(f"/v1/devices/{index}/undrain", {}, timeout_s=30)
        return False

    time.sleep(2.0)  # a fault is known within two seconds
    if not until(healthy, within_s=180, every_s=1.0):
        listed = world.ask("/v1/devices") or {"items": []}
        said = [(d["health"], d["cause"]) for d in listed["items"] if d["index"] == index]
        world.diary.violation("cards come back", f"device {index}: {said}")


def drain_card(world: World, chance: random.Random) -> None:
    index = chance.randrange(len(world.node().devices))
    evict = chance.choice(((), ("--evict", "--grace", "1s")))
    with world.diary.fault("card: drained", f"device {index} {' '.join(evict)}", device=index):
        world.command("device", "drain", str(index), "--reason", "a soak", *evict)
        time.sleep(chance.uniform(0.5, 2.0))
        world.command("device", "undrain", str(index))
        _wait_until_healthy(world, index)


# -- the machine -----------------------------------------------------------------------------------------------------


def fill_disk(world: World, chance: random.Random) -> None:
    seconds = chance.uniform(0.5, 4.0)
    filler = world.home / "filler"
    with world.diary.fault("disk full", f"for {seconds:.1f} s"):
        try:
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(1 << 20))
                except OSError:
                    with suppress(OSError):
                        while True:
                            file.write(bytes(4096))
            time.sleep(seconds)
        finally:
            filler.unlink(missing_ok=True)
        time.sleep(0.5)


PROCESSES: tuple[Kind, ...] = (
    Kind(name="pool killed", weight=6, hit=kill_pool),
    Kind(name="pool restarted", weight=3, hit=restart_pool),
    Kind(name="pool stopped", weight=3, hit=stop_pool),
    Kind(name="arbiter killed", weight=3, hit=kill_arbiter),
    Kind(name="arbiter stopped", weight=2, hit=stop_arbiter),
    Kind(name="gateway killed", weight=2, hit=kill_gateway),
    Kind(name="mps killed", weight=2, hit=kill_mps),
    Kind(name="worker killed", weight=3, hit=kill_worker),
    Kind(name="tenant killed", weight=8, hit=kill_tenant),
    Kind(name="tenant stopped", weight=4, hit=stop_tenant),
    Kind(name="slice taken back", weight=3, hit=release),
    Kind(name="disk full", weight=1, hit=fill_disk, root=True),
)
CARDS: tuple[Kind, ...] = (
    Kind(name="xid 13", weight=1, hit=_card("xid", "13")),
    Kind(name="xid 48", weight=2, hit=_card("xid", "48")),
    Kind(name="xid 79", weight=1, hit=_card("xid", "79", lasts_s=2.0, heal=("recover",))),
    Kind(name="ecc-single", weight=1, hit=_card("ecc-single")),
    Kind(name="ecc-double", weight=1, hit=_card("ecc-double")),
    Kind(name="lost", weight=2, hit=_card("lost", lasts_s=3.0, heal=("recover",))),
    Kind(name="slow", weight=2, hit=_card("slow", "500%", lasts_s=4.0, heal=("recover",))),
    Kind(name="alloc-fail", weight=1, hit=_card("alloc-fail", "3", lasts_s=1.0, heal=("recover",))),
    Kind(name="heat", weight=1, hit=_card("throttle", "thermal", lasts_s=2.0, heal=("throttle", "none"))),
    Kind(name="hang", weight=1, hit=_card("hang", "5")),
    Kind(name="drained", weight=2, hit=drain_card),
)


class Faults:
    """Thread that injects faults of some kinds until the soak is over; each kind once, and then by its weight."""

    def __init__(self, world: World, seed: int, name: str, kinds: tuple[Kind, ...], *, every_s: float) -> None:
        self.world, self.every_s = world, every_s
        self.random = random.Random(f"{seed}/{name}")
        self.kinds = [kind for kind in kinds if world.machine.root or not kind.root]
        self.thread = threading.Thread(target=self._go, name=name, daemon=True)

    def _go(self) -> None:
        deck = list(self.kinds)
        self.random.shuffle(deck)
        while not self.world.over.wait(self.every_s * (0.4 + 1.2 * self.random.random())):
            if not deck:
                deck = [kind for kind in self.kinds for _ in range(max(1, round(kind.weight)))]
                self.random.shuffle(deck)
            kind = deck.pop()
            wait_out(self.world)
            if self.world.over.is_set():
                return
            began = time.monotonic()
            try:
                kind.hit(self.world, self.random)
            except Exception as error:
                self.world.diary.violation("the soak itself works", f"fault {kind.name}: {error!r}")
                self.world.log.line("fault", f"{kind.name} failed: {error!r}", aloud=True)
            self.world.log.line("fault", f"{kind.name} is over after {time.monotonic() - began:.1f} s")


def _stop(pid: int, seconds: float) -> None:
    if pid and send(pid, signal.SIGSTOP):
        try:
            time.sleep(seconds)
        finally:
            send(pid, signal.SIGCONT)


def _uid(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return -1


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
