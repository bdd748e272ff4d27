"""Index of the pods whose required anti-affinity keeps other pods away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from calabash.kubernetes.node_filters.existing_pod import AntiAffinityTerm
from calabash.kubernetes.node_filters.reasons import Cause, Filter, Refusal, Unchecked
from calabash.kubernetes.node_filters.selectors import all_match


@dataclass(frozen=True, slots=True)
class KeptAway:
    """Values of node labels, by label, that a pod must not share with existing pods."""

    values: Mapping[str, frozenset[str]]

    def refusal(self, labels: Mapping[str, str]) -> Refusal | None:
        """Return the reason for which a node with these labels is refused; None if it is not."""
        for key, values in self.values.items():
            if labels.get(key) in values:
                return Refusal(filter=Filter.INTER_POD_AFFINITY, subject=key)
        return None


NOT_KEPT_AWAY = KeptAway({})


class AntiAffinityIndex:
    """The required anti-affinity terms of all pods that have a node.

    Equal terms are kept once, with their nodes, so that a query takes a time that depends on the number of different
    terms and, for terms that select the pod, on their nodes.
    """

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, tuple[AntiAffinityTerm, ...]]] = {}
        self._nodes: dict[AntiAffinityTerm, Counter[str]] = {}

    def add(self, uid: str, node: str, terms: tuple[AntiAffinityTerm, ...]) -> None:
        """Add a pod, or update its node and its terms."""
        self.remove(uid)
        if not terms:
            return
        self._pods[uid] = (node, terms)
        for term in terms:
            self._nodes.setdefault(term, Counter())[node] += 1

    def remove(self, uid: str) -> None:
        """Remove a pod. Do nothing if it has no terms."""
        node, terms = self._pods.pop(uid, ("", ()))
        for term in terms:
            nodes = self._nodes[term]
            nodes[node] -= 1
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._nodes[term]

    def kept_away(
        self,
        namespace: str,
        labels: Mapping[str, str],
        *,
        namespace_labels: Mapping[str, str] | None,
        node_labels: Mapping[str, Mapping[str, str]],
    ) -> KeptAway | Unchecked:
        """Return where existing pods do not let a pod run.

        Args:
            namespace, labels: of the pod.
            namespace_labels: labels of the namespace; None if they are not known.
            node_labels: labels of all nodes, by name.

        Returns:
            The values of node labels; ``Unchecked`` if a term that may select the pod cannot be evaluated.
        """
        found: dict[str, set[str]] = {}
        for term, nodes in self._nodes.items():
            selected = _selects_namespace(term, namespace, namespace_labels)
            if selected is False:
                continue
            if selected is None or term.pods is None:
                return Unchecked(
                    cause=Cause.EXISTING_ANTI_AFFINITY, path="", detail=f"of a pod on node {min(nodes)[:253]}"
                )
            if not all_match(term.pods, labels):
                continue
            for node in nodes:
                value = node_labels.get(node, {}).get(term.topology_key)
                if value is not None:
                    found.setdefault(term.topology_key, set()).add(value)
        return KeptAway({key: frozenset(values) for key, values in found.items()}) if found else NOT_KEPT_AWAY


def _selects_namespace(
    term: AntiAffinityTerm, namespace: str, namespace_labels: Mapping[str, str] | None
) -> bool | None:
    """Return True if the term concerns pods of the namespace; None if that is not known."""
    if term.every_pod:
        return None
    if namespace in term.namespaces:
        return True
    if term.namespace_selector is None:
        return False
    if not term.namespace_selector:
        return True
    return None if namespace_labels is None else all_match(term.namespace_selector, namespace_labels)
