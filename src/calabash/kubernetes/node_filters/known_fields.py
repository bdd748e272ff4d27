"""The fields of a pod's spec that may be present in a pod that is checked without kube-scheduler.

A field that is in none of these lists may restrict the nodes in a way that this program does not know. Such a pod is
left to kube-scheduler. The lists are those of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from calabash.kubernetes.node_filters.reasons import Cause

# ``schedulingGates``, ``resourceClaims``, ``volumes`` and ``affinity`` are read with further limits, ``checked_pod``.
_EVALUATED = {"containers", "initContainers", "nodeName", "nodeSelector", "affinity", "tolerations", "overhead"}
_EVALUATED |= {"resources", "hostNetwork", "hostUsers", "schedulingGates", "resourceClaims", "volumes"}
_WITHOUT_EFFECT = {
    "activeDeadlineSeconds",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostPID",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "os",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "restartPolicy",
    "runtimeClassName",  # admission has copied its overhead, selector and tolerations into the pod
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
}
SPEC = frozenset(_EVALUATED | _WITHOUT_EFFECT)
REFUSED = {
    "topologySpreadConstraints": Cause.TOPOLOGY_SPREAD,
    "schedulingGroup": Cause.SCHEDULING_GROUP,
    "workloadRef": Cause.SCHEDULING_GROUP,
}
CONTAINER = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "restartPolicyRules",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    }
)
PORT = frozenset({"name", "hostPort", "containerPort", "protocol", "hostIP"})
RESOURCES = frozenset({"limits", "requests", "claims"})
TOLERATION = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})
NODE_AFFINITY = frozenset(
    {"requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"}
)
NODE_SELECTOR = frozenset({"nodeSelectorTerms"})
TERM = frozenset({"matchExpressions", "matchFields"})
REQUIREMENT = frozenset({"key", "operator", "values"})
VOLUME = frozenset(  # types of volumes that every node can mount without a decision of kube-scheduler
    {"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "projected", "secret"}
)


def unknown_fields(tree: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[str]:
    """Yield the paths of fields that are present and not known. A field whose value is null counts as absent."""
    for name, value in tree.items():
        if name not in known and value is not None:
            yield f"{path}.{name[:64]}"
