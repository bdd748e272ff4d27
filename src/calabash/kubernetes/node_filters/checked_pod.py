"""Read the constraints of a pod that has no node yet, or the reason for which only kube-scheduler can place it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calabash.adapters.kube.objects.core import NodeSelectorTerm, Toleration
from calabash.kubernetes.node_filters import known_fields
from calabash.kubernetes.node_filters.demand import Demand, nanos, pod_demand
from calabash.kubernetes.node_filters.known_fields import unknown_fields
from calabash.kubernetes.node_filters.reasons import Cause, Unchecked, UncheckedError
from calabash.kubernetes.node_filters.selectors import NODE_OPERATORS, Selector, equal_labels, requirements
from calabash.kubernetes.node_filters.wire import WireContainer, WirePod, converted
from calabash.kubernetes.objects.names import PLAN_GATE
from calabash.model.errors import CalabashError

_PATH = re.compile(r"at `\$\.([^`]{1,512})`")
_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_RESTART_ALL = "RestartAllContainers"
_NAME_FIELD = "metadata.name"
_LISTS = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Term of a node affinity: requirements on labels and on the node's name, which must all hold.

    Args:
        labels: the requirements on labels.
        names: pairs of a node's name and True if the node must have it, False if it must not have it.
    """

    labels: Selector
    names: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPod:
    """The constraints of a pod on its node.

    Args:
        namespace, labels: of the pod, for the anti-affinity of other pods.
        demand: requests and host ports.
        node_name: the node that the pod names; "" if it names none.
        selector: labels that the node must have.
        affinity: terms of which one must hold; None if the pod has no node affinity.
        tolerations: the taints that the pod accepts.
    """

    namespace: str
    labels: Mapping[str, str]
    demand: Demand
    node_name: str = ""
    selector: Selector = ()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


def check_pod(
    tree: Mapping[str, Any], *, own_claims: Collection[str] = (), class_resources: Collection[str] = ()
) -> CheckedPod | Unchecked:
    """Return the constraints of a pod, or the first reason for which it cannot be checked.

    Args:
        tree: the pod as the API server stores it.
        own_claims: names of those entries of ``spec.resourceClaims`` whose devices the planner allocates.
        class_resources: extended resources that DeviceClasses name. The API server creates claims for them.
    """
    try:
        pod = converted(tree, WirePod, "pod")
        _require_known_fields(tree.get("spec") or {})
        _require_checkable(pod, own_claims, class_resources)
        return CheckedPod(
            namespace=pod.metadata.namespace,
            labels=pod.metadata.labels or {},
            demand=_demand(pod),
            node_name=pod.spec.node_name,
            selector=equal_labels(pod.spec.node_selector or {}, "spec.nodeSelector"),
            affinity=_node_terms(pod),
            tolerations=tuple(pod.spec.tolerations or ()),
        )
    except UncheckedError as error:
        return error.result
    except CalabashError as error:
        return Unchecked(cause=Cause.UNREADABLE, path=_path_in(error.message), detail=error.message)


# ---- fields ---------------------------------------------------------------------------------------------------------


def _require_known_fields(spec: Mapping[str, Any]) -> None:
    """Raise UncheckedError for a field that only kube-scheduler understands. The tree has the form of ``WirePod``."""
    for name, cause in known_fields.REFUSED.items():
        if spec.get(name):
            raise UncheckedError(cause, f"spec.{name}")
    for path in _all_unknown_fields(spec):
        raise UncheckedError(Cause.UNKNOWN_FIELD, path)
    _require_plain_volumes(spec.get("volumes") or [])
    _require_no_pod_affinity(spec.get("affinity") or {})


def _all_unknown_fields(spec: Mapping[str, Any]) -> Iterator[str]:
    yield from unknown_fields(spec, known_fields.SPEC | known_fields.REFUSED.keys(), "spec")
    yield from unknown_fields(spec.get("resources") or {}, known_fields.RESOURCES, "spec.resources")
    for name in _LISTS:
        for i, container in enumerate(spec.get(name) or ()):
            path = f"spec.{name}[{i}]"
            yield from unknown_fields(container, known_fields.CONTAINER, path)
            yield from unknown_fields(container.get("resources") or {}, known_fields.RESOURCES, f"{path}.resources")
            for j, port in enumerate(container.get("ports") or ()):
                yield from unknown_fields(port, known_fields.PORT, f"{path}.ports[{j}]")
    for i, toleration in enumerate(spec.get("tolerations") or ()):
        yield from unknown_fields(toleration, known_fields.TOLERATION, f"spec.tolerations[{i}]")
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    path = "spec.affinity.nodeAffinity"
    yield from unknown_fields(affinity, known_fields.NODE_AFFINITY, path)
    required = affinity.get(_REQUIRED) or {}
    yield from unknown_fields(required, known_fields.NODE_SELECTOR, f"{path}.{_REQUIRED}")
    for i, term in enumerate(required.get("nodeSelectorTerms") or ()):
        there = f"{path}.{_REQUIRED}.nodeSelectorTerms[{i}]"
        yield from unknown_fields(term, known_fields.TERM, there)
        for name in known_fields.TERM:
            for j, one in enumerate(term.get(name) or ()):
                yield from unknown_fields(one, known_fields.REQUIREMENT, f"{there}.{name}[{j}]")


