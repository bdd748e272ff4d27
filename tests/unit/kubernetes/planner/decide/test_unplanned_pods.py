"""Pods whose node others chose: planned there, told why not, and never started without."""

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
from calabash.kubernetes.planner.decide.unplanned_pods import GIVE_UP_S
from calabash.kubernetes.planner.service import Handshake
from calabash.kubernetes.planner.state import affinity
from calabash.kubernetes.planner.state.facts import (
    EvictPod,
    NamespaceSeen,
    NodeSeen,
    QueueSeen,
    ReleasePod,
    SliceSeen,
    SweepPod,
    WritePlan,
)
from calabash.kubernetes.planner.state.node_backoff import PATIENCE_S, SHUN_S, Shunned
from calabash.kubernetes.planner.state.store import Stage
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest

SHARE = GpuRequest(memory_mib=8192, core_percent=40)
WHOLE = GpuRequest()


class Affinity(Cluster):
    """The same where kube-scheduler does not ask: pods are confined, and somebody binds them."""

    def create(self, request: Any, *, name: str = "", **more: object) -> str:
        return super().create(request, name=name, **{"own": False, **more})

    def carry_out(self, action: Any, *, fail: bool = False) -> None:
        pod = self.pods.get(action.pod.uid)
        match action:
            case ReleasePod(plan=plan, nodes=nodes) if nodes:
                if pod is not None and pod.gated:
                    self.set(replace(pod, gated=False, nominated=nodes[0], confined=nodes))
                self.core.decisions.released(action.pod.uid, plan.id, ok=True)
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

    def give(self, uid: str, node: str) -> None:
        """Somebody binds it."""
        self.set(replace(self.pods[uid], node=node, nominated=""))


def test_where_kube_scheduler_does_not_ask_the_heir_is_offered_the_kept_place_first() -> None:
    cluster = Affinity({"a": 2, "b": 2}, options=MOVES)
    owner = Owner(cluster, "web", 3)

    def give_all() -> None:
        for pod in list(cluster.pods.values()):
            if pod.confined and not pod.node and not pod.leaving:
                cluster.give(pod.uid, pod.confined[0])

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
    (heir,) = owner.make()
    cluster.settle(2)
    (stays,) = set(owner.pods()) - {heir}
    assert cluster.pods[heir].confined[0] == cluster.bound()[stays]
    give_all()
    cluster.settle(2)
    give_all()
    cluster.settle(2)
    assert set(cluster.bound()) == {large, heir, stays}
    assert moved not in cluster.pods
    cluster.check()
    balance(cluster)


# ---- bound past the planner -----------------------------------------------------------------------------------------


def test_a_pod_that_was_bound_by_hand_is_planned_on_its_node_if_there_is_room() -> None:
    cluster = Affinity({"a": 1, "b": 1})
    uid = cluster.create(WHOLE, gated=False, node="b")
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert plan.node == "b"
    later = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.pods[later].confined[0] == "a"
    cluster.check()


def test_one_without_room_is_told_the_numbers_and_planned_when_room_comes() -> None:
    cluster = Affinity({"a": 1})
    first = cluster.create(SHARE, gated=False, node="a")
    cluster.settle()
    uid = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    entry = cluster.core.book.entries[uid]
    assert cluster.pods[uid].plan is None
    assert entry.told[0] is Reason.NO_CAPACITY
    assert (
        "bound to a by others than the planner: it asks for 1 whole device, a has 0 of 1 devices idle" in entry.told[1]
    )
    assert "hint:" in entry.told[1]
    cluster.now_s += 2
    cluster.settle()
    assert [(r.own_condition, r.reason) for r in cluster.reports if r.pod.uid == uid] == [(True, Reason.NO_CAPACITY)]
    assert uid in cluster.pods, "it is not taken away: somebody meant it"
    cluster.end(first)
    cluster.settle()
    assert cluster.pods[uid].plan is not None
    cluster.check()


def test_a_pod_past_the_planner_does_not_get_past_the_limit_of_its_queue() -> None:
    cluster = Affinity({"a": 4}, [QueueSeen(name="small", limit=1.0)])
    cluster.core.namespace(NamespaceSeen(name="team", queue="small"))
    first = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    second = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    assert cluster.pods[first].plan is not None
    assert cluster.pods[second].plan is None
    assert "queue small has 1 of at most 1 devices in use" in cluster.core.book.entries[second].told[1]


def test_a_cordoned_or_tainted_node_serves_what_is_bound_to_it() -> None:
    cluster = Affinity({"a": 1})
    cluster.core.node(NodeSeen(name="a", labels={}, taints=("k=v:NoSchedule",), schedulable=False), 0.0)
    uid = cluster.create(WHOLE, gated=False, node="a")
    cluster.settle()
    assert cluster.pods[uid].plan is not None
    other = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.pods[other].gated, "nothing else goes there"


