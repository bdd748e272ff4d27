"""Unlisted transitions in a running planner: counted, and without consequence for other pods."""

from __future__ import annotations

from tests.unit.kubernetes.planner.world import World, released, unlisted_transitions, until

from calabash.kubernetes.planner.state.pod_lifecycle import PodEvent
from calabash.model.request import GpuRequest


def test_planner_counts_an_unlisted_transition_and_continues(world: World) -> None:
    world.node("a")
    service = world.start()
    gated = world.pod("p", GpuRequest(count=1), gates=[{"name": "example.com/other"}])
    until(lambda: service._core is not None and gated.metadata.uid in service._core.store.entries, "the pod is known")
    core = service._core
    assert core is not None
    with service._lock:
        assert not core.store.advance(core.store.entries[gated.metadata.uid], PodEvent.BINDING_WRITTEN)
    assert unlisted_transitions(service) == 1
    world.pod("q", GpuRequest(count=2))
    until(lambda: released(world, "q"), "released")
    assert service._core is core
    world.expected_unlisted = 1
