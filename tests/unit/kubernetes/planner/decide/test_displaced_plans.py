"""Pods whose planned devices Kubernetes allocates to the claims of another pod, in each stage before they are bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kubernetes.planner.claimed import ClaimCluster, named

from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice
from calabash.kubernetes.planner.state.facts import EvictPod
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.model.messages import in_full
from calabash.model.request import ComputePolicy

PLANNED = (Stage.PLACED, Stage.RELEASING, Stage.RELEASED)


class OneNode(ClaimCluster):
    """A node of two devices whose pods use claims."""

    def __init__(self) -> None:
        super().__init__({"c": 2}, allocation_apis={"c": "claims"})

    def use(self, name: str, **more: Any) -> None:
        """Create a pod with a claim of its own name."""
        self.claim(name)
        self.claimer(name, name=name, **more)

    def allocate_device(self, claim: str, device: str) -> None:
        """Allocate a claim as a scheduler does that does not know the planner's reservations."""
        slices = (PlannedSlice(device=device, memory_mib=40960, core_percent=100),)
        held = PlannedContainer(name=claim, mode="exclusive", policy=ComputePolicy.FIXED, slices=slices)
        self.update_claim(replace(self.claims[claim], node="c", held=held))

    def stage(self, name: str) -> Stage:
        return self.core.store.entries[name].stage

    def device(self, name: str) -> str:
        plan = self.core.store.entries[name].plan
        assert plan is not None
        return plan.containers[0].slices[0].device

    def other_device(self, name: str) -> str:
        return "GPU-1" if self.device(name) == "GPU-0" else "GPU-0"

    def evict_for(self, name: str) -> None:
        """Create a pod of high priority, for which another pod is evicted, and request that eviction."""
        self.use(name, priority=9)
        self.decide()
        assert self.stage(name) is Stage.PLACED
        for action in [a for a in self.todo if isinstance(a, EvictPod)]:
            self.todo.remove(action)
            self.carry_out(action)

    def plan(self, stage: Stage) -> None:
        """Create pod ``x`` and plan it; the other device of the node is used by pod ``f``."""
        self.use("f")
        if stage is Stage.PLACED:
            self.use("e")
            self.settle()
            self.evict_for("x")
            (evicted,) = [p.uid for p in self.pods.values() if p.leaving]
            self.rest = ({"e", "f"} - {evicted}).pop()
        else:
            self.settle()
            self.rest = "f"
            self.use("x", priority=5)
            self.decide()
            if stage is Stage.RELEASED:
                while self.todo:
                    self.carry_out(self.todo.pop(0))
        assert self.stage("x") is stage

    def take_planned_device(self) -> None:
        """Let Kubernetes allocate the device that is planned for pod ``x`` to the claim of pod ``y``."""
        device = self.device("x")
        self.use("y")
        self.allocate_device("y", device)
        assert self.device("y") == device
        assert self.core.store.scheduler.holds(self.core.store.entries["y"].id)


@pytest.fixture
def node() -> OneNode:
    return OneNode()


@pytest.mark.parametrize("stage", PLANNED)
def test_pod_is_planned_on_another_free_device_of_its_node(node: OneNode, stage: Stage) -> None:
    node.plan(stage)
    other = node.other_device("x")
    node.end(node.rest)
    node.take_planned_device()
    assert node.stage("x") is (Stage.RELEASED if stage is Stage.RELEASED else Stage.RELEASING)
    assert node.device("x") == other


@pytest.mark.parametrize("stage", PLANNED)
def test_pod_waits_for_an_evicted_pod_on_the_other_device(node: OneNode, stage: Stage) -> None:
    node.plan(stage)
    node.evict_for("z")
    other = node.device("z")
    node.end("z")
    node.take_planned_device()
    assert node.stage("x") is Stage.PLACED
    assert node.device("x") == other
    assert node.core.store.entries["x"].after == {node.rest}


@pytest.mark.parametrize("stage", PLANNED)
def test_pod_whose_claim_has_become_invalid_is_set_aside(node: OneNode, stage: Stage) -> None:
    node.plan(stage)
    node.update_claim(replace(node.claims["x"], fault="the device class does not exist", request=None))
    assert node.stage("x") is stage
    node.take_planned_device()
    entry = node.core.store.entries["x"]
    assert entry.stage is Stage.ASIDE
    assert "the device class does not exist" in in_full(entry.message)


@pytest.mark.parametrize("stage", PLANNED)
def test_pod_that_now_shares_an_allocated_claim_needs_no_plan(node: OneNode, stage: Stage) -> None:
    node.plan(stage)
    node.set(replace(node.pods["x"], claims=named([node.rest])))
    assert node.stage("x") is stage
    node.take_planned_device()
    entry = node.core.store.entries["x"]
    assert entry.stage is Stage.RIDING
    assert entry.plan is None


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("stage", PLANNED)
def test_allocated_devices_replace_the_planned_ones(node: OneNode, stage: Stage, gated: bool) -> None:
    node.plan(stage)
    device = node.device("x")
    node.set(replace(node.pods["x"], gated=gated))
    node.allocate_device("x", device)
    assert node.stage("x") is (Stage.RELEASING if gated else Stage.RELEASED)
    assert node.device("x") == device
