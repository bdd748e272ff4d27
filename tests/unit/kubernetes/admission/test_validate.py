"""Tests of the validating webhook: fields of the product, and pods that could never run, are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.unit.kubernetes.admission.applied import applied

from calabash.kubernetes.admission.mutate import mutate
from calabash.kubernetes.admission.scope import NamespaceTerms
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.validate import PROTECTED, validate
from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.objects import names
from calabash.model.errors import CalabashError, Reason

SETTINGS = AdmissionSettings()
TEAM = NamespaceTerms(name="team")
AMOUNTS = {names.GPUS: "1", names.MEMORY: "8Gi", names.CORES: "30"}
TREE: Any = {
    "metadata": {"name": "p", "namespace": "team"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": AMOUNTS, "requests": AMOUNTS}}]},
}
POD = applied(TREE, mutate(pod_of(TREE), TEAM, SETTINGS).patch)
PLANNER, AGENT = SETTINGS.trusted_users


def changed(old: Any, new: Any, user: str = "ann", namespace: NamespaceTerms = TEAM) -> None:
    validate(pod_of(old), pod_of(new), user, namespace, SETTINGS)


def with_annotation(name: str, text: str) -> Any:
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"][name] = text
    return pod


def test_the_accounts_of_the_product_are_named_as_the_api_server_names_them() -> None:
    assert PLANNER == "system:serviceaccount:calabash-system:calabash-planner"
    assert AGENT == "system:serviceaccount:calabash-system:calabash-agent"


def test_a_pod_as_it_was_admitted_is_allowed() -> None:
    validate(None, pod_of(POD), "ann", TEAM, SETTINGS)
    changed(POD, POD)


@pytest.mark.parametrize("namespace", [TEAM, NamespaceTerms(name="kube-system"), NamespaceTerms(name="dark", off=True)])
@pytest.mark.parametrize("name", PROTECTED)
def test_nobody_but_the_product_changes_what_it_wrote_in_any_namespace(name: str, namespace: NamespaceTerms) -> None:
    forged = with_annotation(name, "{}")
    with pytest.raises(CalabashError, match=f"{name} must not be changed by ann") as refused:
        changed(POD, forged, namespace=namespace)
    assert refused.value.reason is Reason.NOT_PERMITTED
    with pytest.raises(CalabashError, match=name):
        changed(forged, POD, namespace=namespace)
    for user in (PLANNER, AGENT):
        changed(POD, forged, user, namespace)


def test_nobody_escapes_by_dressing_a_pod_as_one_that_is_left_alone() -> None:
    forged = with_annotation(names.PLAN, "{}")
    forged["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    forged["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    with pytest.raises(CalabashError, match="must not be changed"):
        changed(POD, forged)


def test_the_gate_is_the_planners_to_remove() -> None:
    bare = copy.deepcopy(POD)
    bare["spec"]["schedulingGates"] = []
    with pytest.raises(CalabashError, match=r"scheduling gate calabash\.dev/plan must not be removed by ann"):
        changed(POD, bare)
    changed(POD, bare, PLANNER)
    changed(bare, bare)


def test_other_gates_and_annotations_are_everybodys() -> None:
    other = with_annotation("example.com/note", "x")
    other["metadata"]["labels"] = {names.QUEUE: "other"}
    changed(POD, other)


def test_a_plan_may_not_be_brought_along() -> None:
    with pytest.raises(CalabashError, match="is set on a new pod") as refused:
        validate(None, pod_of(with_annotation(names.PLAN, "{}")), PLANNER, TEAM, SETTINGS)
    assert refused.value.reason is Reason.NOT_PERMITTED


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (names.REQUEST, "{}"),
        (names.DIALECT, "hami"),
        (names.REQUEST, POD["metadata"]["annotations"][names.REQUEST].replace("8192", "9000")),
    ],
)
def test_an_annotation_that_says_something_else_than_the_containers_is_refused(name: str, text: str) -> None:
    with pytest.raises(CalabashError, match="does not agree with the resources"):
        validate(None, pod_of(with_annotation(name, text)), "ann", TEAM, SETTINGS)


def test_a_pod_without_devices_may_not_carry_a_request() -> None:
    tree = {"metadata": {"annotations": {names.DIALECT: "native"}}, "spec": {"containers": [{"name": "main"}]}}
    with pytest.raises(CalabashError, match="does not agree with"):
        validate(None, pod_of(tree), "ann", TEAM, SETTINGS)


def test_what_could_never_run_is_refused() -> None:
    pod = with_annotation(names.MODE, "magic")
    with pytest.raises(CalabashError, match="sharing mode 'magic'"):
        validate(None, pod_of(pod), "ann", TEAM, SETTINGS)


@pytest.mark.parametrize("resource", [names.GPUS, "nvidia.com/gpu"])
def test_an_ephemeral_container_that_asks_for_devices_is_refused(resource: str) -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "resources": {"limits": {resource: "1"}}}]
    with pytest.raises(CalabashError, match=f"ephemeral container debug asks for {resource}"):
        changed(POD, pod)
    changed(pod, pod)
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "resources": {"limits": {"cpu": "1"}}}]
    changed(POD, pod)
