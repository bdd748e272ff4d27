"""Catalogue of the exporter's metrics: type, unit, labels, and the largest number of series of each.

Names end in their base unit; ratios are 0 to 1. Labels that identify a device or a slice are on each of its series.
Labels that describe it (its model or sharing mode, for example) are only on its ``_info`` series; a query joins the
two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Metric types of Prometheus that the catalogue uses."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Kind of object for which a metric has a series; the number of such objects limits the number of series."""

    POOL = "one"
    DEVICE = "one for each device"
    SLICE = "one for each slice that is held"
    QUEUE = "one for each queue"
    WAITS = "for each queue without child queues, two outcomes with one for each bucket, the sum and the count"
    TENANT = "one for each tenant"
    PROJECT = "one for each of the first 50 projects of a tenant"
    REASON = "one for each reason for which requests wait"
    KIND = "one for each kind of event"
    MODE = "one for each sharing mode in use"
    PART = "one for each part of OVN, while there are VPCs"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """Specification of a metric.

    Args:
        name: name, which ends in the unit, and for counters in ``_total``.
        help: description of the value.
        scope: kind of object for which there is a series.
        labels: names of the labels.
        unit: base unit; "" for plain counts.
        kind: type of the metric.
    """

    name: str
    help: str
    scope: Scope
    labels: tuple[str, ...]
    unit: str = ""
    kind: MetricKind = MetricKind.GAUGE


DEVICE = ("node", "device_uuid", "device_index")
SLICE = ("node", "allocation", "device_uuid", "tenant", "queue")
QUEUE = ("node", "queue")
TENANT = ("node", "tenant")
PROJECT = ("node", "tenant", "project")
BUDGET = ("node", "tenant", "currency")


def _device(name: str, text: str, unit: str = "", labels: tuple[str, ...] = DEVICE) -> MetricSpec:
    return MetricSpec(name=f"calabash_device_{name}", help=text, scope=Scope.DEVICE, labels=labels, unit=unit)


def _slice(
    name: str, text: str, unit: str = "", *, labels: tuple[str, ...] = SLICE, kind: MetricKind = MetricKind.GAUGE
) -> MetricSpec:
    return MetricSpec(name=f"calabash_slice_{name}", help=text, scope=Scope.SLICE, labels=labels, unit=unit, kind=kind)


def _queue(name: str, text: str) -> MetricSpec:
    return MetricSpec(name=f"calabash_queue_{name}", help=text, scope=Scope.QUEUE, labels=QUEUE, unit="devices")


def _tenant(
    name: str,
    text: str,
    unit: str = "devices",
    *,
    labels: tuple[str, ...] = TENANT,
    kind: MetricKind = MetricKind.GAUGE,
) -> MetricSpec:
    return MetricSpec(
        name=f"calabash_tenant_{name}", help=text, scope=Scope.TENANT, labels=labels, unit=unit, kind=kind
    )


def _project(name: str, text: str, unit: str = "devices", *, kind: MetricKind = MetricKind.GAUGE) -> MetricSpec:
    return MetricSpec(
        name=f"calabash_project_{name}", help=text, scope=Scope.PROJECT, labels=PROJECT, unit=unit, kind=kind
    )


def _pool(name: str, text: str, unit: str = "", labels: tuple[str, ...] = ("node",)) -> MetricSpec:
    return MetricSpec(name=f"calabash_{name}", help=text, scope=Scope.POOL, labels=labels, unit=unit)


UP = _pool("up", "1 if the pool answered this scrape, else 0; then there are no other metrics.", labels=())
READ_SECONDS = _pool("read_seconds", "Time that the pool took to answer this scrape.", "seconds", labels=())
POOL_INFO = _pool("pool_info", "The pool: always 1.", labels=("node", "version", "driver", "simulated"))
POOL_START = _pool("pool_start_time_seconds", "Start of the pool, in seconds since 1970.", "seconds")

