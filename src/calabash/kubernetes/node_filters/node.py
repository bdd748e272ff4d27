"""A node's own properties, and the filters that depend on them and on nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from calabash.adapters.kube.objects.core import Taint, Toleration
from calabash.kubernetes.node_filters.checked_pod import CheckedPod, NodeTerm
from calabash.kubernetes.node_filters.demand import capacity
from calabash.kubernetes.node_filters.reasons import Filter, Refusal
from calabash.kubernetes.node_filters.selectors import all_match
from calabash.kubernetes.node_filters.wire import WireNode, converted

_EFFECTS = ("NoSchedule", "NoExecute")
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateNode:
    """A node.

    Args:
        taints: the taints that keep pods away.
        unschedulable: True if the node is cordoned.
        allocatable: amounts that pods can have, in the units of ``Demand``.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, int]


def read_node(tree: Mapping[str, Any]) -> CandidateNode:
    """Return the properties of a node as the API server stores it. Raises CalabashError if it cannot be read."""
    node = converted(tree, WireNode, "node")
    return CandidateNode(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=tuple(taint for taint in node.spec.taints or () if taint.effect in _EFFECTS),
        unschedulable=node.spec.unschedulable,
        allocatable=capacity(node.status.allocatable or {}),
    )


def node_refusal(pod: CheckedPod, node: CandidateNode) -> Refusal | None:
    """Return the first filter that refuses the node whatever pods it has; None if none does."""
    if node.unschedulable and not _tolerated(_CORDON, pod.tolerations):
        return Refusal(filter=Filter.NODE_UNSCHEDULABLE)
    if pod.node_name and pod.node_name != node.name:
        return Refusal(filter=Filter.NODE_NAME)
    for taint in node.taints:
        if not _tolerated(taint, pod.tolerations):
            return Refusal(filter=Filter.TAINT_TOLERATION, subject=f"{taint.key}={taint.value}:{taint.effect}")
    if not all_match(pod.selector, node.labels):
        return Refusal(filter=Filter.NODE_AFFINITY)
    if pod.affinity is not None and not any(_matches(term, node) for term in pod.affinity):
        return Refusal(filter=Filter.NODE_AFFINITY)
    return None


def _matches(term: NodeTerm, node: CandidateNode) -> bool:
    return all((name == node.name) is wanted for name, wanted in term.names) and all_match(term.labels, node.labels)


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        one.effect in ("", taint.effect)
        and one.key in ("", taint.key)
        and (one.operator == "Exists" or one.value == taint.value)
        for one in tolerations
    )
