"""Plans that kube-scheduler does not use are withdrawn, on simulated time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.decide.unused_plans import DELAY_MAX_S, REFUSED_S, UNBOUND_S
from calabash.kubernetes.planner.state.deferrals import Deferrals, EarlyEnd
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest

WHOLE = GpuRequest()


class Refusing(Cluster):
    """A cluster whose kube-scheduler refuses the pods in ``stuck`` before it asks the planner.

    A pod whose volume claim does not exist is refused like this.
    """

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
        return self.core.store.scheduler.holds(self.core.store.entries[uid].id)

    def pass_s(self, seconds: float, each: Any = None) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.settle(2)
            if each is not None:
                each()


def test_plan_refused_for_ten_seconds_is_withdrawn_and_another_pod_gets_its_devices() -> None:
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


def test_condition_explains_a_withdrawn_plan_and_reports_the_next_one() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.pass_s(REFUSED_S + 5)
    report = next(r for r in cluster.reports if r.pod.uid == uid and r.reason is Reason.PLAN_UNUSED)
    assert report.own_condition, "the condition PodScheduled is kube-scheduler's, and says what it misses"
    assert "kube-scheduler has refused the pod for 10 s" in in_full(report.message)
    assert "its planned devices on a were released" in in_full(report.message)
    cluster.stuck.clear()
    cluster.pass_s(20)
    assert uid in cluster.bound()
    last = [r for r in cluster.reports if r.pod.uid == uid][-1]
    assert (last.reason, last.own_condition) == (None, True)


def test_deferrals_grow_up_to_a_limit() -> None:
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


def test_deferred_pod_is_planned_at_once_if_kube_scheduler_finds_a_node() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.pass_s(150)
    assert not cluster.holds(uid), "it waits for a minute or more by now"
    cluster.stuck.clear()
    cluster.pass_s(3)
    assert uid in cluster.bound()


def test_pod_never_bound_despite_an_answer_waits_for_the_full_deferral() -> None:
    """kube-scheduler asks the planner for a node and then fails, as with a volume that is never provisioned."""
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


def test_plan_that_kube_scheduler_ignores_is_withdrawn_after_a_while() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE, uses_our_scheduler=False)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    entry = cluster.core.store.entries[uid]
    assert entry.stage is Stage.RELEASED
    cluster.core.decide(cluster.now_s)
    cluster.core.decide(cluster.now_s + UNBOUND_S - 1)
    assert entry.plan is not None
    cluster.core.decide(cluster.now_s + UNBOUND_S + 1)
    assert entry.plan is None
    assert not cluster.core.store.scheduler.holds(entry.id)


def gang(size: int) -> GpuRequest:
    return GpuRequest(gang="g", gang_size=size)


def test_gang_loses_all_its_plans_when_one_member_is_refused() -> None:
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
    cluster.pass_s(
        REFUSED_S + 4, lambda: refused.extend(uid for uid, _ in cluster.core.answers.take_expired(cluster.now_s))
    )
    assert refused == [members[1]]


def test_held_member_keeps_its_plan_whatever_its_condition_says() -> None:
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


def test_next_planner_withdraws_an_unused_plan_too() -> None:
    cluster = Refusing({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.stuck.add(uid)
    cluster.settle()
    cluster.restarted()
    assert cluster.holds(uid)
    cluster.pass_s(REFUSED_S + 4)
    assert not cluster.holds(uid)


def test_unused_plan_of_a_bare_pod_of_another_scheduler_is_withdrawn() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE, uses_our_scheduler=False, is_recreated=False)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.set(replace(cluster.pods[uid], refused=True, candidate_nodes=("a",)))
    held = []
    for _ in range(200):
        cluster.now_s += 1.0
        cluster.decide()
        while cluster.todo:
            cluster.carry_out(cluster.todo.pop(0))
        held.append(cluster.core.store.scheduler.holds(cluster.core.store.entries[uid].id))
    spans = _spans(held)
    assert [holds for holds, _ in spans[:4]] == [True, False, True, False]
    assert sum(held) < 0.4 * len(held)


def test_pod_change_ends_a_deferral_after_a_minimum_that_doubles_each_time() -> None:
    deferrals = Deferrals()
    for soonest_s in (1.0, 2.0, 4.0):
        deferrals.defer("u", 100.0, first_s=30.0, max_s=600.0, early=EarlyEnd.CHANGED)
        deferrals.pod_changed("u")
        assert list(deferrals.take_due(100.0 + soonest_s - 0.1)) == []
        assert list(deferrals.take_due(100.0 + soonest_s)) == ["u"]
    deferrals.reset("u")
    assert deferrals.defer("u", 0.0, first_s=30.0, max_s=600.0, early=EarlyEnd.NEVER) == 30.0
    deferrals.pod_changed("u")
    deferrals.kube_scheduler_asked("u")
    assert list(deferrals.take_due(29.9)) == []
