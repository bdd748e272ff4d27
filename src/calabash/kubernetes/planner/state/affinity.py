"""Where no kube-scheduler asks the planner: a pod is confined to a few nodes before its gate goes, the planned one first.

Kubernetes lets the affinity of a gated pod only be made narrower: where it demands nodes already, each of its terms is
narrowed, else there is one term for each node. What was written is read back from the pod, so that whoever plans next
knows where it may go.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import NodeSelectorTerm, Pod, SelectorRequirement
from calabash.binder.cluster.upkeep import nodes_with_room
from calabash.kubernetes.planner.state.store import Book, Entry

HOSTNAME = "kubernetes.io/hostname"
NODES_MAX = 4
_NAME = "metadata.name"


def confined(pod: Pod, nodes: Sequence[str]) -> dict[str, Any]:
    """The ``affinity`` by which a pod may go to these nodes and no others, as a merge patch."""
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


def confined_to(pod: Pod) -> tuple[str, ...]:
    """The nodes that a pod is confined to by their names; none: it is not."""
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


def alternatives(book: Book, entry: Entry, node: str) -> tuple[str, ...]:
    """The planned node, and a few others that would have room, if kube-scheduler has none there. Who comes later is given
    others, as far as there are some."""
    names = [str(name) for name in book.scheduler.nodes if name != node]
    some = random.sample(names, min(len(names), 16 * NODES_MAX))  # chosen without need of a seed: any will do
    some.sort(key=lambda name: book.listed[name])
    found = nodes_with_room(book.scheduler, entry.id, some, NODES_MAX - 1)
    book.listed.update((node, *found))
    return (node, *found)


def _terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    return required.node_selector_terms if required is not None else ()
