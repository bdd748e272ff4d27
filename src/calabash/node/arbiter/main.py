"""The arbiter process: looks at every slot every few milliseconds and writes who may use which device when.

``python -I -m calabash.node.arbiter.main --home DIR`` is started and supervised by the pool; it is a process of its own, with
one thread and no network, so that nothing delays it. All decisions are in ``arbiter_policy``; here are the pages, the
clock and the loop. When it dies, the shims hold to their rate by themselves until the next one is up.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.arbiter.device import ArbitratedDevice, DeviceShare
from calabash.node.slots.names import LIMITS_FILE
from calabash.node.slots.pages import LimitsPage, UsagePage

TICK_CONTENDED_S = 0.0015
TICK_SHARED_S = 0.003  # one is active, others may come back
TICK_IDLE_S = 0.02
TICK_REST_S = 0.15  # nobody has wanted anything for long: all are held to their own rates meanwhile
REST_RATIO = 0.02  # of the time for which nobody has wanted anything
SCAN_S = 0.1
SETTLING_NS = 1_000_000_000  # from a change of the slots on all are looked at for so long
LOOK_AT_ALL_NS = 2_000_000_000  # what the directory does not tell is found after so long
BEAT_NS = 50_000_000
REST_BEAT_NS = 400_000_000  # programs wait a second for a sign of life before they take the arbiter for dead


class OpenSlots:
    """The slots of a home directory, opened as they appear and dropped as they go."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, tuple[int, LimitsPage, list[tuple[DeviceUuid, DeviceShare]]]] = {}
        self._bad: dict[str, int] = {}
        self._modified_ns = -1  # the directory's own time, by which its entries have changed
        self._complete = False
        self._look_at_all_ns = 0
        self._settling_until_ns = 0

    def scan(self, now_ns: int) -> bool:
        """Look for new, replaced and removed slots; true when the set has changed. Costs little while nothing has happened."""
        modified_ns = 0
        with suppress(FileNotFoundError):
            modified_ns = os.stat(self._directory).st_mtime_ns
        if modified_ns != self._modified_ns:
            self._modified_ns = modified_ns
            self._settling_until_ns = now_ns + SETTLING_NS
        elif self._complete and self._settling_until_ns < now_ns < self._look_at_all_ns:
            return False
        self._look_at_all_ns = now_ns + LOOK_AT_ALL_NS
        return self._scan()

    def _scan(self) -> bool:
        found: dict[str, int] = {}
        self._complete = True
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):  # half made or half removed
                    continue
                try:
                    found[entry.name] = os.stat(os.path.join(entry.path, LIMITS_FILE)).st_ino
                except OSError:
                    self._complete = False
        changed = False
        for name in list(self._open):
            if found.get(name) != self._open[name][0]:
                del self._open[name]
                changed = True
        for name, inode in found.items():
            if name not in self._open and self._bad.get(name) != inode:
                changed = self._add(name, inode) or changed
        self._bad = {name: inode for name, inode in self._bad.items() if name in found}
        return changed

    def _add(self, name: str, inode: int) -> bool:
        try:
            limits = LimitsPage.of_slot(self._directory / name)
            usage = UsagePage.of_slot(self._directory / name)
        except CalabashError as error:
            self._bad[name] = inode
            print(f"arbiter: slot {name} is left alone: {error.message}", file=sys.stderr)
            return False
        allocation = AllocationId(name)
        slices = [(uuid, DeviceShare(allocation, limits, usage, i)) for i, uuid in enumerate(limits.uuids)]
        self._open[name] = (inode, limits, slices)
        return True

    def beat(self, now_ns: int) -> None:
        """Show every tenant that somebody is looking after the shares."""
        for _, limits, _ in self._open.values():
            limits.beat(now_ns)

    def __iter__(self) -> Iterator[tuple[DeviceUuid, DeviceShare]]:
        for _, _, slices in self._open.values():
            yield from slices


class Arbiter:
    """One loop over all devices of the host. ``step`` does what is due and says how long to sleep."""

    def __init__(self, home: Path) -> None:
        self._slots = OpenSlots(home / "alloc")
        self._devices: dict[DeviceUuid, ArbitratedDevice] = {}
        self._scanned_ns = 0
        self._beat_ns = 0
        self._beat_all_ns = 0
        self._busy_ns = 0

    def step(self, now_ns: int) -> float:
        """Look, decide, publish. Returns seconds until the next step."""
        if now_ns - self._scanned_ns > int(SCAN_S * 1e9):
            self._scanned_ns = now_ns
            if self._slots.scan(now_ns):
                self._regroup()
                self._beat_ns = self._beat_all_ns = 0
                self._busy_ns = now_ns
        self._beat(now_ns)
        pause = TICK_IDLE_S
        rests = True
        for device in self._devices.values():
            device.step(now_ns)
            rests = rests and device.rests
            if len(device.active) > 1:
                pause = min(pause, TICK_CONTENDED_S)
            elif device.active and len(device.members) > 1:
                pause = min(pause, TICK_SHARED_S)
        if not rests:
            self._busy_ns = now_ns
            return pause
        return max(pause, min(TICK_REST_S, REST_RATIO * (now_ns - self._busy_ns) / 1e9))

    def _beat(self, now_ns: int) -> None:
        """Show every tenant that somebody is looking after the shares; less often where nobody takes turns."""
        if now_ns - self._beat_all_ns > REST_BEAT_NS:
            self._beat_ns = self._beat_all_ns = now_ns
            self._slots.beat(now_ns)
        elif now_ns - self._beat_ns > BEAT_NS:
            self._beat_ns = now_ns
            for device in self._devices.values():
                for limits in () if device.rests else device.limits:
                    limits.beat(now_ns)

    def _regroup(self) -> None:
        devices: dict[DeviceUuid, dict[AllocationId, DeviceShare]] = {}
        for uuid, member in self._slots:
            devices.setdefault(uuid, {})[member.name] = member
        self._devices = {uuid: ArbitratedDevice(members, self._devices.get(uuid)) for uuid, members in devices.items()}


def _take_lock(home: Path) -> int:
    """One arbiter per home; a successor waits for its predecessor to go."""
    descriptor = os.open(home / "arbiter.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _prefer_this_process() -> None:
    """A late arbiter costs accuracy: ask for a prompt wake-up where the system allows it."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with suppress(OSError):
        os.nice(-10)


def run(home: Path, parent: int) -> None:
    """Arbitrate until the parent is gone or SIGTERM."""
    lock = _take_lock(home)
    stopping = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prefer_this_process()
    arbiter = Arbiter(home)
    gc.collect()
    gc.freeze()
    while not stopping and os.getppid() == parent:
        pause = arbiter.step(time.monotonic_ns())
        time.sleep(pause)
    os.close(lock)


def main() -> None:
    """Entry point of ``python -I -m calabash.node.arbiter.main``."""
    parser = argparse.ArgumentParser(description="Arbitrates compute shares between the slots of one host.")
    parser.add_argument("--home", type=Path, required=True, help="the pool's directory (CALABASH_HOME)")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end when this is no longer the parent")
    arguments = parser.parse_args()
    if not arguments.home.is_dir():
        parser.exit(2, f"error: {arguments.home} is not a directory\nhint: start it through the pool\n")
    run(arguments.home, arguments.parent)


if __name__ == "__main__":
    main()
