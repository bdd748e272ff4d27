"""Tests of a planner that leads together with the kube-scheduler of its pod, and never beside another planner."""

from __future__ import annotations

from typing import Any

import pytest

from calabash.adapters.kube.objects.core import LEASE, NAMESPACE
from calabash.kubernetes.leader.colocated import ColocatedCandidate
from calabash.kubernetes.leader.lease import Election
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube


class Replicas:
    """Two planners in pods p0 and p1, each with a kube-scheduler; the test chooses the leading kube-scheduler."""

    def __init__(self) -> None:
        self.client = MemoryKube()
        self.client.create(NAMESPACE, {"metadata": {"name": "system"}})
        self.now_s = 0.0
        self.all = [ColocatedCandidate(self._election(f"p{i}"), self.client, **self._place(f"p{i}")) for i in range(2)]

    def _election(self, identity: str) -> Election:
        place = {"namespace": "system", "name": "planner"}
        return Election(self.client, identity=identity, now_s=lambda: self.now_s, term_s=10.0, **place)

    def _place(self, host: str) -> dict[str, str]:
        return {"namespace": "system", "lease": "scheduler", "host": host}

    def scheduler(self, holder: str) -> None:
        """Set the holder of kube-scheduler's Lease."""
        if self.client.get(LEASE, "scheduler", "system") is None:
            self.client.create(LEASE, {"metadata": {"name": "scheduler", "namespace": "system"}, "spec": {}}, "system")
        self.client.patch(LEASE, "scheduler", "system", body={"spec": {"holderIdentity": holder}})


def test_no_planner_leads_before_a_kube_scheduler_does() -> None:
    world = Replicas()
    assert [planner.step() for planner in world.all] == [False, False]
    world.scheduler("")
    assert [planner.step() for planner in world.all] == [False, False]


def test_the_planner_beside_the_leading_kube_scheduler_leads() -> None:
    world = Replicas()
    world.scheduler("p1_0b3f")
    assert [planner.step() for planner in world.all] == [False, True]
    assert [planner.leads() for planner in world.all] == [False, True]
    assert world.all[1].step()
    assert world.all[1].holder() == "p1"


def test_host_name_that_is_a_prefix_of_another_does_not_match() -> None:
    world = Replicas()
    world.scheduler("p10_0b3f")
    assert [planner.step() for planner in world.all] == [False, False]


def test_leadership_follows_kube_scheduler_and_there_is_never_a_second_leader() -> None:
    world = Replicas()
    first, second = world.all
    world.scheduler("p0_0b3f")
    assert first.step()
    world.scheduler("p1_77aa")
    assert not second.step(), "the first has not been told"
    assert first.leads()
    assert not first.step()
    assert not first.leads()
    assert second.step()


def test_unreadable_kube_scheduler_lease_changes_nothing_until_the_term_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Replicas()
    first, _ = world.all
    world.scheduler("p0_0b3f")
    assert first.step()

    def down(*words: Any, **more: Any) -> None:
        raise CalabashError("no answer", reason=Reason.API_DOWN)

    monkeypatch.setattr(world.client, "get", down)
    assert first.step()
    world.now_s = 9.9
    assert not first.step()
