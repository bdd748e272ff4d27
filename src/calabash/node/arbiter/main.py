"""Main loop of the arbiter process, which reads all usage pages every few milliseconds and writes the limits pages.

The pool starts and supervises ``python -I -m calabash.node.arbiter.main --home DIR``. The arbiter is a separate process with
one thread and no network, so that nothing delays it. All decisions are in ``policy``; this module has the pages, the clock and
the loop. If the arbiter dies, the shims limit themselves to their rates until it has been restarted.
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
TICK_SHARED_S = 0.003  # one container is active, others may become active
TICK_IDLE_S = 0.02
TICK_REST_S = 0.15  # all devices have long been at rest; all containers are limited to their own rates meanwhile
REST_RATIO = 0.02  # length of a tick, as a part of the time for which all devices have been at rest
SCAN_S = 0.1
SETTLING_NS = 1_000_000_000  # for so long after a change of the directory all slots are scanned
FULL_SCAN_NS = 2_000_000_000  # interval of scans that do not depend on the directory's modification time
BEAT_NS = 50_000_000
REST_BEAT_NS = 400_000_000  # programs consider the arbiter dead after one second without a heartbeat


class OpenSlots:
    """The slots of a home directory, opened when they appear and closed when they are removed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, tuple[int, LimitsPage, list[tuple[DeviceUuid, DeviceShare]]]] = {}
        self._bad: dict[str, int] = {}
        self._modified_ns = -1  # the directory's modification time
        self._complete = False
        self._full_scan_at_ns = 0
        self._settling_until_ns = 0

    def scan(self, now_ns: int) -> bool:
        """Find new, replaced and removed slots. Return True if the set has changed.

        Reads only the modification time of the directory if it is unchanged and a full scan is not due.
        """
        modified_ns = 0
        with suppress(FileNotFoundError):
            modified_ns = os.stat(self._directory).st_mtime_ns
        if modified_ns != self._modified_ns:
            self._modified_ns = modified_ns
            self._settling_until_ns = now_ns + SETTLING_NS
        elif self._complete and self._settling_until_ns < now_ns < self._full_scan_at_ns:
            return False
        self._full_scan_at_ns = now_ns + FULL_SCAN_NS
        return self._scan()

    def _scan(self) -> bool:
        found: dict[str, int] = {}
        self._complete = True
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):  # being created or removed
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
            print(f"arbiter: slot {name} cannot be opened and is ignored: {error.message}", file=sys.stderr)
            return False
        allocation = AllocationId(name)
        slices = [(uuid, DeviceShare(allocation, limits, usage, i)) for i, uuid in enumerate(limits.uuids)]
        self._open[name] = (inode, limits, slices)
        return True

    def beat(self, now_ns: int) -> None:
        """Write the heartbeat of the arbiter to the limits pages of all slots."""
        for _, limits, _ in self._open.values():
            limits.beat(now_ns)

    def __iter__(self) -> Iterator[tuple[DeviceUuid, DeviceShare]]:
        for _, _, slices in self._open.values():
            yield from slices


class Arbiter:
    """Arbitration of all devices of the host."""

    def __init__(self, home: Path) -> None:
        self._slots = OpenSlots(home / "alloc")
        self._devices: dict[DeviceUuid, ArbitratedDevice] = {}
        self._scanned_ns = 0
        self._beat_ns = 0
        self._beat_all_ns = 0
        self._busy_ns = 0

    def step(self, now_ns: int) -> float:
        """Scan the slots if that is due, and run one step for each device. Return the seconds until the next step."""
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
        """Write the heartbeats that are due: every ``REST_BEAT_NS`` to all slots, every ``BEAT_NS`` to devices not at rest."""
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
    """Wait until no other arbiter of this home directory runs. Return the descriptor that holds the lock."""
    descriptor = os.open(home / "arbiter.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _prefer_this_process() -> None:
    """Raise the scheduling priority of this process as far as the system allows, because late decisions cost accuracy."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with suppress(OSError):
        os.nice(-10)


def run(home: Path, parent: int) -> None:
    """Run the arbiter until the parent process has ended or SIGTERM arrives."""
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
    """Parse the command line and run the arbiter."""
    parser = argparse.ArgumentParser(description="Arbitrates compute shares between the slots of one host.")
    parser.add_argument("--home", type=Path, required=True, help="the pool's directory (CALABASH_HOME)")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="PID of the parent; exit when it has ended")
    arguments = parser.parse_args()
    if not arguments.home.is_dir():
        parser.exit(2, f"error: {arguments.home} is not a directory\nhint: start it through the pool\n")
    run(arguments.home, arguments.parent)


if __name__ == "__main__":
    main()
