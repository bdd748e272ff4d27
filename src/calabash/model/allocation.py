"""Allocations and what is recorded about them: the nouns that the journal, the agent and every front end share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId, GpuRequest, Placement


class AllocationState(StrEnum):
    """States of a journalled allocation, in the only order they are passed in.

    GRANTED: promised, the limits are written, nobody has been seen using it. RUNNING: its lease is or was held.
    RELEASED: the slot is gone and the devices are free again.
    """

    GRANTED = "granted"
    RUNNING = "running"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """One entry of the journal.

    ``client_pid`` with ``client_start_time`` name the process that asked, so that a grant nobody will ever use is
    revoked as soon as that process is gone; ``program_pid`` likewise the program that said it runs. Times are seconds
    since 1970; 0.0 is "not yet". ``granted_ns`` is ``granted_at`` by the monotonic clock of ``boot``, by which its duration is
    measured; 0 and "" in what older programs wrote.
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
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one allocation had of one device between two moments; the raw material of metering.

    ``sequence`` numbers the records of an allocation, from 0 and without gaps. ``allocated_gpu_s`` is the time multiplied by
    the compute share, ``used_gpu_s`` the GPU time that was measured, ``idle_s`` the time without any, where that can be
    measured, not multiplied by the share; ``memory_mib_s`` is the time multiplied by the promised memory. ``preemptible``: of a
    priority below 0.
    ``uncertain_s`` is above 0 where the end of the allocation is estimated: it ended at ``to_s`` at the earliest and so many
    seconds later at the latest. They are not charged.
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
    """What is written of an allocation: up to when, the number of its next record, and GPU time by the place of the slice."""

    until_s: float
    next_sequence: int
    used_gpu_s: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """A queue as an administrator set it; amounts are devices, ``limit`` None is unlimited.

    ``users`` and ``groups`` are who may use it besides administrators; the queue ``default`` is everybody's.
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
    """Something that happened, for people; ``id`` grows with time."""

    id: int
    at: float
    kind: str
    reason: str = ""
    allocation: str = ""
    device: str = ""
    message: str = ""
