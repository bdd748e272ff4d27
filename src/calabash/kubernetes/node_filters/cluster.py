"""All nodes of a cluster with the pods on them, kept up to date by events, to check pods that have no node yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calabash.kubernetes.node_filters.anti_affinity import AntiAffinityIndex, KeptAway
from calabash.kubernetes.node_filters.checked_pod import CheckedPod
from calabash.kubernetes.node_filters.existing_pod import ExistingPod
from calabash.kubernetes.node_filters.node import CandidateNode, node_refusal
from calabash.kubernetes.node_filters.node_room import NodeRoom
from calabash.kubernetes.node_filters.reasons import Filter, Refusal, Unchecked


class NodeFilters:
    """Nodes, namespaces and the pods that have a node.

    Events may arrive in any order; a pod counts on its node also before the node is known. A pod that is about to be
    bound is added with its node, as if it were bound.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, CandidateNode] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._rooms: dict[str, NodeRoom] = {}
        self._node_of: dict[str, str] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._anti_affinity = AntiAffinityIndex()

    def set_node(self, node: CandidateNode) -> None:
        """Insert or update a node."""
        self._nodes[node.name] = node
        self._labels[node.name] = node.labels
        self._rooms.setdefault(node.name, NodeRoom()).set_allocatable(node.allocatable)

    def remove_node(self, name: str) -> None:
        """Remove a node. Its pods still count if it appears again."""
        self._nodes.pop(name, None)
        self._labels.pop(name, None)
        room = self._rooms.get(name)
        if room is not None and not len(room):
            del self._rooms[name]

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Insert or update the labels of a namespace."""
        self._namespaces[name] = labels

    def remove_namespace(self, name: str) -> None:
        """Remove a namespace."""
        self._namespaces.pop(name, None)

    def set_pod(self, pod: ExistingPod) -> None:
        """Insert or update a pod that has a node. A pod that has ended is removed."""
        if pod.ended or self._node_of.get(pod.uid, pod.node) != pod.node:
            self.remove_pod(pod.uid)
        if pod.ended:
            return
        self._node_of[pod.uid] = pod.node
        self._rooms.setdefault(pod.node, NodeRoom()).add(pod.uid, pod.demand)
        self._anti_affinity.add(pod.uid, pod.node, pod.anti_affinity)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that was deleted or has ended."""
        name = self._node_of.pop(uid, None)
        if name is None:
            return
        self._anti_affinity.remove(uid)
        self._rooms[name].remove(uid)
        if name not in self._nodes and not len(self._rooms[name]):
            del self._rooms[name]

    def kept_away(self, pod: CheckedPod) -> KeptAway | Unchecked:
        """Return where existing pods do not let the pod run; ``Unchecked`` if that cannot be evaluated."""
        return self._anti_affinity.kept_away(
            pod.namespace,
            pod.labels,
            namespace_labels=self._namespaces.get(pod.namespace),
            node_labels=self._labels,
        )

    def refusal(self, pod: CheckedPod, name: str, kept_away: KeptAway) -> Refusal | None:
        """Return the first filter that refuses a node; None if the pod can be bound to it.

        ``kept_away``: the result of ``kept_away`` for the pod since the last event.
        """
        node = self._nodes.get(name)
        if node is None:
            return Refusal(filter=Filter.UNKNOWN_NODE)
        return node_refusal(pod, node) or self._rooms[name].refusal(pod.demand) or kept_away.refusal(node.labels)

    def refusals(self, pod: CheckedPod, names: Iterable[str] | None = None) -> dict[str, Refusal | None] | Unchecked:
        """Return for each node the first filter that refuses it, or None if the pod can be bound to it.

        Args:
            pod: the pod.
            names: the nodes to check; None for all.
        """
        kept_away = self.kept_away(pod)
        if isinstance(kept_away, Unchecked):
            return kept_away
        return {name: self.refusal(pod, name, kept_away) for name in (self._nodes if names is None else names)}
