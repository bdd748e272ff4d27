"""Node affinity for the handshake ``affinity``: restrict a pod to a few candidate nodes, the planned node first.

This handshake serves clusters whose kube-scheduler does not ask the planner. Kubernetes permits only to narrow the
affinity of a gated pod. So if the pod has required node selector terms, each of them is narrowed to the candidate
nodes. Otherwise one term is written for each candidate node. The candidate nodes are stored only in the pod, from which
a planner that takes over reads them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import NodeSelectorTerm, Pod, SelectorRequirement
from calabash.binder.cluster.upkeep import nodes_with_room
from calabash.kubernetes.objects.names import HOSTNAME
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.store import PodStore

NODES_MAX = 4
_NAME = "metadata.name"


def restricted_affinity(pod: Pod, nodes: Sequence[str]) -> dict[str, Any]:
    """Return the value of ``spec.affinity``, for a merge patch, that restricts a pod to the nodes."""
    terms = _terms(pod)
    if terms:
        here = SelectorRequirement(key=HOSTNAME, operator="In", values=tuple(nodes))
        wanted = [msgspec.structs.replace(term, match_expressions=(*term.match_expressions, here)) for term in terms]
    else:
        wanted = [
            NodeSelectorTerm(match_fields=(SelectorRequirement(key=_NAME, operator="In", values=(name,)),))
            for name in nodes
        ]
    required = {"nodeSelectorTerms": [msgspec.to_builtins(term) for term in wanted]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def candidate_nodes_of(pod: Pod) -> tuple[str, ...]:
    """Return the nodes to which the pod's affinity restricts it by name; empty if it names no nodes."""
    found: dict[str, None] = {}
    for term in _terms(pod):
        lists = [
            one.values
            for one in (*term.match_expressions, *term.match_fields)
            if one.operator == "In" and one.key in (HOSTNAME, _NAME)
        ]
        if not lists:
            return ()
        found |= dict.fromkeys(name for name in lists[-1] if all(name in other for other in lists))
    return tuple(found)


def alternatives(store: PodStore, entry: PodEntry, node: str) -> tuple[str, ...]:
    """Return the planned node and up to NODES_MAX - 1 other nodes that have free devices for the pod.

    The others are alternatives in case the planned node has too little CPU or memory for kube-scheduler. Nodes that
    this function has returned less often are preferred, so that pods are spread.
    """
    names = [str(name) for name in store.scheduler.nodes if name != node]
    some = random.sample(names, min(len(names), 16 * NODES_MAX))  # needs no seed: any will do
    some.sort(key=lambda name: store.times_offered[name])
    found = nodes_with_room(store.scheduler, entry.id, some, NODES_MAX - 1)
    store.count_offers((node, *found))
    return (node, *found)


def _terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    return required.node_selector_terms if required is not None else ()