DEVICE_INFO = _device(
    "info",
    "The device: always 1. sharing_mode is empty while no allocation holds it.",
    labels=(*DEVICE, "device_model", "vendor", "compute_capability", "sharing_mode"),
)
DEVICE_HEALTHY = _device("healthy", "1 while the device accepts new allocations, else 0.")
DEVICE_HEALTH_INFO = _device(
    "health_info", "The device's health and its cause: always 1.", labels=(*DEVICE, "health", "cause")
)
DEVICE_MEMORY = _device("memory_bytes", "Memory of the device.", "bytes")
DEVICE_MEMORY_USED = _device("memory_used_bytes", "Device memory in use, as the driver reports it.", "bytes")
DEVICE_MEMORY_ALLOCATED = _device("memory_allocated_bytes", "Device memory that is allocated to slices.", "bytes")
DEVICE_MEMORY_FREE = _device("memory_free_bytes", "Device memory that can still be allocated.", "bytes")
DEVICE_CORE_ALLOCATED = _device("core_allocated_ratio", "Compute of the device that is allocated to slices.", "ratio")
DEVICE_BUSY = _device(
    "busy_ratio", "Part of the last sampling period in which a kernel ran, as the driver reports it.", "ratio"
)
DEVICE_TEMPERATURE = _device("temperature_celsius", "Temperature of the device.", "celsius")
DEVICE_POWER = _device("power_watts", "Power that the device draws.", "watts")
DEVICE_SLICES = _device("slices", "Allocations that hold a slice of the device.")
DEVICE_STRANGERS = _device("strangers", "Processes on the device that have no slice of it.")
DEVICE_STRANGERS_MEMORY = _device(
    "strangers_memory_bytes", "Device memory of processes that have no slice of the device.", "bytes"
)

SLICE_INFO = _slice(
    "info",
    "The slice: always 1.",
    labels=(*SLICE, "device_index", "user", "sharing_mode", "policy", "mig_profile", "gang"),
)
SLICE_MEMORY_LIMIT = _slice("memory_limit_bytes", "Memory limit of the slice.", "bytes")
SLICE_MEMORY_USED = _slice("memory_used_bytes", "Memory of the slice that is in use.", "bytes")
SLICE_CORE_LIMIT = _slice(
    "core_limit_ratio",
    "Compute share of the slice; with policy best-effort the share for which it is accounted.",
    "ratio",
)
SLICE_CORE_USED = _slice("core_used_ratio", "Compute of the device that the slice used over the last second.", "ratio")
SLICE_THROTTLED = _slice(
    "throttled_seconds_total",
    "Time for which launches of the slice were held back by its compute limit.",
    "seconds",
    kind=MetricKind.COUNTER,
)
SLICE_DENIED = _slice(
    "memory_denied_total", "Memory allocations of the slice that were refused at its limit.", kind=MetricKind.COUNTER
)

QUEUE_INFO = MetricSpec(
    name="calabash_queue_info",
    help="The queue: always 1. parent is its parent queue, root the topmost queue above it or itself.",
    scope=Scope.QUEUE,
    labels=(*QUEUE, "parent", "root"),
)
QUEUE_DESERVED = _queue("deserved_devices", "Devices that the queue is guaranteed beyond those of its child queues.")
QUEUE_LIMIT = _queue(
    "limit_devices",
    "Most devices that the queue and its child queues may hold; +Inf without a limit. A bound: not to be added.",
)
QUEUE_ALLOCATED = _queue(
    "allocated_devices", "Devices that the queue itself holds, with fractions of devices, without its child queues."
)
QUEUE_PENDING = _queue(
    "pending_devices", "Devices for which requests wait in the queue itself, without its child queues."
)
QUEUE_FAIR_SHARE = _queue(
    "fair_share_devices",
    "Devices that the queue and its child queues may have now by guarantee and weight, at most what they ask for. A bound: not"
    " to be added.",
)
QUEUE_PAST_USE = MetricSpec(
    name="calabash_queue_past_use_device_seconds",
    help="Use of the queue and its child queues above the guarantee, of which older use counts less; 0 without a half-life.",
    scope=Scope.QUEUE,
    labels=QUEUE,
    unit="seconds",
)
QUEUE_EFFECTIVE_WEIGHT = MetricSpec(
    name="calabash_queue_effective_weight",
    help="Weight of the queue after the correction by past use, if all its siblings asked for devices.",
    scope=Scope.QUEUE,
    labels=QUEUE,
)
QUEUE_LONGEST_WAIT = MetricSpec(
    name="calabash_queue_longest_wait_seconds",
    help="Age of the oldest request that waits in the queue itself, not in a child queue; 0 while none waits.",
    scope=Scope.QUEUE,
    labels=QUEUE,
    unit="seconds",
)

