"""Tests of the decision whether a pod can be checked without kube-scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.node_filters.checked_pod import CheckedPod, check_pod
from calabash.kubernetes.node_filters.reasons import Cause, Unchecked
from calabash.kubernetes.objects.names import PLAN_GATE

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERMS = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"


def pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"calabash.dev/gpus": "1"}}}
    return {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container], **spec}}


def container(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "a"}, {"name": "b", **more}]}


def node_term(**term: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}, term]}}}}


def node_requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    one = {"key": key, "operator": operator, "values": list(values)}
    return node_term(matchExpressions=[one])


def test_pod_as_the_api_server_stores_it_is_checked() -> None:
    spec = {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "command": ["true"],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
                "securityContext": {"privileged": False},
                "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets"}],
                "restartPolicyRules": [{"action": "Restart"}],
            }
        ],
        "volumes": [{"name": "kube-api-access", "projected": {"sources": []}}, {"name": "e", "emptyDir": {}}],
        "affinity": {
            "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {}}]},
            "podAffinity": {},
            "podAntiAffinity": {REQUIRED: []},
        },
        "schedulingGates": [{"name": PLAN_GATE}],
        "topologySpreadConstraints": [],
        "resourceClaims": [{"name": "ours"}],
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "restartPolicy": "Always",
        "schedulerName": "calabash",
        "runtimeClassName": None,
        "futureField": None,
    }
    found = check_pod({"metadata": {"namespace": "n", "labels": {"a": "b"}}, "spec": spec}, own_claims=["ours"])
    assert isinstance(found, CheckedPod)
    assert (found.namespace, found.labels, found.demand.amounts) == ("n", {"a": "b"}, (("cpu", 1000),))


@pytest.mark.parametrize(
    ("spec", "cause", "path"),
    [
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "csi": {}}]}, Cause.VOLUME, "spec.volumes[1].csi"),
        (
            {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "x"}}]},
            Cause.VOLUME,
            "spec.volumes[0].persistentVolumeClaim",
        ),
        ({"volumes": [{"name": "a", "ephemeral": {}}]}, Cause.VOLUME, "spec.volumes[0].ephemeral"),
        ({"volumes": [{"name": "a", "gcePersistentDisk": {}}]}, Cause.VOLUME, "spec.volumes[0].gcePersistentDisk"),
        ({"volumes": ["a"]}, Cause.UNREADABLE, "spec.volumes[0]"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, Cause.TOPOLOGY_SPREAD, "spec.topologySpreadConstraints"),
        ({"schedulingGroup": {"podGroupName": "g"}}, Cause.SCHEDULING_GROUP, "spec.schedulingGroup"),
        (
            {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "k"}]}}},
            Cause.POD_AFFINITY,
            f"spec.affinity.podAffinity.{REQUIRED}",
        ),
        (
            {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1}]}}},
            Cause.POD_AFFINITY,
            f"spec.affinity.podAntiAffinity.{PREFERRED}",
        ),
        ({"affinity": {"newAffinity": {}}}, Cause.UNKNOWN_FIELD, "spec.affinity.newAffinity"),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingRequiredDuringExecution": {}}}},
            Cause.UNKNOWN_FIELD,
            "spec.affinity.nodeAffinity.requiredDuringSchedulingRequiredDuringExecution",
        ),
        ({"resourceClaims": [{"name": "x"}]}, Cause.CLAIM, "spec.resourceClaims[0]"),
        (
            {"schedulingGates": [{"name": PLAN_GATE}, {"name": "other/gate"}]},
            Cause.SCHEDULING_GATE,
            "spec.schedulingGates[1]",
        ),
        ({"placementPolicy": False}, Cause.UNKNOWN_FIELD, "spec.placementPolicy"),
        (container(newField=1), Cause.UNKNOWN_FIELD, "spec.containers[1].newField"),
        (container(resources={"shares": {}}), Cause.UNKNOWN_FIELD, "spec.containers[1].resources.shares"),
        (container(ports=[{"hostPortRange": "1-2"}]), Cause.UNKNOWN_FIELD, "spec.containers[1].ports[0].hostPortRange"),
        ({"tolerations": [{"valueFrom": {}}]}, Cause.UNKNOWN_FIELD, "spec.tolerations[0].valueFrom"),
        (
            {"tolerations": [{"key": "k", "operator": "Gt", "value": "1"}]},
            Cause.SELECTOR,
            "spec.tolerations[0].operator",
        ),
        ({"hostNetwork": True, "hostUsers": False}, Cause.NODE_FEATURE, "spec.hostUsers"),
        (
            container(restartPolicyRules=[{"action": "RestartAllContainers"}]),
            Cause.NODE_FEATURE,
            "spec.containers[1].restartPolicyRules[0].action",
        ),
        (
            container(resources={"requests": {"deviceclass.resource.kubernetes.io/gpu": "1"}}),
            Cause.DEVICE_CLASS_RESOURCE,
            "spec.containers[1].resources.requests",
        ),
        (
            container(resources={"requests": {"example.com/by-class": "1"}}),
            Cause.DEVICE_CLASS_RESOURCE,
            "spec.containers[1].resources.requests",
        ),
        (
            container(resources={"requests": {"cpu": "-1"}}),
            Cause.UNREADABLE,
            "spec.containers[1].resources.requests.cpu",
        ),
        ({"overhead": {"memory": "many"}}, Cause.UNREADABLE, "spec.overhead.memory"),
        (
            {"containers": [{"ports": [{"hostPort": 70000}]}]},
            Cause.UNREADABLE,
            "spec.containers[0].ports[0].hostPort",
        ),
        ({"nodeSelector": {"bad key": "v"}}, Cause.SELECTOR, "spec.nodeSelector"),
        (node_requirement("k", "Near", "1"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].operator"),
        (node_requirement("k", "In"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].values"),
        (node_requirement("k", "In", "a", "-"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].values"),
        (node_requirement("k", "Exists", "a"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].values"),
        (node_requirement("k", "Gt", "1", "2"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].values"),
        (node_requirement("k", "Gt", "-1"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].values"),
        (node_requirement("k", "Lt", "1_0"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].values"),
        (node_requirement("k/" + "n" * 64, "Exists"), Cause.SELECTOR, f"{TERMS}[1].matchExpressions[0].key"),
        (
            node_term(matchFields=[{"key": "spec.x", "operator": "In", "values": ["a"]}]),
            Cause.SELECTOR,
            f"{TERMS}[1].matchFields[0]",
        ),
        (
            node_term(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]),
            Cause.SELECTOR,
            f"{TERMS}[1].matchFields[0]",
        ),
        (node_term(matchNames=["a"]), Cause.UNKNOWN_FIELD, f"{TERMS}[1].matchNames"),
    ],
)
def test_pod_that_only_kube_scheduler_can_place_gets_the_path_of_the_reason(
    spec: dict[str, Any], cause: Cause, path: str
) -> None:
    found = check_pod(pod(**spec), class_resources=["example.com/by-class"])
    assert isinstance(found, Unchecked)
    assert (found.cause, found.path) == (cause, path)


def test_limits_of_sizes_are_enforced() -> None:
    many = [{"name": str(i)} for i in range(1025)]
    assert isinstance(check_pod(pod(containers=many)), Unchecked)
    values = node_requirement("k", "In", *(str(i) for i in range(1025)))
    found = check_pod(pod(**values))
    assert isinstance(found, Unchecked)
    assert found.cause is Cause.SELECTOR
    long = check_pod(pod(**{"x" * 100_000: 1}))
    assert isinstance(long, Unchecked)
    assert len(long.path) < 100


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("containers", "initContainers", "volumes", "affinity", "tolerations", "overhead", "resources", "nodeSelector")
INNER = ("resources", "requests", "ports", "nodeAffinity", "podAffinity", REQUIRED, "nodeSelectorTerms", "matchFields")


@given(st.sampled_from(FIELDS), st.lists(st.sampled_from(INNER), max_size=4), json, st.booleans())
def test_any_tree_gives_a_result(field: str, path: list[str], value: Any, in_list: bool) -> None:
    for name in reversed(path):
        value = {name: [value] if in_list else value}
    assert isinstance(check_pod(pod(**{field: [value] if in_list else value})), CheckedPod | Unchecked)
    assert isinstance(check_pod({"spec": value}), CheckedPod | Unchecked)
