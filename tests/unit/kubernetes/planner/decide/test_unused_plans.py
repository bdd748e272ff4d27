"""Plans that kube-scheduler does not use are given back, on virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.decide.unused_plans import DELAY_MAX_S, REFUSED_S, UNBOUND_S
from calabash.kubernetes.planner.state.deferrals import Deferrals, EarlyEnd
from calabash.kubernetes.planner.state.store import Stage
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest

WHOLE = GpuRequest()


class Refusing(Cluster):
    """kube-scheduler refuses the pods of ``stuck`` before it asks the planner, as for a volume claim that does not exist."""

    def __init__(self, nodes: dict[str, int], **more: Any) -> None:
        self.stuck: set[str] = set()
        super().__init__(nodes, **more)

    def try_one(self, uid: str, feasible: Any = None) -> str | None:
        pod = self.pods[uid]
        if uid not in self.stuck:
            return super().try_one(uid, feasible)
        if not pod.refused or pod.nominated:
            self.set(replace(pod, refused=True, nominated=""))
        return None

    def holds(self, uid: str) -> bool:
        return self.core.book.scheduler.holds(self.core.book.entries[uid].id)

    def pass_s(self, seconds: float, each: Any = None) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.settle(2)
            if each is not None:
                each()


def test_a_plan_that_is_refused_for_ten_seconds_is_given_back_and_another_pod_has_its_devices() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.settle()
    other = cluster.create(WHOLE)
    cluster.pass_s(REFUSED_S - 2)
    assert cluster.holds(uid)
    assert other not in cluster.bound()
    cluster.pass_s(5)
    assert not cluster.holds(uid)
    assert other in cluster.bound()


def test_the_condition_says_why_a_plan_was_given_back_and_that_it_stands_again() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.pass_s(REFUSED_S + 5)
    report = next(r for r in cluster.reports if r.pod.uid == uid and r.reason is Reason.PLAN_UNUSED)
    assert report.own_condition, "the condition PodScheduled is kube-scheduler's, and says what it misses"
    assert "kube-scheduler has refused it for 10 s" in report.message
    assert "its devices on a were given back" in report.message
    cluster.stuck.clear()
    cluster.pass_s(20)
    assert uid in cluster.bound()
    last = [r for r in cluster.reports if r.pod.uid == uid][-1]
    assert (last.reason, last.own_condition) == (None, True)


def test_delays_grow_and_are_capped() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    held: list[bool] = []
    cluster.pass_s(4 * DELAY_MAX_S, lambda: held.append(cluster.holds(uid)))
    spans = _spans(held)
    free = [length for holds, length in spans if not holds]
    assert all(REFUSED_S - 1 <= length <= REFUSED_S + 3 for holds, length in spans[:-1] if holds)
    assert free[:5] == pytest.approx([10, 20, 40, 80, 160], abs=3)
    assert all(length <= DELAY_MAX_S + 3 for length in free)


def _spans(held: list[bool]) -> list[tuple[bool, int]]:
    spans: list[tuple[bool, int]] = []
    for one in held:
        if spans and spans[-1][0] is one:
            spans[-1] = (one, spans[-1][1] + 1)
        else:
            spans.append((one, 1))
    return spans


def test_a_pod_for_which_kube_scheduler_finds_a_node_is_planned_at_once() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.pass_s(150)
    assert not cluster.holds(uid), "it waits for a minute or more by now"
    cluster.stuck.clear()
    cluster.pass_s(3)
    assert uid in cluster.bound()


def test_a_pod_whose_plan_was_asked_for_and_that_is_never_bound_waits_out_its_delays() -> None:
    """A volume that is never provisioned: kube-scheduler finds a node, asks, and fails after that."""
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.settle()
    held: list[bool] = []

    def ask() -> None:
        cluster.core.answers.filter(uid, ["a"], "", cluster.now_s)
        held.append(cluster.holds(uid))

    cluster.pass_s(6 * DELAY_MAX_S, ask)
    assert sum(held[len(held) // 2 :]) < 0.3 * len(held) / 2


def test_a_plan_of_which_kube_scheduler_says_nothing_is_given_back_after_a_while() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE, own=False)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    entry = cluster.core.book.entries[uid]
    assert entry.stage is Stage.RELEASED
    cluster.core.decide(cluster.now_s)
    cluster.core.decide(cluster.now_s + UNBOUND_S - 1)
    assert entry.plan is not None
    cluster.core.decide(cluster.now_s + UNBOUND_S + 1)
    assert entry.plan is None
    assert not cluster.core.book.scheduler.holds(entry.id)


def gang(size: int) -> GpuRequest:
    return GpuRequest(gang="g", gang_size=size)


def test_a_gang_gives_back_the_plans_of_all_its_members_when_one_is_refused() -> None:
    cluster = Refusing({"a": 2, "b": 2})
    members = [cluster.create(gang(4)) for _ in range(4)]
    cluster.stuck.add(members[0])
    cluster.settle()
    other = cluster.create(GpuRequest(count=2))
    assert all(cluster.holds(uid) for uid in members)
    cluster.pass_s(REFUSED_S + 4)
    assert not any(cluster.holds(uid) for uid in members)
    assert other in cluster.bound()
    cluster.end(other)
    cluster.stuck.clear()
    cluster.pass_s(30)
    assert set(cluster.bound()) == set(members)


def test_bindings_that_are_held_for_a_gang_are_refused_when_it_loses_its_plans() -> None:
    cluster = Refusing({"a": 2})
    members = [cluster.create(gang(2)) for _ in range(2)]
    cluster.stuck.update(members)
    cluster.settle()
    assert cluster.core.answers.bind(members[1], "a", cluster.now_s).verdict is BindVerdict.HOLD
    refused: list[str] = []
    cluster.pass_s(REFUSED_S + 4, lambda: refused.extend(uid for uid, _ in cluster.core.answers.expired(cluster.now_s)))
    assert refused == [members[1]]


def test_a_member_whose_binding_is_held_is_not_refused_whatever_its_condition_says() -> None:
    cluster = Refusing({"a": 2})
    members = [cluster.create(gang(2)) for _ in range(2)]
    cluster.stuck.update(members)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.set(replace(cluster.pods[members[1]], refused=True))
    assert cluster.core.answers.bind(members[1], "a", cluster.now_s).verdict is BindVerdict.HOLD
    for _ in range(30):
        cluster.now_s += 1.0
        cluster.core.decide(cluster.now_s)
    assert all(cluster.holds(uid) for uid in members)


def test_a_planner_that_takes_over_gives_the_plan_back_as_well() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.settle()
    cluster.restarted()
    assert cluster.holds(uid)
    cluster.pass_s(REFUSED_S + 4)
    assert not cluster.holds(uid)


def test_a_bare_pod_of_another_scheduler_gives_its_plan_back_too() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE, own=False, remade=False)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.set(replace(cluster.pods[uid], refused=True, confined=("a",)))
    held = []
    for _ in range(200):
        cluster.now_s += 1.0
        cluster.decide()
        while cluster.todo:
            cluster.carry_out(cluster.todo.pop(0))
        held.append(cluster.core.book.scheduler.holds(cluster.core.book.entries[uid].id))
    spans = _spans(held)
    assert [holds for holds, _ in spans[:4]] == [True, False, True, False]
    assert sum(held) < 0.4 * len(held)


def test_a_change_ends_a_wait_no_sooner_than_twice_as_late_each_time() -> None:
    deferrals = Deferrals()
    for soonest_s in (1.0, 2.0, 4.0):
        deferrals.defer("u", 100.0, first_s=30.0, max_s=600.0, early=EarlyEnd.CHANGED)
        deferrals.changed("u")
        assert list(deferrals.due(100.0 + soonest_s - 0.1)) == []
        assert list(deferrals.due(100.0 + soonest_s)) == ["u"]
    deferrals.forget("u")
    assert deferrals.defer("u", 0.0, first_s=30.0, max_s=600.0, early=EarlyEnd.NEVER) == 30.0
    deferrals.changed("u")
    deferrals.asked("u")
    assert list(deferrals.due(29.9)) == []
