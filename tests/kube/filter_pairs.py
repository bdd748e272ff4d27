"""Random pods, each with a few candidate nodes and pods on them, for tests of the filters of nodes.

Each pair has nodes of its own, which no other pair's pod selects, and values of topology labels of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.kube.api import Json
from tests.kube.fakes import node

from calabash.kubernetes.node_filters.demand import pod_demand
from calabash.kubernetes.node_filters.wire import WirePod, converted

PAIR = "pairs.calabash.dev/pair"
ZONE = "pairs.calabash.dev/zone"
NUMBER = "pairs.calabash.dev/number"
WIDGET = "example.com/widget"
NAMESPACES: dict[str, dict[str, str]] = {"pairs-a": {"team": "a"}, "pairs-b": {"team": "b", "tier": "x"}, "pairs-c": {}}
RUNTIME_CLASSES: dict[str, Json] = {
    "heavy": {"overhead": {"podFixed": {"cpu": "250m", "memory": "128Mi"}}},
    "fractional": {"overhead": {"podFixed": {"cpu": "333300u", "memory": "100000500m"}}},
    "restricted": {
        "scheduling": {"nodeSelector": {"size": "big"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}]}
    },
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

_CPU = ["0", "1m", "100m", "250m", "300500u", "0.5", "500m", "1", "1500m", "2"]
_MEMORY = ["0", "1", "100Mi", "128e6", "268435456", "300M", "0.5Gi", "1Gi", "1536Mi", "2Gi", "100000500m"]
_STORAGE = ["100M", "1Gi", "3Gi"]


SUBJECTS = ("resources", "ports", "node affinity", "taints", "anti-affinity")


class Chance(random.Random):
    """Source of random choices. A feature of the pair's subject is frequent, and those of others are rare."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.subject = self.choice(SUBJECTS)

    def often(self, subject: str, probability: float) -> bool:
        """Return True with a probability, which is much smaller if this is not the pair's subject."""
        return self.random() < (probability if subject == self.subject else probability / 6)


@dataclass(frozen=True, slots=True)
class Pair:
    """A pod that has no node, its candidate nodes, and the pods on them."""

    number: int
    nodes: list[Json]
    existing: list[Json]
    pod: Json
    statuses: dict[str, Json] = field(default_factory=dict)  # of existing pods, by name


def random_pair(number: int, seed: int) -> Pair:
    """Return the pair with a number; the same for each run with the same seed."""
    chance = Chance(f"{seed}/{number}")
    nodes = [_node(chance, number, i) for i in range(chance.choice([1, 1, 1, 2, 3]))]
    names = [one["metadata"]["name"] for one in nodes]
    existing: list[Json] = []
    statuses: dict[str, Json] = {}
    for i in range(chance.choice([2, 3, 4] if chance.subject in ("ports", "anti-affinity") else [0, 1, 1, 2, 3])):
        pod = _existing(chance, f"old-{number}-{i}", chance.choice(names))
        existing.append(pod)
        if chance.random() < (0.5 if chance.subject == "resources" else 0.2):
            statuses[pod["metadata"]["name"]] = _status(chance, pod)
    for pod in existing:
        if any(other is not pod and _share_a_port(pod, other) for other in existing):
            _keep_running(statuses.get(pod["metadata"]["name"], {}))
    pod = _new(chance, number, names)
    if chance.often("resources", 0.7):
        for one in nodes:
            _leave_room_for(pod, one, [(old, statuses.get(old["metadata"]["name"], {})) for old in existing], chance)
    return Pair(number, nodes, existing, pod, statuses)


def _leave_room_for(pod: Json, on: Json, existing: list[tuple[Json, Json]], chance: Chance) -> None:
    """Give a node about as much of one resource as its pods and a new pod need by the filters, and much of all others.

    If the filters computed another amount than kube-scheduler, only one of both would accept the node.
    """
    resource = chance.choice(["cpu", "cpu", "memory", "memory", "ephemeral-storage", WIDGET])
    needed = chance.choice([-1, 0, 0, 1]) + _demand(pod, {}, resource, with_status=False)
    for old, status in existing:
        if old["spec"]["nodeName"] == on["metadata"]["name"] and status.get("phase") not in ("Succeeded", "Failed"):
            needed += _demand(old, status, resource, with_status=True)
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", WIDGET: "64"}
    room |= {"hugepages-2Mi": "64Mi", resource: f"{max(needed, 0)}{'m' if resource == 'cpu' else ''}"}
    on["status"] |= {"capacity": room, "allocatable": room}


