"""Tests of deleted pods: their allocations are ended after a limited time, and those of no other pod."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.kubernetes.node_plugin.node_world import OTHER, UID, GivenPods, planned, pod
from tests.unit.kubernetes.node_plugin.test_retention import record

from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.node_plugin.claims.store import ClaimStore, KnownClaim
from calabash.kubernetes.node_plugin.deleted_pods import GONE_S, DeletedPods, pod_exists
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.membership.container import claim_allocation

CLAIM = "12345678-1234-1234-1234-123456789abc"


class Agent:
    """Agent of a node with these allocations; ``ended`` are those that the caller ended."""

    def __init__(self, *held: AllocationRecord) -> None:
        self.held = list(held)
        self.ended: list[AllocationId] = []

    def records(self) -> list[AllocationRecord]:
        return self.held

    def end(self, allocation: AllocationId, *, reason: str, explanation: str) -> bool:
        assert reason == Reason.RECLAIM
        assert "pod was deleted 30 s ago" in explanation
        self.ended.append(allocation)
        return True


class World:
    def __init__(self, *held: AllocationRecord) -> None:
        self.there: Pod | None = None  # the pod in the API server
        self.answers = True
        self.claims = ClaimStore()
        self.pods = GivenPods(complete=True, users=self.claims.users)
        self.agent = Agent(*held)
        self.deleted = DeletedPods(self.agent, self.pods, self.claims, lambda r: pod_exists(r, self.fetch))

    def fetch(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("team", "p")
        if not self.answers:
            raise CalabashError("no answer", reason=Reason.API_DOWN)
        return self.there

    def observe(self, after: Pod) -> None:
        self.pods.changed(MirrorChange(before=None, after=after))

    def lose(self, before: Pod) -> None:
        self.pods.changed(MirrorChange(before=before, after=None))

    def at(self, *times_s: float) -> list[AllocationId]:
        for now_s in times_s:
            self.deleted.reconcile(now_s)
        return self.agent.ended


HELD = replace(record("main"), user="team/p")


def test_allocation_of_a_pod_that_is_gone_is_ended_after_a_bounded_time() -> None:
    world = World(HELD)
    running = pod(planned("main"), phase="Running")
    world.observe(running)
    assert world.at(0.0, 100.0, 1000.0) == []
    world.lose(running)
    assert world.at(1001.0, 1001.0 + GONE_S - 0.1) == []
    assert world.at(1001.0 + GONE_S) == [HELD.id]


def test_allocation_of_a_pod_that_has_ended_or_is_leaving_is_left_to_its_kubelet() -> None:
    world = World(HELD)
    world.observe(pod(planned("main"), phase="Succeeded"))
    assert world.at(0.0, 10 * GONE_S) == []


def test_time_of_a_pod_that_a_finalizer_kept_counts_from_its_forced_deletion() -> None:
    world = World(HELD)
    running = pod(planned("main"), phase="Running")
    world.observe(running)
    assert world.at(0.0) == []
    forced = deleted(running, grace_s=0)
    world.observe(forced)
    assert world.at(100.0, 110.0, 1000.0) == [], "while the object is there its kubelet ends the processes"
    world.lose(forced)
    assert world.at(1000.5) == [HELD.id], "the finalizer was removed"


def test_pod_that_is_gone_soon_after_its_forced_deletion_has_the_rest_of_its_time() -> None:
    world = World(HELD)
    forced = deleted(pod(planned("main"), phase="Running"), grace_s=0)
    world.observe(forced)
    assert world.at(100.0) == []
    world.lose(forced)
    assert world.at(108.0, 100.0 + GONE_S - 0.1) == []
    assert world.at(100.0 + GONE_S) == [HELD.id]


def test_pod_that_is_deleted_with_grace_has_its_time_from_when_its_object_is_gone() -> None:
    world = World(HELD)
    leaving = deleted(pod(planned("main"), phase="Running"), grace_s=600)
    world.observe(leaving)
    assert world.at(100.0) == []
    world.lose(leaving)
    assert world.at(500.0, 500.0 + GONE_S - 0.1) == []
    assert world.at(500.0 + GONE_S) == [HELD.id]


def deleted(found: Pod, *, grace_s: int) -> Pod:
    meta = msgspec.structs.replace(
        found.metadata, deletion_timestamp="2026-11-22T03:00:00Z", deletion_grace_period_seconds=grace_s
    )
    return msgspec.structs.replace(found, metadata=meta)


def test_pod_that_only_the_mirror_lacks_keeps_its_devices() -> None:
    world = World(HELD)
    world.there = pod(planned("main"), phase="Running")
    assert world.at(0.0, GONE_S, 2 * GONE_S) == []
    world.there = replace_uid(world.there, OTHER)
    assert world.at(3 * GONE_S) == [HELD.id], "another pod has its name"


def replace_uid(found: Pod, uid: str) -> Pod:
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, uid=uid))


def test_api_server_that_does_not_answer_ends_nobody() -> None:
    world = World(HELD)
    world.answers = False
    assert world.at(*(n * GONE_S for n in range(5))) == []
    world.answers = True
    assert world.at(4 * GONE_S + GONE_S - 1) == []
    assert world.at(6 * GONE_S) == [HELD.id]


def test_pods_that_are_not_known_yet_end_nobody_and_begin_no_time() -> None:
    world = World(HELD)
    world.pods.complete = False
    assert world.at(0.0, 10 * GONE_S) == []
    world.pods.complete = True
    assert world.at(10 * GONE_S) == []
    world.pods.complete = False
    assert world.at(10 * GONE_S + GONE_S - 1) == []
    world.pods.complete = True
    assert world.at(11 * GONE_S) == []
    assert world.at(12 * GONE_S) == [HELD.id]


@pytest.mark.parametrize("over", [False, True])
def test_claim_is_ended_when_none_of_its_pods_is_there_or_it_is_over(*, over: bool) -> None:
    held = replace(HELD, id=claim_allocation(CLAIM), user="team/claim")
    world = World(held)
    assert world.at(0.0, 10 * GONE_S) == [], "nothing is known of it since the agent began"
    world.claims.update(KnownClaim(namespace="team", name="c", uid=CLAIM, pods={UID: "p"}))
    running = pod(planned("main"), phase="Running")
    world.observe(running)
    assert world.at(20 * GONE_S, 30 * GONE_S) == []
    if over:
        world.claims.mark_ended(CLAIM)
    else:
        world.lose(running)
    assert world.at(40 * GONE_S) == []
    assert world.at(41 * GONE_S) == [held.id]