def test_a_plan_for_another_node_is_replaced_by_one_for_the_node_where_it_is() -> None:
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


def test_a_pod_is_confined_to_its_planned_node_and_others_with_room_and_its_plan_is_written_when_it_is_bound() -> None:
    cluster = Affinity({**dict.fromkeys("abcdef", 1), "full": 1})
    cluster.create(SHARE, gated=False, node="full")
    uid = cluster.create(WHOLE)
    cluster.settle()
    nodes = cluster.pods[uid].confined
    assert len(nodes) == 4
    assert "full" not in nodes
    assert cluster.pods[uid].plan is None, "not before it is bound"
    cluster.give(uid, nodes[0])
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert plan.node == nodes[0]


def test_one_that_is_bound_to_another_of_its_nodes_is_planned_there_and_the_first_is_free() -> None:
    cluster = Affinity(dict.fromkeys("abcd", 1))
    uid = cluster.create(WHOLE)
    cluster.settle()
    first, *others = cluster.pods[uid].confined
    cluster.give(uid, others[-1])
    cluster.settle()
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert plan.node == others[-1]
    rest = [cluster.create(WHOLE) for _ in range(3)]
    cluster.settle()
    assert {cluster.pods[r].confined[0] for r in rest} == set("abcd") - {others[-1]}
    assert first in {cluster.pods[r].confined[0] for r in rest}


@pytest.mark.parametrize("remade", [True, False])
def test_where_its_node_has_no_room_any_more_it_is_evicted_if_somebody_makes_it_again(remade: bool) -> None:
    cluster = Affinity({"a": 1, "b": 1})
    uid = cluster.create(WHOLE, remade=remade)
    cluster.settle()
    other = next(n for n in "ab" if n != cluster.pods[uid].confined[0])
    assert other in cluster.pods[uid].confined
    cluster.create(WHOLE, gated=False, node=other)
    cluster.settle()
    cluster.give(uid, other)
    cluster.decide()
    evicted = [a.message for a in cluster.todo if isinstance(a, EvictPod)]
    if remade:
        assert len(evicted) == 1
        assert f"bound to {other}, which has no room any more" in evicted[0]
    else:
        assert evicted == []
        assert cluster.core.book.entries[uid].told[0] is Reason.NO_CAPACITY
    cluster.settle()
    assert (uid not in cluster.pods) is remade


def test_a_node_that_is_gone_is_left_for_another_of_the_few() -> None:
    cluster = Affinity(dict.fromkeys("abcd", 1))
    uid = cluster.create(WHOLE)
    cluster.settle()
    first = cluster.pods[uid].confined[0]
    cluster.lose_node(first)
    cluster.settle()
    pod = cluster.pods[uid]
    assert pod.nominated != first
    assert pod.nominated in pod.confined
    entry = cluster.core.book.entries[uid]
    assert entry.stage is Stage.RELEASED
    assert entry.node == pod.nominated


def test_the_next_planner_goes_on_with_what_was_confined_and_what_was_bound() -> None:
    cluster = Affinity(dict.fromkeys("abcdef", 1))
    waits, bound = cluster.create(WHOLE), cluster.create(WHOLE)
    cluster.settle()
    nominated = cluster.pods[waits].nominated
    node = cluster.pods[bound].confined[-1]
    cluster.pods[bound] = replace(cluster.pods[bound], node=node, nominated="")
    cluster.restarted()
    cluster.settle()
    assert cluster.core.book.entries[waits].node == nominated
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


def test_50_pods_whose_first_nodes_fill_up_are_all_planned_inside_their_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        affinity, "random", Random(7)
    )  # lists that others are in, too, are likely and not certain to be few
    cluster = Affinity({f"n{i:03}": 1 for i in range(200)})
    pods = [cluster.create(WHOLE) for _ in range(50)]
    cluster.settle()
    taken: set[str] = {cluster.pods[uid].confined[0] for uid in pods}
    assert len(taken) == 50
    missed = 0
    for uid in pods:  # kube-scheduler prefers nodes that are less used
        rest = cluster.pods[uid].confined[1:]
        node = next((n for n in rest if n not in taken), rest[-1])
        missed += node in taken
        taken.add(node)
        cluster.give(uid, node)
    cluster.settle()
    assert missed == 0, "so many others have room that nobody need share one"
    assert all((plan := cluster.pods[uid].plan) is not None and plan.node == cluster.pods[uid].node for uid in pods)