def _demand(pod: Json, status: Json, resource: str, *, with_status: bool) -> int:
    """Return what a pod requests by the filters, as the API server will have stored the pod."""
    spec = pod["spec"]
    overhead = RUNTIME_CLASSES.get(spec.get("runtimeClassName", ""), {}).get("overhead", {}).get("podFixed", {})
    stored: Json = {**spec, "overhead": overhead}
    for name in ("containers", "initContainers"):
        stored[name] = [{**one, "resources": _with_defaults(one["resources"])} for one in spec.get(name, ())]
    wire = converted({"metadata": pod["metadata"], "spec": stored, "status": status}, WirePod, "pod")
    return dict(pod_demand(wire, with_status=with_status).amounts).get(resource, 0)


def _with_defaults(resources: Json) -> Json:
    return {"requests": {**resources.get("limits", {}), **resources.get("requests", {})}}


def _node(chance: Chance, number: int, index: int) -> Json:
    room = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi", WIDGET: "16"}
    if chance.often("resources", 1):
        room |= {
            "cpu": chance.choice(["1", "2", "3", "3500m", "4", "6"]),
            "memory": chance.choice(["1500Mi", "2G", "3Gi", "4Gi", "6Gi"]),
            "pods": chance.choice(["1", "3", "5", "110", "110"]),
            "ephemeral-storage": chance.choice(["2Gi", "5Gi", "10Gi", "100Gi"]),
            WIDGET: str(chance.randint(0, 5)),
        }
    if chance.random() < 0.7:
        room["hugepages-2Mi"] = chance.choice(["4Mi", "8Mi", "64Mi"])
    labels = {PAIR: str(number), "size": chance.choice(["big", "small"])}
    if chance.random() < 0.8:
        labels[ZONE] = f"{number}-{chance.randint(0, 1)}"
    if chance.random() < 0.8:
        labels[NUMBER] = chance.choice(["0", "3", "007", "12", "1_0", "many", ""])
    if chance.random() < 0.3:
        labels["empty"] = ""
    taints = []
    for key in ("dedicated", "other"):
        if chance.often("taints", 0.5):
            effect = chance.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])
            taints.append({"key": key, "effect": effect, "value": chance.choice(["", "a", "b"])})
    body = node(f"pair-{number}-{index}", room, labels, taints)
    if chance.often("taints", 0.3):
        body["spec"]["unschedulable"] = True
    return body


# ---- pods -----------------------------------------------------------------------------------------------------------


def _existing(chance: Chance, name: str, node_name: str) -> Json:
    pod = _pod(chance, name, small=True)
    pod["spec"]["nodeName"] = node_name
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    if chance.often("anti-affinity", 0.9):
        terms = [_pod_term(chance) for _ in range(chance.choice([1, 1, 2]))]
        pod["spec"]["affinity"] = {"podAntiAffinity": {_REQUIRED: terms}}
    return pod


def _new(chance: Chance, number: int, names: list[str]) -> Json:
    pod = _pod(chance, f"new-{number}", small=chance.random() < 0.5)
    spec = pod["spec"]
    spec["nodeSelector"] = {PAIR: str(number)}
    if chance.often("node affinity", 0.2):
        spec["runtimeClassName"] = "restricted"  # has a node selector itself
    elif chance.often("node affinity", 0.2):
        spec["nodeSelector"]["size"] = chance.choice(["big", "small"])
    several = chance.choice([1, 2, 3, 4] if chance.subject == "taints" else [0, 0, 1, 2])
    tolerations = [_toleration(chance) for _ in range(several)]
    if tolerations:
        spec["tolerations"] = tolerations
    if chance.often("node affinity", 1):
        terms = [_node_term(chance, names) for _ in range(chance.choice([1, 1, 2, 3]))]
        if chance.random() < 0.2:
            terms[0] = {}  # matches no node
        spec["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}
    if chance.random() < 0.1:
        preference = {"weight": 1, "preference": _node_term(chance, names)}
        spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})[_PREFERRED] = [preference]
    return pod