def _require_plain_volumes(volumes: Any) -> None:
    """Raise UncheckedError for a volume that must be bound or attached, or whose type is not known."""
    if not isinstance(volumes, list):
        raise UncheckedError(Cause.UNREADABLE, "spec.volumes", "not a list")
    for i, volume in enumerate(volumes):
        if not isinstance(volume, Mapping):
            raise UncheckedError(Cause.UNREADABLE, f"spec.volumes[{i}]", "not an object")
        for path in unknown_fields(volume, known_fields.VOLUME | {"name"}, f"spec.volumes[{i}]"):
            raise UncheckedError(Cause.VOLUME, path)


def _require_no_pod_affinity(affinity: Mapping[str, Any]) -> None:
    for name, terms in affinity.items():
        if name == "nodeAffinity" or terms is None:
            continue
        path = f"spec.affinity.{name[:64]}"
        if name not in ("podAffinity", "podAntiAffinity"):
            raise UncheckedError(Cause.UNKNOWN_FIELD, path)
        if not isinstance(terms, Mapping):
            raise UncheckedError(Cause.UNREADABLE, path, "not an object")
        for kind, value in terms.items():
            if value or kind not in (_REQUIRED, _PREFERRED):
                raise UncheckedError(Cause.POD_AFFINITY, f"{path}.{kind[:64]}")


def _require_checkable(pod: WirePod, own_claims: Collection[str], class_resources: Collection[str]) -> None:
    spec = pod.spec
    for i, gate in enumerate(spec.scheduling_gates or ()):
        if gate.name != PLAN_GATE:
            raise UncheckedError(Cause.SCHEDULING_GATE, f"spec.schedulingGates[{i}]", gate.name[:64])
    for i, claim in enumerate(spec.resource_claims or ()):
        if claim.name not in own_claims:
            raise UncheckedError(Cause.CLAIM, f"spec.resourceClaims[{i}]", claim.name[:64])
    if spec.host_network and spec.host_users is False:
        raise UncheckedError(Cause.NODE_FEATURE, "spec.hostUsers", "user namespace with the network of the host")
    for name, containers in zip(_LISTS, (spec.containers, spec.init_containers), strict=True):
        for i, container in enumerate(containers or ()):
            _require_checkable_container(container, f"spec.{name}[{i}]", class_resources)
    for i, toleration in enumerate(spec.tolerations or ()):
        if toleration.operator not in ("", "Equal", "Exists"):
            raise UncheckedError(Cause.SELECTOR, f"spec.tolerations[{i}].operator", toleration.operator[:64])


def _require_checkable_container(container: WireContainer, path: str, class_resources: Collection[str]) -> None:
    for resource in container.requests:
        if resource.startswith(_DEVICE_CLASS) or resource in class_resources:
            raise UncheckedError(Cause.DEVICE_CLASS_RESOURCE, f"{path}.resources.requests", resource)
    for i, rule in enumerate(container.restart_policy_rules or ()):
        if rule.action == _RESTART_ALL:
            raise UncheckedError(Cause.NODE_FEATURE, f"{path}.restartPolicyRules[{i}].action", rule.action)


def _demand(pod: WirePod) -> Demand:
    try:
        return pod_demand(pod, with_status=False)
    except CalabashError as error:
        raise UncheckedError(Cause.UNREADABLE, _invalid_amount(pod), error.message) from error


def _invalid_amount(pod: WirePod) -> str:
    """Return the path of the first amount that is not valid; "" if all are."""
    spec = pod.spec
    lists = [("spec.overhead", spec.overhead or {})]
    if spec.resources is not None:
        lists.append(("spec.resources.requests", spec.resources.requests or {}))
    for name, containers in zip(_LISTS, (spec.containers, spec.init_containers), strict=True):
        lists += [(f"spec.{name}[{i}].resources.requests", c.requests) for i, c in enumerate(containers or ())]
    for path, amounts in lists:
        for resource, written in amounts.items():
            try:
                nanos({resource: written})
            except CalabashError:
                return f"{path}.{resource}"
    return ""


def _path_in(told: str) -> str:
    """Return the path in an error message of the decoder; "" if it has none."""
    found = _PATH.search(told)
    return found[1] if found is not None else ""


# ---- constraints on the node ----------------------------------------------------------------------------------------


def _node_terms(pod: WirePod) -> tuple[NodeTerm, ...] | None:
    affinity = pod.spec.affinity
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    if required is None:
        return None
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    return tuple(
        _node_term(term, f"{path}[{i}]")
        for i, term in enumerate(required.node_selector_terms or ())
        if term.match_expressions or term.match_fields  # an empty term matches no node
    )


def _node_term(term: NodeSelectorTerm, path: str) -> NodeTerm:
    names = []
    for i, one in enumerate(term.match_fields):
        if one.key != _NAME_FIELD or one.operator not in ("In", "NotIn") or len(one.values) != 1:
            raise UncheckedError(Cause.SELECTOR, f"{path}.matchFields[{i}]", "not one value of metadata.name")
        names.append((one.values[0], one.operator == "In"))
    return NodeTerm(
        labels=requirements(term.match_expressions, NODE_OPERATORS, f"{path}.matchExpressions"),
        names=tuple(names),
    )
