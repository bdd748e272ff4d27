"""What the API answers."""

from __future__ import annotations

import msgspec


class Reply(msgspec.Struct, kw_only=True, frozen=True):
    """Whatever the pool answers."""


class Failure(Reply, kw_only=True, frozen=True):
    """Any answer with a status from 400 on; codes are stable and the same as the command line's."""

    reason: str
    message: str
    hint: str = ""


class Status(Reply, kw_only=True, frozen=True):
    """The pool. ``membership`` says who decides what belongs to an allocation: the kernel, or a lease file.
    ``console``: where a browser finds it; empty: nowhere, and ``console_failure`` says why where it was to be served."""

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


class StrangerView(Reply, kw_only=True, frozen=True):
    """A process that holds memory of a device and has no slice of it; ``allocation`` when it has slices elsewhere."""

    pid: int
    uid: int
    command: str
    memory_mib: int
    allocation: str


class DeviceView(Reply, kw_only=True, frozen=True):
    """A device: ``memory_used_mib`` is the driver's figure, allocated and free are the pool's. What ``strangers`` hold
    is granted to nobody. ``pinned`` is the only mode that its operator leaves to it, empty: any.
    ``replicas``: how many tenants may use it in turns, ``interval``: how long these turns are to be, empty: the driver's own.
    ``spill_mib``: host memory that its node gives, to all slices together, for what does not fit on its devices.
    ``node``: the node of a cluster that it is of; its ``index`` is then a number among all devices of the cluster."""

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
    strangers: list[StrangerView]
    node: str = ""


class DeviceList(Reply, kw_only=True, frozen=True):
    items: list[DeviceView]


class HappeningView(Reply, kw_only=True, frozen=True):
    """Something that happened to a device, and the state that it was in then."""

    at: float
    health: str
    cause: str


class PartView(Reply, kw_only=True, frozen=True):
    """A part of a device that is out of service by itself: a MIG device by its UUID, or what serves a mode by its name."""

    name: str
    health: str


class DeviceDetail(Reply, kw_only=True, frozen=True):
    """One device and what is known of its health.

    ``since``: when it stopped being healthy, null when it is. ``needs``: ``test``, ``reset`` or ``operator``; empty when
    nothing has to be done. ``evict_at``: when whoever is still on it is ended. ``figures``: the best that its tests have
    measured, in microseconds. ``history``: oldest first.
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


class MigProfileView(Reply, kw_only=True, frozen=True):
    """A profile of a card; ``starts`` are the first memory slices at which one more of it could begin now, with those that
    an idle instance would leave for it."""

    name: str
    memory_mib: int
    compute: int
    slices: int
    starts: list[int]


class MigPartView(Reply, kw_only=True, frozen=True):
    """A part of an instance, from its ``start``th compute slice on; ``allocation`` is empty where nobody has it."""

    profile: str
    start: int
    compute: int
    uuid: str
    allocation: str


class MigInstanceView(Reply, kw_only=True, frozen=True):
    """An instance that stands on a card. ``state``: ``used`` by ``allocations``, ``idle``, ``fixed`` (idle, and never
    destroyed for another shape), or ``foreign``: processes without a slice are in it. ``parts``: what it is divided into,
    where that is not all in one; they share its memory."""

    profile: str
    start: int
    slices: int
    compute: int
    memory_mib: int
    uuid: str
    state: str
    allocations: list[str]
    parts: list[MigPartView] = []


class MigCardView(Reply, kw_only=True, frozen=True):
    """A card that MIG can cut. ``slices`` are memory slices; ``pinned`` is the mode that its operator keeps it in."""

    uuid: str
    index: int
    model: str
    mode: str
    pinned: str
    enabled: bool
    slices: int
    compute: int
    compute_free: int
    instances: list[MigInstanceView]
    profiles: list[MigProfileView]


class MigCards(Reply, kw_only=True, frozen=True):
    items: list[MigCardView]


class MigPlaceView(Reply, kw_only=True, frozen=True):
    """Where an instance goes: ``device_index`` -1 where it finds no place. ``reused``: it stands there already. Of a part of
    one, ``part`` is its first compute slice (-1: all of it), and ``shared``: others are in the same instance."""

    profile: str
    device: str
    device_index: int
    start: int
    reused: bool
    destroyed: list[str]
    part: int = -1
    shared: bool = False


class MigPlaces(Reply, kw_only=True, frozen=True):
    items: list[MigPlaceView]


class TestReply(Reply, kw_only=True, frozen=True):
    """What a test of a device came to; ``figures`` in microseconds, by the device's own clock."""

    passed: bool
    why: str
    figures: dict[str, float]
    device: DeviceDetail


