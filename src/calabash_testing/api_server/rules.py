"""Rules of the API server for creations and changes, as far as the product depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calabash.adapters.kube.objects.meta import Kind
from calabash.model.errors import Reason
from calabash_testing.api_server.store import Json, refused

# Kinds whose status is changed only through its own path, and whose rest only beside it.
_WITH_STATUS = frozenset(
    {"pods", "nodes", "gpunodes", "queues", "poddisruptionbudgets", "podgroups", "namespaces", "resourceclaims"}
)
_IDENTITY = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion")


def preconditions(kind: Kind[Any], before: Json, meta: Mapping[str, Any]) -> None:
    """Raise CONFLICT if a change names another resource version or UID than the object has."""
    have = before["metadata"]
    version = meta.get("resourceVersion")
    if version and version != have["resourceVersion"]:
        raise refused(409, "Conflict", f'{kind.plural} "{have["name"]}": the object has been modified', Reason.CONFLICT)
    uid = meta.get("uid")
    if uid and uid != have["uid"]:
        raise refused(409, "Conflict", f"Precondition failed: UID {uid} is not {have['uid']}", Reason.CONFLICT)


def changed(kind: Kind[Any], before: Json, after: Json, subresource: str) -> Json:
    """Return the object to store for a change; fields that this path may not change keep their values."""
    if subresource == "status":
        out = before | {"status": after.get("status", {})}
        out["metadata"] = dict(before["metadata"])
        return out
    out = dict(after)
    if kind.plural in _WITH_STATUS:
        out.pop("status", None)
        if "status" in before:
            out["status"] = before["status"]
    out["metadata"] = dict(after["metadata"]) | {
        key: before["metadata"][key] for key in _IDENTITY if key in before["metadata"]
    }
    if out.get("spec") != before.get("spec"):
        out["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
    if kind.plural == "pods":
        _pod(before, out)
    return out


def created(kind: Kind[Any], obj: Json) -> Json:
    """Return the object to store for a creation."""
    if kind.plural == "pods":
        spec = dict(obj.get("spec", {}))
        spec.setdefault("schedulerName", "default-scheduler")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        spec.setdefault("restartPolicy", "Always")
        return obj | {"spec": spec, "status": {"phase": "Pending"}}
    return {key: value for key, value in obj.items() if key != "status" or kind.plural not in _WITH_STATUS}


def _pod(before: Json, after: Json) -> None:
    old, new = before.get("spec", {}), after.get("spec", {})
    name = before["metadata"]["name"]
    gates = {gate["name"] for gate in old.get("schedulingGates", ())}
    if not {gate["name"] for gate in new.get("schedulingGates", ())} <= gates:
        raise refused(422, "Invalid", f'Pod "{name}" is invalid: only deletion of gates is allowed', Reason.BAD_REQUEST)
    if not new.get("schedulingGates"):
        new.pop("schedulingGates", None)
    if old.get("nodeName", "") != new.get("nodeName", ""):
        raise refused(422, "Invalid", f'Pod "{name}" is invalid: spec.nodeName is immutable', Reason.BAD_REQUEST)


def bound(pod: Json, uid: str, node: str, annotations: Mapping[str, str]) -> Json:
    """Return the pod with its node set."""
    preconditions_uid(pod, uid)
    spec = pod.get("spec", {})
    name = pod["metadata"]["name"]
    if spec.get("nodeName"):
        raise refused(409, "Conflict", f"pod {name} is already assigned to node {spec['nodeName']!r}", Reason.CONFLICT)
    if spec.get("schedulingGates"):
        raise refused(409, "Conflict", f"pod {name} has non-empty .spec.schedulingGates", Reason.CONFLICT)
    if pod["metadata"].get("deletionTimestamp"):
        raise refused(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host", Reason.CONFLICT)
    status = dict(pod.get("status", {}))
    others = [c for c in status.get("conditions", ()) if c["type"] != "PodScheduled"]
    status["conditions"] = [*others, {"type": "PodScheduled", "status": "True"}]
    meta = pod["metadata"] | {"annotations": {**pod["metadata"].get("annotations", {}), **annotations}}
    return pod | {"spec": spec | {"nodeName": node}, "status": status, "metadata": meta}


def preconditions_uid(pod: Json, uid: str) -> None:
    """Raise CONFLICT if a UID is given that is not the pod's."""
    if uid and uid != pod["metadata"]["uid"]:
        text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
        raise refused(409, "Conflict", text, Reason.CONFLICT)


def selected(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return True if a label selector of an object matches the labels; None matches nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(expression, labels) for expression in selector.get("matchExpressions", ()))


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    if operator in {"In", "NotIn"}:
        inside = labels.get(key) in tuple(expression.get("values", ()))
        return inside is (operator == "In")
    return (key in labels) is (operator == "Exists")