def _pod(chance: Chance, name: str, *, small: bool) -> Json:
    labels = {"app": chance.choice(["x", "y", "z"])}
    if chance.random() < 0.5:
        labels["version"] = chance.choice(["1", "2"])
    spec: Json = {
        "containers": [_container(chance, f"c{i}", small=small) for i in range(chance.choice([1, 1, 2, 3]))],
        "terminationGracePeriodSeconds": 0,
    }
    if chance.random() < (0.8 if chance.subject == "resources" else 0.4):
        spec["initContainers"] = []
        for i in range(chance.choice([1, 2, 3, 4])):
            container = _container(chance, f"i{i}", small=small)
            if chance.random() < 0.5:
                container["restartPolicy"] = "Always"
            spec["initContainers"].append(container)
    if chance.random() < 0.2:
        spec["runtimeClassName"] = chance.choice(["heavy", "fractional"])
    if chance.random() < 0.15:
        spec["resources"] = {"requests": {"cpu": chance.choice(["5500m", "7"]), "memory": "7Gi"}}
        if chance.random() < 0.5:
            del spec["resources"]["requests"]["memory"]
    if chance.random() < 0.1:
        spec["hostNetwork"] = True
    if chance.random() < 0.2:
        spec["volumes"] = [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "h", "hostPath": {"path": "/x"}}]
    _ports(chance, spec)
    namespace = chance.choice(list(NAMESPACES))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    }


def _container(chance: Chance, name: str, *, small: bool) -> Json:
    cut = -4 if small else None
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if chance.random() < 0.8:
        requests["cpu"] = chance.choice(_CPU[:cut])
    if chance.random() < 0.8:
        requests["memory"] = chance.choice(_MEMORY[:cut])
    if chance.random() < 0.2:
        requests["ephemeral-storage"] = chance.choice(_STORAGE)
    if chance.random() < 0.15:
        limits[WIDGET] = str(chance.randint(0, 2))
    if chance.random() < 0.05:
        limits |= {"hugepages-2Mi": chance.choice(["2Mi", "4Mi"]), "memory": "64Mi"}
        requests.pop("memory", None)
    if chance.random() < 0.1:
        limits["cpu"] = requests.pop("cpu", "200m")
    resources = {"requests": requests, "limits": limits}
    return {"name": name, "image": "localhost/busybox:1", "resources": {k: v for k, v in resources.items() if v}}


def _ports(chance: Chance, spec: Json) -> None:
    """Give some containers ports. The API server refuses equal ports of one pod and, with the host's network, others."""
    free = list(range(8000, 8003))
    chance.shuffle(free)
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        if not free or not chance.often("ports", 0.9):
            continue
        number = free.pop()
        port: Json = {"containerPort": number, "protocol": chance.choice(["TCP", "TCP", "UDP"])}
        if chance.random() < 0.7:
            port["hostPort"] = number
            if chance.random() < 0.6:
                port["hostIP"] = chance.choice(["0.0.0.0", "127.0.0.1", "10.0.0.1", "::"])
        container["ports"] = [port]


def _share_a_port(one: Json, other: Json) -> bool:
    def numbers(pod: Json) -> set[int]:
        containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
        return {port["containerPort"] for container in containers for port in container.get("ports", ())}

    return not numbers(one).isdisjoint(numbers(other))


def _keep_running(status: Json) -> None:
    """Change a status so that the pod does not end.

    If two pods of a node have the same port, which a kubelet would not permit, kube-scheduler regards it as free as soon
    as one of them ends. The filters here do not.
    """
    if status:
        status["phase"] = "Running"


