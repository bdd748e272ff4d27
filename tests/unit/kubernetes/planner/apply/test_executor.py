"""What the planner wants done is done once the API server lets it be, in no other term, and no later than it can be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.unit.adapters.kube.world import until

from calabash.adapters.kube.objects.core import NAMESPACE, POD, Pod
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.apply import executor as module
from calabash.kubernetes.planner.apply.api_writes import LeadsNoLonger, Orders
from calabash.kubernetes.planner.apply.executor import Executor
from calabash.kubernetes.planner.state.facts import Action, ReleasePod, Report
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube

POD_NAME = PodName(uid="u", namespace="team", name="p")
PLAN = PodPlan(
    id="1",
    pod_uid="u",
    node="a",
    containers=(
        PlannedContainer(
            name="main", mode="exclusive", slices=(PlannedSlice(device="d", memory_mib=0, core_percent=100),)
        ),
    ),
)


class Outcomes:
    """Wants everything, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.is_wanted = True

    def seen(self, pod: PodName) -> Pod | None:
        return None

    def wanted(self, action: Action) -> bool:
        return self.is_wanted

    def released(self, uid: str, plan_id: str, *, ok: bool) -> None:
        self.told.append(("released", uid))

    def gone(self, pod: PodName) -> None:
        self.told.append(("gone", pod.uid))

    def blocked(self, uid: str, message: str) -> None:
        self.told.append(("blocked", uid))

    def refused(self, action: Action, message: str) -> None:
        self.told.append(("refused", action.pod.uid))


class Failing(Orders):
    """Refuses in this way until it is told otherwise."""

    def __init__(self, error: CalabashError | None) -> None:
        super().__init__(MemoryKube())
        self.error = error
        self.asked = 0
        self.reports: list[str] = []

    def _answer(self) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error

    def release(self, pod: PodName, plan: PodPlan, seen: Pod | None, *, nodes: Sequence[str] = ()) -> Pod:
        return self._answer()  # type: ignore[no-any-return]

    def report(self, report: Report) -> None:
        self._answer()
        self.reports.append(report.message)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Failing], tuple[Executor, Outcomes]]]:
    monkeypatch.setattr(module, "_PAUSE_FIRST_S", 50.0)
    monkeypatch.setattr(module, "_PAUSE_MAX_S", 50.0)
    running: list[Executor] = []

    def start(orders: Failing) -> tuple[Executor, Outcomes]:
        outcomes = Outcomes()
        running.append(Executor(orders, outcomes, workers=1))
        running[-1].start()
        return running[-1], outcomes

    yield start
    for one in running:
        one.stop()


DOWN = CalabashError("away", reason=Reason.API_DOWN)
Start = Callable[[Failing], tuple[Executor, Outcomes]]


def test_what_waits_for_the_api_server_is_done_when_somebody_noticed_that_it_is_back(started: Start) -> None:
    orders = Failing(DOWN)
    executor, outcomes = started(orders)
    executor.put([ReleasePod(pod=POD_NAME, plan=PLAN)])
    until(lambda: orders.asked == 1)
    orders.error = None

    def hurried() -> bool:
        executor.hurry()  # it may not have begun to wait yet
        return outcomes.told == [("released", "u")]

    until(hurried)


def test_a_report_that_met_no_api_server_is_told_later_and_only_the_last_one(started: Start) -> None:
    orders = Failing(DOWN)
    executor, _ = started(orders)
    executor.put([Report(pod=POD_NAME, reason=Reason.NO_MEMORY, message="first")])
    until(lambda: orders.asked == 1)
    executor.put([Report(pod=POD_NAME, reason=Reason.NO_MEMORY, message="second")])
    orders.error = None

    def hurried() -> bool:
        executor.hurry()
        return bool(orders.reports)

    until(hurried)
    assert orders.reports == ["second"]


def test_a_pod_that_the_api_server_does_not_know_is_gone_though_no_watch_says_so(started: Start) -> None:
    executor, outcomes = started(Failing(CalabashError("no such pod", reason=Reason.NOT_FOUND)))
    executor.put([ReleasePod(pod=POD_NAME, plan=PLAN)])
    until(lambda: outcomes.told == [("gone", "u")])


def test_what_was_wanted_in_a_term_that_has_ended_is_left(started: Start) -> None:
    orders = Failing(LeadsNoLonger())
    executor, outcomes = started(orders)
    executor.put([ReleasePod(pod=POD_NAME, plan=PLAN)])
    until(lambda: orders.asked == 1)
    orders.error = None
    executor.put([ReleasePod(pod=PodName(uid="v", namespace="team", name="q"), plan=PLAN)])
    until(lambda: outcomes.told == [("released", "v")])
    assert orders.asked == 2


def test_who_does_not_lead_writes_nothing_at_all() -> None:
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": "team"}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, "team")
    pod = PodName(uid=made.metadata.uid, namespace="team", name="p")
    leads = threading.Event()
    orders = Orders(kube, may_write=leads.is_set)
    report = Report(pod=pod, reason=Reason.NO_MEMORY, message="no")
    writes: list[Callable[[], object]] = [
        lambda: orders.nominate(pod, "a"),
        lambda: orders.release(pod, PLAN, made),
        lambda: orders.bind(pod, "a", PLAN),
        lambda: orders.evict(pod),
        lambda: orders.report(report),
    ]
    for write in writes:
        with pytest.raises(LeadsNoLonger):
            write()
    assert kube.get(POD, "p", "team") == made
    leads.set()
    orders.bind(pod, "a", PLAN)
    bound = kube.get(POD, "p", "team")
    assert bound is not None
    assert bound.spec.node_name == "a"


def test_a_binding_whose_answer_was_lost_is_a_binding() -> None:
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": "team"}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, "team")
    kube.faults.mute = 1
    Orders(kube).bind(PodName(uid=made.metadata.uid, namespace="team", name="p"), "a", PLAN)
    found = kube.get(POD, "p", "team")
    assert found is not None
    assert found.spec.node_name == "a"


def test_a_binding_by_another_plan_is_no_binding_of_this_one() -> None:
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": "team"}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, "team")
    kube.bind("team", "p", made.metadata.uid, "a", annotations={"calabash.dev/plan": "another"})
    with pytest.raises(CalabashError):
        Orders(kube).bind(PodName(uid=made.metadata.uid, namespace="team", name="p"), "a", PLAN)
