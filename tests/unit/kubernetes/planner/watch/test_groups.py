"""Tests of the versions in which the planner reads PodGroups of Kubernetes."""

from __future__ import annotations

import pytest
from tests.unit.kubernetes.planner.world import World, until

from calabash.adapters.kube.objects.groups import POD_GROUP_VERSIONS, PodGroup
from calabash.adapters.kube.objects.meta import Kind
from calabash.kubernetes.gangs.table import table_with
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.watch import groups as watch_groups
from calabash.kubernetes.pod_request import GangSource

GROUP = {
    "metadata": {"name": "g", "namespace": "team"},
    "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
}


def members(service: PlannerService) -> int | None:
    """Return the size of the gang group in the core; None if it is unknown."""
    core = service.mirrors.core
    return core.pods.requests.groups.get((GangSource.WORKLOAD, "team", "g")) if core is not None else None


@pytest.mark.parametrize("version", POD_GROUP_VERSIONS, ids=lambda kind: kind.api_version)
def test_newest_version_of_a_pod_group_that_is_served_is_read(world: World, version: Kind[PodGroup]) -> None:
    newer = POD_GROUP_VERSIONS[: POD_GROUP_VERSIONS.index(version)]
    world.client.faults.absent |= {f"{one.api_version}/{one.plural}" for one in newer}
    world.client.create(version, GROUP, "team")
    service = world.start()
    until(lambda: members(service) == 3, "the group is known")
    read = [kind for source, kind, _ in service.mirrors._rules.groups.snapshot() if source is GangSource.WORKLOAD]
    assert read == [version]


def test_version_that_is_enabled_later_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_groups, "ASK_EVERY_S", 0.05)
    world.client.faults.absent |= {f"{one.api_version}/{one.plural}" for one in POD_GROUP_VERSIONS}
    service = world.start()
    until(service.leads, "leads")
    world.client.faults.absent.clear()
    world.client.create(POD_GROUP_VERSIONS[0], GROUP, "team")
    until(lambda: members(service) == 3, "the group is known")


def test_planner_and_explain_gang_know_the_same_versions() -> None:
    known = table_with()["scheduling.k8s.io/PodGroup"].versions
    assert [kind.api_version for kind in POD_GROUP_VERSIONS] == [f"scheduling.k8s.io/{version}" for version in known]
