"""Read a pod that has a node: what it requests, and which other pods its anti-affinity keeps away.

Such a pod may have been placed by any scheduler and may use any feature. Only what affects other pods is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from calabash.adapters.kube.objects.core import LabelSelector
from calabash.kubernetes.node_filters.demand import Demand, pod_demand
from calabash.kubernetes.node_filters.reasons import UncheckedError
from calabash.kubernetes.node_filters.selectors import Selector, label_selector
from calabash.kubernetes.node_filters.wire import WirePod, WirePodTerm, converted
from calabash.model.errors import CalabashError

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiAffinityTerm:
    """Pods that must not run on nodes with the same value of a label as the node of the term's pod.

    Args:
        topology_key: the label of the nodes.
        pods: requirements on the labels of the other pods; None if they cannot be evaluated.
        namespaces: the namespaces of these pods.
        namespace_selector: requirements on the labels of further namespaces; None for no further namespaces.
        every_pod: True if the term cannot be read, so that it may concern every pod.
    """

    topology_key: str = ""
    pods: Selector | None = None
    namespaces: frozenset[str] = frozenset()
    namespace_selector: Selector | None = None
    every_pod: bool = False


UNREADABLE_TERM = AntiAffinityTerm(every_pod=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingPod:
    """A pod that has a node.

    Args:
        ended: True if the pod has ended, so that it uses nothing.
        demand: its requests; None if they cannot be read.
        anti_affinity: the terms that kube-scheduler enforces.
    """

    uid: str
    node: str
    ended: bool = False
    demand: Demand | None
    anti_affinity: tuple[AntiAffinityTerm, ...] = ()


def read_existing_pod(tree: Mapping[str, Any]) -> ExistingPod:
    """Return what matters of a pod that has a node.

    Raises:
        CalabashError: not even its UID and its node can be read.
    """
    try:
        pod = converted(tree, WirePod, "pod")
    except CalabashError:
        uid, node = _identity(tree)
        return ExistingPod(uid=uid, node=node, demand=None, anti_affinity=(UNREADABLE_TERM,))
    ended = pod.status.phase in _ENDED
    return ExistingPod(
        uid=pod.metadata.uid,
        node=pod.spec.node_name,
        ended=ended,
        demand=None if ended else _demand(pod),
        anti_affinity=() if ended else tuple(_terms(pod)),
    )


def _identity(tree: Mapping[str, Any]) -> tuple[str, str]:
    metadata, spec = tree.get("metadata"), tree.get("spec")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    node = spec.get("nodeName") if isinstance(spec, Mapping) else None
    if not (isinstance(uid, str) and isinstance(node, str)):
        raise CalabashError("the pod cannot be read: it has no UID or no node", hint="see `kubectl explain pod`")
    return uid, node


def _demand(pod: WirePod) -> Demand | None:
    if pod.status.node_allocatable_resource_claim_statuses:
        return None  # claims that use the node's CPU or memory
    try:
        return pod_demand(pod, with_status=True)
    except CalabashError:
        return None


def _terms(pod: WirePod) -> Iterator[AntiAffinityTerm]:
    affinity = pod.spec.affinity
    required = affinity.pod_anti_affinity.required if affinity and affinity.pod_anti_affinity else None
    for term in required or ():
        if term.label_selector is not None:  # else it selects no pods
            yield _term(term, term.label_selector, pod.metadata.namespace)


def _term(term: WirePodTerm, selector: LabelSelector, own_namespace: str) -> AntiAffinityTerm:
    """Return a term. The API server has added the requirements of ``matchLabelKeys`` to its selector."""
    further: Selector | None = None
    pods: Selector | None = None
    names = frozenset(term.namespaces or ())
    if not names and term.namespace_selector is None:
        names = frozenset({own_namespace})
    if term.namespace_selector is not None:
        try:
            further = label_selector(term.namespace_selector, "")
        except UncheckedError:
            return UNREADABLE_TERM
    with suppress(UncheckedError):
        pods = label_selector(selector, "")
    return AntiAffinityTerm(topology_key=term.topology_key, pods=pods, namespaces=names, namespace_selector=further)
