"""Planners that share a cluster by pools of nodes, as services on an API server in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from tests.unit.kubernetes.planner.virtual import asked
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube import WideningMirror
from calabash.adapters.kube.objects.core import LEASE, NAMESPACE, NODE, POD
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE
from calabash.kubernetes.leader.lease import TERM_S, Election
from calabash.kubernetes.objects.names import PLAN, PLANNED_BY, POOL, QUEUES, TAKEN_FROM
from calabash.kubernetes.objects.plan import read_plan
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.lead.exclusive import ExclusiveCandidate, PlannerLeases
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.state.facts import NamespaceFacts, PodFacts, QueueFacts
from calabash.kubernetes.planner.state.partition import PartitionNodes
from calabash.kubernetes.planner.state.queues import KubeQueues
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube

A, B, REST = Shard(pool="a"), Shard(pool="b"), Shard()


def put(world: World, node: str, pool: str | None) -> None:
    """Move the node to that pool."""
    world.client.patch(NODE, node, body={"metadata": {"labels": {POOL: pool}}})


def planned_by(world: World, node: str) -> str:
    found = world.client.get(GPU_NODE, node)
    assert found is not None
    return found.metadata.labels.get(PLANNED_BY, "")


def queue(world: World, name: str, pool: str = "", limit: float | None = None) -> None:
    spec = {"limit": limit} if limit is not None else {}
    world.client.create(QUEUE, {"metadata": {"name": name, "labels": {POOL: pool} if pool else {}}, "spec": spec})


def has(world: World, service: PlannerService, *nodes: str) -> Callable[[], bool]:
    """Return a check that the service leads and its core has exactly these nodes."""
    return lambda: service.leads() and {str(n) for n in service._core.store.scheduler.nodes} == set(nodes)  # type: ignore[union-attr]


@pytest.fixture
def parted(world: World) -> tuple[World, PlannerService, PlannerService]:
    """Return a node in each of two pools, with a planner and a queue for each pool."""
    for pool in ("a", "b"):
        world.node(f"node-{pool}")
        put(world, f"node-{pool}", pool)
        queue(world, f"queue-{pool}", pool)
    world.client.patch(NAMESPACE, "team", body={"metadata": {"annotations": {QUEUES: "*"}}})
    first, second = world.start(shard=A), world.start(shard=B)
    until(has(world, first, "node-a"), "the first has its node")
    until(has(world, second, "node-b"), "the second has its node")
    return world, first, second


def test_each_planner_has_the_nodes_of_its_pool_and_plans_the_pods_of_its_queues(
    parted: tuple[World, PlannerService, PlannerService],
) -> None:
    world, _, _ = parted
    world.node("node-c")  # without a pool, and planned by no planner of this test
    for pool in ("a", "b"):
        world.pod(f"p-{pool}", GpuRequest(), queue=f"queue-{pool}", schedulerName=f"calabash-{pool}")
        pod = until(partial(released, world, f"p-{pool}"), "released")
        assert read_plan(pod.metadata.annotations[PLAN]).node == f"node-{pool}"
    assert [planned_by(world, f"node-{x}") for x in "abc"] == ["calabash-planner-a", "calabash-planner-b", ""]


def test_pod_with_a_queue_of_another_pool_waits_with_a_reason(
    parted: tuple[World, PlannerService, PlannerService],
) -> None:
    world, _, _ = parted
    world.pod("lost", GpuRequest(), queue="queue-b", schedulerName="calabash-a")
    told = until(
        lambda: [c.message for c in world.get("lost").status.conditions if "of pool b" in c.message], "its condition"
    )
    assert "recreate the pod" in told[0]


def test_node_that_changes_pools_is_planned_by_the_other_planner_with_its_running_pods(
    parted: tuple[World, PlannerService, PlannerService],
) -> None:
    world, first, second = parted
    pod = world.pod("runs", GpuRequest(), queue="queue-a", schedulerName="calabash-a")
    until(lambda: released(world, "runs"), "released")
    assert world.bind(first, pod, "node-a") == (200, {"Error": ""})
    put(world, "node-a", "b")
    until(has(world, first), "the first has no node any more")
    until(has(world, second, "node-a", "node-b"), "the second has both")
    assert planned_by(world, "node-a") == "calabash-planner-b"
    world.pod("whole", GpuRequest(count=2), queue="queue-b", schedulerName="calabash-b")
    plan = until(lambda: released(world, "whole"), "released").metadata.annotations[PLAN]
    assert read_plan(plan).node == "node-b", "on the other node one device is in use, by a pod of another planner"
    world.pod("single", GpuRequest(), queue="queue-b", schedulerName="calabash-b")
    single = until(lambda: released(world, "single"), "released")
    device = read_plan(single.metadata.annotations[PLAN]).containers[0].slices[0].device
    taken = read_plan(world.get("runs").metadata.annotations[PLAN]).containers[0].slices[0].device
    assert (read_plan(single.metadata.annotations[PLAN]).node, device == taken) == ("node-a", False)


def test_unbound_pod_planned_on_a_node_that_left_the_pool_is_planned_elsewhere(
    parted: tuple[World, PlannerService, PlannerService],
) -> None:
    world, first, _ = parted
    pod = world.pod("early", GpuRequest(), queue="queue-a", schedulerName="calabash-a")
    until(lambda: released(world, "early"), "released")
    put(world, "node-a", "b")
    until(has(world, first), "the first has no node any more")
    assert "the pod is planned on no node yet" in world.bind(first, pod, "node-a")[1]["Error"]
    world.node("node-c")
    put(world, "node-c", "a")
    until(lambda: first.planned_node(pod.metadata.uid) == "node-c", "planned on the other node")
    assert world.bind(first, pod, "node-c") == (200, {"Error": ""})


def test_second_planner_of_a_part_takes_over_with_its_running_pods(
    parted: tuple[World, PlannerService, PlannerService],
) -> None:
    world, first, _ = parted
    pod = world.pod("runs", GpuRequest(count=2), queue="queue-a", schedulerName="calabash-a")
    until(lambda: released(world, "runs"), "released")
    world.bind(first, pod, "node-a")
    first.stop()
    world.services.remove(first)
    third = world.start(shard=A)
    until(has(world, third, "node-a"), "the third has its node")
    world.pod("waits", GpuRequest(), queue="queue-a", schedulerName="calabash-a")
    until(lambda: "waits" in str(third.mirrors.pods.snapshot().keys()), "it was seen")
    world.settle(third)
    assert released(world, "waits") is None


def test_planner_of_all_nodes_and_planner_of_a_part_exclude_each_other(world: World) -> None:
    world.node("node-a")
    put(world, "node-a", "a")
    part = world.start(shard=A)
    until(has(world, part, "node-a"), "the part is led")
    everything = world.start()
    world.stand_for_election(everything)
    assert not everything.leads()
    part.stop()
    world.services.remove(part)
    until(everything.leads, "nobody else has any of its nodes")
    late = world.start(shard=A)
    world.stand_for_election(late)
    assert not late.leads()


def test_term_opens_labelled_nodes_except_those_whose_takeover_is_unconfirmed() -> None:
    part = PartitionNodes(A, threading.RLock(), WideningMirror(MemoryKube(), POD), emit_devices=lambda _: True)
    for name, more in (("kept", {}), ("doubtful", {TAKEN_FROM: B.lease}), ("left", {})):
        part.label_changed(ObjectMeta(name=name, resource_version="1", labels=more))
        if name != "left":
            part.node_added(name)
    part.begin_term()
    assert part.opened() == {"kept"}


def test_nodes_that_are_added_labelled_or_removed_wake_the_handover() -> None:
    part = PartitionNodes(A, threading.RLock(), WideningMirror(MemoryKube(), POD), emit_devices=lambda _: True)
    labelled = ObjectMeta(name="n", resource_version="1")
    changes: tuple[Callable[[], None], ...] = (
        lambda: part.node_added("n"),
        lambda: part.label_changed(labelled),
        lambda: part.label_removed("n"),
        lambda: part.node_removed("n"),
    )
    for change in changes:
        part.moved.clear()
        change()
        assert part.moved.is_set()
    part.label_changed(labelled)
    part.moved.clear()
    part.label_changed(ObjectMeta(name="n", resource_version="2"))
    assert not part.moved.is_set()


def test_namespace_with_queues_in_two_pools_may_use_both() -> None:
    queues = KubeQueues(A)
    queues.set_queues([QueueFacts(name=f"team-{pool}", tenant="team", pool=pool) for pool in "ab"])
    queues.namespaces["team"] = NamespaceFacts(name="team", queue="team-b", allowed=frozenset({"team-a"}))
    pod = PodFacts(uid="p", namespace="team", name="p", created_at_s=0.0, request=asked(GpuRequest(), queue="team-a"))
    assert queues.queue_of(pod) == "team-a"


# ---- leadership of several parts --------------------------------------------------------------------------------------


class Candidates:
    """Candidates on one API server, each with a clock that the test moves."""

    def __init__(self) -> None:
        self.client = MemoryKube()
        self.now_s = 100.0

    def candidate(self, shard: Shard, name: str) -> ExclusiveCandidate:
        def now_s() -> float:
            return self.now_s

        election = Election(
            self.client,
            namespace="ns",
            name=shard.lease,
            identity=name,
            now_s=now_s,
        )
        return ExclusiveCandidate(election, PlannerLeases(self.client, namespace="ns", now_s=now_s), shard)


def test_planners_of_disjoint_parts_lead_at_the_same_time() -> None:
    world = Candidates()
    assert all(world.candidate(shard, "x").step() for shard in (A, B, REST))


def test_leases_of_other_programs_are_ignored() -> None:
    world = Candidates()
    for name in ("calabash-server", "calabash-scheduler-a", "calabash-planner-Not.a.name"):
        spec = {"holderIdentity": "x", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
        world.client.create(LEASE, {"metadata": {"name": name.lower(), "namespace": "ns"}, "spec": spec}, "ns")
    assert world.candidate(ALL, "x").step()


@pytest.mark.parametrize(("first", "second"), [(ALL, A), (A, ALL), (ALL, REST), (REST, ALL)])
def test_later_planner_with_shared_nodes_waits_until_the_first_is_gone(first: Shard, second: Shard) -> None:
    world = Candidates()
    one, other = world.candidate(first, "one"), world.candidate(second, "other")
    assert one.step()
    assert not other.step()
    assert one.step(), "who leads goes on"
    lease = world.client.get(LEASE, second.lease, "ns")
    assert lease is not None
    assert not lease.spec.holder_identity, "what it could not use it gave back"
    for _ in range(4):
        world.now_s += TERM_S / 3
        stands = other.step()
    assert stands, "a lease that is not renewed for a term is nobody's"
