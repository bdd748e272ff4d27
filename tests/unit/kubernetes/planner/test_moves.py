"""The service moves pods: its requests to the API server, its events, and takeovers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.virtual import asked
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube import Evicted, EvictedAs
from calabash.adapters.kube.objects.core import EVENT, POD, Pod
from calabash.kubernetes.objects.names import PLAN, PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.objects.plan import read_plan
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.watch.facts_from_objects import pod_facts
from calabash.kubernetes.pod_request import write_request
from calabash.model.request import GpuRequest

WHOLE = GpuRequest()
MOVING = {"move_after_s": 0.0, "move_rest_s": 0.0}


def movable(world: World, name: str, *, kind: str = "ReplicaSet", owner: str = "rs-1") -> Pod:
    """Return a movable pod of a controller that recreates it, as admission leaves it."""
    request = write_request(replace(asked(WHOLE), movable=True))
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": owner, "controller": True}
    return world.client.create(
        POD,
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "annotations": {REQUEST: request},
                "ownerReferences": [reference],
            },
            "spec": {
                "schedulerName": SCHEDULER,
                "schedulingGates": [{"name": PLAN_GATE}],
                "containers": [{"name": "main"}],
            },
        },
        "team",
    )


def bind(world: World, service: PlannerService, name: str) -> str:
    pod = until(lambda: released(world, name), f"{name} released")
    node = read_plan(pod.metadata.annotations[PLAN]).node
    assert world.bind(service, pod, node) == (200, {"Error": ""})
    world.client.patch(POD, name, "team", body={"status": {"phase": "Running"}}, subresource="status")
    return node


def split(world: World, **more: Any) -> tuple[PlannerService, dict[str, str]]:
    """Return two nodes, on each of which a movable pod has one of two devices."""
    for name in "ab":
        world.node(name)
    service = world.start(**MOVING, **more)
    for name in ("w0", "w1", "w2"):
        movable(world, name)
    nodes = {name: bind(world, service, name) for name in ("w0", "w1", "w2")}
    twice = next(name for name in nodes if list(nodes.values()).count(nodes[name]) == 2)
    world.client.delete(POD, twice, "team", grace_s=0)
    del nodes[twice]
    return service, nodes


def leaving(world: World) -> str:
    found = [p.metadata.name for p in world.client.list(POD, "team").items if p.metadata.deletion_timestamp]
    return found[0] if found else ""


def events(world: World, reason: str) -> list[tuple[str, str]]:
    found = world.client.list(EVENT, "team").items
    return [(e.involved_object.name, e.message) for e in found if e.reason == reason]


def test_moved_pod_is_evicted_and_its_replacement_gets_the_reservation_and_events_explain_both(world: World) -> None:
    service, nodes = split(world)
    world.pod("large", GpuRequest(count=2))
    moved = until(lambda: leaving(world), "one is evicted")
    was = nodes[moved]
    kept = next(node for name, node in nodes.items() if name != moved)
    ((name, message),) = until(lambda: events(world, "Moved"), "the event of the moved")
    assert name == moved
    assert f"moved from {was} to {kept}" in message
    assert "make room for team/large" in message
    condition = until(
        lambda: next((c for c in world.get("large").status.conditions if c.reason == "WaitsForMove"), None), "told"
    )
    assert condition.message == f"planned on {was}, and waits for team/{moved}, moved to make room for it, to end there"
    assert [name for name, _ in until(lambda: events(world, "WaitsForMove"), "its event")] == ["large"]
    world.pod("thief", WHOLE)
    movable(world, "replacement")
    assert bind(world, service, "replacement") == kept
    assert released(world, "large") is None, "not before the moved one is gone, which takes its grace"
    world.client.faults.release("team", moved)
    assert bind(world, service, "large") == was
    assert released(world, "thief") is None


def test_another_planner_continues_a_move_after_a_crash(world: World) -> None:
    service, nodes = split(world, identity="first")
    world.pod("large", GpuRequest(count=2))
    moved = until(lambda: leaving(world), "one is evicted")
    service.stop()
    world.services.remove(service)
    movable(world, "replacement-0")
    world.client.faults.release("team", moved)
    service = world.start(**MOVING, identity="second")
    replacements = (f"replacement-{number}" for number in range(1, 9))

    def step() -> dict[str, str] | None:
        """Act as kube-scheduler, kubelets and controller; return the node of each pod once all are bound."""
        pods = world.client.list(POD, "team").items
        for pod in pods:
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp:  # created within one second, they may be planned in any order
                world.client.faults.release("team", name)
                movable(world, next(replacements))
            elif not pod.spec.node_name and released(world, name):
                bind(world, service, name)
        bound = {
            p.metadata.name: p.spec.node_name for p in pods if p.spec.node_name and not p.metadata.deletion_timestamp
        }
        return bound if len(bound) == 3 else None

    bound = until(step, "all have their nodes")
    assert [node for name, node in bound.items() if name != "large"] == [("b" if bound["large"] == "a" else "a")] * 2
    assert nodes[moved] in "ab"


def test_budget_changed_after_the_decision_protects_its_pod_and_another_is_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    evict = world.client.evict

    def once(namespace: str, name: str, uid: str, *, grace_s: int | None = None) -> Evicted:
        if not refused:
            refused.append(name)
            return Evicted(as_=EvictedAs.BLOCKED, message="the budget web allows none")
        return evict(namespace, name, uid, grace_s=grace_s)

    monkeypatch.setattr(world.client, "evict", once)
    service, nodes = split(world)
    world.pod("large", GpuRequest(count=2))
    moved = until(lambda: leaving(world), "the other is evicted")
    assert refused == [name for name in nodes if name != moved]
    assert events(world, "Moved") == [] or [name for name, _ in events(world, "Moved")] == [moved]
    movable(world, "replacement")
    assert bind(world, service, "replacement") == nodes[refused[0]]
    world.client.faults.release("team", moved)
    assert bind(world, service, "large") == nodes[moved]


@pytest.mark.parametrize(
    ("kind", "expected"), [("ReplicaSet", True), ("Job", True), ("DaemonSet", False), ("Node", False), ("", False)]
)
def test_pod_is_movable_only_if_its_controller_recreates_it_on_any_node(
    kind: str, expected: bool, world: World
) -> None:
    pod = movable(world, "w", kind=kind)
    if not kind:
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=()))
    facts = pod_facts(pod)
    assert facts is not None
    assert facts.movable is expected
