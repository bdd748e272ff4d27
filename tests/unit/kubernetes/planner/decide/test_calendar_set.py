"""Deferrals end in time, even if the system clock of the planner's host is set forward or back."""

from __future__ import annotations

import pytest
from tests.unit.kubernetes.planner.world import SETTINGS, World, until

from calabash.adapters.kube.objects.core import POD
from calabash.kubernetes.planner.decide.unused_plans import REFUSED_S
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.model.request import GpuRequest
from calabash_testing.clock import VirtualClock


def entry_of(service: PlannerService, uid: str) -> PodEntry:
    core = service._core
    assert core is not None
    return core.store.entries[uid]


def is_known(service: PlannerService, uid: str) -> bool:
    core = service._core
    return core is not None and uid in core.store.entries


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_deferral_ends_in_time_although_the_system_clock_was_set(world: World, jump_s: float) -> None:
    world.node("a")
    clock = VirtualClock()
    service = PlannerService(world.client, SETTINGS, clock=clock)
    service.start()
    world.services.append(service)
    until(service.leads, "the planner leads")
    uid = world.pod("p", GpuRequest()).metadata.uid
    until(lambda: is_known(service, uid), "the pod to be known")
    until(lambda: entry_of(service, uid).plan is not None, "a plan")
    world.settle(service)
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}
    world.client.patch(POD, "p", "team", body={"status": {"conditions": [refused]}}, subresource="status")
    until(lambda: entry_of(service, uid).facts.refused, "the refusal to be seen")
    world.settle(service)
    clock.advance(REFUSED_S + 1)
    world.settle(service)
    assert entry_of(service, uid).plan is None
    clock.set_calendar(jump_s)
    world.settle(service)
    assert entry_of(service, uid).plan is None, "it was set aside for some seconds, which have not passed"
    clock.advance(3 * REFUSED_S)
    world.settle(service)
    assert entry_of(service, uid).plan is not None