class SliceUseView(Reply, kw_only=True, frozen=True):
    """A slice and what is used of it; ``core_used_percent`` over the last second, of the whole device.

    With policy ``best-effort``, ``core_percent`` is not promised: it is the share that the slice is accounted with.
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
    """A running allocation, a waiting one (``state`` is ``pending``, no slices), or one that has ended.

    ``position``: of one that waits, among those of its queue by priority and age, from 1; 0 of any other.
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
    """``next`` goes into ``after`` of the following request; it is empty on the last page."""

    items: list[AllocationView]
    next: str = ""


class SliceView(Reply, kw_only=True, frozen=True):
    """What was granted of one device; ``profile`` and ``start`` of a MIG instance, empty and -1 where there is none; ``part``
    is the first compute slice of a part of one, -1 for all of it;
    ``spill_mib`` of its memory need not lie on the device."""

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
    """What the program needs: ``LD_PRELOAD`` and ``LD_LIBRARY_PATH`` go in front of what is there. With a ``lease``, the
    program holds a shared lock on that file; without one the kernel knows who belongs to the allocation. With a
    ``worker_socket`` the program has neither: a worker that listens there uses the slice in its stead. With a ``door`` the
    program is started by whoever waits at that Unix socket, in the network namespace of its ports."""

    id: str
    state: str
    environment: dict[str, str]
    slot: str
    lease: str
    mode: str
    slices: list[SliceView]
    policy: str = ""
    worker_socket: str = ""
    door: str = ""
    warnings: list[str] = []


class StateReply(Reply, kw_only=True, frozen=True):
    """``granted``, ``running``, ``ending``, or ``released``."""

    id: str
    state: str


class MovedReply(Reply, kw_only=True, frozen=True):
    """The queue that a request waits in now."""

    id: str
    queue: str


class KeptReply(Reply, kw_only=True, frozen=True):
    """For how many seconds it is kept without another word; 0: until it is given back."""

    id: str
    keep_s: float


class WhyReply(Reply, kw_only=True, frozen=True):
    """Why a request waits, where and why there something runs, or what became of it."""

    id: str
    state: str
    reason: str
    explanation: str
    details: list[str] = []
    suggestions: list[str] = []


class QueueView(Reply, kw_only=True, frozen=True):
    """A queue; amounts in devices."""

    name: str
    parent: str
    deserved: float
    limit: float | None
    weight: float
    allocated: float
    pending: float
    users: list[str]
    groups: list[str]


class QueueList(Reply, kw_only=True, frozen=True):
    items: list[QueueView]


class Named(Reply, kw_only=True, frozen=True):
    """Name of an object that was created, changed or deleted, and ``warnings`` for the administrator."""

    name: str
    warnings: list[str] = []


class ScenarioText(Reply, kw_only=True, frozen=True):
    """What the scheduler knows now, as a scenario file."""

    scenario: str


class EventView(Reply, kw_only=True, frozen=True):
    """Something that happened."""

    id: int
    at: float
    kind: str
    reason: str
    allocation: str
    device: str
    message: str


class EventList(Reply, kw_only=True, frozen=True):
    """Oldest first."""

    items: list[EventView]


class Stopping(Reply, kw_only=True, frozen=True):
    """The process that is about to end."""

    pid: int
