"""Allocations and what is recorded about them: the nouns that the journal, the agent and every front end share."""

from __future__ import annotations

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
    since 1970; 0.0 is "not yet".
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
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one allocation had of one device between two moments; the raw material of metering.

    ``allocated_gpu_s`` is the time multiplied by the compute share, ``used_gpu_s`` the GPU time measured inside the
    tenant, ``memory_mib_s`` the time multiplied by the promised memory.
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