def test_who_is_refused_on_all_its_nodes_is_evicted_after_a_while_and_its_heir_is_planned_on_others() -> None:
    cluster = Affinity({})
    for name in "abcdefgh":
        cluster.nodes[name] = (NodeSeen(name=name, labels={"kubernetes.io/hostname": name}), gpu_node(name, 1))
    cluster.restarted()
    uid = cluster.create(WHOLE, owner="set")
    cluster.settle()
    tried = cluster.pods[uid].confined
    cluster.set(replace(cluster.pods[uid], refused=True))
    cluster.settle()
    assert uid in cluster.pods, "kube-scheduler may find room in a moment"
    cluster.now_s += PATIENCE_S
    cluster.decide()
    (evicted,) = [a for a in cluster.todo if isinstance(a, EvictPod)]
    assert f"kube-scheduler has no room on {', '.join(tried)}" in evicted.message
    cluster.settle()
    assert uid not in cluster.pods
    heir = cluster.create(WHOLE, owner="set")
    other = cluster.create(WHOLE, owner="another")
    cluster.settle()
    assert set(cluster.pods[heir].confined).isdisjoint(tried)
    assert not cluster.pods[other].gated


def test_when_all_other_nodes_are_taken_the_refused_ones_are_tried_again_after_a_while() -> None:
    cluster = Affinity({})
    cluster.nodes["a"] = (NodeSeen(name="a", labels={"kubernetes.io/hostname": "a"}), gpu_node("a", 1))
    cluster.restarted()
    uid = cluster.create(WHOLE, owner="set")
    cluster.settle()
    cluster.set(replace(cluster.pods[uid], refused=True))
    cluster.now_s += PATIENCE_S
    cluster.settle()
    cluster.now_s += PATIENCE_S
    cluster.settle()
    heir = cluster.create(WHOLE, owner="set")
    cluster.settle()
    assert cluster.pods[heir].gated
    cluster.now_s += SHUN_S + 2 * PATIENCE_S
    cluster.settle()
    assert cluster.pods[heir].confined == ("a",)


def test_one_that_nobody_makes_again_is_left_to_kube_scheduler() -> None:
    cluster = Affinity({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.settle()
    cluster.set(replace(cluster.pods[uid], refused=True))
    cluster.now_s += 10 * PATIENCE_S
    cluster.settle()
    assert uid in cluster.pods


def test_each_refusal_is_waited_for_longer() -> None:
    shunned = Shunned()
    waits = []
    for _ in range(9):
        waits.append(shunned.patience_s("set"))
        shunned.refuse("set", ["a"], 0.0)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert shunned.selector("set") == ("kubernetes.io/hostname notin (a)",)
    assert shunned.selector("other") == ()
    assert shunned.expired(10_000.0) == ["set"]
    assert shunned.patience_s("set") == PATIENCE_S


# ---- the service ------------------------------------------------------------------------------------------------------


def bind(world: World, name: str, node: str) -> Pod:
    pod = world.get(name)
    world.client.bind("team", name, pod.metadata.uid, node)
    return world.get(name)


def test_the_service_confines_releases_and_writes_the_plan_once_somebody_bound_the_pod(world: World) -> None:
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


def test_the_service_plans_what_was_bound_by_others_and_says_what_it_cannot(world: World) -> None:
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
    assert "it asks for 2 whole devices, a has 0 of 2 devices idle" in found[0].message
    assert PLAN not in world.get("two").metadata.annotations
    world.client.delete(POD, "one", "team", grace_s=0)
    until(lambda: world.get("two").metadata.annotations.get(PLAN), "planned once there is room")
    until(lambda: {c.type: c.status for c in world.get("two").status.conditions}[PLANNED] == "True", "said")


# ---- whose devices were given away ----------------------------------------------------------------------------------


def displaced(cluster: Cluster, *, remade: bool) -> str:
    """A bound pod whose only possible device its node's agent gave to a pod that nobody was told of."""
    uid = cluster.create(WHOLE, remade=remade)
    cluster.settle()
    cluster.try_all()
    cluster.settle()
    assert cluster.pods[uid].node == "a"
    taken = SliceSeen(pod_uid="untold", device="GPU-0", memory_mib=40960, whole=True)
    cluster.core.devices(gpu_node("a", 1, slices=(taken,)), cluster.now_s)
    cluster.settle()
    return uid


def test_a_pod_whose_devices_were_given_away_is_evicted_after_a_while_if_it_is_made_again() -> None:
    cluster = Cluster({"a": 1})
    uid = displaced(cluster, remade=True)
    entry = cluster.core.book.entries[uid]
    assert "its devices on a were given to a pod that the planner was not told of" in entry.told[1]
    assert cluster.evictions == []
    cluster.now_s += GIVE_UP_S
    cluster.settle()
    assert cluster.evictions == [uid]


def test_one_that_nobody_makes_again_waits_and_has_the_device_when_it_is_free() -> None:
    cluster = Cluster({"a": 1})
    uid = displaced(cluster, remade=False)
    cluster.now_s += 10 * GIVE_UP_S
    cluster.settle()
    assert cluster.evictions == []
    cluster.core.devices(gpu_node("a", 1), cluster.now_s)
    cluster.settle()
    plan = cluster.core.book.entries[uid].plan
    assert plan is not None
    assert plan.node == "a"
