"""Pods that another scheduler bound or that have candidate nodes are planned, or their events say why not."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.unit.kubernetes.planner.owners import MOVES, Owner, balance
from tests.unit.kubernetes.planner.virtual import Cluster, gpu_node
from tests.unit.kubernetes.planner.world import World, until

from calabash.adapters.kube.objects.core import POD, Pod
from calabash.kubernetes.objects.names import PLAN, PLANNED
from calabash.kubernetes.objects.plan import read_plan
from calabash.kubernetes.planner.decide.unplanned_pods import DISPLACED_TIMEOUT_S
from calabash.kubernetes.planner.service import Handshake
from calabash.kubernetes.planner.state import affinity
from calabash.kubernetes.planner.state.facts import (
    EvictPod,
    NamespaceFacts,
    NodeFacts,
    QueueFacts,
    ReleasePod,
    SliceFacts,
    SweepPod,
    WritePlan,
)
from calabash.kubernetes.planner.state.node_backoff import BACKOFF_S, PATIENCE_S, NodeBackoff
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest

SHARE = GpuRequest(memory_mib=8192, core_percent=40)
WHOLE = GpuRequest()


class Affinity(Cluster):
    """A cluster with the handshake ``affinity``: pods get candidate nodes, and another scheduler binds them."""

    def create(self, request: Any, *, name: str = "", **more: object) -> str:
        return super().create(request, name=name, **{"uses_our_scheduler": False, **more})

    def carry_out(self, action: Any, *, fail: bool = False) -> None:
        pod = self.pods.get(action.pod.uid)
        match action:
            case ReleasePod(plan=plan, nodes=nodes) if nodes:
                if pod is not None and pod.gated:
                    self.set(replace(pod, gated=False, nominated=nodes[0], candidate_nodes=nodes))
                self.core.decisions.plan_written(action.pod.uid, plan.id, ok=True)
            case WritePlan(plan=plan):
                if pod is not None:
                    self.set(replace(pod, plan=plan))
            case SweepPod():
                pass
            case _:
                super().carry_out(action, fail=fail)

    def settle(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            self.decide()
            while self.todo:
                self.carry_out(self.todo.pop(0))
            for uid in [p.uid for p in self.pods.values() if p.leaving]:
                self.end(uid)

    def bind_by_hand(self, uid: str, node: str) -> None:
        """Bind a pod without the planner."""
        self.set(replace(self.pods[uid], node=node, nominated=""))


def test_replacement_in_handshake_affinity_gets_the_reserved_node_as_first_candidate() -> None:
    cluster = Affinity({"a": 2, "b": 2}, options=MOVES)
    owner = Owner(cluster, "web", 3)

    def give_all() -> None:
        for pod in list(cluster.pods.values()):
            if pod.candidate_nodes and not pod.node and not pod.leaving:
                cluster.bind_by_hand(pod.uid, pod.candidate_nodes[0])

    owner.make()
    for _ in range(3):
        cluster.settle(2)
        give_all()
    nodes = list(cluster.bound().values())
    full = next(name for name in nodes if nodes.count(name) == 2)
    cluster.end(next(uid for uid, node in cluster.bound().items() if node == full))
    owner.replicas = 2
    large = cluster.create(GpuRequest(count=2))
    cluster.settle(2)
    (moved,) = cluster.evictions
    (replacement,) = owner.make()
    cluster.settle(2)
    (stays,) = set(owner.pods()) - {replacement}
    assert cluster.pods[replacement].candidate_nodes[0] == cluster.bound()[stays]
    give_all()
    cluster.settle(2)
    give_all()
    cluster.settle(2)
    assert set(cluster.bound()) == {large, replacement, stays}
    assert moved not in cluster.pods
    cluster.check()
    balance(cluster)


# ---- bound past the planner -----------------------------------------------------------------------------------------


def test_bypassed_pod_is_planned_on_its_node_if_devices_are_free() -> None:
    cluster = Affinity({"a": 1, "b": 1})
    uid = cluster.create(WHOLE, gated=False, node="b")
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert plan.node == "b"
    later = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.pods[later].candidate_nodes[0] == "a"
    cluster.check()


def test_bypassed_pod_without_devices_waits_with_numbers_and_is_planned_when_they_are_freed() -> None:
    cluster = Affinity({"a": 1})
    first = cluster.create(SHARE, gated=False, node="a")
    cluster.settle()
    uid = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    entry = cluster.core.store.entries[uid]
    assert cluster.pods[uid].plan is None
    assert entry.reason is Reason.NO_CAPACITY
    assert "pod is bound to node a without a plan: a has 0 of 1 devices idle" in in_full(entry.message)
    assert "needs 1 whole device; hint:" in in_full(entry.message)
    cluster.now_s += 2
    cluster.settle()
    assert [(r.own_condition, r.reason) for r in cluster.reports if r.pod.uid == uid] == [(True, Reason.NO_CAPACITY)]
    assert uid in cluster.pods, "it is not taken away: somebody meant it"
    cluster.end(first)
    cluster.settle()
    assert cluster.pods[uid].plan is not None
    cluster.check()


def test_bypassed_pod_is_within_the_limit_of_its_queue() -> None:
    cluster = Affinity({"a": 4}, [QueueFacts(name="small", limit=1.0)])
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="small"))
    first = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    second = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    assert cluster.pods[first].plan is not None
    assert cluster.pods[second].plan is None
    assert "queue small has 1 of at most 1 devices in use" in in_full(cluster.core.store.entries[second].message)


def test_pod_bound_to_a_cordoned_or_tainted_node_is_planned_there() -> None:
    cluster = Affinity({"a": 1})
    cluster.core.node_changed(NodeFacts(name="a", labels={}, taints=("k=v:NoSchedule",), schedulable=False), 0.0)
    uid = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    assert cluster.pods[uid].plan is not None
    other = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.pods[other].gated, "nothing else goes there"


def test_plan_for_another_node_is_replaced_by_one_for_the_bound_node() -> None:
    cluster = Affinity({"a": 1, "b": 1})
    uid = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    stale = cluster.pods[uid].plan
    cluster.end(uid)
    moved = cluster.create(WHOLE, gated=False, node="b", plan=stale)
    cluster.settle()
    plan = cluster.pods[moved].plan
    assert plan is not None
    assert plan.node == "b"


# ---- confined to a few nodes ------------------------------------------------------------------------------------------


def test_pod_is_restricted_to_candidate_nodes_and_its_plan_is_written_when_it_is_bound() -> None:
    cluster = Affinity({**dict.fromkeys("abcdef", 1), "full": 1})
    cluster.create(SHARE, gated=False, node="full")
    uid = cluster.create(WHOLE)
    cluster.settle()
    nodes = cluster.pods[uid].candidate_nodes
    assert len(nodes) == 4
    assert "full" not in nodes
    assert cluster.pods[uid].plan is None, "not before it is bound"
    cluster.bind_by_hand(uid, nodes[0])
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert plan.node == nodes[0]


def test_pod_bound_to_another_candidate_is_planned_there_and_the_first_is_freed() -> None:
    cluster = Affinity(dict.fromkeys("abcd", 1))
    uid = cluster.create(WHOLE)
    cluster.settle()
    first, *others = cluster.pods[uid].candidate_nodes
    cluster.bind_by_hand(uid, others[-1])
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert plan.node == others[-1]
    rest = [cluster.create(WHOLE) for _ in range(3)]
    cluster.settle()
    assert {cluster.pods[r].candidate_nodes[0] for r in rest} == set("abcd") - {others[-1]}
    assert first in {cluster.pods[r].candidate_nodes[0] for r in rest}


@pytest.mark.parametrize("is_recreated", [True, False])
def test_confined_pod_without_devices_is_evicted_only_if_its_controller_recreates_it(is_recreated: bool) -> None:
    cluster = Affinity({"a": 1, "b": 1})
    uid = cluster.create(WHOLE, is_recreated=is_recreated)
    cluster.settle()
    other = next(n for n in "ab" if n != cluster.pods[uid].candidate_nodes[0])
    assert other in cluster.pods[uid].candidate_nodes
    cluster.create(WHOLE, gated=False, node=other)
    cluster.settle()
    cluster.bind_by_hand(uid, other)
    cluster.decide()
    evicted = [a.message for a in cluster.todo if isinstance(a, EvictPod)]
    if is_recreated:
        assert len(evicted) == 1
        assert f"pod is bound to node {other} without a plan: {other} has 0 of" in evicted[0]
    else:
        assert evicted == []
        assert cluster.core.store.entries[uid].reason is Reason.NO_CAPACITY
    cluster.settle()
    assert (uid not in cluster.pods) is is_recreated


def test_pod_whose_planned_node_is_gone_is_planned_on_another_candidate() -> None:
    cluster = Affinity(dict.fromkeys("abcd", 1))
    uid = cluster.create(WHOLE)
    cluster.settle()
    first = cluster.pods[uid].candidate_nodes[0]
    cluster.lose_node(first)
    cluster.settle()
    pod = cluster.pods[uid]
    assert pod.nominated != first
    assert pod.nominated in pod.candidate_nodes
    entry = cluster.core.store.entries[uid]
    assert entry.stage is Stage.RELEASED
    assert entry.node == pod.nominated


def test_next_planner_continues_with_restricted_and_bound_pods() -> None:
    cluster = Affinity(dict.fromkeys("abcdef", 1))
    waits, bound = cluster.create(WHOLE), cluster.create(WHOLE)
    cluster.settle()
    nominated = cluster.pods[waits].nominated
    node = cluster.pods[bound].candidate_nodes[-1]
    cluster.pods[bound] = replace(cluster.pods[bound], node=node, nominated="")
    cluster.restarted()
    cluster.settle()
    assert cluster.core.store.entries[waits].node == nominated
    plan = cluster.pods[bound].plan
    assert plan is not None
    assert plan.node == node
    cluster.check()


def test_a_gang_is_released_together() -> None:
    cluster = Affinity({"a": 2, "b": 2})
    gang = GpuRequest(gang="g", gang_size=3)
    members = [cluster.create(gang) for _ in range(2)]
    cluster.settle()
    assert all(cluster.pods[m].gated for m in members)
    members.append(cluster.create(gang))
    cluster.decide()
    assert {a.pod.uid for a in cluster.todo if isinstance(a, ReleasePod)} == set(members)


def test_50_pods_whose_first_nodes_fill_up_are_planned_on_other_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        affinity, "random", Random(7)
    )  # a fixed seed, as other random candidate lists could overlap more
    cluster = Affinity({f"n{i:03}": 1 for i in range(200)})
    pods = [cluster.create(WHOLE) for _ in range(50)]
    cluster.settle()
    taken: set[str] = {cluster.pods[uid].candidate_nodes[0] for uid in pods}
    assert len(taken) == 50
    missed = 0
    for uid in pods:  # kube-scheduler prefers nodes that are less used
        rest = cluster.pods[uid].candidate_nodes[1:]
        node = next((n for n in rest if n not in taken), rest[-1])
        missed += node in taken
        taken.add(node)
        cluster.bind_by_hand(uid, node)
    cluster.settle()
    assert missed == 0, "so many others have room that nobody need share one"
    assert all((plan := cluster.pods[uid].plan) is not None and plan.node == cluster.pods[uid].node for uid in pods)


def test_pod_refused_on_all_candidates_is_evicted_and_its_replacement_is_planned_elsewhere() -> None:
    cluster = Affinity({})
    for name in "abcdefgh":
        cluster.nodes[name] = (NodeFacts(name=name, labels={"kubernetes.io/hostname": name}), gpu_node(name, 1))
    cluster.restarted()
    uid = cluster.create(WHOLE, owner="set")
    cluster.settle()
    tried = cluster.pods[uid].candidate_nodes
    cluster.set(replace(cluster.pods[uid], refused=True))
    cluster.settle()
    assert uid in cluster.pods, "kube-scheduler may find room in a moment"
    cluster.now_s += PATIENCE_S
    cluster.decide()
    (evicted,) = [a for a in cluster.todo if isinstance(a, EvictPod)]
    assert f"kube-scheduler found no room on the candidate nodes {', '.join(tried)}" in evicted.message
    cluster.settle()
    assert uid not in cluster.pods
    replacement = cluster.create(WHOLE, owner="set")
    other = cluster.create(WHOLE, owner="another")
    cluster.settle()
    assert set(cluster.pods[replacement].candidate_nodes).isdisjoint(tried)
    assert not cluster.pods[other].gated


def test_refused_nodes_are_tried_again_after_a_while_if_all_others_are_in_use() -> None:
    cluster = Affinity({})
    cluster.nodes["a"] = (NodeFacts(name="a", labels={"kubernetes.io/hostname": "a"}), gpu_node("a", 1))
    cluster.restarted()
    uid = cluster.create(WHOLE, owner="set")
    cluster.settle()
    cluster.set(replace(cluster.pods[uid], refused=True))
    cluster.now_s += PATIENCE_S
    cluster.settle()
    cluster.now_s += PATIENCE_S
    cluster.settle()
    replacement = cluster.create(WHOLE, owner="set")
    cluster.settle()
    assert cluster.pods[replacement].gated
    cluster.now_s += BACKOFF_S + 2 * PATIENCE_S
    cluster.settle()
    assert cluster.pods[replacement].candidate_nodes == ("a",)


def test_refused_pod_without_a_controller_is_left_to_kube_scheduler() -> None:
    cluster = Affinity({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.settle()
    cluster.set(replace(cluster.pods[uid], refused=True))
    cluster.now_s += 10 * PATIENCE_S
    cluster.settle()
    assert uid in cluster.pods


def test_each_refusal_doubles_the_wait_before_the_next_eviction() -> None:
    node_backoff = NodeBackoff()
    waits = []
    for _ in range(9):
        waits.append(node_backoff.patience_s("set"))
        node_backoff.add_refusal("set", ["a"], 0.0)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert node_backoff.selector("set") == ("kubernetes.io/hostname notin (a)",)
    assert node_backoff.selector("other") == ()
    assert node_backoff.take_expired(10_000.0) == ["set"]
    assert node_backoff.patience_s("set") == PATIENCE_S


# ---- the service ------------------------------------------------------------------------------------------------------


def bind(world: World, name: str, node: str) -> Pod:
    pod = world.get(name)
    world.client.bind("team", name, pod.metadata.uid, node)
    return world.get(name)


def test_service_restricts_and_releases_a_pod_and_writes_the_plan_once_it_is_bound(world: World) -> None:
    for name in "abcdef":
        world.node(name)
    world.start(handshake=Handshake.AFFINITY, nominate_nodes_min=1000)
    world.pod("p", GpuRequest(count=2), schedulerName="default-scheduler", nodeSelector={"pool": "c"})
    terms = [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    world.pod("q", GpuRequest(count=2), schedulerName="default-scheduler", affinity=required)
    for name in "pq":
        until(lambda n=name: not world.get(n).spec.scheduling_gates, "released")  # type: ignore[misc]
    pod, other = world.get("p"), world.get("q")
    assert PLAN not in pod.metadata.annotations
    assert pod.status.nominated_node_name == "c"
    affinity = other.spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.required is not None
    (term,) = affinity.node_affinity.required.node_selector_terms
    assert [e.key for e in term.match_expressions] == ["pool", "kubernetes.io/hostname"]
    chosen = term.match_expressions[-1].values
    assert chosen[0] == other.status.nominated_node_name
    assert len(chosen) == 4
    bind(world, "p", "c")
    bind(world, "q", chosen[2])
    for name, node in (("p", "c"), ("q", chosen[2])):
        text = until(lambda n=name: world.get(n).metadata.annotations.get(PLAN), "planned")  # type: ignore[misc]
        assert read_plan(text).node == node


def test_service_plans_bypassed_pods_and_explains_what_is_missing(world: World) -> None:
    world.node("a")
    world.start()
    limits = {"calabash.dev/gpus": "2"}
    for name in ("one", "two"):
        body = {
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"nodeName": "a", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        world.client.create(POD, body, "team")
        if name == "one":
            text = until(lambda: world.get("one").metadata.annotations.get(PLAN), "planned")
            assert read_plan(text).node == "a"
    found = until(lambda: [c for c in world.get("two").status.conditions if c.type == PLANNED], "told")
    assert (found[0].status, found[0].reason) == ("False", "NoCapacity")
    assert "a has 0 of 2 devices idle" in found[0].message
    assert "needs 2 whole devices" in found[0].message
    assert PLAN not in world.get("two").metadata.annotations
    world.client.delete(POD, "one", "team", grace_s=0)
    until(lambda: world.get("two").metadata.annotations.get(PLAN), "planned once there is room")
    until(lambda: {c.type: c.status for c in world.get("two").status.conditions}[PLANNED] == "True", "said")


# ---- whose devices were given away ----------------------------------------------------------------------------------


def displaced(cluster: Cluster, *, is_recreated: bool) -> str:
    """Create a bound pod whose only device the node agent gave to a pod unknown to the planner; return its UID."""
    uid = cluster.create(WHOLE, is_recreated=is_recreated)
    cluster.settle()
    cluster.try_all()
    cluster.settle()
    assert cluster.pods[uid].node == "a"
    taken = SliceFacts(pod_uid="untold", device="GPU-0", memory_mib=40960, whole=True)
    cluster.core.devices_changed(gpu_node("a", 1, slices=(taken,)), cluster.now_s)
    cluster.settle()
    return uid


def test_displaced_pod_is_evicted_after_a_while_if_its_controller_recreates_it() -> None:
    cluster = Cluster({"a": 1})
    uid = displaced(cluster, is_recreated=True)
    entry = cluster.core.store.entries[uid]
    assert "planned devices on node a are used by a pod that the planner did not place" in in_full(entry.message)
    assert cluster.evictions == []
    cluster.now_s += DISPLACED_TIMEOUT_S
    cluster.settle()
    assert cluster.evictions == [uid]


def test_displaced_pod_without_a_controller_waits_until_the_device_is_free() -> None:
    cluster = Cluster({"a": 1})
    uid = displaced(cluster, is_recreated=False)
    cluster.now_s += 10 * DISPLACED_TIMEOUT_S
    cluster.settle()
    assert cluster.evictions == []
    cluster.core.devices_changed(gpu_node("a", 1), cluster.now_s)
    cluster.settle()
    plan = cluster.core.store.entries[uid].plan
    assert plan is not None
    assert plan.node == "a"
