"""Tests of the filters that depend on a node only: cordon, name, taints, selector and node affinity."""

from __future__ import annotations

from typing import Any

import pytest

from calabash.kubernetes.node_filters.checked_pod import CheckedPod, check_pod
from calabash.kubernetes.node_filters.node import node_refusal, read_node
from calabash.kubernetes.node_filters.reasons import Filter
from calabash.model.errors import CalabashError

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def refused(spec: dict[str, Any], labels: dict[str, str] | None = None, **node_spec: Any) -> Filter | None:
    checked = check_pod({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}})
    assert isinstance(checked, CheckedPod)
    tree = {"metadata": {"name": "n1", "labels": labels or {}}, "spec": node_spec, "status": {"allocatable": {}}}
    found = node_refusal(checked, read_node(tree))
    return found.filter if found is not None else None


def terms(*found: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(found)}}}}


def term(*requirements: tuple[Any, ...]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": op, "values": list(v)} for key, op, *v in requirements]}


def named(operator: str, name: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}


@pytest.mark.parametrize(
    ("tolerations", "accepted"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "node.kubernetes.io/unschedulable"}], True),
    ],
)
def test_cordoned_node_accepts_pods_that_tolerate_it(tolerations: list[dict[str, str]], accepted: bool) -> None:
    expected = None if accepted else Filter.NODE_UNSCHEDULABLE
    assert refused({"tolerations": tolerations}, unschedulable=True) is expected


@pytest.mark.parametrize(
    ("toleration", "accepted"),
    [
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"key": "k", "operator": "Exists", "value": "w"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "l", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taint_is_tolerated_by_key_value_and_effect(toleration: dict[str, str], accepted: bool) -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert refused({"tolerations": [toleration]}, taints=[taint]) is (None if accepted else Filter.TAINT_TOLERATION)


def test_each_taint_must_be_tolerated_and_preferences_do_not_count() -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    first = {"key": "a", "operator": "Exists"}
    assert refused({"tolerations": [first]}, taints=taints) is Filter.TAINT_TOLERATION
    assert refused({"tolerations": [first, {"key": "b"}]}, taints=taints) is None
    assert refused({}, taints=[{"key": "a", "effect": "PreferNoSchedule"}]) is None


def test_node_name_and_selector_must_match() -> None:
    assert refused({"nodeName": "n1"}) is None
    assert refused({"nodeName": "n2"}) is Filter.NODE_NAME
    assert refused({"nodeSelector": {"a": "1", "b": ""}}, {"a": "1", "b": ""}) is None
    assert refused({"nodeSelector": {"a": "1", "b": ""}}, {"a": "1"}) is Filter.NODE_AFFINITY


@pytest.mark.parametrize(
    ("requirement", "accepted"),
    [
        (("a", "In", "1", "2"), True),
        (("a", "In", "2"), False),
        (("x", "In", "1"), False),
        (("a", "NotIn", "1"), False),
        (("x", "NotIn", "1"), True),
        (("a", "Exists"), True),
        (("x", "Exists"), False),
        (("x", "DoesNotExist"), True),
        (("a", "DoesNotExist"), False),
        (("number", "Gt", "6"), True),
        (("number", "Gt", "7"), False),
        (("number", "Lt", "8"), True),
        (("number", "Lt", "7"), False),
        (("underscore", "Gt", "1"), False),  # "1_0" is no number
        (("word", "Lt", "9"), False),
        (("huge", "Gt", "1"), False),  # more than 64 bits
        (("x", "Lt", "9"), False),
    ],
)
def test_requirement_on_a_label(requirement: tuple[str, ...], accepted: bool) -> None:
    labels = {"a": "1", "number": "007", "underscore": "1_0", "word": "many", "huge": "9223372036854775808"}
    assert refused(terms(term(requirement)), labels) is (None if accepted else Filter.NODE_AFFINITY)


def test_one_term_must_match_with_all_its_requirements() -> None:
    labels = {"a": "1", "b": "2"}
    good, bad = ("a", "In", "1"), ("b", "In", "3")
    assert refused(terms(term(good, bad)), labels) is Filter.NODE_AFFINITY
    assert refused(terms(term(good, bad), term(good)), labels) is None
    assert refused(terms({}), labels) is Filter.NODE_AFFINITY
    assert refused(terms(), labels) is Filter.NODE_AFFINITY
    assert refused({"nodeSelector": {"b": "3"}, **terms(term(good))}, labels) is Filter.NODE_AFFINITY


def test_term_can_name_nodes() -> None:
    assert refused(terms(named("In", "n1"))) is None
    assert refused(terms(named("In", "n2"))) is Filter.NODE_AFFINITY
    assert refused(terms(named("NotIn", "n1"))) is Filter.NODE_AFFINITY
    assert refused(terms(named("NotIn", "n2"))) is None
    assert refused(terms({**named("In", "n1"), **term(("x", "Exists"))})) is Filter.NODE_AFFINITY


@pytest.mark.parametrize(
    "status", [{"allocatable": {"cpu": "-1"}}, {"allocatable": {"cpu": None}}, {"allocatable": []}]
)
def test_node_with_an_invalid_amount_is_refused(status: dict[str, Any]) -> None:
    with pytest.raises(CalabashError):
        read_node({"metadata": {"name": "n"}, "status": status})
