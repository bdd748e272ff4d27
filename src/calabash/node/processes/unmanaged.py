"""Detect unmanaged processes and excess memory of allocations from the process lists of drivers (pure).

A process that a driver lists belongs to an allocation with a slice of that device, or to the pool itself, or it is
*unmanaged*. Unmanaged processes were started outside of the pool, belong to another pool, or belong to an allocation
without a slice of this device. A process that is just ending does not belong to its allocation any more. So a process
is reported as unmanaged only after SIGHTINGS consecutive lists contain it, or SIGHTINGS_UNSEEN lists if this machine
does not show the process, as in another PID namespace. The memory of an unmanaged process is not granted, and its
device is not allocated exclusively.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from calabash.adapters.host.processes import Process
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId

SIGHTINGS = 2
SIGHTINGS_UNSEEN = 3
TOLERANCE_MIB = 64
TOLERANCE_RATIO = 0.02
OVER_USE_NS = 1_000_000_000


class UnmanagedPolicy(StrEnum):
    """Action on unmanaged processes and their device."""

    TELL = "tell"  # report them; their memory is not granted
    DRAIN = "drain"  # also, the device takes no new work while they are on it
    KILL = "kill"  # also, kill them


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProcess:
    """A process that a driver lists.

    Args:
        process: pid and start time; the latter is 0 if the machine does not show the process.
        uid: its user; -1: unknown.
        allocation: the allocation of which it is a member; None if it is no member.
        ours: it belongs to the pool itself.
        part: the partition that it uses; "": the whole device.
        elsewhere: its allocation has a slice of another partition, and not of this one.
    """

    process: Process
    used_mib: int
    uid: int = -1
    command: str = ""
    allocation: AllocationId | None = None
    ours: bool = False
    part: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedProcess:
    """A process on a device of which it has no slice.

    Args:
        allocation: its allocation, if it has slices of other devices; else None.
        sightings: number of consecutive lists of the driver that contained it.
        part: the partition that it uses; "": the whole device.
    """

    device: DeviceUuid
    process: Process
    used_mib: int
    uid: int
    command: str
    allocation: AllocationId | None = None
    sightings: int = 1
    part: str = ""

    @property
    def confirmed(self) -> bool:
        """True if enough consecutive lists contained the process."""
        return self.sightings >= (SIGHTINGS if self.process.start_time else SIGHTINGS_UNSEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Unmanaged processes that were found by one process list of a device, and the changes since the previous list.

    Args:
        unmanaged: unmanaged processes in the list, confirmed or not.
        found: those that this list confirmed.
        gone: confirmed ones of the previous list that this list does not contain.
        kill: those that the policy requires to be killed.
    """

    unmanaged: tuple[UnmanagedProcess, ...] = ()
    found: tuple[UnmanagedProcess, ...] = ()
    gone: tuple[UnmanagedProcess, ...] = ()
    kill: tuple[UnmanagedProcess, ...] = ()


def judge_listing(
    known: Iterable[UnmanagedProcess],
    device: DeviceUuid,
    listed: Sequence[ListedProcess],
    *,
    entitled: Collection[AllocationId],
    policy: UnmanagedPolicy,
) -> Verdict:
    """Find the unmanaged processes in one process list of a device.

    Args:
        known: unmanaged processes of the previous list.
        listed: the processes of this list.
        entitled: allocations that have a slice of the device.
    """
    before = {found.process: found for found in known}
    present: list[UnmanagedProcess] = []
    for entry in listed:
        is_entitled = entry.allocation is not None and entry.allocation in entitled and not entry.elsewhere
        if entry.ours or is_entitled:
            continue
        last = before.get(entry.process)
        present.append(
            UnmanagedProcess(
                device=device,
                process=entry.process,
                used_mib=entry.used_mib,
                uid=entry.uid,
                command=entry.command,
                allocation=entry.allocation,
                sightings=last.sightings + 1 if last else 1,
                part=entry.part,
            )
        )
    confirmed = [s for s in present if s.confirmed]
    there = {s.process for s in present}
    return Verdict(
        unmanaged=tuple(present),
        found=tuple(s for s in confirmed if s.process not in before or not before[s.process].confirmed),
        gone=tuple(s for s in before.values() if s.confirmed and s.process not in there),
        kill=tuple(
            s for s in confirmed if policy is UnmanagedPolicy.KILL and s.process.pid > 1 and s.process.start_time
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverUse:
    """Memory of a device that an allocation's processes use according to the driver (``used_mib``), and its limit."""

    allocation: AllocationId
    device: DeviceUuid
    used_mib: int
    cap_mib: int
    processes: int = 1

    @property
    def is_excess(self) -> bool:
        """True if the use exceeds the limit by more than the tolerances and 1 MiB for each process."""
        return self.used_mib > self.cap_mib * (1 + TOLERANCE_RATIO) + TOLERANCE_MIB + self.processes


@dataclass(frozen=True, slots=True)
class OverUses:
    """Allocations above their memory limit.

    Args:
        since_ns: when the excess of an allocation on a device was first seen; -1: it has been reported.
        lasting: excesses to be reported now.
    """

    since_ns: Mapping[tuple[AllocationId, DeviceUuid], int] = field(default_factory=dict)
    lasting: tuple[OverUse, ...] = ()

    def updated(self, uses: Iterable[OverUse], now_ns: int) -> OverUses:
        """Return the state after one more reading of all allocations with a memory limit.

        An excess is reported when it has lasted longer than OVER_USE_NS.
        """
        since: dict[tuple[AllocationId, DeviceUuid], int] = {}
        lasting = []
        for use in uses:
            if not use.is_excess:
                continue
            key = (use.allocation, use.device)
            began_ns = self.since_ns.get(key, now_ns)
            if began_ns >= 0 and now_ns - began_ns > OVER_USE_NS:
                lasting.append(use)
                began_ns = -1  # reported
            since[key] = began_ns
        return OverUses(since, tuple(lasting))
