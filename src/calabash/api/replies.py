"""Message types of replies: status, devices, MIG, allocations, queues and events."""

from __future__ import annotations

import msgspec


class Reply(msgspec.Struct, kw_only=True, frozen=True):
    """Base class of all replies."""


class Failure(Reply, kw_only=True, frozen=True):
    """Body of every reply with a status of 400 or above. Reason codes are stable, and the same as those of the command line."""

    reason: str
    message: str
    hint: str = ""


class Status(Reply, kw_only=True, frozen=True):
    """Status of the pool.

    ``membership``: the mechanism that decides which processes belong to an allocation: the kernel, or a lease file.
    ``console``: URL of the web console; empty if it is not served. ``console_failure``: the error if the console should be
    served and is not.
    """

    version: str
    pid: int
    home: str
    node: str
    sim: str
    db: str
    started_at: float
    uptime_s: float
    devices: int
    allocations: int
    pending: int
    driver: str
    arbiter_pid: int
    membership: str
    serves: str
    console: str = ""
    console_failure: str = ""


class UnmanagedProcessView(Reply, kw_only=True, frozen=True):
    """Unmanaged process: it holds memory of a device without a slice of it.

    ``allocation``: its allocation on other devices; empty if it has none.
    """

    pid: int
    uid: int
    command: str
    memory_mib: int
    allocation: str


class DeviceView(Reply, kw_only=True, frozen=True):
    """Device.

    ``memory_used_mib`` is reported by the driver; allocated and free memory are computed by the pool. ``strangers``: unmanaged
    processes; their memory is not allocated. ``pinned``: the only mode that the operator allows; empty: any. ``replicas``: most
    allocations that time-slice the device. ``interval``: length of their time slices; empty: decided by the driver.
    ``spill_mib``: host memory of the node for all slices that spill device memory. ``node``: node in a cluster; ``index`` is
    then the number of the device in the cluster.
    """

    uuid: str
    index: int
    vendor: str
    model: str
    compute_capability: str
    memory_mib: int
    memory_used_mib: int
    memory_allocated_mib: int
    memory_free_mib: int
    core_allocated_percent: int
    utilization_percent: int
    temperature_c: int
    power_w: float
    health: str
    cause: str
    mode: str
    pinned: str
    replicas: int
    interval: str
    spill_mib: int
    allocations: list[str]
    unmanaged_processes: list[UnmanagedProcessView] = msgspec.field(name="strangers")
    node: str = ""


class DeviceList(Reply, kw_only=True, frozen=True):
    items: list[DeviceView]


class HappeningView(Reply, kw_only=True, frozen=True):
    """Health event of a device, with the state that followed it."""

    at: float
    health: str
    cause: str


class PartView(Reply, kw_only=True, frozen=True):
    """Part of a device that is out of service while the device is not: a MIG device (UUID) or a service of a mode (name)."""

    name: str
    health: str


class DeviceDetail(Reply, kw_only=True, frozen=True):
    """Device with the details of its health.

    ``since``: time at which it became unhealthy; null if it is healthy. ``needs``: action that is needed: ``test``, ``reset``
    or ``operator``; empty for none. ``drained_why``: reason of the drain. ``evict_at``: time at which its allocations are
    ended. ``figures``: best results of its tests, in microseconds. ``parts``: parts that are out of service. ``history``:
    health events, oldest first.
    """

    device: DeviceView
    since: float | None
    needs: str
    drained: bool
    drained_why: str
    evict_at: float | None
    hold_until: float | None
    figures: dict[str, float]
    parts: list[PartView]
    history: list[HappeningView]


class TestReply(Reply, kw_only=True, frozen=True):
    """Result of a test of a device.

    ``why``: reason of a failure. ``figures``: durations in microseconds by the device's clock.
    """

    passed: bool
    why: str
    figures: dict[str, float]
    device: DeviceDetail


class SliceUseView(Reply, kw_only=True, frozen=True):
    """Slice with its current use. ``core_used_percent``: use of the whole device in the last second.

    With policy ``best-effort``, ``core_percent`` is not guaranteed: it is the share that metering records for the slice.
    ``denied``: refused memory allocations. ``throttled_s``: time for which work was delayed by the compute share.
    """

    device: str
    device_index: int
    memory_mib: int
    core_percent: int
    memory_used_mib: int
    core_used_percent: float
    denied: int
    throttled_s: float
    profile: str = ""
    start: int = -1
    part: int = -1
    spill_mib: int = 0


