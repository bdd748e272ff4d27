"""Decisions of the planner's core on a simulated cluster: plans, repairs, and takeovers after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples
from tests.unit.kubernetes.planner.virtual import Cluster, asked, gpu_node

from calabash.binder.cluster.device_kinds import PlacementConstraints
from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.facts import (
    NamespaceFacts,
    NodeFacts,
    Nominate,
    QueueFacts,
    ReleasePod,
    SliceFacts,
    WritePlan,
)
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.pod_request import ContainerKind, GangSource
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import AllocationId, GpuRequest, Selector

SHARE = GpuRequest(memory_mib=8192, core_percent=40)
WHOLE = GpuRequest()


def gang(name: str, size: int, **more: Any) -> GpuRequest:
    return GpuRequest(gang=name, gang_size=size, **more)


def test_a_pod_is_nominated_and_released_in_one_action_and_bound_where_it_was_planned() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    uid = cluster.create(SHARE)
    cluster.decide()
    releases = [a for a in cluster.todo if isinstance(a, ReleasePod)]
    assert [(r.pod.uid, r.plan.pod_uid) for r in releases] == [(uid, uid)]
    cluster.settle()
    assert cluster.bound() == {uid: releases[0].plan.node}


def test_containers_share_devices_of_one_node_and_init_containers_are_charged_by_the_largest() -> None:
    cluster = Cluster({"a": 1})
    small = GpuRequest(memory_mib=1024, core_percent=50)
    pod = asked(
        SHARE, (ContainerKind.INIT, small), (ContainerKind.SIDECAR, GpuRequest(memory_mib=1024, core_percent=10))
    )
    uid = cluster.create(pod)
    other = cluster.create(GpuRequest(memory_mib=1024, core_percent=40))
    cluster.settle()
    assert set(cluster.bound()) == {uid, other}
    plan = cluster.pods[uid].plan
    assert plan is not None
    assert {c.name for c in plan.containers} == {"main", "c0", "c1"}
    third = cluster.create(GpuRequest(memory_mib=1024, core_percent=11))
    cluster.settle()
    assert third not in cluster.bound(), "init container of 50 % leaves 50 %, of which 40 % are given"


def test_a_gang_is_released_together_and_bound_together_or_not_at_all() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    members = [cluster.create(gang("g", 4)) for _ in range(3)]
    cluster.settle()
    assert cluster.bound() == {}
    assert cluster.core.store.entries[members[0]].reason is Reason.GANG_INCOMPLETE
    members.append(cluster.create(gang("g", 4)))
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    verdicts = [cluster.core.answers.bind(m, _planned(cluster, m), cluster.now_s).verdict for m in members[:3]]
    assert verdicts == [BindVerdict.HOLD] * 3
    assert cluster.core.answers.released_holds() == []
    assert cluster.core.answers.bind(members[3], _planned(cluster, members[3]), cluster.now_s).verdict is BindVerdict.GO
    assert set(cluster.core.answers.released_holds()) == set(members[:3])
    assert [cluster.core.answers.bind(m, _planned(cluster, m), cluster.now_s).verdict for m in members[:3]] == [
        BindVerdict.GO
    ] * 3


def test_a_gang_whose_member_does_not_come_is_refused_as_a_whole_and_comes_again() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    members = [cluster.create(gang("g", 3)) for _ in range(3)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    for member in members[:2]:
        assert cluster.core.answers.bind(member, _planned(cluster, member), cluster.now_s).verdict is BindVerdict.HOLD
    assert cluster.core.answers.take_expired(cluster.now_s + 49) == []
    refused = dict(cluster.core.answers.take_expired(cluster.now_s + 51))
    assert set(refused) == set(members[:2])
    cluster.settle()
    assert set(cluster.bound()) == set(members)


def test_cancelled_bind_call_is_not_counted_as_ready() -> None:
    cluster = Cluster({"a": 2})
    members = [cluster.create(gang("g", 2)) for _ in range(2)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    node = _planned(cluster, members[0])
    assert cluster.core.answers.bind(members[0], node, 1.0).verdict is BindVerdict.HOLD
    cluster.core.answers.cancel_hold(members[0])
    assert cluster.core.answers.bind(members[1], node, 1.0).verdict is BindVerdict.HOLD


def test_equal_gang_names_in_two_namespaces_are_two_gangs() -> None:
    cluster = Cluster({"a": 4})
    cluster.create(gang("g", 2), namespace="one")
    cluster.create(gang("g", 2), namespace="two")
    cluster.settle()
    assert cluster.bound() == {}


# ---- plans that cannot be kept --------------------------------------------------------------------------------------


def _planned(cluster: Cluster, uid: str) -> str:
    plan = cluster.core.store.entries[uid].plan
    assert plan is not None
    return plan.node


def _released(cluster: Cluster, request: GpuRequest = SHARE) -> str:
    uid = cluster.create(request)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    return uid


def test_plan_is_replaced_within_the_offered_nodes_and_held_at_once() -> None:
    cluster = Cluster({"a": 1, "b": 1, "c": 1})
    uid = _released(cluster, WHOLE)
    first = _planned(cluster, uid)
    offered = [n for n in cluster.nodes if n != first]
    answer = cluster.core.answers.filter(uid, offered, first, 1.0)
    assert answer.node in offered
    assert cluster.core.answers.filter(uid, offered, first, 2.0) == answer
    others = [cluster.create(WHOLE) for _ in range(3)]
    cluster.settle()
    assert len(cluster.bound()) == 3
    assert cluster.bound()[uid] == answer.node
    assert sum(o in cluster.bound() for o in others) == 2
    cluster.check()


def test_replaced_plan_is_written_before_the_binding() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    uid = _released(cluster, WHOLE)
    other = next(n for n in cluster.nodes if n != _planned(cluster, uid))
    node = cluster.core.answers.filter(uid, [other], "", 1.0).node
    assert node == other
    answer = cluster.core.answers.bind(uid, other, 1.0)
    assert (answer.verdict, answer.written) == (BindVerdict.GO, False)
    assert answer.plan is not None
    assert answer.plan.node == other
    refused = cluster.core.answers.bind(uid, "elsewhere", 1.0)
    assert refused.verdict is BindVerdict.REFUSE
    assert other in refused.text


def test_removed_gate_proves_that_the_plan_is_written() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    uid = cluster.create(WHOLE)
    cluster.decide()  # the write is under way; kube-scheduler can ask only when it is done
    assert cluster.core.answers.bind(uid, _planned(cluster, uid), 1.0).written
    other = cluster.create(WHOLE)
    cluster.decide()
    cluster.lose_node(_planned(cluster, other))
    cluster.end(uid)
    cluster.decide()  # two plans for one gate: it is unknown which of them removed it
    assert not cluster.core.answers.bind(other, _planned(cluster, other), 1.0).written


def test_an_old_nomination_does_not_change_a_plan_back() -> None:
    cluster = Cluster({"a": 1, "b": 1, "c": 1})
    uid = _released(cluster, WHOLE)
    first = _planned(cluster, uid)
    now = cluster.core.answers.filter(uid, [n for n in cluster.nodes if n != first], first, 1.0).node
    assert now is not None
    assert cluster.core.answers.filter(uid, [first], first, 2.0).node is None
    assert cluster.core.answers.filter(uid, list(cluster.nodes), first, 2.0).node == now
    # The second time that kube-scheduler offers only this node, it is taken.
    assert cluster.core.answers.filter(uid, [first], first, 3.0).node == first


def test_pod_without_a_suitable_node_waits_with_one_text_and_is_planned_again() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    uid = _released(cluster, WHOLE)
    blocker = cluster.create(WHOLE)
    cluster.decide()
    first = _planned(cluster, uid)
    other = next(n for n in cluster.nodes if n != first)
    answer = cluster.core.answers.filter(uid, [other], first, 1.0)
    answer = cluster.core.answers.filter(uid, [other], "", 1.0) if answer.node else answer
    assert answer.node is None
    assert first in answer.text
    assert cluster.core.answers.filter(uid, [other], "", 1.0).node is None
    cluster.end(blocker)
    cluster.settle()
    assert uid in cluster.bound()


def test_50_pods_whose_nodes_fill_up_under_them_all_find_others() -> None:
    cluster = Cluster({f"n{i:02}": 1 for i in range(100)})
    pods = [cluster.create(WHOLE) for _ in range(50)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.full = {_planned(cluster, uid) for uid in pods}
    cluster.settle(rounds=2)
    assert len(cluster.bound()) == 50
    assert cluster.full.isdisjoint(cluster.bound().values())
    cluster.check()


def test_deleted_node_loses_its_plans_and_has_its_bound_pods_when_it_returns() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    runs = cluster.create(WHOLE)
    cluster.settle()
    there = cluster.bound()[runs]
    other = next(n for n in cluster.nodes if n != there)
    uid = _released(cluster, WHOLE)
    assert _planned(cluster, uid) == other
    cluster.lose_node(other)
    cluster.settle()
    assert uid not in cluster.bound()
    cluster.add_node(other, 1)
    cluster.settle()
    assert cluster.bound()[uid] == other
    cluster.lose_node(there)
    cluster.add_node(there, 1)
    late = cluster.create(WHOLE)
    cluster.settle()
    assert late not in cluster.bound(), "what runs there holds its device again"


def test_gang_that_loses_a_node_and_finds_no_other_releases_all_its_devices() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    members = [cluster.create(gang("g", 4)) for _ in range(4)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.lose_node("b")
    single = cluster.create(WHOLE)
    cluster.settle()
    assert set(cluster.bound()) == {single}
    cluster.end(single)
    cluster.add_node("b")
    cluster.settle()
    assert set(cluster.bound()) == set(members)


def test_plan_on_a_device_that_becomes_unhealthy_is_replaced() -> None:
    cluster = Cluster({"a": 2})
    uid = _released(cluster, WHOLE)
    entry = cluster.core.store.entries[uid]
    assert entry.plan is not None
    before = entry.plan.containers[0].slices[0].device
    cluster.core.devices_changed(gpu_node("a", 2, unhealthy=[int(before[-1])]), cluster.now_s)
    cluster.settle()
    after = cluster.pods[uid].plan
    assert after is not None
    assert after.containers[0].slices[0].device != before
    assert uid in cluster.bound()


def test_a_cordoned_or_tainted_node_takes_nothing_new() -> None:
    cluster = Cluster({"a": 2})
    cluster.core.node_changed(NodeFacts(name="a", labels={}, schedulable=False), 0.0)
    uid = cluster.create(SHARE)
    cluster.settle()
    assert cluster.bound() == {}
    cluster.core.node_changed(NodeFacts(name="a", labels={}, taints=("calabash.dev/agent-not-ready=:NoSchedule",)), 0.0)
    cluster.settle()
    assert cluster.bound() == {}
    cluster.core.node_changed(NodeFacts(name="a", labels={}), 0.0)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_planned_devices_are_freed_if_the_pod_is_bound_elsewhere() -> None:
    cluster = Cluster({"a": 1})
    uid = _released(cluster, WHOLE)
    cluster.set(replace(cluster.pods[uid], node="elsewhere", plan=None))
    other = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.bound()[other] == "a"


def test_nomination_is_repeated_after_a_failed_attempt() -> None:
    cluster = Cluster({"a": 1})
    uid = _released(cluster)
    cluster.set(replace(cluster.pods[uid], nominated="", refused=True))
    assert [(a.pod.uid, a.node) for a in cluster.core.take_actions() if isinstance(a, Nominate)] == [(uid, "a")]


def test_replacement_of_a_refused_pod_gets_its_devices() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}
    cluster.core.pod_changed(replace(cluster.pods.pop(uid), finished=True), cluster.now_s)  # Failed, OutOfcpu
    replacement = cluster.create(WHOLE)
    cluster.settle()
    assert cluster.bound() == {replacement: "a"}


def test_of_two_gangs_that_wait_for_each_other_both_are_bound_in_the_end() -> None:
    cluster = Cluster({"a": 4})
    one = [cluster.create(gang("one", 2)) for _ in range(2)]
    two = [cluster.create(gang("two", 2)) for _ in range(2)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    for uid in (one[0], two[0]):  # kube-scheduler has room for one of each, and holds it
        assert cluster.core.answers.bind(uid, "a", cluster.now_s).verdict is BindVerdict.HOLD
    refused = dict(cluster.core.answers.take_expired(cluster.now_s + 51))
    assert set(refused) == {one[0], two[0]}
    cluster.settle()
    assert set(cluster.bound()) == {*one, *two}


def test_preemption_is_allowed_on_the_planned_node_only() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    uid = _released(cluster)
    planned = _planned(cluster, uid)
    assert cluster.core.answers.preempt(uid, ["a", "b"]) == [planned]
    assert cluster.core.answers.preempt(uid, [n for n in "ab" if n != planned]) == []
    assert cluster.core.answers.preempt("nobody", ["a", "b"]) == []


# ---- queues -------------------------------------------------------------------------------------------------------


PROD = QueueFacts(name="prod", deserved=2.0)


def test_deserved_devices_are_reclaimed_by_eviction_and_given_once_free() -> None:
    cluster = Cluster({"a": 2}, [PROD])
    borrowers = [cluster.create(WHOLE) for _ in range(2)]
    cluster.settle()
    cluster.core.namespace_changed(NamespaceFacts(name="shop", queue="prod"))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.decide()
    entry = cluster.core.store.entries[uid]
    assert entry.stage is Stage.PLACED
    victim = next(iter(entry.after))
    assert victim in borrowers
    text = cluster.core.answers.filter(uid, ["a"], "", 1.0).text
    assert "waits for 1 pod of another namespace to end there" in text
    cluster.settle()
    assert cluster.evictions == [victim]
    assert uid in cluster.bound()
    cluster.check()


def test_pod_protected_by_a_budget_keeps_its_devices_and_another_is_evicted() -> None:
    cluster = Cluster({"a": 2}, [PROD])
    for _ in range(2):
        cluster.create(WHOLE)
    cluster.settle()
    cluster.core.namespace_changed(NamespaceFacts(name="shop", queue="prod"))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.decide()
    cluster.protected = set(cluster.core.store.entries[uid].after)
    assert len(cluster.protected) == 1
    cluster.settle()
    assert cluster.evictions
    assert cluster.protected.isdisjoint(cluster.evictions)
    assert uid in cluster.bound()
    cluster.check()


def test_victim_that_has_not_begun_is_not_evicted() -> None:
    cluster = Cluster({"a": 1}, [QueueFacts(name="prod", deserved=1.0)])
    first = _released(cluster, WHOLE)
    cluster.core.namespace_changed(NamespaceFacts(name="shop", queue="prod"))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []
    assert set(cluster.bound()) == {uid}
    assert first in cluster.pods
    assert cluster.core.answers.filter(first, ["a"], "", 1.0).node is None


def test_preempted_unbound_pod_keeps_its_node_selector_with_the_next_planner() -> None:
    shop = NamespaceFacts(name="shop", queue="prod")
    cluster = Cluster({"a": 1, "b": 1}, [QueueFacts(name="prod", deserved=1.0)], namespaces=[shop])
    only_a = PlacementConstraints(selector=("zone=a",))
    first = cluster.create(WHOLE, constraints=only_a)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.restarted()
    assert cluster.core.store.entries[first].stage is Stage.RELEASED
    replacement = cluster.create(WHOLE, namespace="shop", constraints=only_a)
    cluster.decide()
    cluster.decide()
    assert cluster.core.store.entries[first].stage is Stage.WAITING, "b is free, and not where it may go"
    cluster.settle()
    assert cluster.bound() == {replacement: "a"}
    cluster.end(replacement)
    cluster.settle()
    assert cluster.bound() == {first: "a"}


def test_next_planner_also_evicts_the_youngest_first() -> None:
    shop = NamespaceFacts(name="shop", queue="prod")
    cluster = Cluster({"a": 2}, [QueueFacts(name="prod", deserved=1.0)], namespaces=[shop])
    late = cluster.create(WHOLE, held_by_other_gate=True)
    early = cluster.create(WHOLE)
    cluster.settle()
    cluster.now_s += 3600
    cluster.set(replace(cluster.pods[late], held_by_other_gate=False))
    cluster.settle()
    assert cluster.bound() == {early: "a", late: "a"}
    cluster.restarted()
    cluster.now_s += 3600
    cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert cluster.evictions == [late], "created first, and bound an hour later"


def test_devices_of_an_evicted_pod_are_given_only_when_it_is_gone() -> None:
    cluster = Cluster({"a": 1}, [QueueFacts(name="prod", deserved=1.0)])
    old = cluster.create(WHOLE)
    cluster.settle()
    cluster.core.namespace_changed(NamespaceFacts(name="shop", queue="prod"))
    replacement = cluster.create(WHOLE, namespace="shop")
    cluster.decide()
    cluster.end(replacement)
    another = cluster.create(WHOLE, namespace="shop")
    cluster.decide()
    assert cluster.core.store.entries[another].after == {old}
    cluster.end(old)
    cluster.settle()
    assert another in cluster.bound()


def test_pod_waits_for_missing_or_forbidden_queues_with_a_reason() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(asked(SHARE, queue="lab"))
    cluster.settle()
    assert cluster.core.store.entries[uid].reason is Reason.NOT_PERMITTED
    cluster.core.namespace_changed(NamespaceFacts(name="team", allowed=frozenset(("lab",))))
    cluster.settle()
    assert cluster.core.store.entries[uid].reason is Reason.NOT_FOUND
    cluster.core.set_queues([QueueFacts(name="lab")])
    cluster.settle()
    assert uid in cluster.bound()
    cluster.core.set_queues([])
    late = cluster.create(asked(SHARE, queue="lab"))
    cluster.settle()
    assert late not in cluster.bound()
    assert uid in cluster.bound()


def test_invalid_queue_tree_keeps_the_old_one() -> None:
    cluster = Cluster({"a": 1}, [PROD])
    cluster.core.set_queues([QueueFacts(name="x", parent="nowhere")])
    assert "nowhere" in cluster.core.queues.fault
    cluster.core.set_queues([PROD])
    assert cluster.core.queues.fault == ""


def levels_of(depth: int) -> list[QueueFacts]:
    return [QueueFacts(name=f"c{i}", parent=f"c{i - 1}" if i > 1 else "") for i in range(1, depth + 1)]


def test_queue_object_below_the_last_level_is_set_aside_and_the_others_are_used() -> None:
    cluster = Cluster({"a": 2}, [PROD, *levels_of(100)])
    cluster.core.namespace_changed(NamespaceFacts(name="team", allowed=frozenset("*")))
    deep = cluster.create(asked(SHARE, queue="c33"))
    last = cluster.create(asked(SHARE, queue="c32"))
    cluster.settle()
    assert list(cluster.core.queues.too_deep) == [f"c{i}" for i in range(33, 101)]
    assert (list(cluster.bound()), cluster.core.queues.fault) == ([last], "")
    told = cluster.core.store.entries[deep]
    assert "queue c33 is at level 33 of the queue tree, the limit is 32 levels" in in_full(told.message)
    cluster.core.set_queues([PROD, *levels_of(31), QueueFacts(name="c33", parent="c31")])
    cluster.settle()
    assert deep in cluster.bound()


def test_waiting_pod_of_a_queue_below_the_last_level_is_set_aside_and_a_running_one_continues() -> None:
    cluster = Cluster({"a": 1}, levels_of(32))
    cluster.core.namespace_changed(NamespaceFacts(name="team", allowed=frozenset("*")))
    runs = cluster.create(asked(WHOLE, queue="c32"))
    cluster.settle()
    waits = cluster.create(asked(WHOLE, queue="c32"))
    cluster.settle()
    top = QueueFacts(name="top")
    cluster.core.set_queues([top, QueueFacts(name="c1", parent="top"), *levels_of(32)[1:]])
    cluster.settle()
    assert cluster.core.queues.fault == ""
    assert "level 33" in in_full(cluster.core.store.entries[waits].message)
    assert list(cluster.bound()) == [runs]


# ---- who waits, and why -------------------------------------------------------------------------------------------


def test_a_request_that_no_device_could_serve_waits_for_one_that_can() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(GpuRequest(memory_mib=60_000, core_percent=50))
    cluster.settle()
    assert cluster.core.store.entries[uid].reason is Reason.TOO_LARGE
    big = gpu_node("b", 1)
    larger = replace(big.devices[0].device, model="NVIDIA H100", memory_mib=81920)
    cluster.nodes["b"] = (
        NodeFacts(name="b", labels={}),
        replace(big, devices=(replace(big.devices[0], device=larger),)),
    )
    cluster.core.devices_changed(cluster.nodes["b"][1], 0.0)
    cluster.core.node_changed(cluster.nodes["b"][0], 0.0)
    cluster.settle()
    assert cluster.bound() == {uid: "b"}


def test_pod_with_another_gate_gets_no_devices_until_that_is_removed() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE, held_by_other_gate=True)
    other = cluster.create(WHOLE)
    cluster.settle()
    assert set(cluster.bound()) == {other}
    cluster.end(other)
    cluster.set(replace(cluster.pods[uid], held_by_other_gate=False))
    cluster.settle()
    assert set(cluster.bound()) == {uid}


def test_gang_of_a_group_object_waits_for_the_object_and_has_its_size() -> None:
    cluster = Cluster({"a": 4})
    request = replace(asked(gang("g", 1)), gang_source=GangSource.COSCHEDULING)
    for _ in range(2):
        cluster.create(request)
    cluster.settle()
    assert cluster.bound() == {}
    cluster.core.group_changed((GangSource.COSCHEDULING, "team", "g"), 3)
    cluster.settle()
    assert cluster.bound() == {}
    cluster.create(request)
    cluster.settle()
    assert len(cluster.bound()) == 3


def test_slices_of_unplanned_pods_are_not_given_to_others() -> None:
    cluster = Cluster({})
    facts = gpu_node("a", 1, slices=(SliceFacts(pod_uid="stray", device="GPU-0", memory_mib=30_000),))
    cluster.nodes["a"] = (NodeFacts(name="a", labels={}), facts)
    cluster.restarted()
    large = cluster.create(GpuRequest(memory_mib=20_000, core_percent=10))
    small = cluster.create(GpuRequest(memory_mib=8_000, core_percent=10))
    cluster.settle()
    assert set(cluster.bound()) == {small}
    cluster.core.devices_changed(gpu_node("a", 1), cluster.now_s)
    cluster.settle()
    assert set(cluster.bound()) == {small, large}


# ---- restarts -----------------------------------------------------------------------------------------------------


def whole(uid: str, number: int) -> SliceFacts:
    return SliceFacts(pod_uid=uid, device=f"GPU-{number}", memory_mib=40960, whole=True)


def test_plan_on_a_device_that_an_agent_gave_to_an_unknown_pod_is_replaced() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(GpuRequest())
    cluster.decide()
    assert cluster.core.store.entries[uid].node == "a"
    cluster.add_node("b", 1)
    cluster.core.devices_changed(gpu_node("a", 1, slices=(whole("untold", 0),)), cluster.now_s)
    cluster.settle()
    cluster.try_all()
    cluster.settle()
    assert cluster.bound() == {uid: "b"}


def test_displaced_bound_pod_is_planned_again_on_its_node() -> None:
    cluster = Cluster({"a": 2})
    uid = cluster.create(GpuRequest())
    cluster.settle()
    cluster.try_all()
    cluster.settle()
    plan = cluster.core.store.entries[uid].plan
    assert plan is not None
    (part,) = plan.containers[0].slices
    number = int(part.device[-1])
    cluster.core.devices_changed(gpu_node("a", 2, slices=(whole("untold", number),)), cluster.now_s)
    cluster.decide()
    (written,) = [action for action in cluster.todo if isinstance(action, WritePlan)]
    assert written.plan.containers[0].slices[0].device == f"GPU-{1 - number}"
    cluster.todo.clear()
    cluster.core.devices_changed(
        gpu_node("a", 2, slices=(whole("untold", number), whole(uid, 1 - number))), cluster.now_s
    )
    later = cluster.create(GpuRequest(memory_mib=1024, core_percent=1))
    cluster.settle()
    assert cluster.core.store.entries[later].plan is None, "both are taken"


def test_displaced_pod_that_began_with_its_plan_keeps_it() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(GpuRequest())
    cluster.settle()
    cluster.try_all()
    cluster.settle()
    entry = cluster.core.store.entries[uid]
    plan = entry.plan
    cluster.core.devices_changed(gpu_node("a", 1, slices=(whole("untold", 0),)), cluster.now_s)
    cluster.settle()
    assert entry.plan is None, "its device is another's, and there is no other"
    cluster.core.devices_changed(gpu_node("a", 1, slices=(whole(uid, 0),)), cluster.now_s)
    cluster.settle()
    assert entry.plan is not None
    assert plan is not None
    assert entry.plan.containers == plan.containers
    assert not [action for action in cluster.todo if isinstance(action, WritePlan)]


def test_begun_pod_and_successor_of_a_reported_pod_keep_their_devices() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    first = cluster.create(GpuRequest())
    cluster.settle()
    cluster.try_all()
    cluster.settle()
    node = cluster.bound()[first]
    cluster.core.devices_changed(gpu_node(node, 1, slices=(whole(first, 0),)), cluster.now_s)
    plan = cluster.core.store.entries[first].plan
    cluster.core.devices_changed(gpu_node(node, 1, slices=(whole(first, 0), whole("untold", 0))), cluster.now_s)
    assert cluster.core.store.entries[first].plan == plan
    cluster.core.devices_changed(gpu_node(node, 1, slices=(whole(first, 0),)), cluster.now_s)
    cluster.end(first)
    assert cluster.core.store.is_or_was_known(first), "its node tells of it for a moment longer"


def test_a_planner_that_takes_over_keeps_every_plan_and_what_is_bound() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    bound = [cluster.create(SHARE) for _ in range(2)]
    cluster.settle()
    released = [_released(cluster) for _ in range(2)]
    waiting = cluster.create(SHARE)
    plans = {uid: cluster.pods[uid].plan for uid in released}
    cluster.restarted()
    assert {uid: cluster.core.store.entries[uid].plan for uid in released} == plans
    cluster.settle()
    assert set(cluster.bound()) == {*bound, *released, waiting}
    cluster.check()


LARGE = GpuRequest(memory_mib=30_000, core_percent=60)


@pytest.mark.parametrize("asked_for", [LARGE, WHOLE])
def test_reported_slices_are_held_by_their_pods_and_are_not_unmanaged(asked_for: GpuRequest) -> None:
    cluster = Cluster({"a": 2, "b": 1})
    pods = [cluster.create(asked_for) for _ in range(3)]
    cluster.settle()
    cluster.report_slices()
    cluster.restarted()
    _hold(cluster, pods)
    node = cluster.nodes["a"]
    cluster.lose_node("a")
    cluster.settle()
    cluster.nodes["a"] = node
    cluster.core.node_changed(node[0], cluster.now_s)
    cluster.core.devices_changed(node[1], cluster.now_s)
    _hold(cluster, pods)
    beside = cluster.create(GpuRequest(memory_mib=1024, core_percent=50))
    cluster.settle()
    assert beside not in cluster.bound(), "no device has 50 % of its compute left"


def test_slice_reported_before_its_pod_belongs_to_the_pod() -> None:
    cluster = Cluster({"a": 1})
    pod = cluster.create(LARGE)
    cluster.settle()
    cluster.report_slices()
    seen = cluster.pods.pop(pod)
    cluster.restarted()
    cluster.set(seen)
    cluster.settle()
    _hold(cluster, [pod])


def _hold(cluster: Cluster, pods: list[str]) -> None:
    scheduler = cluster.core.store.scheduler
    assert [uid for uid in pods if not scheduler.holds(AllocationId(uid))] == []
    assert [d.foreign_mib for node in scheduler.nodes.values() for d in node.devices if d.foreign_mib] == []


@pytest.mark.parametrize("written", [1, 3, 4])
def test_gang_released_in_part_by_a_crashed_planner_is_planned_together_again(written: int) -> None:
    cluster = Cluster({"a": 2, "b": 2})
    members = [cluster.create(gang("g", 4)) for _ in range(4)]
    cluster.decide()
    for action in [a for a in cluster.todo if isinstance(a, ReleasePod)][:written]:
        cluster.carry_out(action)
    if written < 4:
        cluster.nodes.pop("b")  # and now there is room for half of it only
    cluster.restarted()
    cluster.settle()
    if written < 4:
        assert cluster.bound() == {}
        held = [e for e in cluster.core.store.entries.values() if e.plan is not None]
        assert held == [], "half a gang holds nothing"
        cluster.add_node("b")
        cluster.settle()
    assert set(cluster.bound()) == set(members)


def test_partly_bound_gang_is_completed_by_the_next_planner() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    members = [cluster.create(gang("g", 4)) for _ in range(4)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    for member in members:
        cluster.core.answers.bind(member, _planned(cluster, member), 1.0)
    cluster.set(replace(cluster.pods[members[0]], node=_planned(cluster, members[0])))
    cluster.restarted()
    cluster.settle()
    assert set(cluster.bound()) == set(members)


def test_plan_annotation_of_a_gated_pod_is_ignored() -> None:
    cluster = Cluster({"a": 1})
    uid = _released(cluster, WHOLE)
    forged = cluster.pods[uid].plan
    cluster.end(uid)
    other = cluster.create(WHOLE)
    cluster.settle()
    assert other in cluster.bound()
    assert forged is not None
    cluster.create(WHOLE, name="thief", plan=replace_uid(forged, "thief"))
    cluster.restarted()
    cluster.settle()
    assert set(cluster.bound()) == {other}


def replace_uid(plan: Any, uid: str) -> Any:
    import msgspec

    return msgspec.structs.replace(plan, pod_uid=uid)


# ---- anything, in any order ---------------------------------------------------------------------------------------

OTHER_MODEL = "NVIDIA H100-SXM5-40GB"
ONE, OTHER = Selector(models=("A100",)), Selector(models=("h100",))
CONSTRAINTS = st.sampled_from(
    [
        PlacementConstraints(),
        PlacementConstraints(),
        PlacementConstraints(selector=("zone in (b,c)",)),
        PlacementConstraints(selector=("zone=a",)),
    ]
)
REQUESTS = st.sampled_from(
    [
        asked(GpuRequest(memory_mib=8192, core_percent=40, selector=ONE)),
        asked(GpuRequest(memory_mib=8192, core_percent=40, selector=OTHER)),
        asked(GpuRequest(selector=OTHER)),
        asked(gang("o", 2, selector=OTHER)),
        asked(SHARE),
        asked(WHOLE),
        asked(GpuRequest(memory_mib=20_000, core_percent=60)),
        asked(GpuRequest(count=2, memory_mib=1024, core_percent=30)),
        asked(SHARE, (ContainerKind.SIDECAR, GpuRequest(memory_mib=2048, core_percent=20))),
        asked(gang("g", 3, memory_mib=4096, core_percent=30)),
        asked(gang("h", 2)),
    ]
)


class Life(RuleBasedStateMachine):
    """Random histories of pods, nodes, failures, repeated events and planner takeovers.

    No device is ever promised twice, and no pod gets a device that its request or constraints exclude.
    """

    def __init__(self) -> None:
        super().__init__()
        shop = NamespaceFacts(name="shop", queue="prod")
        self.cluster = Cluster({"a": 2, "b": 1, "c": 2}, [PROD], seed=7, models={"c": OTHER_MODEL}, namespaces=[shop])

    @rule(request=REQUESTS, shop=st.booleans(), priority=st.sampled_from([0, 0, 5]), constraints=CONSTRAINTS)
    def create(self, request: Any, shop: bool, priority: int, constraints: PlacementConstraints) -> None:
        self.cluster.create(request, namespace="shop" if shop else "team", priority=priority, constraints=constraints)

    @rule()
    def decide(self) -> None:
        self.cluster.decide()

    @rule()
    def release_all(self) -> None:
        self.cluster.decide()
        while self.cluster.todo:
            self.cluster.carry_out(self.cluster.todo.pop(0))

    @rule(pick=st.integers(0, 1000), fail=st.booleans())
    def act(self, pick: int, fail: bool) -> None:
        if self.cluster.todo:
            self.cluster.carry_out(self.cluster.todo.pop(pick % len(self.cluster.todo)), fail=fail)

    @rule(pick=st.integers(0, 1000))
    def refuse_a_write(self, pick: int) -> None:
        if self.cluster.todo:
            action = self.cluster.todo.pop(pick % len(self.cluster.todo))
            self.cluster.core.decisions.write_refused(action, "too large", self.cluster.now_s)

    @rule(pick=st.integers(0, 1000), seconds=st.sampled_from([0, 11, 65]))
    def refuse_a_pod(self, pick: int, seconds: int) -> None:
        waiting = [p for p in self.cluster.pods.values() if not (p.gated or p.node or p.leaving)]
        if waiting:
            pod = waiting[pick % len(waiting)]
            self.cluster.set(replace(pod, nominated="", refused=True))
            self.cluster.decide()
            self.cluster.now_s += seconds
            self.cluster.decide()

    @rule(pick=st.integers(0, 1000), full=st.sets(st.sampled_from("abc")))
    def attempt(self, pick: int, full: set[str]) -> None:
        waiting = [p.uid for p in self.cluster.pods.values() if not (p.gated or p.node or p.leaving)]
        if waiting:
            self.cluster.full = full
            self.cluster.try_one(waiting[pick % len(waiting)])
            for uid in self.cluster.core.answers.released_holds():
                self.cluster.bind(uid)

    @rule(pick=st.integers(0, 1000))
    def end(self, pick: int) -> None:
        if self.cluster.pods:
            self.cluster.end(list(self.cluster.pods)[pick % len(self.cluster.pods)])

    @rule(pick=st.integers(0, 1000))
    def say_again(self, pick: int) -> None:
        if self.cluster.pods:
            uid = list(self.cluster.pods)[pick % len(self.cluster.pods)]
            self.cluster.core.pod_changed(self.cluster.pods[uid], self.cluster.now_s)

    @rule(name=st.sampled_from("abc"))
    def node_goes_or_comes(self, name: str) -> None:
        if name in self.cluster.nodes:
            self.cluster.lose_node(name)
        else:
            self.cluster.add_node(name, 1 if name == "b" else 2)

    @rule()
    def report_slices(self) -> None:
        self.cluster.report_slices()

    @rule(pick=st.integers(0, 1000))
    def protect(self, pick: int) -> None:
        bound = list(self.cluster.bound())
        self.cluster.protected = {bound[pick % len(bound)]} if bound else set()

    @rule(lost=st.sampled_from([*"abc", "", "", ""]))
    def another_planner(self, lost: str) -> None:
        """Let another planner take over; then the node ``lost`` is deleted, if it exists."""
        self.cluster.restarted()
        if lost in self.cluster.nodes:
            self.cluster.lose_node(lost)

    @rule()
    def time_passes(self) -> None:
        self.cluster.now_s += 60
        for uid, _ in self.cluster.core.answers.take_expired(self.cluster.now_s):
            self.cluster.core.answers.cancel_hold(uid)

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        self.cluster.check()

    @invariant()
    def everybody_is_where_it_wished(self) -> None:
        self.cluster.check_constraints()

    @invariant()
    def gangs_are_bound_together(self) -> None:
        for entry in self.cluster.core.store.entries.values():
            if entry.gang is not None and entry.facts.node:
                assert self.cluster.core.store.permits.has_bound_member(entry.gang)

    @invariant()
    def store_agrees_with_the_scheduler(self) -> None:
        store = self.cluster.core.store
        for entry in store.entries.values():
            if entry.stage in (Stage.PLACED, Stage.RELEASING, Stage.RELEASED):
                assert store.scheduler.holds(entry.id)
                assert entry.plan is not None
            if entry.stage is Stage.WAITING:
                assert entry.plan is None
                assert entry.id in store.scheduler.known
                assert not store.scheduler.holds(entry.id)
            if entry.stage is Stage.ASIDE:
                assert entry.id not in store.scheduler.known
            if entry.stage is Stage.BOUND and entry.facts.plan is not None and entry.node in store.scheduler.nodes:
                assert store.scheduler.holds(entry.id)

    def teardown(self) -> None:
        self.cluster.check_nobody_is_forgotten(self.cluster.restarted)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


# ---- devices that an administrator has cordoned ---------------------------------------------------------------------


def test_cordoned_devices_take_nothing_new_and_plans_that_have_not_begun_are_replaced() -> None:
    cluster = Cluster({"a": 1})
    uid = _released(cluster, WHOLE)
    cluster.core.devices_changed(gpu_node("a", 1, schedulable=False), 1.0)
    cluster.settle()
    assert cluster.bound() == {}
    assert cluster.core.answers.filter(uid, ["a"], "", 2.0).node is None
    cluster.core.devices_changed(gpu_node("a", 1), 3.0)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_running_pods_keep_cordoned_devices() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    uid = cluster.create(WHOLE)
    cluster.settle()
    node = cluster.bound()[uid]
    cluster.core.devices_changed(gpu_node(node, 1, schedulable=False), 1.0)
    others = [cluster.create(WHOLE) for _ in range(2)]
    cluster.settle()
    assert cluster.evictions == []
    assert cluster.bound()[uid] == node
    assert [cluster.bound().get(other) for other in others].count(node) == 0


def test_pod_bound_with_another_plan_holds_the_devices_of_that_plan() -> None:
    world = Cluster({"a": 2})
    uid = world.create(GpuRequest())
    world.decide()
    plan = world.core.store.entries[uid].plan
    assert plan is not None
    (mine,) = plan.containers[0].slices
    (other,) = {"GPU-0", "GPU-1"} - {mine.device}
    slices = (msgspec.structs.replace(mine, device=other),)
    theirs = msgspec.structs.replace(
        plan, id="theirs", containers=(msgspec.structs.replace(plan.containers[0], slices=slices),)
    )
    world.set(replace(world.pods[uid], gated=False, node="a", plan=theirs))
    second = world.create(GpuRequest())
    world.settle()
    world.check()
    assert world.core.store.entries[uid].plan == theirs
    assert world.pods[second].plan is not None


def test_tenant_queue_is_only_for_namespaces_of_the_tenant() -> None:
    cluster = Cluster(
        {"a": 1}, [QueueFacts(name="vision.train", tenant="vision"), QueueFacts(name="vision.default", tenant="vision")]
    )
    cluster.core.namespace_changed(NamespaceFacts(name="team", allowed=frozenset(("*",))))
    uid = cluster.create(asked(SHARE, queue="vision.train"))
    cluster.settle()
    entry = cluster.core.store.entries[uid]
    reason, message = entry.reason, in_full(entry.message)
    assert reason is Reason.NOT_PERMITTED
    assert "queue vision.train belongs to a tenant, and namespace team is in a queue of no or another tenant" in message
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="vision.default", allowed=frozenset(("*",))))
    cluster.settle()
    assert uid in cluster.bound()
