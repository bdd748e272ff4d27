"""Records of the journal: allocations, their usage, queues and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from calabash.model.device import DeviceUuid
from calabash.model.messages import Text
from calabash.model.request import AllocationId, GpuRequest, Placement


class AllocationState(StrEnum):
    """State of a journalled allocation, described in ``allocation_lifecycle``."""

    GRANTED = "granted"
    RUNNING = "running"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """One allocation in the journal. Times are seconds since 1970; 0.0 means "not yet".

    Args:
        client_pid, client_start_time: identity of the process that made the request. If that process ends before a program uses
            the allocation, the allocation is ended.
        program_pid, program_start_time: identity of the program that reported that it runs in the allocation.
        slot: path of the slot directory.
        granted_ns: time of the grant by the machine's monotonic clock in nanoseconds, from which the duration is
            computed even if the wall clock is set; 0 in records of older versions.
        boot: ID of the machine's boot in which it was granted; "" in records of older versions. ``granted_ns`` is valid
            during this boot only.
        reason, explanation: reason code and text of its end; "" before it.
    """

    id: AllocationId
    state: AllocationState
    request: GpuRequest
    placement: Placement
    user: str = ""
    uid: int = -1
    client_pid: int = 0
    client_start_time: int = 0
    program_pid: int = 0
    program_start_time: int = 0
    command: tuple[str, ...] = ()
    slot: str = ""
    created_at: float = 0.0
    granted_at: float = 0.0
    granted_ns: int = 0
    boot: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""
    explanation: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """Metered use of one device by one allocation between two times.

    Args:
        from_s, to_s: seconds since 1970.
        memory_mib: granted device memory.
        core_percent: granted compute share.
        allocated_gpu_s: the time multiplied by the compute share.
        used_gpu_s: measured GPU time.
        memory_mib_s: the time multiplied by the granted memory.
        sequence: number of the record among those of the allocation, from 0 and without gaps.
        preemptible: the priority of the allocation is below 0.
        idle_s: time without GPU work, not multiplied by the share; 0.0 where it cannot be measured.
        uncertain_s: above 0 if the end of the allocation is estimated: it ended between ``to_s`` and so many seconds later.
            These seconds are not charged.
    """

    allocation: AllocationId
    device: DeviceUuid
    tenant: str
    queue: str
    from_s: float
    to_s: float
    memory_mib: int
    core_percent: int
    allocated_gpu_s: float
    used_gpu_s: float
    memory_mib_s: float
    sequence: int = 0
    device_model: str = ""
    mode: str = ""
    preemptible: bool = False
    project: str = ""
    user: str = ""
    idle_s: float = 0.0
    uncertain_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSoFar:
    """Usage of an allocation that is already recorded.

    Args:
        until_s: end of the last usage record, in seconds since 1970.
        next_sequence: number of the next usage record.
        used_gpu_s: recorded GPU time by index of the slice in the placement.
    """

    until_s: float
    next_sequence: int
    used_gpu_s: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """Settings of a queue. Amounts are devices.

    Args:
        limit: most devices that the queue may hold; None: unlimited.
        users, groups: accounts and groups that may use the queue, in addition to administrators. Everybody may use ``default``.
    """

    name: str
    parent: str = ""
    deserved: float = 0.0
    limit: float | None = None
    weight: float = 1.0
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One event for people. A later event has a greater ``id``; ``at`` is seconds since 1970."""

    id: int
    at: float
    kind: str
    reason: str = ""
    allocation: str = ""
    device: str = ""
    message: Text = ""
