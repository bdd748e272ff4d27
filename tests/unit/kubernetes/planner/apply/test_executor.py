"""Actions are carried out once the API server answers, without delay, and only in their own term."""

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
from calabash.kubernetes.planner.apply.api_writes import ApiWrites, LeadsNoLonger
from calabash.kubernetes.planner.apply.executor import Executor
from calabash.kubernetes.planner.state.facts import Action, ReleasePod, Report
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
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
    """The planner's side of the executor: still wants every action by default, and records the outcomes it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.wants_all = True

    def last_seen(self, pod: PodName) -> Pod | None:
        return None

    def is_wanted(self, action: Action) -> bool:
        return self.wants_all

    def plan_written(self, uid: str, plan_id: str, *, ok: bool) -> None:
        self.told.append(("released", uid))

    def pod_deleted(self, pod: PodName) -> None:
        self.told.append(("gone", pod.uid))

    def eviction_refused(self, uid: str, message: str) -> None:
        self.told.append(("blocked", uid))

    def write_refused(self, action: Action, message: str) -> None:
        self.told.append(("refused", action.pod.uid))


class Failing(ApiWrites):
    """Writes to the API server that all fail with ``error`` until the test sets it to None."""

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
        self.reports.append(in_full(report.message))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Failing], tuple[Executor, Outcomes]]]:
    monkeypatch.setattr(module, "_PAUSE_FIRST_S", 50.0)
    monkeypatch.setattr(module, "_PAUSE_MAX_S", 50.0)
    running: list[Executor] = []

    def start(writes: Failing) -> tuple[Executor, Outcomes]:
        outcomes = Outcomes()
        running.append(Executor(writes, outcomes, workers=1))
        running[-1].start()
        return running[-1], outcomes

    yield start
    for one in running:
        one.stop()


DOWN = CalabashError("away", reason=Reason.API_DOWN)
Start = Callable[[Failing], tuple[Executor, Outcomes]]


def test_waiting_writes_are_made_at_once_after_retry_now(started: Start) -> None:
    writes = Failing(DOWN)
    executor, outcomes = started(writes)
    executor.put([ReleasePod(pod=POD_NAME, plan=PLAN)])
    until(lambda: writes.asked == 1)
    writes.error = None

    def hurried() -> bool:
        executor.retry_now()  # it may not have begun to wait yet
        return outcomes.told == [("released", "u")]

    until(hurried)


def test_report_without_an_answer_is_written_later_and_only_the_last_one(started: Start) -> None:
    writes = Failing(DOWN)
    executor, _ = started(writes)
    executor.put([Report(pod=POD_NAME, reason=Reason.NO_MEMORY, message="first")])
    until(lambda: writes.asked == 1)
    executor.put([Report(pod=POD_NAME, reason=Reason.NO_MEMORY, message="second")])
    writes.error = None

    def hurried() -> bool:
        executor.retry_now()
        return bool(writes.reports)

    until(hurried)
    assert writes.reports == ["second"]


def test_pod_unknown_to_the_api_server_is_deleted_without_a_watch_event(started: Start) -> None:
    executor, outcomes = started(Failing(CalabashError("no such pod", reason=Reason.NOT_FOUND)))
    executor.put([ReleasePod(pod=POD_NAME, plan=PLAN)])
    until(lambda: outcomes.told == [("gone", "u")])


def test_actions_of_an_ended_term_are_not_carried_out(started: Start) -> None:
    writes = Failing(LeadsNoLonger())
    executor, outcomes = started(writes)
    executor.put([ReleasePod(pod=POD_NAME, plan=PLAN)])
    until(lambda: writes.asked == 1)
    writes.error = None
    executor.put([ReleasePod(pod=PodName(uid="v", namespace="team", name="q"), plan=PLAN)])
    until(lambda: outcomes.told == [("released", "v")])
    assert writes.asked == 2


def test_planner_that_does_not_lead_writes_nothing() -> None:
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": "team"}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, "team")
    pod = PodName(uid=made.metadata.uid, namespace="team", name="p")
    leads = threading.Event()
    writes = ApiWrites(kube, may_write=leads.is_set)
    report = Report(pod=pod, reason=Reason.NO_MEMORY, message="no")
    calls: list[Callable[[], object]] = [
        lambda: writes.nominate(pod, "a"),
        lambda: writes.release(pod, PLAN, made),
        lambda: writes.bind(pod, "a", PLAN),
        lambda: writes.evict(pod),
        lambda: writes.report(report),
    ]
    for call in calls:
        with pytest.raises(LeadsNoLonger):
            call()
    assert kube.get(POD, "p", "team") == made
    leads.set()
    writes.bind(pod, "a", PLAN)
    bound = kube.get(POD, "p", "team")
    assert bound is not None
    assert bound.spec.node_name == "a"


def test_binding_with_a_lost_answer_counts_as_made() -> None:
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": "team"}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, "team")
    kube.faults.mute = 1
    ApiWrites(kube).bind(PodName(uid=made.metadata.uid, namespace="team", name="p"), "a", PLAN)
    found = kube.get(POD, "p", "team")
    assert found is not None
    assert found.spec.node_name == "a"


def test_binding_with_another_plan_does_not_count_as_made() -> None:
    kube = MemoryKube()
    kube.create(NAMESPACE, {"metadata": {"name": "team"}})
    made = kube.create(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}, "team")
    kube.bind("team", "p", made.metadata.uid, "a", annotations={"calabash.dev/plan": "another"})
    with pytest.raises(CalabashError):
        ApiWrites(kube).bind(PodName(uid=made.metadata.uid, namespace="team", name="p"), "a", PLAN)
