"""Transitions of pods that random events reach seldom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kubernetes.planner.claimed import named
from tests.unit.kubernetes.planner.decide.test_displaced_plans import PLANNED, OneNode

from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.pod_lifecycle import Stage

CONFINED: dict[str, Any] = {"uses_our_scheduler": False, "candidate_nodes": ("c",), "gated": False}
REFUSED: dict[str, Any] = {"candidate_nodes": ("c",), "refused": True, "owner": "team/owner"}


@pytest.fixture
def node() -> OneNode:
    """A node with pod ``h``, and pod ``r``, which shares the claim of ``h`` and is not bound."""
    made = OneNode()
    made.use("h")
    made.settle()
    made.claimer("h", name="r")
    assert made.stage("r") is Stage.RIDING
    return made


def test_pod_that_shares_claims_is_set_aside_when_it_is_deleted(node: OneNode) -> None:
    node.set(replace(node.pods["r"], leaving=True))
    assert node.stage("r") is Stage.ASIDE


def test_pod_that_no_longer_shares_claims_waits_for_devices(node: OneNode) -> None:
    node.claim("own")
    node.set(replace(node.pods["r"], claims=named(["own"])))
    assert node.stage("r") is Stage.WAITING


def test_pod_that_no_longer_shares_claims_waits_for_its_candidate_nodes(node: OneNode) -> None:
    node.claim("own")
    node.set(replace(node.pods["r"], claims=named(["own"]), **CONFINED))
    assert node.stage("r") is Stage.ASIDE
    assert "r" in node.core.store.unplanned


def test_waiting_pod_that_shares_allocated_claims_stops_waiting(node: OneNode) -> None:
    node.use("x")
    node.set(replace(node.pods["x"], claims=named(["h"])))
    assert node.stage("x") is Stage.RIDING


def test_unbound_pod_is_evicted_with_the_holder_of_its_claims(node: OneNode) -> None:
    node.use("other")
    node.settle()
    node.use("both", priority=9)
    node.use("one", priority=9)
    node.decide()
    assert node.stage("h") is Stage.EVICTED
    assert node.stage("r") is Stage.EVICTED


def test_pod_whose_binding_is_written_is_evicted_for_a_higher_priority() -> None:
    node = OneNode()
    node.plan(Stage.RELEASED)
    answer = node.core.answers.bind("x", "c", node.now_s)
    assert answer.verdict is BindVerdict.GO
    for name in ("first", "second"):
        node.use(name, priority=9)
    node.decide()
    assert node.stage("x") is Stage.EVICTED


@pytest.mark.parametrize("stage", [*PLANNED, Stage.WAITING, Stage.ASIDE])
def test_pod_that_was_refused_on_its_candidate_nodes_is_evicted(stage: Stage) -> None:
    node = OneNode()
    if stage in PLANNED:
        node.plan(stage)
    else:
        node.use("x", held_by_other_gate=stage is Stage.ASIDE)
    assert node.stage("x") is stage
    node.set(replace(node.pods["x"], **REFUSED))
    node.now_s += 100
    node.core.unplanned_pods.retry(node.now_s)
    assert node.stage("x") is Stage.EVICTED


@pytest.mark.parametrize("stage", PLANNED)
def test_planned_pod_of_another_scheduler_waits_for_its_candidate_nodes_when_its_node_is_deleted(stage: Stage) -> None:
    node = OneNode()
    node.plan(stage)
    node.set(replace(node.pods["x"], **CONFINED))
    node.lose_node("c")
    assert node.stage("x") is Stage.ASIDE
    assert "x" in node.core.store.unplanned
    assert not node.core.store.scheduler.holds(node.core.store.entries["x"].id)


@pytest.mark.parametrize("stage", PLANNED)
def test_planned_pod_that_is_deleted_frees_its_devices(stage: Stage) -> None:
    node = OneNode()
    node.plan(stage)
    node.set(replace(node.pods["x"], leaving=True))
    assert node.stage("x") is Stage.ASIDE
    assert not node.core.store.scheduler.holds(node.core.store.entries["x"].id)