class AllocationView(Reply, kw_only=True, frozen=True):
    """Allocation that runs or has ended, or waiting request (``state`` is ``pending``, without slices).

    ``position``: position of a waiting request in its queue by priority and age, from 1; 0 for an allocation.
    """

    id: str
    tenant: str
    queue: str
    user: str
    uid: int
    command: list[str]
    mode: str
    policy: str
    priority: int
    gang: str
    state: str
    reason: str
    explanation: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    pids: list[int]
    slices: list[SliceUseView]
    position: int = 0


class AllocationList(Reply, kw_only=True, frozen=True):
    """Page of allocations. ``next`` is the value of ``after`` for the next page; empty on the last page."""

    items: list[AllocationView]
    next: str = ""


class SliceView(Reply, kw_only=True, frozen=True):
    """Granted slice of one device.

    ``profile`` and ``start``: profile and first memory slice of the MIG instance; empty and -1 for none. ``part``: first
    compute slice of a compute instance; -1 for a whole GPU instance. ``spill_mib``: how much of the memory may be in host
    memory.
    """

    device: str
    memory_mib: int
    core_percent: int
    profile: str = ""
    start: int = -1
    part: int = -1
    spill_mib: int = 0
    device_index: int = -1
    device_model: str = ""


class GrantReply(Reply, kw_only=True, frozen=True):
    """Granted allocation, and the environment that its program needs.

    ``environment``: the values of ``LD_PRELOAD`` and ``LD_LIBRARY_PATH`` precede existing values. ``lease``: file on which the
    program holds a shared lock; empty if the kernel identifies the member processes. ``worker_socket``: socket of a worker that
    uses the slice on behalf of the program, which then needs no environment and no lease. ``door``: Unix socket of the process
    that starts the program in the network namespace of its ports.
    """

    id: str
    state: str
    environment: dict[str, str]
    slot: str
    lease: str
    mode: str
    slices: list[SliceView]
    policy: str = ""
    worker_socket: str = ""
    entry_socket: str = msgspec.field(name="door", default="")
    warnings: list[str] = []


class StateReply(Reply, kw_only=True, frozen=True):
    """State of an allocation: ``granted``, ``running``, ``ending`` or ``released``."""

    id: str
    state: str


class MovedReply(Reply, kw_only=True, frozen=True):
    """Queue in which a request waits now."""

    id: str
    queue: str


class KeptReply(Reply, kw_only=True, frozen=True):
    """Result of a renewal: the seconds for which a standing allocation is kept; 0: until it is given back."""

    id: str
    keep_s: float


class WhyReply(Reply, kw_only=True, frozen=True):
    """Explanation of a waiting request, of the placement of an allocation, or of its end."""

    id: str
    state: str
    reason: str
    explanation: str
    details: list[str] = []
    suggestions: list[str] = []


class QueueView(Reply, kw_only=True, frozen=True):
    """Queue. Amounts are devices. ``users`` and ``groups`` may use it. ``deserved``: former name of ``guarantee``.

    ``fair_share``: what the queue may have now, by guarantee and weight. If past use counts, ``half_life_s`` is greater than 0,
    ``past_use_device_s`` is the use above the guarantee of which older use counts less, and ``effective_weight`` is the
    weight after the correction by it.
    """

    name: str
    parent: str
    guarantee: float
    deserved: float
    limit: float | None
    weight: float
    allocated: float
    pending: float
    users: list[str]
    groups: list[str]
    fair_share: float | None = None
    half_life_s: float = 0.0
    past_use_device_s: float = 0.0
    effective_weight: float | None = None


class QueueList(Reply, kw_only=True, frozen=True):
    items: list[QueueView]


class Named(Reply, kw_only=True, frozen=True):
    """Name of an object that was created, changed or deleted, with warnings for the administrator."""

    name: str
    warnings: list[str] = []


class ScenarioText(Reply, kw_only=True, frozen=True):
    """State of the scheduler as a scenario file."""

    scenario: str


class EventView(Reply, kw_only=True, frozen=True):
    """One event."""

    id: int
    at: float
    kind: str
    reason: str
    allocation: str
    device: str
    message: str


class EventList(Reply, kw_only=True, frozen=True):
    """Events, oldest first."""

    items: list[EventView]


class Stopping(Reply, kw_only=True, frozen=True):
    """Process ID of the pool that is stopping."""

    pid: int
