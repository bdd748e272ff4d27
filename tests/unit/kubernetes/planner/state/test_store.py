"""Stages of pods in the store, and unlisted transitions."""

from __future__ import annotations

import pytest
from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.state.pod_lifecycle import PodEvent, Stage
from calabash.model.request import GpuRequest
from calabash.model.state_machine import UnlistedTransitionError


class CountingCluster(Cluster):
    """A cluster whose planner counts unlisted transitions, as in production."""

    def restarted(self) -> Core:
        core = super().restarted()
        self.unlisted: list[UnlistedTransitionError] = []
        core.store.on_unlisted = self.unlisted.append
        return core


def test_unlisted_transition_is_raised_with_stage_event_and_pod() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(GpuRequest())
    entry = cluster.core.store.entries[uid]
    with pytest.raises(
        UnlistedTransitionError, match=f"pod {uid}: no transition from stage waiting at event plan_written"
    ):
        cluster.core.store.advance(entry, PodEvent.PLAN_WRITTEN)
    assert entry.stage is Stage.WAITING


@pytest.mark.parametrize("event", [PodEvent.EVICTION_REFUSED, PodEvent.BINDING_WRITTEN])
def test_unbound_pod_is_planned_anew_after_a_counted_unlisted_transition(event: PodEvent) -> None:
    cluster = CountingCluster({"a": 1})
    uid = cluster.create(GpuRequest())
    cluster.decide()
    before = cluster.core.store.entries[uid]
    assert before.stage is Stage.RELEASING
    assert not cluster.core.store.advance(before, event)
    assert [(one.subject, one.stage, one.event) for one in cluster.unlisted] == [(uid, Stage.RELEASING, event)]
    cluster.settle()
    assert cluster.core.store.entries[uid] is not before
    assert cluster.bound() == {uid: "a"}
    cluster.check()
    assert len(cluster.unlisted) == 1


def test_bound_pod_keeps_its_devices_after_a_counted_unlisted_transition() -> None:
    cluster = CountingCluster({"a": 1})
    uid = cluster.create(GpuRequest())
    cluster.settle()
    entry = cluster.core.store.entries[uid]
    assert not cluster.core.store.advance(entry, PodEvent.DEVICES_FREED)
    other = cluster.create(GpuRequest())
    cluster.settle()
    assert cluster.core.store.entries[uid] is entry
    assert entry.stage is Stage.BOUND
    assert cluster.core.store.scheduler.holds(entry.id)
    assert cluster.core.store.entries[other].stage is Stage.WAITING
