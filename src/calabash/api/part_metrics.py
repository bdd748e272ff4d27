"""Prometheus metrics that the programs of a cluster serve at ``/metrics``: names, labels and help texts.

The metrics are served without authentication. Therefore no label names an object of a namespace, a user or a queue: all label
values are from lists in the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClusterPart(StrEnum):
    """Program of the cluster. The value is the label ``part`` of ``calabash_build_info``."""

    PLANNER = "planner"
    ADMISSION = "admission"
    METRICS = "metrics"
    SERVER = "server"
    AGENT = "agent"


EVERY = frozenset(ClusterPart)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMetric:
    """Metric. ``parts`` are the programs that serve it; ``buckets`` are the upper bounds of a histogram."""

    name: str
    kind: str
    help: str
    parts: frozenset[ClusterPart]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


BUILD_INFO = PartMetric(
    name="calabash_build_info",
    kind="gauge",
    labels=("part", "version"),
    parts=EVERY,
    help="1, with the program of the cluster and its version as labels.",
)
KUBE_REQUESTS = PartMetric(
    name="calabash_kube_requests_total",
    kind="counter",
    labels=("method", "code"),
    parts=EVERY,
    help="Requests to the API server by the status of the reply, including watches; code 0: no reply.",
)
KUBE_LISTS = PartMetric(
    name="calabash_kube_lists_total",
    kind="counter",
    labels=("kind",),
    parts=EVERY,
    help="Complete lists of a kind of object. More than one per mirror of the kind: a watch could not be continued.",
)
KUBE_WATCHES = PartMetric(
    name="calabash_kube_watches_total",
    kind="counter",
    labels=("kind",),
    parts=EVERY,
    help="Started watches of a kind of object. API servers end each watch after 5 to 10 minutes.",
)
KUBE_SILENT = PartMetric(
    name="calabash_kube_silent_seconds",
    kind="gauge",
    labels=("kind",),
    parts=EVERY,
    help="Time since the API server last sent data about a kind of object; up to 90 s without a change is normal.",
)
PROCESS_CPU = PartMetric(
    name="process_cpu_seconds_total",
    kind="counter",
    parts=EVERY,
    help="Processor time of the process, user and system.",
)
PROCESS_MEMORY = PartMetric(
    name="process_resident_memory_bytes", kind="gauge", parts=EVERY, help="Resident memory of the process."
)
PROCESS_FDS = PartMetric(name="process_open_fds", kind="gauge", parts=EVERY, help="Open file descriptors.")
PROCESS_FDS_MAX = PartMetric(name="process_max_fds", kind="gauge", parts=EVERY, help="Limit of open file descriptors.")
PROCESS_START = PartMetric(
    name="process_start_time_seconds",
    kind="gauge",
    parts=EVERY,
    help="Start time of the process, in seconds since 1970.",
)
CERTIFICATE_EXPIRY = PartMetric(
    name="calabash_certificate_expiry_timestamp_seconds",
    kind="gauge",
    parts=frozenset((ClusterPart.ADMISSION, ClusterPart.METRICS, ClusterPart.SERVER)),
    help="Expiry of the program's serving certificate, in seconds since 1970; no series without a certificate.",
)

_PLANNER = frozenset((ClusterPart.PLANNER,))
PLANNER_LEADS = PartMetric(
    name="calabash_planner_leads",
    kind="gauge",
    parts=_PLANNER,
    help="1 while this planner is the leader, otherwise 0.",
)
PLANNER_READY = PartMetric(
    name="calabash_planner_ready",
    kind="gauge",
    parts=_PLANNER,
    help="1 while this planner is the leader, or has read all objects while another planner is the leader; otherwise 0.",
)
PLANNER_SKIPPED = PartMetric(
    name="calabash_planner_skipped_objects_total",
    kind="counter",
    labels=("kind",),
    parts=_PLANNER,
    help="Versions of objects that the planner skips, because it cannot read or process them.",
)
PLANNER_DECISIONS = PartMetric(
    name="calabash_planner_decision_seconds",
    kind="histogram",
    parts=_PLANNER,
    buckets=SECONDS,
    help="Duration of a decision cycle; the count is the number of cycles.",
)
PLANNER_FAILURES = PartMetric(
    name="calabash_planner_decision_failures_total",
    kind="counter",
    parts=_PLANNER,
    help="Failed decision cycles; after a failure the planner restarts without the pods on which it fails.",
)
PLANNER_UNLISTED = PartMetric(
    name="calabash_planner_unlisted_transitions_total",
    kind="counter",
    parts=_PLANNER,
    help="Events that the life cycle of a pod does not list for its stage; a pod that is not bound is then planned anew.",
)
PLANNER_PODS = PartMetric(
    name="calabash_planner_pods",
    kind="gauge",
    labels=("stage",),
    parts=_PLANNER,
    help="Pods that the leading planner knows, by stage: waiting pods are in their queues, bound pods have a node.",
)
PLANNER_NODES = PartMetric(
    name="calabash_planner_nodes", kind="gauge", parts=_PLANNER, help="Nodes on which the leading planner places pods."
)
PLANNER_BINDINGS = PartMetric(
    name="calabash_planner_bindings_total",
    kind="counter",
    labels=("result",),
    parts=_PLANNER,
    help="Bindings of pods with devices that were written (ok) or not written because of an error (failed).",
)

_ADMISSION = frozenset((ClusterPart.ADMISSION,))
ADMISSION_REQUESTS = PartMetric(
    name="calabash_admission_requests_total",
    kind="counter",
    labels=("path", "result"),
    parts=_ADMISSION,
    help="Admission reviews by path (mutate, validate, claims) and result: allowed, denied, unreadable, or failed.",
)
ADMISSION_OWNERS = PartMetric(
    name="calabash_admission_owners_total",
    kind="counter",
    labels=("result",),
    parts=_ADMISSION,
    help="Reviews of new pods that looked up the owner of the pod, by result: gang (its pods are one), none, invalid"
    " (its fields), forbidden (its kind, to admission), or unanswered (by the API server).",
)
ADMISSION_SECONDS = PartMetric(
    name="calabash_admission_request_seconds",
    kind="histogram",
    labels=("path",),
    parts=_ADMISSION,
    buckets=SECONDS,
    help="Duration of an admission review.",
)

_METRICS = frozenset((ClusterPart.METRICS,))
ADAPTER_REQUESTS = PartMetric(
    name="calabash_metrics_requests_total",
    kind="counter",
    labels=("code",),
    parts=_METRICS,
    help="Requests of API servers for external metrics, by the status of the reply; code 500: the program failed.",
)
ADAPTER_SECONDS = PartMetric(
    name="calabash_metrics_request_seconds",
    kind="histogram",
    parts=_METRICS,
    buckets=SECONDS,
    help="Duration of a request for external metrics.",
)

_SERVER = frozenset((ClusterPart.SERVER,))
SERVER_REQUESTS = PartMetric(
    name="calabash_server_requests_total",
    kind="counter",
    labels=("method", "code"),
    parts=_SERVER,
    help="Requests of the cluster's API by the status of the reply; code 0: the connection ended before the reply.",
)
SERVER_USAGE_RECORDS = PartMetric(
    name="calabash_server_usage_records_total",
    kind="counter",
    parts=_SERVER,
    help="Usage records of agents that were written to the database.",
)
SERVER_OLDEST_REPORT = PartMetric(
    name="calabash_server_oldest_node_report_seconds",
    kind="gauge",
    parts=_SERVER,
    help="Time since the oldest last usage report of all nodes, or since the start of the server.",
)

_AGENT = frozenset((ClusterPart.AGENT,))
AGENT_READY = PartMetric(
    name="calabash_agent_ready",
    kind="gauge",
    parts=_AGENT,
    help="1 while the agent serves the devices of its node, otherwise 0.",
)
AGENT_DEVICES = PartMetric(
    name="calabash_agent_devices",
    kind="gauge",
    labels=("health",),
    parts=_AGENT,
    help="Devices of the node by health state.",
)
AGENT_SLICES = PartMetric(
    name="calabash_agent_slices", kind="gauge", parts=_AGENT, help="Slices that containers of the node hold."
)
AGENT_DENIED = PartMetric(
    name="calabash_agent_memory_denied_total",
    kind="counter",
    parts=_AGENT,
    help="Memory allocations that were refused because the limit of a slice was reached.",
)
AGENT_THROTTLED = PartMetric(
    name="calabash_agent_throttled_seconds_total",
    kind="counter",
    parts=_AGENT,
    help="Time for which the work of slices was delayed by their compute share.",
)
AGENT_REGISTRATIONS = PartMetric(
    name="calabash_agent_kubelet_registrations_total",
    kind="counter",
    parts=_AGENT,
    help="Registrations with the kubelet or the relay since the start of the agent; more than one: it reconnected.",
)
AGENT_USAGE_WAITING = PartMetric(
    name="calabash_agent_usage_records_waiting",
    kind="gauge",
    parts=_AGENT,
    help="Usage records that the server of the cluster has not acknowledged.",
)

PART_METRICS = (
    BUILD_INFO,
    KUBE_REQUESTS,
    KUBE_LISTS,
    KUBE_WATCHES,
    KUBE_SILENT,
    PROCESS_CPU,
    PROCESS_MEMORY,
    PROCESS_FDS,
    PROCESS_FDS_MAX,
    PROCESS_START,
    CERTIFICATE_EXPIRY,
    PLANNER_LEADS,
    PLANNER_READY,
    PLANNER_SKIPPED,
    PLANNER_DECISIONS,
    PLANNER_FAILURES,
    PLANNER_UNLISTED,
    PLANNER_PODS,
    PLANNER_NODES,
    PLANNER_BINDINGS,
    ADMISSION_REQUESTS,
    ADMISSION_OWNERS,
    ADMISSION_SECONDS,
    ADAPTER_REQUESTS,
    ADAPTER_SECONDS,
    SERVER_REQUESTS,
    SERVER_USAGE_RECORDS,
    SERVER_OLDEST_REPORT,
    AGENT_READY,
    AGENT_DEVICES,
    AGENT_SLICES,
    AGENT_DENIED,
    AGENT_THROTTLED,
    AGENT_REGISTRATIONS,
    AGENT_USAGE_WAITING,
)


def metrics_of(part: ClusterPart) -> tuple[PartMetric, ...]:
    """Return the metrics that a program serves."""
    return tuple(metric for metric in PART_METRICS if part in metric.parts)