def _toleration(chance: Chance) -> Json:
    found: Json = {}
    if chance.random() < 0.9:
        found["key"] = chance.choice(["dedicated", "other", "node.kubernetes.io/unschedulable"])
    if "key" not in found or chance.random() < 0.4:
        found["operator"] = "Exists"
    else:
        found["value"] = chance.choice(["", "a", "b"])
        if chance.random() < 0.5:
            found["operator"] = "Equal"
    if chance.random() < 0.6:
        found["effect"] = chance.choice(["NoSchedule", "NoExecute"])
    return found


# ---- terms ----------------------------------------------------------------------------------------------------------


def _node_term(chance: Chance, names: list[str]) -> Json:
    term: Json = {}
    if chance.random() < 0.85:
        term["matchExpressions"] = [_node_requirement(chance) for _ in range(chance.choice([1, 1, 2]))]
    if not term or chance.random() < 0.2:
        name = chance.choice([*names, "elsewhere"])
        operator = chance.choice(["In", "NotIn"])
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return term


def _node_requirement(chance: Chance) -> Json:
    operator = chance.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    if operator in ("Gt", "Lt"):
        return {"key": NUMBER, "operator": operator, "values": [chance.choice(["0", "3", "7", "10", "12"])]}
    key = chance.choice(["size", NUMBER, "empty", "absent"])
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    values = chance.sample(["big", "small", "3", "12", "1_0", ""], chance.choice([1, 2, 3]))
    return {"key": key, "operator": operator, "values": values}


def _pod_term(chance: Chance) -> Json:
    term: Json = {"topologyKey": chance.choice([ZONE, "kubernetes.io/hostname", "absent"])}
    if chance.random() < 0.95:
        term["labelSelector"] = _label_selector(chance)
        if chance.random() < 0.15:
            term["matchLabelKeys"] = ["version"]
        elif chance.random() < 0.1:
            term["mismatchLabelKeys"] = ["version"]
        if "version" in str(term["labelSelector"]):  # the API server accepts only one of both
            term.pop("matchLabelKeys", None)
            term.pop("mismatchLabelKeys", None)
    if chance.random() < 0.4:
        term["namespaces"] = chance.sample(list(NAMESPACES), chance.choice([1, 2]))
    if chance.random() < 0.4:
        chosen: list[Any] = [
            {},
            {"matchLabels": {"team": "a"}},
            {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
        ]
        term["namespaceSelector"] = chance.choice(chosen)
    return term


def _label_selector(chance: Chance) -> Json:
    if chance.random() < 0.3:
        return {"matchLabels": {"app": chance.choice(["x", "y"])}}
    operator = chance.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    key = chance.choice(["app", "version"])
    if operator in ("Exists", "DoesNotExist"):
        return {"matchExpressions": [{"key": key, "operator": operator}]}
    return {"matchExpressions": [{"key": key, "operator": operator, "values": chance.sample(["x", "y", "1"], 2)}]}


# ---- statuses -------------------------------------------------------------------------------------------------------


def _status(chance: Chance, pod: Json) -> Json:
    """Return the status of a pod that has ended, or whose containers are being resized."""
    if chance.random() < 0.3:
        return {"phase": chance.choice(["Succeeded", "Failed"])}
    status: Json = {"phase": "Running"}
    for name, kind in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
        found = [_container_status(chance, one) for one in pod["spec"].get(name, ())]
        if found:
            status[kind] = found
    if chance.random() < 0.5:
        reason = chance.choice(["Infeasible", "Deferred"])
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    if "resources" in pod["spec"] and chance.random() < 0.7:
        status["resources"] = {"requests": {"cpu": chance.choice(["1", "3"]), "memory": "1Gi"}}
        status["allocatedResources"] = {"cpu": chance.choice(["1500m", "3500m"]), "memory": "1Gi"}
    return status


def _container_status(chance: Chance, container: Json) -> Json:
    found: Json = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    if chance.random() < 0.7:
        found["resources"] = {"requests": {"cpu": chance.choice(_CPU[:-4]), "memory": chance.choice(_MEMORY[:-4])}}
    if chance.random() < 0.7:
        found["allocatedResources"] = {"cpu": chance.choice(_CPU[:-4]), "memory": chance.choice(_MEMORY[:-4])}
    return found
