"""The arbiter process: looks at every slot every few milliseconds and writes who may use which device when.

``python -I -m calabash.agent.arbiter --home DIR`` is started and supervised by the pool; it is a process of its own, with
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
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from calabash.agent.arbiter_accounts import ComputeDemand
from calabash.agent.arbiter_policy import Order, SharedDevice, Turn, decide, is_active
from calabash.agent.arbiter_shifts import Shift, present
from calabash.agent.believed import CREDIT_NS, KERNEL_NS_MAX, Believed, LargestStep
from calabash.agent.pages import LimitsPage, TurnPlan, UsagePage
from calabash.agent.pages_layout import PagePolicy
from calabash.agent.slot_names import LIMITS_FILE
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId

TICK_CONTENDED_S = 0.0015
TICK_SHARED_S = 0.003  # one is active, others may come back
TICK_IDLE_S = 0.02
SCAN_S = 0.1
BEAT_NS = 50_000_000
KERNEL_WINDOW_NS = 250_000_000
KERNEL_WINDOWS = 4
_MS = 1_000_000


class DeviceShare:
    """One container's part of one device: its pages, and what was last read and written."""

    def __init__(self, name: AllocationId, limits: LimitsPage, usage: UsagePage, index: int) -> None:
        self.name = name
        self._limits = limits
        self._usage = usage
        self._index = index
        self._demand: ComputeDemand | None = None
        self._order: Order | None = None
        self._believed = Believed()
        self._steps = LargestStep()
        self._kernels: deque[int] = deque(maxlen=KERNEL_WINDOWS)
        self._kernels_at_ns = 0

    def demand(self, now_ns: int) -> ComputeDemand:
        """What it wants and has used; cheap while it is idle."""
        known = self._demand
        limits = self._limits.device(self._index)
        if (
            known is not None
            and known.demand_ns == self._usage.demand_ns(self._index)
            and known.unreported_ns == limits.unreported_ns
            and known.seen_ns == limits.seen_ns
            and not is_active(known, now_ns)
        ):
            return known
        unreported_ns, seen_ns = self._limits.charges(self._index)
        usage = self._usage.device(self._index)
        if now_ns - self._kernels_at_ns > KERNEL_WINDOW_NS:
            self._kernels_at_ns = now_ns
            longest = self._usage.take_kernel_ns_max(self._index)
            if longest > 0:
                self._kernels.append(longest)
        kernel_ns = min(self._kernel_ns(usage.kernel_ns_max), KERNEL_NS_MAX)
        burst_ns = 2 * max(kernel_ns, CREDIT_NS)
        charged_ns = self._believed.read(usage.charged_ns, now_ns, burst_ns=burst_ns, inflight_ns=usage.inflight_ns)
        kernel_ns = min(self._steps.kernel_ns(kernel_ns, charged_ns, now_ns, usage.launch_count), KERNEL_NS_MAX)
        policy = limits.policy if limits.policy <= PagePolicy.BEST_EFFORT else PagePolicy.FIXED
        if limits.policy == PagePolicy.METERED:
            policy = PagePolicy.NONE
        self._demand = ComputeDemand(
            core_percent=max(1, min(100, limits.core_percent)),
            policy=PagePolicy(policy),
            priority=limits.priority,
            waiting_count=usage.waiting_count,
            inflight_ns=usage.inflight_ns,
            demand_ns=min(usage.demand_ns, now_ns),
            charged_ns=charged_ns,
            unreported_ns=unreported_ns,
            seen_ns=seen_ns,
            kernel_ns=kernel_ns,
            unmeasured_ns=self._steps.divided_ns(now_ns),
            busy_until_ns=usage.busy_until_ns,
            paged_bytes=max(0, usage.used_bytes - limits.memory_limit_bytes) if limits.spill_limit_bytes else 0,
        )
        return self._demand

    def _kernel_ns(self, latest_ns: int) -> int:
        """How long its long kernels are: the least of the last maxima, for a neighbour can only stretch them."""
        return min(self._kernels, default=latest_ns)

    def obey(self, order: Order) -> None:
        """Publish an order if it differs from the last one."""
        last = self._order
        if last == order:
            return
        self._order = order
        if order.turn is None or order.round is None:
            self._limits.set_gate(self._index, order.gate, neighbours=order.neighbours)
            return
        plan = TurnPlan(
            from_ns=order.round.from_ns,
            start_ns=order.turn.start_ns,
            end_ns=order.turn.end_ns,
            period_ns=order.round.length_ns,
        )
        sooner = last is None or last.turn is None or last.round is None or _sooner(last, order.turn)
        self._limits.set_gate(self._index, order.gate, plan, neighbours=order.neighbours, wake=sooner)


