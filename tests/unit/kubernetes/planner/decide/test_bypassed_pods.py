"""Limits, queues and isolation hold for pods that another scheduler bound, without endless evictions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.unit.kubernetes.planner.decide.test_unplanned_pods import Affinity
from tests.unit.kubernetes.planner.virtual import asked

from calabash.adapters.kube.objects.core import Namespace, Pod
from calabash.adapters.kube.objects.meta import ObjectMeta, OwnerReference
from calabash.kubernetes.planner.state.facts import NamespaceFacts, QueueFacts
from calabash.kubernetes.planner.watch.facts_from_objects import namespace_facts, pod_facts
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest, ModeName

WHOLE = GpuRequest()
HALF = GpuRequest(memory_mib=8192, core_percent=50)
DAEMON: dict[str, Any] = {"gated": False, "recreated_on_same_node": True, "is_recreated": True, "owner": "daemon"}


class Tenants(Affinity):
    """A cluster on which controllers recreate evicted pods: a DaemonSet on the same node, others anywhere."""

    def __init__(self, nodes: dict[str, int], queues: list[QueueFacts], **more: Any) -> None:
        self.recreated: Counter[str] = Counter()
        super().__init__(nodes, queues, **more)

    def daemon(self, node: str, request: GpuRequest = WHOLE, *, by: str = "affinity", **more: Any) -> str:
        """Create a DaemonSet's pod that another scheduler has bound to the only node its affinity allows."""
        confined = (node,) if by == "affinity" else ()
        return self.create(request, node=node, candidate_nodes=confined, **{**DAEMON, **more})

    def make_again(self) -> None:
        """Let controllers create new pods in place of the evicted ones."""
        for uid in [p.uid for p in self.pods.values() if p.leaving]:
            pod = self.pods[uid]
            self.end(uid)
            if pod.is_recreated:
                self.recreated[pod.owner] += 1
                node = pod.node if pod.recreated_on_same_node else ""
                more: dict[str, Any] = {
                    "gated": not pod.recreated_on_same_node,
                    "candidate_nodes": pod.candidate_nodes if pod.recreated_on_same_node else (),
                }
                assert pod.request is not None
                self.create(
                    pod.request,
                    node=node,
                    recreated_on_same_node=pod.recreated_on_same_node,
                    owner=pod.owner,
                    namespace=pod.namespace,
                    **more,
                )

    def settle(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            self.decide()
            while self.todo:
                self.carry_out(self.todo.pop(0))
            self.make_again()

    def held(self, namespace: str) -> int:
        """Return the number of device slices in the plans of the pods of a namespace."""
        plans = [p.plan for p in self.pods.values() if p.namespace == namespace and p.plan is not None]
        return sum(len(c.slices) for plan in plans for c in plan.containers)


@pytest.mark.parametrize("by", ["affinity", "name"])
def test_pods_of_daemon_sets_keep_to_the_limit_of_their_queue(by: str) -> None:
    cluster = Tenants({"a": 2}, [QueueFacts(name="none", limit=0.0)])
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="none"))
    pods = [cluster.daemon("a", by=by) for _ in range(3)]
    cluster.settle()
    assert cluster.held("team") == 0
    for uid in pods:
        entry = cluster.core.store.entries[uid]
        reason, text = entry.reason, in_full(entry.message)
        assert reason is Reason.QUEUE_OVER_LIMIT
        assert "queue none has 0 of at most 0 devices in use" in text
    assert not cluster.evictions


@pytest.mark.parametrize("by", ["affinity", "name"])
def test_daemon_set_pod_without_devices_waits_and_is_not_evicted(by: str) -> None:
    cluster = Tenants({"a": 2}, [])
    pods = [cluster.daemon("a", by=by) for _ in range(3)]
    cluster.settle()
    for _ in range(20):
        cluster.now_s += 15
        cluster.settle(2)
    assert cluster.held("team") == 2
    assert not cluster.evictions
    waiting = next(uid for uid in pods if cluster.pods[uid].plan is None)
    assert cluster.core.store.entries[waiting].reason is Reason.NO_CAPACITY
    cluster.end(next(uid for uid in pods if uid != waiting))
    cluster.settle()
    assert cluster.pods[waiting].plan is not None, "it starts when there is room"


def test_pod_of_a_daemon_set_that_kube_scheduler_refuses_is_not_evicted() -> None:
    cluster = Tenants({"a": 1}, [])
    uid = cluster.create(WHOLE, candidate_nodes=("a",), refused=True, **DAEMON)
    for _ in range(30):
        cluster.now_s += 20
        cluster.settle(2)
    assert not cluster.evictions
    assert uid in cluster.pods


def test_pods_of_one_controller_without_devices_are_evicted_at_growing_intervals() -> None:
    """The controller's pods are confined to a node each time, and bound there by another scheduler."""
    cluster = Affinity({"a": 1}, [])
    cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    evicted = 0
    for _ in range(100):  # twenty seconds
        cluster.now_s += 0.2
        cluster.create(WHOLE, gated=False, node="a", candidate_nodes=("a",), owner="set", is_recreated=True)
        cluster.settle(2)
        evicted, before = len(cluster.evictions), evicted
        assert evicted - before <= 1
    assert evicted <= 3


