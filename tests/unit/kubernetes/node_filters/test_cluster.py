"""Tests of all filters together, and of the anti-affinity of pods that have a node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.node_filters.checked_pod import CheckedPod, check_pod
from calabash.kubernetes.node_filters.cluster import NodeFilters
from calabash.kubernetes.node_filters.existing_pod import read_existing_pod
from calabash.kubernetes.node_filters.node import read_node
from calabash.kubernetes.node_filters.reasons import Cause, Filter, Refusal, Unchecked
from calabash.model.errors import CalabashError

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONES = {"a1": "a", "a2": "a", "b1": "b", "none": None}
X = {"matchLabels": {"app": "x"}}


def node(name: str, **room: str) -> dict[str, Any]:
    zone = ZONES.get(name)
    labels = {"host": name} | ({"zone": zone} if zone is not None else {})
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": "4", "pods": "9", **room}}}


def existing(uid: str, on: str, *terms: dict[str, Any], cpu: str = "1", phase: str = "Running") -> dict[str, Any]:
    spec: dict[str, Any] = {
        "nodeName": on,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        "newField": 1,
    }
    if terms:
        spec["affinity"] = {"podAntiAffinity": {REQUIRED: list(terms)}}
    return {"metadata": {"uid": uid, "namespace": "ns"}, "spec": spec, "status": {"phase": phase}}


def term(**more: Any) -> dict[str, Any]:
    return {"topologyKey": "zone", "labelSelector": X, **more}


def filters(*pods: dict[str, Any], namespaces: dict[str, dict[str, str]] | None = None) -> NodeFilters:
    found = NodeFilters()
    for name, labels in (namespaces if namespaces is not None else {"ns": {"team": "a"}, "other": {}}).items():
        found.set_namespace(name, labels)
    for pod in pods:
        found.set_pod(read_existing_pod(pod))
    for name in ZONES:
        found.set_node(read_node(node(name)))
    return found


def checked(namespace: str = "ns", app: str = "x", cpu: str = "1") -> CheckedPod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"namespace": namespace, "labels": {"app": app}}
    found = check_pod({"metadata": metadata, "spec": {"containers": [container]}})
    assert isinstance(found, CheckedPod)
    return found


def accepted(found: NodeFilters, pod: CheckedPod) -> set[str]:
    refusals = found.refusals(pod)
    assert not isinstance(refusals, Unchecked), refusals
    return {name for name, refusal in refusals.items() if refusal is None}


ALL = set(ZONES)


@pytest.mark.parametrize(
    ("terms", "namespace", "app", "expected"),
    [
        ([term()], "ns", "x", {"b1", "none"}),
        ([term()], "ns", "y", ALL),
        ([term()], "other", "x", ALL),
        ([term(namespaces=["other"])], "other", "x", {"b1", "none"}),
        ([term(namespaces=["other"])], "ns", "x", ALL),
        ([term(namespaceSelector={})], "other", "x", {"b1", "none"}),
        ([term(namespaceSelector={"matchLabels": {"team": "a"}})], "ns", "x", {"b1", "none"}),
        ([term(namespaceSelector={"matchLabels": {"team": "a"}})], "other", "x", ALL),
        ([term(namespaceSelector={"matchLabels": {"team": "z"}}, namespaces=["other"])], "other", "x", {"b1", "none"}),
        ([term(topologyKey="host")], "ns", "x", {"a2", "b1", "none"}),
        ([term(topologyKey="absent")], "ns", "x", ALL),
        ([term(labelSelector={})], "ns", "y", {"b1", "none"}),
        ([term(labelSelector=None)], "ns", "x", ALL),
        (
            [term(labelSelector={"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]})],
            "ns",
            "y",
            {"b1", "none"},
        ),
        ([term(topologyKey="absent"), term(topologyKey="host")], "ns", "x", {"a2", "b1", "none"}),
    ],
)
def test_anti_affinity_of_an_existing_pod_keeps_matching_pods_away(
    terms: list[dict[str, Any]], namespace: str, app: str, expected: set[str]
) -> None:
    assert accepted(filters(existing("u", "a1", *terms)), checked(namespace, app)) == expected


def test_anti_affinity_ends_with_the_pod_and_moves_with_it_and_with_the_labels_of_its_node() -> None:
    found = filters(existing("u", "a1", term()), existing("v", "b1", term()))
    assert accepted(found, checked()) == {"none"}
    found.remove_pod("v")
    assert accepted(found, checked()) == {"b1", "none"}
    found.set_pod(read_existing_pod(existing("u", "b1", term())))
    assert accepted(found, checked()) == {"a1", "a2", "none"}
    moved = node("b1")
    moved["metadata"]["labels"]["zone"] = "a"
    found.set_node(read_node(moved))
    assert accepted(found, checked()) == {"none"}
    found.set_pod(read_existing_pod(existing("u", "b1", term(), phase="Succeeded")))
    assert accepted(found, checked()) == ALL


@pytest.mark.parametrize(
    ("bad", "for_own", "for_other"),
    [
        (term(labelSelector={"matchExpressions": [{"key": "k", "operator": "Near"}]}), True, False),
        (term(namespaceSelector={"matchExpressions": [{"key": "k", "operator": "Near"}]}), True, True),
        (term(namespaces=7), True, True),
    ],
)
def test_pod_that_an_unreadable_term_may_select_cannot_be_checked(
    bad: dict[str, Any], for_own: bool, for_other: bool
) -> None:
    found = filters(existing("u", "a1", bad))
    for namespace, expected in (("ns", for_own), ("other", for_other)):
        result = found.refusals(checked(namespace))
        assert isinstance(result, Unchecked) is expected
        if isinstance(result, Unchecked):
            assert result.cause is Cause.EXISTING_ANTI_AFFINITY
    found.remove_pod("u")
    assert accepted(found, checked()) == ALL


def test_labels_of_the_namespace_must_be_known_for_a_namespace_selector() -> None:
    by_label, every = {"matchLabels": {"team": "a"}}, dict[str, str]()
    found = filters(existing("u", "a1", term(namespaceSelector=by_label)), namespaces={})
    assert isinstance(found.refusals(checked()), Unchecked)
    found.set_namespace("ns", {})
    assert accepted(found, checked()) == ALL
    found.remove_namespace("ns")
    assert isinstance(found.refusals(checked()), Unchecked)
    assert accepted(filters(existing("u", "a1", term(namespaceSelector=every)), namespaces={}), checked()) != ALL


def test_pods_use_their_node_also_before_it_is_known_and_after_it_was_removed() -> None:
    found = filters(existing("u", "a1", cpu="4"))
    assert accepted(found, checked()) == ALL - {"a1"}
    found.remove_node("a1")
    assert found.refusals(checked(), ["a1"]) == {"a1": Refusal(filter=Filter.UNKNOWN_NODE)}
    found.set_node(read_node(node("a1")))
    assert accepted(found, checked()) == ALL - {"a1"}
    found.remove_pod("u")
    assert accepted(found, checked()) == ALL


def test_ended_pod_uses_nothing() -> None:
    found = filters(existing("u", "a1", cpu="4"))
    found.set_pod(read_existing_pod(existing("u", "a1", cpu="4", phase="Failed")))
    assert accepted(found, checked()) == ALL


@pytest.mark.parametrize(
    "bad",
    [
        {"spec": {"containers": [{"resources": {"requests": {"cpu": "-1"}}}], "nodeName": "a1"}},
        {"spec": {"containers": "none", "nodeName": "a1"}},
        {"spec": {"nodeName": "a1"}, "status": {"nodeAllocatableResourceClaimStatuses": [{}]}},
    ],
)
def test_node_of_a_pod_that_cannot_be_read_is_refused(bad: dict[str, Any]) -> None:
    found = filters()
    found.set_pod(read_existing_pod({"metadata": {"uid": "u", "namespace": "far"}, **bad}))
    refusals = found.refusals(checked(), ["a1"])
    if not isinstance(refusals, Unchecked):  # else the pod's anti-affinity cannot be read either
        assert refusals == {"a1": Refusal(filter=Filter.UNREADABLE_POD, subject="u")}
    found.remove_pod("u")
    assert accepted(found, checked()) == ALL


def test_existing_pod_without_identity_is_refused() -> None:
    with pytest.raises(CalabashError):
        read_existing_pod({"metadata": [], "spec": {"containers": 1}})


changes = st.lists(
    st.tuples(
        st.sampled_from("uvw"), st.sampled_from(sorted(ZONES)), st.sampled_from(["add", "apart", "end", "remove"])
    ),
    max_size=12,
)


@given(changes)
def test_state_after_any_events_is_that_of_the_pods_that_exist(events: list[tuple[str, str, str]]) -> None:
    found, left = filters(), dict[str, dict[str, Any]]()
    for uid, on, event in events:
        left.pop(uid, None)
        if event == "remove":
            found.remove_pod(uid)
            continue
        terms = [term()] if event == "apart" else []
        pod = existing(uid, on, *terms, cpu="2", phase="Failed" if event == "end" else "Running")
        found.set_pod(read_existing_pod(pod))
        if event != "end":
            left[uid] = pod
    expected = filters(*left.values())
    for new in (checked(), checked(app="y", cpu="3")):
        assert found.refusals(new) == expected.refusals(new)
