"""Tests of planners that share a real cluster by pools of nodes: no device is allocated twice, also after failures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.planned import PORT, SYSTEM, Planned, planned_pod
from tests.kube.planner_faults import Replicas, Stream, over_committed, wait_until_bound

from calabash.kubernetes.objects.names import PLANNED_BY, POOL, QUEUE
from calabash.kubernetes.objects.shards import Shard
from calabash.model.request import GpuRequest

PREFIX = "parted"
GPU_NODES = "/apis/calabash.dev/v1alpha1/gpunodes"
TERM_S = 6.0
PART = GpuRequest(memory_mib=2048, core_percent=10)
WHOLE = GpuRequest()
SPACES = {"": "of-rest", "a": "of-a", "b": "of-b"}


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    """One planner for all nodes: four of pool a, four of pool b and four without a pool.

    Each pool has a queue with a namespace, and another namespace has no queue of a pool.
    """
    options = {"--identity": "alone"}
    with Planned(own_control_plane, 12, 4, prefix=PREFIX, planner=options) as found:
        for pool, space in SPACES.items():
            labels = {QUEUE: f"queue-{pool}"} if pool else {}
            found.api.create("/api/v1/namespaces", {"metadata": {"name": space, "labels": labels}})
            account = f"/api/v1/namespaces/{space}/serviceaccounts/default"
            found.cluster.wait_for(lambda path=account: found.api.exists(path), "its account")  # type: ignore[misc]
            if pool:
                queue = {"metadata": {"name": f"queue-{pool}", "labels": {POOL: pool}}, "spec": {}}
                kind = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue"}
                found.api.create("/apis/calabash.dev/v1alpha1/queues", kind | queue)
        for number, node in enumerate(found.nodes):
            if number < 8:
                put(found, node, "ab"[number // 4])
        found.cluster.wait_for(lambda: holder(found, "calabash-planner") == "alone", "it leads")
        yield found


@pytest.fixture(scope="module")
def parts(planned: Planned) -> Iterator[dict[str, Replicas]]:
    """Two planners of pool a and one of pool b, and a kube-scheduler for each pool.

    None of these planners leads while the planner of all nodes runs.
    """
    with ExitStack() as all_of_them:
        found: dict[str, Replicas] = {}
        for pool, front, names in (("a", 7080, ("a1", "a2")), ("b", 7090, ("b1",))):
            shard = Shard(pool=pool)
            planners = dict.fromkeys(names, shard.selector)
            found[pool] = all_of_them.enter_context(
                Replicas(planned.cluster, term_s=TERM_S, front=front, scheduler=shard.scheduler, planners=planners)
            )
        yield found


def put(planned: Planned, node: str, pool: str | None) -> None:
    """Move a node to a pool; None removes it from its pool."""
    planned.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {POOL: pool}}})


def pods_of_pool(pool: str, request: GpuRequest = PART, name: str = "p") -> Callable[[int], Json]:
    """Return a function that returns pods of a pool by their number, in the form that admission gives them."""
    return lambda number: planned_pod(f"{name}{number:04}", request, schedulerName=Shard(pool=pool).scheduler)


def planned_by(planned: Planned) -> dict[str, str]:
    """Return the name of the lease of the planner that plans each node, by the node; "" if the node names none."""
    found = planned.api.get(GPU_NODES)["items"]
    return {one["metadata"]["name"]: one["metadata"].get("labels", {}).get(PLANNED_BY, "") for one in found}


def pools(planned: Planned) -> dict[str, str]:
    found = planned.api.get("/api/v1/nodes")["items"]
    return {one["metadata"]["name"]: one["metadata"]["labels"].get(POOL, "") for one in found}


def wait_until_each_has_its_own(planned: Planned) -> None:
    planned.cluster.wait_for(
        lambda: planned_by(planned) == {node: Shard(pool=pool).lease for node, pool in pools(planned).items()},
        "every node to be planned by the planner of its pool",
    )


def holder(planned: Planned, lease: str) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{lease}"
    found: str = planned.api.get(path)["spec"].get("holderIdentity", "") if planned.api.exists(path) else ""
    return found


def everyone(planned: Planned) -> list[Json]:
    return [pod for space in SPACES.values() for pod in planned.pods(space).values()]


def on_nodes_of(planned: Planned, pool: str, space: str) -> bool:
    where = pools(planned)
    return {where[node] for node in planned.bound(space).values()} == {pool}


def planner_of_the_rest(planned: Planned, nodes: str) -> None:
    """Start the planner of the remaining nodes as the chart does, on the port of its predecessor."""
    words = ["--kubeconfig", str(planned.cluster.kubeconfig), "--listen", f"127.0.0.1:{PORT}", "--node-selector", nodes]
    planned.cluster.start_program(
        "planner", [str(Path(sys.executable).with_name("calabash")), "serve", "planner", *words]
    )


@pytest.fixture(scope="module")
def divided(planned: Planned, parts: dict[str, Replicas]) -> dict[str, Replicas]:
    """The state after the planner of all nodes has ended while pods are created, and the planners of the pools lead."""
    with ExitStack() as streams:
        for pool, space in SPACES.items():
            streams.enter_context(Stream(planned, space, pods_of_pool(pool), per_s=3))
        planned.wait_bound(SPACES[""], 3)
        assert not any(one.leader for one in parts.values()), "one planner has all nodes"
        assert set(planned_by(planned).values()) == {""}
        planned.cluster.kill("planner", signal.SIGTERM)
        planner_of_the_rest(planned, f"!{POOL}")
        for one in parts.values():
            one.wait_for_leader()
    wait_until_each_has_its_own(planned)
    return parts


def all_bound_where_they_belong(planned: Planned) -> None:
    """Check that all pods are bound, in the pool of their queue, and that no device is over-committed."""
    for pool, space in SPACES.items():
        wait_until_bound(planned, space, len(planned.pods(space)))
        assert not pool or on_nodes_of(planned, pool, space)
    assert over_committed(everyone(planned)) == []


@pytest.mark.usefixtures("divided")
def test_cluster_is_divided_under_load_and_each_planner_binds_its_own_pods(planned: Planned) -> None:
    all_bound_where_they_belong(planned)


def test_replica_leads_after_a_planner_is_killed_and_other_planners_continue(
    planned: Planned, divided: dict[str, Replicas]
) -> None:
    first = divided["a"].wait_for_leader()
    before = planned_by(planned)
    planned.cluster.kill(first)
    planned.create(SPACES["a"], [pods_of_pool("a", name="k")(i) for i in range(6)])
    planned.create(SPACES["b"], [pods_of_pool("b", name="k")(i) for i in range(6)])
    assert divided["a"].wait_for_leader(other_than=first) != first
    all_bound_where_they_belong(planned)
    assert planned_by(planned) == before, "nobody took its nodes meanwhile"


@pytest.mark.usefixtures("divided")
def test_nodes_change_pools_while_pods_wait_and_no_device_is_given_twice(planned: Planned) -> None:
    (moved,) = planned.add_nodes(1, prefix="moved", labels=lambda _: {POOL: "a"})
    there: Json = {"nodeSelector": {"kubernetes.io/hostname": moved}}
    planned.create(SPACES["a"], [planned_pod(f"t{i}", PART, schedulerName="calabash-a", **there) for i in range(3)])
    wait_until_bound(planned, SPACES["a"], len(planned.pods(SPACES["a"])))
    planned.create(SPACES["b"], [pods_of_pool("b", WHOLE, "w")(i) for i in range(4 * 4 + 1)])  # more than pool b has
    with Stream(planned, SPACES["a"], pods_of_pool("a", name="m"), per_s=3):
        for pool in ("b", "a", "b"):
            put(planned, moved, pool)
            wait_until_each_has_its_own(planned)
        planned.cluster.wait_for(lambda: moved in planned.bound(SPACES["b"]).values(), "a pod of the other pool there")
    wait_until_bound(planned, SPACES["a"], len(planned.pods(SPACES["a"])))
    assert {planned.bound(SPACES["a"])[f"t{i}"] for i in range(3)} == {moved}, "what ran there runs on"
    assert over_committed(everyone(planned)) == []


def test_one_planner_has_all_nodes_again_when_the_others_have_ended(
    planned: Planned, divided: dict[str, Replicas]
) -> None:
    cluster = planned.cluster
    cluster.kill("planner", signal.SIGTERM)
    words = ["--kubeconfig", str(cluster.kubeconfig), "--listen", f"127.0.0.1:{PORT}", "--identity", "again"]
    cluster.start_program("planner", [str(Path(sys.executable).with_name("calabash")), "serve", "planner", *words])
    node = planned.nodes[1]  # a node of pool a
    only_there: Json = {"nodeSelector": {"kubernetes.io/hostname": node}}
    pod = planned_pod("late", PART, **only_there)
    planned.create(SPACES[""], [pod])
    for name in (name for one in divided.values() for name in one.ports):
        with suppress(RuntimeError):  # killed by an earlier test
            cluster.kill(name, signal.SIGTERM)
    planned.wait_bound(SPACES[""], len(planned.pods(SPACES[""])))
    assert planned.bound(SPACES[""])["late"] == node
    assert over_committed(everyone(planned)) == []
