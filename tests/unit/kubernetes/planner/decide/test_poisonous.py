"""An object on which the planner fails is left out, and all others are planned."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube.objects.core import EVENT, POD
from calabash.kubernetes.objects.names import REQUEST
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.watch import mirrors as mirrors_module
from calabash.kubernetes.skipped_objects import REASON
from calabash.model.request import GpuRequest

HALF = GpuRequest(memory_mib=1024, core_percent=10)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make decisions fail as long as the core knows an unbound pod whose name begins with ``poison``."""
    monkeypatch.setattr("calabash.kubernetes.planner.term.REST_S", 0.0)
    monkeypatch.setattr("calabash.kubernetes.skipped_objects.EVERY_S", 0.0)
    decide = Core.decide

    def failing(self: Core, now_s: float) -> None:
        if any(e.facts.name.startswith("poison") and not e.facts.node for e in self.store.entries.values()):
            raise OverflowError("cannot convert float infinity to integer")
        decide(self, now_s)

    monkeypatch.setattr(Core, "decide", failing)


def skipped(world: World) -> set[str]:
    return {e.involved_object.name for e in world.client.list(EVENT, "team").items if e.reason == REASON}


@pytest.mark.usefixtures("poisoned")
def test_pod_on_which_decisions_fail_is_set_aside_and_others_are_planned(world: World) -> None:
    world.node("a")
    service = world.start()
    world.pod("before", HALF)
    until(lambda: released(world, "before"), "released")
    for name in ("poison-1", "m", "poison-2", "z"):
        world.pod(name, HALF)
    for name in ("m", "z"):
        until(lambda name=name: released(world, name), "released")  # type: ignore[misc]
    until(lambda: skipped(world) == {"poison-1", "poison-2"}, "reported")
    assert released(world, "poison-1") is None
    until(lambda: world.get("poison-1").status.conditions, "a condition")
    condition = world.get("poison-1").status.conditions[0]
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unsupported")
    assert "hint:" in condition.message
    world.pod("after", HALF)
    until(lambda: released(world, "after"), "released")
    assert service.leads()
    assert re.search(r"^calabash_planner_decision_failures_total [1-9]", service.figures.page().decode(), re.MULTILINE)


@pytest.mark.usefixtures("poisoned")
def test_planner_that_begins_with_such_a_pod_leads(world: World) -> None:
    world.node("a")
    world.pod("poison", HALF)
    world.pod("other", HALF)
    world.start()
    until(lambda: released(world, "other"), "released")
    until(lambda: skipped(world) == {"poison"}, "reported")


@pytest.mark.usefixtures("poisoned")
def test_set_aside_pod_is_tried_again_when_its_request_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node("a")
    service = world.start()
    world.pod("poison", HALF)
    uid = world.get("poison").metadata.uid
    until(lambda: uid in service.mirrors.set_aside_pods, "set aside")
    until(service.leads, "leads")
    told: list[str] = []
    monkeypatch.setattr(service.mirrors, "_emit", lambda event: told.append("told"))
    until(lambda: world.get("poison").status.conditions, "a condition")
    world.client.patch(POD, "poison", "team", body={"metadata": {"labels": {"a": "b"}}})
    until(lambda: (pod := service.mirrors.get_pod("poison", "team")) and pod.metadata.labels == {"a": "b"}, "seen")
    assert told == []
    world.client.patch(POD, "poison", "team", body={"metadata": {"annotations": {REQUEST: "{"}}})
    until(lambda: uid not in service.mirrors.set_aside_pods, "tried again")
    until(lambda: told, "told")


READERS = ["pod_facts", "node_facts", "gpu_node_facts"]


@pytest.mark.parametrize("reader", READERS)
def test_object_that_cannot_be_turned_into_facts_is_left_out_when_a_term_begins(
    world: World, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """A new core is given all objects when a term begins; one that raises does not stop the others."""
    world.node("a")
    world.node("poison")
    world.pod("poison-pod", HALF)
    world.pod("other", HALF)
    real: Any = getattr(mirrors_module, reader)

    def failing(obj: Any, *more: Any) -> Any:
        if obj.metadata.name.startswith("poison"):
            raise OverflowError("too large")
        return real(obj, *more)

    monkeypatch.setattr(mirrors_module, reader, failing)
    service = world.start()
    until(lambda: released(world, "other"), "released")
    assert sum(service.skipped.counts().values()) >= 1