def test_bypassed_pod_may_not_use_queues_that_its_namespace_may_not() -> None:
    queues = [QueueFacts(name="none", limit=0.0), QueueFacts(name="rich", tenant="rich")]
    cluster = Tenants({"a": 2}, queues)
    team = NamespaceFacts(name="team", queue="none")
    cluster.core.namespace_changed(team)
    asked_for = [("rich", Reason.NOT_PERMITTED), ("absent", Reason.NOT_PERMITTED)]
    pods = []
    for queue, _ in asked_for:
        pods.append(cluster.create(asked(WHOLE, queue=queue), node="a", candidate_nodes=("a",), **DAEMON))
    cluster.settle()
    assert cluster.held("team") == 0
    for uid, (_, reason) in zip(pods, asked_for, strict=True):
        assert cluster.core.store.entries[uid].reason is reason
    cluster.core.namespace_changed(replace(team, allowed=frozenset(("*",))))
    cluster.core.set_queues([QueueFacts(name="none", limit=0.0), QueueFacts(name="rich")])
    cluster.settle()
    assert cluster.held("team") == 1, "it is tried again when its namespace or its queue changes"


def test_bypassed_pod_has_the_isolation_of_its_namespace() -> None:
    cluster = Tenants({"a": 2}, [])
    cluster.core.namespace_changed(NamespaceFacts(name="team", isolation="brokered"))
    uid = cluster.daemon("a", HALF)
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert [c.mode for c in plan.containers] == ["brokered"]
    unfit = cluster.daemon("a", replace(HALF, mode=ModeName("vgpu")))
    cluster.settle()
    assert cluster.pods[unfit].plan is None
    assert "namespace team demands isolation brokered" in in_full(cluster.core.store.entries[unfit].message)


def test_running_pod_keeps_its_isolation_level_when_its_namespace_demands_more() -> None:
    cluster = Tenants({"a": 2}, [])
    uid = cluster.daemon("a", HALF)
    cluster.settle()
    cluster.namespaces = [NamespaceFacts(name="team", isolation="hardware")]
    cluster.restarted()
    cluster.settle()
    assert cluster.core.store.scheduler.holds(cluster.core.store.entries[uid].id)
    assert not cluster.evictions


def test_namespace_label_and_kind_of_owner_are_read() -> None:
    namespace = Namespace(metadata=ObjectMeta(name="team", labels={"calabash.dev/isolation": "hardware"}))
    assert namespace_facts(namespace).isolation == "hardware"
    for kind, tied in (("DaemonSet", True), ("Node", True), ("ReplicaSet", False)):
        owner = OwnerReference(api_version="v1", kind=kind, name="o", uid="u", controller=True)
        limits = {"calabash.dev/gpus": "1"}
        meta = ObjectMeta(name="p", namespace="team", uid="p", owner_references=(owner,))
        pod = Pod(metadata=meta)
        found = pod_facts(
            replace_spec(pod, limits),
        )
        assert found is not None
        assert found.recreated_on_same_node is tied


def replace_spec(pod: Pod, limits: dict[str, str]) -> Pod:
    import msgspec

    spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
    return msgspec.convert(msgspec.to_builtins(pod) | {"spec": spec}, Pod)


@pytest.mark.parametrize("seed", range(40))
def test_queue_limit_holds_for_every_way_of_binding(seed: int) -> None:  # noqa: PLR0912  one case per way
    """Pods are bound by either scheduler, limits change, and planners restart: no new pod starts above a limit."""
    rng = Random(seed)
    limits = {"one": 1.0, "two": 2.0}
    queues = [QueueFacts(name=name, limit=limit) for name, limit in limits.items()]
    namespaces = [NamespaceFacts(name="team", queue="one"), NamespaceFacts(name="other", queue="two")]
    cluster = Tenants({"a": 3, "b": 3}, queues, namespaces=namespaces)
    most: dict[str, float] = dict(limits)
    before = {"one": 0.0, "two": 0.0}
    for _ in range(25):
        cluster.now_s += rng.choice((0.1, 3.0, 60.0))
        node = rng.choice("ab")
        namespace = rng.choice(("team", "other"))
        match rng.randrange(9):
            case 0:
                cluster.daemon(node, namespace=namespace)
            case 1:
                cluster.daemon(node, by="name", namespace=namespace)
            case 2:
                cluster.create(WHOLE, gated=False, node=node, is_recreated=False, namespace=namespace)  # with nodeName
            case 3:
                cluster.create(WHOLE, namespace=namespace)  # by the planner
            case 4:
                cluster.create(WHOLE, gated=False, candidate_nodes=("a", "b"), namespace=namespace)
            case 5:
                for pod in list(cluster.pods.values()):
                    if pod.candidate_nodes and not (pod.node or pod.leaving):
                        cluster.bind_by_hand(pod.uid, rng.choice(pod.candidate_nodes))
            case 6:
                name = rng.choice(tuple(limits))
                most[name] = rng.choice((0.0, 1.0, 2.0))
                cluster.queues = [QueueFacts(name=name, limit=limit) for name, limit in most.items()]
                cluster.core.set_queues(cluster.queues)
            case 7:
                cluster.restarted()
            case _:
                if cluster.pods:
                    cluster.end(rng.choice(tuple(cluster.pods)))
        cluster.settle(3)
        for space, queue in (("team", "one"), ("other", "two")):
            now = cluster.core.store.scheduler.scheduler.tree.used(queue).gpu_milli / 1000
            assert cluster.held(space) <= now <= max(before[queue], most[queue]), (space, now, most)
            before[queue] = now
    assert not [owner for owner, times in cluster.recreated.items() if owner == "daemon" and times]
    cluster.check()