QUEUE_WAIT = MetricSpec(
    name="calabash_queue_wait_seconds",
    help="Waiting time of requests from submission until they were granted, or ended without a grant (outcome not_granted).",
    scope=Scope.WAITS,
    labels=(*QUEUE, "outcome"),
    unit="seconds",
    kind=MetricKind.HISTOGRAM,
)

TENANT_GUARANTEE = _tenant("guarantee_devices", "Devices that the tenant is guaranteed.")
TENANT_LIMIT = _tenant("limit_devices", "Most devices that the tenant may hold; +Inf without a limit. Not to be added.")
TENANT_ALLOCATED = _tenant("allocated_devices", "Devices that the tenant holds, with fractions, its projects included.")
TENANT_BORROWED = _tenant("borrowed_devices", "Devices that the tenant holds above its guarantee.")
TENANT_PENDING = _tenant("pending_devices", "Devices for which the tenant's requests wait, its projects included.")
TENANT_GPU_SECONDS = _tenant(
    "gpu_seconds_total",
    "Seconds of whole devices that the tenant was allocated since the start of the pool, its projects included.",
    "seconds",
    kind=MetricKind.COUNTER,
)
TENANT_GPU_USED = _tenant(
    "gpu_used_seconds_total", "Seconds of whole devices that the tenant used.", "seconds", kind=MetricKind.COUNTER
)
TENANT_GPU_IDLE = _tenant(
    "gpu_idle_seconds_total",
    "Allocated seconds of whole devices in which no kernel of the slice ran, where that is measured.",
    "seconds",
    kind=MetricKind.COUNTER,
)
TENANT_PROJECTS = _tenant("projects", "Projects of the tenant, with those that have no series.", "")
TENANT_BUDGET = _tenant(
    "budget",
    "Budget of the tenant for a month, in the currency of the label; only if it has one.",
    "",
    labels=BUDGET,
)
TENANT_SPENT = _tenant(
    "spent",
    "Cost of the tenant's usage of this month without tax, counted within the last minutes; only if it has a budget.",
    "",
    labels=BUDGET,
)

PROJECT_GUARANTEE = _project("guarantee_devices", "Devices that the project is guaranteed, out of those of its tenant.")
PROJECT_LIMIT = _project(
    "limit_devices", "Most devices that the project may hold; +Inf without a limit. Not to be added."
)
PROJECT_ALLOCATED = _project("allocated_devices", "Devices that the project holds, with fractions.")
PROJECT_BORROWED = _project("borrowed_devices", "Devices that the project holds above its guarantee.")
PROJECT_PENDING = _project("pending_devices", "Devices for which the project's requests wait.")
PROJECT_GPU_SECONDS = _project(
    "gpu_seconds_total",
    "Seconds of whole devices that the project was allocated since the start of the pool.",
    "seconds",
    kind=MetricKind.COUNTER,
)
PROJECT_GPU_USED = _project(
    "gpu_used_seconds_total", "Seconds of whole devices that the project used.", "seconds", kind=MetricKind.COUNTER
)
PROJECT_GPU_IDLE = _project(
    "gpu_idle_seconds_total",
    "Allocated seconds of whole devices in which no kernel of the slice ran, where that is measured.",
    "seconds",
    kind=MetricKind.COUNTER,
)

WAITING = MetricSpec(
    name="calabash_requests_waiting",
    help="Requests that wait, by the reason that the first of the line are told; the rest have reason queued.",
    scope=Scope.REASON,
    labels=("node", "queue", "reason"),
)
HELD = MetricSpec(
    name="calabash_allocations",
    help="Allocations that are held, by sharing mode and state.",
    scope=Scope.MODE,
    labels=("node", "sharing_mode", "state"),
)
EVENTS = MetricSpec(
    name="calabash_events_total",
    help="Events of the pool since the exporter started.",
    scope=Scope.KIND,
    labels=("node", "kind", "reason"),
    kind=MetricKind.COUNTER,
)

NETWORK_AFFECTED = MetricSpec(
    name="calabash_network_affected_vpcs",
    help="VPCs for which a part of OVN has not answered for seconds, by the part that matters most.",
    scope=Scope.PART,
    labels=("node", "reason"),
)

CATALOGUE: tuple[MetricSpec, ...] = tuple(found for found in list(globals().values()) if isinstance(found, MetricSpec))
