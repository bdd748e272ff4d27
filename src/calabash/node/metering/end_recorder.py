"""End recorder: process that records when programs end while no pool runs.

``python -I -m calabash.node.metering.end_recorder`` is started by the pool and sleeps as long as the pool lives. The
kernel does not keep the time at which a process ended (the modification time of ``cgroup.events`` is that of the first
read after the change), so the ends must be observed. When the pool ends for any reason, the recorder polls ten times a
second which allocations have a live member process, and writes to its file when it last saw each alive and when it
found it without one. The next pool reads the file and removes it, which ends the recorder.

The recorder reads from the kernel only: which processes are in a control group, or whether a lease is locked. It reads
nothing that a tenant has written.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from calabash.adapters.host.cgroups.groups import Cgroup
from calabash.adapters.host.children import end_urgency
from calabash.adapters.host.files import Lease
from calabash.adapters.host.processes import boot_id
from calabash.node.metering.end_file import EndFile, LastSeen, served_name
from calabash.node.slots.names import LEASE_FILE, WORKERS_FILE, is_slot_name

POLL_S = 0.1
COST_RATIO = 20  # pause in proportion to the duration of a poll: uses at most a twentieth of a core
LINGER_NS = 15_000_000_000  # longest time after the end of the pool in which a granted allocation may be taken


class MemberWitness(Protocol):
    """Observer of the allocations of one pool, which reads from the kernel if they have live member processes."""

    def names(self) -> list[str]:
        """Return the names of the slots of all allocations."""
        ...

    def populated(self, name: str) -> bool:
        """Return True if the allocation of that slot has a live member process."""
        ...


class GroupWitness:
    """Allocations whose member processes are in a control group below ``base``.

    Args:
        hosts: pids of the worker processes of brokered allocations, by slot name. A worker is a member process, but it
            outlives the programs that it serves, so an allocation with a worker only counts as ended. These allocations
            are recorded under ``served_name``, which tells their entries from those of a recorder that did not know the
            worker and counted it as a program.
    """

    def __init__(self, base: Path, hosts: Mapping[str, int] | None = None) -> None:
        self._base = base
        self._hosts = {served_name(name): (name, pid) for name, pid in (hosts or {}).items()}

    def names(self) -> list[str]:
        found = (name for name in Cgroup(self._base).children() if is_slot_name(name))
        return [served_name(name) if served_name(name) in self._hosts else name for name in found]

    def populated(self, name: str) -> bool:
        slot, host = self._hosts.get(name, (name, 0))
        group = Cgroup(self._base / slot)
        return any(pid != host for pid in group.pids()) if host else group.populated()


class LeaseWitness:
    """Allocations whose member processes hold a lock on the lease of a slot below ``slots``."""

    def __init__(self, slots: Path) -> None:
        self._slots = slots

    def names(self) -> list[str]:
        with suppress(OSError):
            return [name for name in sorted(os.listdir(self._slots)) if is_slot_name(name)]
        return []

    def populated(self, name: str) -> bool:
        try:
            lease = Lease(self._slots / name / LEASE_FILE)
        except OSError:
            return False
        try:
            return lease.held()
        finally:
            lease.close()


class EndRecorder:
    """State of one recorder: which allocations were alive and which had ended at the last poll."""

    def __init__(self, file: EndFile, witness: MemberWitness, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._file = file
        self._witness = witness
        self._clock_ns = clock_ns
        self._alive: dict[str, int] = {}  # when each was last seen alive
        self._gone = set(witness.names())  # slots that no poll has seen alive yet, and those that have ended
        self._first = True
        self._idle_since_ns = clock_ns()

    def poll(self) -> bool:
        """Observe every allocation once; return False if there is nothing left to record."""
        begun_ns = self._clock_ns()
        for name in [*self._alive, *self._gone]:
            if self._witness.populated(name):
                if name not in self._alive:
                    self._file.add(name, LastSeen(alive_ns=begun_ns))
                    self._gone.discard(name)
                self._alive[name] = begun_ns
            elif name in self._alive or self._first:
                seen = LastSeen(alive_ns=self._alive.pop(name, 0), gone_ns=self._clock_ns())
                self._file.add(name, seen)
                self._gone.add(name)
        self._first = False
        if self._alive:
            self._idle_since_ns = begun_ns
        return self._file.flush(begun_ns) and begun_ns - self._idle_since_ns < LINGER_NS


def record(home: Path, witness: MemberWitness) -> None:
    """Record when the member processes of allocations end, until no allocation is left or the file is removed."""
    if not witness.names():
        return
    file = EndFile(home, boot_id())
    recorder = EndRecorder(file, witness)
    while True:
        begun_s = time.monotonic()
        if not recorder.poll():
            return
        took_s = time.monotonic() - begun_s
        time.sleep(max(POLL_S - took_s, COST_RATIO * took_s))


def read_hosts(home: Path) -> dict[str, int]:
    """Return the pids of the workers of brokered allocations by slot name, from the pool's file of worker hosts."""
    try:
        hosts = json.loads((home / WORKERS_FILE).read_bytes())
        return {host.get("name") or host["allocation"]: int(host["pid"]) for host in hosts}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def wait_for_end(parent: int, told: int) -> None:
    """Block until the parent process has ended, or has closed its end of the pipe ``told`` (a file descriptor)."""
    poll = select.poll()
    poll.register(told, select.POLLIN | select.POLLHUP)
    with suppress(OSError):  # it has ended
        poll.register(os.pidfd_open(parent), select.POLLIN)
        if os.getppid() == parent:
            poll.poll()


def main() -> None:
    """Entry point of ``python -I -m calabash.node.metering.end_recorder``."""
    parser = argparse.ArgumentParser(description="Records when programs end while their pool does not run.")
    parser.add_argument("--home", type=Path, required=True, help="the pool's directory (CALABASH_HOME)")
    parser.add_argument("--parent", type=int, required=True, help="the process of the pool")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--groups", type=Path, help="the control group that those of the allocations are in")
    form.add_argument("--leases", type=Path, help="the directory of the slots, where leases are locked")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_urgency()
    wait_for_end(arguments.parent, 0)
    if arguments.groups:
        record(arguments.home, GroupWitness(arguments.groups, read_hosts(arguments.home)))
    else:
        record(arguments.home, LeaseWitness(arguments.leases))


if __name__ == "__main__":
    main()
