"""Reasons for which a pod cannot be checked, and for which a node is refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Reason for which only kube-scheduler can place a pod."""

    VOLUME = "volume"  # must be bound or attached
    TOPOLOGY_SPREAD = "topology_spread"
    POD_AFFINITY = "pod_affinity"  # affinity or anti-affinity of the pod to other pods
    EXISTING_ANTI_AFFINITY = "existing_anti_affinity"  # another pod's term cannot be evaluated for this pod
    CLAIM = "claim"
    DEVICE_CLASS_RESOURCE = "device_class_resource"  # an extended resource for which a claim is created
    SCHEDULING_GATE = "scheduling_gate"
    SCHEDULING_GROUP = "scheduling_group"
    NODE_FEATURE = "node_feature"  # needs a feature that nodes declare
    SELECTOR = "selector"  # an operator or a value that kube-scheduler does not accept or treats specially
    UNKNOWN_FIELD = "unknown_field"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """Result for a pod that cannot be checked.

    Args:
        cause: the reason.
        path: the field that is the reason, from the pod: ``spec.volumes[1].csi``.
        detail: further text for people; "" if cause and path say everything.
    """

    cause: Cause
    path: str
    detail: str = ""


class UncheckedError(Exception):
    """Raised while a pod is read, with the result."""

    def __init__(self, cause: Cause, path: str, detail: str = "") -> None:
        super().__init__(f"{path}: {cause}: {detail}")
        self.result = Unchecked(cause=cause, path=path, detail=detail)


class Filter(StrEnum):
    """Filter that refuses a node, by the name of the plug-in of kube-scheduler."""

    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_NAME = "NodeName"
    TAINT_TOLERATION = "TaintToleration"
    NODE_AFFINITY = "NodeAffinity"
    NODE_PORTS = "NodePorts"
    NODE_RESOURCES_FIT = "NodeResourcesFit"
    INTER_POD_AFFINITY = "InterPodAffinity"
    UNREADABLE_POD = "UnreadablePod"  # none of kube-scheduler: the node has a pod whose requests are not known
    UNKNOWN_NODE = "UnknownNode"  # none of kube-scheduler: the node does not exist or could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason for which a node is refused.

    Args:
        filter: the filter that refuses it.
        subject: the resource, the taint (``key=value:effect``), the port (``protocol/port``), the topology key, or the
            pod that cannot be read; "" for the other filters.
        requested, free: amounts of the resource, in millicores for ``cpu`` and else in bytes or pieces; ``free`` can be
            negative.
    """

    filter: Filter
    subject: str = ""
    requested: int = 0
    free: int = 0