def _sooner(last: Order, turn: Turn) -> bool:
    """Whether a sleeper that knows only the last order would oversleep this turn."""
    assert last.turn is not None
    assert last.round is not None
    if last.turn.end_ns <= last.turn.start_ns:
        return True
    behind = turn.start_ns - last.turn.start_ns
    expected = last.turn.start_ns + -(-behind // last.round.length_ns) * last.round.length_ns
    return turn.start_ns < expected or last.turn.end_ns > turn.start_ns


class OpenSlots:
    """The slots of a home directory, opened as they appear and dropped as they go."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, tuple[int, LimitsPage, list[tuple[DeviceUuid, DeviceShare]]]] = {}
        self._bad: dict[str, int] = {}

    def scan(self) -> bool:
        """Look for new, replaced and removed slots; true when the set has changed."""
        found: dict[str, int] = {}
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):  # half made or half removed
                    continue
                with suppress(OSError):
                    found[entry.name] = os.stat(os.path.join(entry.path, LIMITS_FILE)).st_ino
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
        self._devices: dict[DeviceUuid, dict[AllocationId, DeviceShare]] = {}
        self._states: dict[DeviceUuid, SharedDevice] = {}
        self._shifts: dict[DeviceUuid, Shift] = {}
        self._scanned_ns = 0
        self._beat_ns = 0

    def step(self, now_ns: int) -> float:
        """Look, decide, publish. Returns seconds until the next step."""
        if now_ns - self._scanned_ns > int(SCAN_S * 1e9):
            self._scanned_ns = now_ns
            if self._slots.scan():
                self._regroup()
                self._beat_ns = 0
        if now_ns - self._beat_ns > BEAT_NS:
            self._beat_ns = now_ns
            self._slots.beat(now_ns)
        pause = TICK_IDLE_S
        for uuid, members in self._devices.items():
            demands = {name: member.demand(now_ns) for name, member in members.items()}
            shown = present(self._shifts.get(uuid), demands, now_ns)
            if shown.shift is not None:
                self._shifts[uuid] = shown.shift
            else:
                self._shifts.pop(uuid, None)
            state, decision = decide(self._states[uuid], shown.demands, now_ns)
            self._states[uuid] = state
            for name, order in (*decision.orders.items(), *shown.aside.items()):
                members[name].obey(order)
            if len(state.active) > 1:
                pause = min(pause, TICK_CONTENDED_S)
            elif state.active and len(members) > 1:
                pause = min(pause, TICK_SHARED_S)
        return pause

    def _regroup(self) -> None:
        devices: dict[DeviceUuid, dict[AllocationId, DeviceShare]] = {}
        for uuid, member in self._slots:
            devices.setdefault(uuid, {})[member.name] = member
        self._devices = devices
        self._states = {uuid: self._states.get(uuid, SharedDevice()) for uuid in devices}
        self._shifts = {uuid: shift for uuid, shift in self._shifts.items() if uuid in devices}


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
    """Entry point of ``python -I -m calabash.agent.arbiter``."""
    parser = argparse.ArgumentParser(description="Arbitrates compute shares between the slots of one host.")
    parser.add_argument("--home", type=Path, required=True, help="the pool's directory (CALABASH_HOME)")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end when this is no longer the parent")
    arguments = parser.parse_args()
    if not arguments.home.is_dir():
        parser.exit(2, f"error: {arguments.home} is not a directory\nhint: start it through the pool\n")
    run(arguments.home, arguments.parent)


if __name__ == "__main__":
    main()
