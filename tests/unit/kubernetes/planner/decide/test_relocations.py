"""Moved pods: their new place is reserved for the replacement that their controller creates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples
from tests.unit.kubernetes.planner.owners import MOVES, PAIR, WHOLE, Owner, balance, split
from tests.unit.kubernetes.planner.virtual import Cluster, gpu_node

from calabash.binder.cluster.device_kinds import PlacementConstraints
from calabash.kubernetes.planner.apply.api_writes import camel
from calabash.kubernetes.planner.decide.core import options_with_moves
from calabash.kubernetes.planner.decide.decisions import PROTECTED_S
from calabash.kubernetes.planner.decide.relocations import REPLACEMENT_TIMEOUT_S, TERMINATION_TIMEOUT_S
from calabash.kubernetes.planner.state.budgets import BudgetFacts
from calabash.kubernetes.planner.state.facts import EvictPod, NamespaceFacts, NodeFacts, QueueFacts
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest


def asked_to_leave(cluster: Cluster) -> list[EvictPod]:
    return [action for action in cluster.todo if isinstance(action, EvictPod)]


def begin(cluster: Cluster) -> tuple[str, str]:
    """Create a pod that has no room unless another is moved; return the UIDs of both, the new one first."""
    large = cluster.create(PAIR)
    cluster.decide()
    (eviction,) = asked_to_leave(cluster)
    return large, eviction.pod.uid


def carry_out(cluster: Cluster) -> None:
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))


def test_replacement_gets_the_reservation_and_the_large_pod_gets_the_freed_devices() -> None:
    cluster, owner = split()
    large, moved = begin(cluster)
    was = cluster.bound()[moved]
    (eviction,) = asked_to_leave(cluster)
    other = "b" if was == "a" else "a"
    assert eviction.reason is Reason.MOVED
    assert camel(eviction.reason) == "Moved"
    assert f"moved from {was} to {other}" in eviction.message
    assert f"make room for team/{large}" in eviction.message
    entry = cluster.core.store.entries[large]
    assert (entry.stage, entry.reason) == (Stage.PLACED, Reason.WAITS_FOR_MOVE)
    assert f"waits for team/{moved}, moved to make room for it, to end there" in in_full(entry.message)
    balance(cluster)
    carry_out(cluster)
    assert cluster.pods[moved].leaving
    (replacement,) = owner.make()
    cluster.decide()
    carry_out(cluster)
    cluster.try_all()
    assert cluster.bound()[replacement] == other, "before the moved one is gone"
    assert large not in cluster.bound()
    balance(cluster)
    cluster.settle()
    assert cluster.bound()[large] == was
    assert len(cluster.core.relocations) == 0
    cluster.check()
    balance(cluster)


def test_reservation_goes_to_no_other_pod_even_if_it_came_earlier() -> None:
    cluster, owner = split()
    _, moved = begin(cluster)
    carry_out(cluster)
    thieves = [cluster.create(WHOLE), cluster.create(WHOLE, owner="other", movable=True)]
    twin = cluster.create(GpuRequest(memory_mib=1024, core_percent=10), owner=owner.name, movable=True)
    cluster.decide()
    carry_out(cluster)
    cluster.end(moved)
    cluster.settle()
    assert not set(thieves) & set(cluster.bound())
    assert twin not in cluster.bound(), "of the same owner, but it asks for something else"
    owner.replicas += 1
    (replacement,) = owner.make()
    cluster.settle()
    assert replacement in cluster.bound()
    cluster.check()
    balance(cluster)


def test_reservation_without_a_replacement_ends_after_a_minute() -> None:
    cluster, _ = split()
    large, moved = begin(cluster)
    carry_out(cluster)
    other = cluster.create(WHOLE)
    cluster.end(moved)
    cluster.settle()
    assert large in cluster.bound()
    assert other not in cluster.bound()
    cluster.now_s += REPLACEMENT_TIMEOUT_S
    cluster.settle()
    assert other in cluster.bound()
    assert len(cluster.core.relocations) == 0
    cluster.check()
    balance(cluster)


def test_reservation_ends_if_the_moved_pod_does_not_terminate_in_ten_minutes() -> None:
    cluster, _ = split()
    large, moved = begin(cluster)
    carry_out(cluster)
    other = cluster.create(WHOLE)
    cluster.decide()
    cluster.now_s += TERMINATION_TIMEOUT_S
    for _ in range(3):
        cluster.decide()
        carry_out(cluster)
        cluster.try_all()
    assert other in cluster.bound()
    assert len(cluster.core.relocations) == 0
    assert large not in cluster.bound(), "whose devices are still those of the one that leaves"
    assert cluster.pods[moved].node
    balance(cluster)


def test_move_refused_by_a_budget_is_undone_and_its_reservation_is_freed() -> None:
    cluster, _ = split()
    cluster.protected.update(cluster.bound())
    large, moved = begin(cluster)
    carry_out(cluster)
    entry, victim = cluster.core.store.entries[large], cluster.core.store.entries[moved]
    assert (entry.stage, victim.stage) == (Stage.WAITING, Stage.BOUND)
    assert f"team/{moved} may not be evicted now: budget" in in_full(entry.message)
    assert len(cluster.core.relocations) == 0
    balance(cluster)
    cluster.decide()
    second = asked_to_leave(cluster)
    assert [action.pod.uid for action in second] != [moved], "not the same again at once"
    carry_out(cluster)
    cluster.decide()
    assert asked_to_leave(cluster) == []
    balance(cluster)
    cluster.protected.clear()
    cluster.now_s += PROTECTED_S + 1
    cluster.settle()
    assert large in cluster.bound()
    cluster.check()


def test_pod_protected_by_a_budget_is_not_moved() -> None:
    cluster, _ = split()
    cluster.core.budget_changed(BudgetFacts(namespace="team", name="all", terms=(), allowed=0))
    large = cluster.create(PAIR)
    cluster.settle()
    assert cluster.evictions == []
    assert large not in cluster.bound()
    cluster.core.budget_changed(BudgetFacts(namespace="team", name="all", terms=(), allowed=1))
    cluster.now_s += 2
    cluster.settle()
    assert len(cluster.evictions) == 1
    assert large in cluster.bound()


@pytest.mark.parametrize(
    "more", [{"movable": False}, {"request": GpuRequest(gang="g", gang_size=1)}, {"owner": "", "movable": False}]
)
def test_pods_that_are_not_movable_and_gang_members_are_not_moved(more: dict[str, object]) -> None:
    cluster, _ = split(**more)
    cluster.create(PAIR)
    cluster.settle()
    assert cluster.evictions == []


def test_no_pod_is_moved_while_moves_are_off_or_the_pod_has_not_waited_long_enough() -> None:
    cluster, _ = split(options=options_with_moves(at_once=0, after_s=0.0, rest_s=0.0))
    cluster.create(PAIR)
    cluster.settle()
    assert cluster.evictions == []
    cluster, _ = split(options=options_with_moves(at_once=4, after_s=30.0, rest_s=0.0))
    large = cluster.create(PAIR)
    cluster.settle()
    assert cluster.evictions == []
    cluster.now_s += 30
    cluster.settle()
    assert large in cluster.bound()


def test_replacement_is_not_moved_again_for_a_while() -> None:
    cluster, owner = split(options=options_with_moves(at_once=4, after_s=0.0, rest_s=600.0))
    cluster.create(PAIR)
    cluster.settle()
    assert cluster.evictions == [], "they have only just come"
    cluster.now_s += 600
    cluster.decide()
    carry_out(cluster)
    cluster.end(cluster.evictions[0])
    (replacement,) = owner.make()
    cluster.settle()
    assert replacement in cluster.bound()
    large = next(uid for uid, pod in cluster.pods.items() if pod.request and pod.request.containers[0].request == PAIR)
    cluster.end(large)
    stayed = next(uid for uid in owner.pods() if uid != replacement)
    cluster.end(stayed)  # one device of each node is free, if the replacement were moved
    cluster.add_node("c", 2)
    cluster.lose_node("c")
    cluster.settle()
    assert cluster.evictions == cluster.evictions[:1]


def test_concurrent_moves_are_limited() -> None:
    nodes = dict.fromkeys("abcdef", 2)
    cluster = Cluster(nodes, options=options_with_moves(at_once=1, after_s=0.0, rest_s=0.0))
    owner = Owner(cluster, "web", 12)
    owner.make()
    cluster.settle(3)
    seen: set[str] = set()
    for uid, node in cluster.bound().items():  # one device of each node is free
        if node not in seen:
            seen.add(node)
            cluster.end(uid)
    owner.replicas = 6
    cluster.settle(3)
    large = [cluster.create(PAIR) for _ in range(3)]
    cluster.decide()
    assert len(asked_to_leave(cluster)) == 1
    carry_out(cluster)
    cluster.now_s += 5
    cluster.decide()
    assert asked_to_leave(cluster) == []
    balance(cluster)
    for _ in range(8):
        cluster.settle(2)
        owner.make()
        cluster.now_s += 2
        assert len(cluster.core.relocations) <= 1
    cluster.settle()
    assert set(large) <= set(cluster.bound())
    assert len(cluster.evictions) == 3
    cluster.check()
    balance(cluster)


def test_move_respects_the_node_selector_of_a_pod_adopted_by_a_new_planner() -> None:
    cluster = Cluster({"a": 2, "b": 2}, options=MOVES)
    for name in "ab":
        cluster.core.node_changed(NodeFacts(name=name, labels={"pool": name}), cluster.now_s)
        cluster.nodes[name] = (NodeFacts(name=name, labels={"pool": name}), cluster.nodes[name][1])
    owners = [Owner(cluster, name, 1, constraints=PlacementConstraints(selector=(f"pool={name}",))) for name in "ab"]
    for owner in owners:
        owner.make()
    cluster.settle(3)
    cluster.restarted()
    cluster.create(PAIR)
    cluster.settle()
    assert cluster.evictions == [], "neither may go to the other's node"


# ---- end of the reservation ---------------------------------------------------------------------------------


def kept_on(cluster: Cluster) -> str:
    (move,) = cluster.core.relocations._moves.values()
    return move.kept.node if move.kept is not None else ""


def test_replacement_waits_in_its_queue_if_the_reserved_node_is_gone() -> None:
    cluster, owner = split()
    begin(cluster)
    carry_out(cluster)
    cluster.lose_node(kept_on(cluster))
    balance(cluster)
    cluster.settle()
    (replacement,) = owner.make()
    cluster.settle()
    assert replacement not in cluster.bound()
    cluster.add_node("c")
    cluster.settle()
    assert replacement in cluster.bound()
    balance(cluster)


def test_moved_pod_whose_node_returns_is_not_moved_again() -> None:
    cluster, owner = split()
    _, moved = begin(cluster)
    carry_out(cluster)
    node = cluster.pods[moved].node
    cluster.lose_node(node)
    cluster.add_node(node)
    cluster.create(PAIR)
    for _ in range(3):
        cluster.now_s += 2
        cluster.decide()
        carry_out(cluster)
    balance(cluster)
    assert cluster.evictions.count(moved) == 1
    cluster.settle()
    owner.make()
    cluster.settle()
    cluster.check()
    balance(cluster)


def test_reservation_on_a_device_that_becomes_unhealthy_is_cancelled() -> None:
    cluster, _ = split()
    begin(cluster)
    carry_out(cluster)
    node = kept_on(cluster)
    cluster.core.devices_changed(gpu_node(node, 2, unhealthy=(0, 1)), cluster.now_s)
    assert kept_on(cluster) == ""
    balance(cluster)


def test_deleted_queue_stays_until_its_reservation_is_freed() -> None:
    cluster, _ = split()
    cluster.queues = [QueueFacts(name="lab")]
    cluster.core.set_queues(cluster.queues)
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="lab"))
    cluster.restarted()
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="lab"))
    cluster.core.start(cluster.now_s)
    large, moved = begin(cluster)
    carry_out(cluster)
    cluster.end(moved)
    cluster.end(large)
    for uid in list(cluster.bound()):
        cluster.end(uid)
    cluster.core.set_queues([])
    assert "lab" in cluster.core.store.scheduler.scheduler.tree.form.leaves
    cluster.now_s += REPLACEMENT_TIMEOUT_S + 1
    cluster.settle(2)
    cluster.now_s += REPLACEMENT_TIMEOUT_S + 1
    cluster.settle(2)
    cluster.core.set_queues([])
    assert "lab" not in cluster.core.store.scheduler.scheduler.tree.form.leaves
    balance(cluster)


def test_move_completes_although_the_pod_that_needed_the_devices_is_gone() -> None:
    cluster, owner = split()
    large, _ = begin(cluster)
    cluster.end(large)
    carry_out(cluster)
    cluster.settle()
    owner.make()
    cluster.settle()
    assert len(cluster.bound()) == 2
    assert len(cluster.core.relocations) == 0
    balance(cluster)


def test_replacement_goes_elsewhere_if_kube_scheduler_refuses_the_reserved_node() -> None:
    cluster, owner = split()
    cluster.add_node("c", 1)
    for uid in [cluster.create(WHOLE, constraints=PlacementConstraints())]:
        cluster.settle(2)
        assert uid in cluster.bound()
    begin(cluster)
    carry_out(cluster)
    cluster.full.add(kept_on(cluster))
    cluster.add_node("d", 1)
    cluster.settle()
    (replacement,) = owner.make()
    cluster.settle()
    assert cluster.bound()[replacement] == "d"
    cluster.check()
    balance(cluster)


# ---- a planner that dies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when", ["before it is evicted", "while it leaves", "when it is gone", "when its replacement waits"]
)
def test_planner_crash_during_a_move_loses_and_duplicates_no_pod(when: str) -> None:
    cluster, owner = split()
    large, moved = begin(cluster)
    if when != "before it is evicted":
        carry_out(cluster)
    if when in ("when it is gone", "when its replacement waits"):
        cluster.end(moved)
    if when == "when its replacement waits":
        owner.make()
    cluster.restarted()
    balance(cluster)
    for _ in range(5):
        cluster.settle(3)
        owner.make()
        cluster.now_s += 2
        cluster.check()
        balance(cluster)
    assert large in cluster.bound()
    assert set(owner.pods()) <= set(cluster.bound())
    assert len(owner.pods()) == 2
    assert len(cluster.core.relocations) == 0


class Moving(RuleBasedStateMachine):
    """Random events in random order: no device is given twice, and no reservation stays forever."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster, web = split(options=options_with_moves(at_once=2, after_s=0.0, rest_s=0.0))
        part = Owner(self.cluster, "part", 1, GpuRequest(memory_mib=8192, core_percent=40))
        self.owners = [web, part, Owner(self.cluster, "fixed", 0, movable=False)]

    @rule(number=st.integers(0, 2))
    def make(self, number: int) -> None:
        self.owners[number].make()

    @rule(number=st.integers(0, 2), replicas=st.integers(0, 3))
    def scale(self, number: int, replicas: int) -> None:
        owner = self.owners[number]
        owner.replicas = replicas
        for uid in owner.pods()[replicas:]:
            self.cluster.set(replace(self.cluster.pods[uid], leaving=True))

    @rule(priority=st.sampled_from((0, 0, 0, 1)))
    def large(self, priority: int) -> None:
        self.cluster.create(PAIR, priority=priority)
        self.cluster.decide()

    @rule(large=st.booleans())
    def split_again(self, large: bool) -> None:
        """Return to the initial state, with one device of each node in use; then create a large pod if asked to."""
        cluster, web = self.cluster, self.owners[0]
        for name in "ab":
            if name not in cluster.nodes:
                cluster.add_node(name)
        for uid in [p.uid for p in cluster.pods.values() if p.owner != web.name]:
            cluster.end(uid)
        web.replicas = 3
        cluster.settle(3)
        web.make()
        cluster.settle(3)
        nodes = Counter(cluster.bound().values())
        for uid, node in cluster.bound().items():
            if nodes[node] > 1:
                nodes[node] -= 1
                cluster.end(uid)
        web.replicas = 2
        if large:
            self.large(0)

    @rule(number=st.integers(0, 20))
    def end(self, number: int) -> None:
        there = sorted(self.cluster.pods)
        if number < len(there):
            self.cluster.end(there[number])

    @rule()
    def end_evicted(self) -> None:
        for uid in [pod.uid for pod in self.cluster.pods.values() if pod.leaving]:
            self.cluster.end(uid)

    @rule(seconds=st.sampled_from((0.0, 1.0, 2.0, 4.0, 61.0, 601.0)))
    def decide(self, seconds: float) -> None:
        self.cluster.now_s += seconds
        self.cluster.decide()

    @rule(most=st.integers(0, 3))
    def carry_out(self, most: int) -> None:
        for action in self.cluster.todo[:most]:
            self.cluster.carry_out(action)
        del self.cluster.todo[:most]

    @rule()
    def settle(self) -> None:
        self.cluster.settle(3)

    @rule(kept=st.booleans())
    def protect(self, kept: bool) -> None:
        self.cluster.protected = set(self.cluster.pods) if kept else set()

    @rule()
    def restart(self) -> None:
        self.cluster.restarted()

    @rule(name=st.sampled_from("ab"), really=st.sampled_from((True, False, False)))
    def node(self, name: str, really: bool) -> None:
        if not really:
            return
        if name in self.cluster.nodes:
            self.cluster.lose_node(name)
            for uid in [pod.uid for pod in self.cluster.pods.values() if pod.node == name]:
                self.cluster.end(uid)
        else:
            self.cluster.add_node(name, 2)

    @invariant()
    def nothing_is_given_twice(self) -> None:
        self.cluster.check()
        balance(self.cluster)

    def teardown(self) -> None:
        cluster = self.cluster
        for uid in list(cluster.pods):
            cluster.end(uid)
        for _ in range(3):
            cluster.now_s += TERMINATION_TIMEOUT_S
            cluster.decide()
        balance(cluster)
        assert len(cluster.core.relocations) == 0
        arrays = cluster.core.store.scheduler.scheduler.cluster
        for name in cluster.nodes:
            row = arrays.row(name)
            assert Counter(arrays.gpu_free_milli[row, : arrays.gpu_count[row]].tolist()).keys() == {1000}


TestMoving = Moving.TestCase
TestMoving.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
