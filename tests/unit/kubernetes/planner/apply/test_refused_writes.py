"""Refused writes are given up, reported, and repeated when the pod changes; they delay no other pod."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
from tests.unit.kubernetes.planner.world import SETTINGS, World, until
from tests.unit.kubernetes.refusing import RefusingKube

from calabash.adapters.kube.objects.core import EVENT, NAMESPACE, POD
from calabash.kubernetes.objects.names import PLAN, PLAN_GATE
from calabash.kubernetes.planner.apply import executor as executor_module
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.state import deferrals as deferrals_module
from calabash.model.request import GpuRequest

SHARE = GpuRequest(memory_mib=256, core_percent=1)
WORKERS = 4
HOSTILE, QUIET = "hostile", "quiet"


class Refused:
    """A planner on an API server that answers the verbs ``writes`` for pods in ``hostile`` with ``status``."""

    def __init__(self, world: World) -> None:
        self.world = world
        for name in (HOSTILE, QUIET):
            world.client.create(NAMESPACE, {"metadata": {"name": name}})
        self.status = 0
        self.writes: tuple[str, ...] = ("patch",)
        self.kube = RefusingKube(world.client, self._refuse)
        settings = {"workers": WORKERS, "nominate_nodes_min": 0}
        self.service = PlannerService(self.kube, _settings(**settings))

    def _refuse(self, verb: str, plural: str, namespace: str, body: Any) -> int:
        if namespace != HOSTILE or verb not in self.writes:
            return 0
        return self.status if plural == "pods" else 0

    def start(self) -> PlannerService:
        self.service.start()
        self.world.services.append(self.service)
        until(self.service.leads, "leads")
        return self.service

    def pods(self, namespace: str, count: int) -> list[str]:
        names = [f"p{i}" for i in range(count)]
        for name in names:
            self.world.pod(name, SHARE, namespace=namespace)
        return names

    def released(self, namespace: str) -> list[str]:
        pods = self.world.client.list(POD, namespace).items
        return [pod.metadata.name for pod in pods if PLAN in pod.metadata.annotations]

    def holds(self, namespace: str) -> int:
        """Count the pods of a namespace for which the scheduler holds devices."""
        with self.service._lock:
            core = self.service._core
            assert core is not None
            return sum(
                core.store.scheduler.holds(e.id) for e in core.store.entries.values() if e.facts.namespace == namespace
            )

    def condition(self, namespace: str, name: str, type_: str = "PodScheduled") -> Any:
        pod = self.world.get(name, namespace)
        return next((c for c in pod.status.conditions if c.type == type_), None)


def _settings(**more: Any) -> Any:
    from dataclasses import replace

    return replace(SETTINGS, **more)


@pytest.fixture
def refused(world: World, monkeypatch: pytest.MonkeyPatch) -> Refused:
    monkeypatch.setattr(executor_module, "_PAUSE_FIRST_S", 0.01)
    monkeypatch.setattr(executor_module, "_PAUSE_MAX_S", 0.05)
    monkeypatch.setattr(deferrals_module, "CHANGE_S", 0.2)
    world.node("a")
    return Refused(world)


@pytest.mark.parametrize("status", [400, 401, 403, 405, 409, 413, 415, 422, 451, 500, 502, 504])
def test_pods_whose_plans_are_refused_delay_no_other_namespace_and_hold_no_devices(
    refused: Refused, status: int
) -> None:
    refused.status = status
    service = refused.start()
    refused.pods(HOSTILE, 3 * WORKERS)
    until(lambda: refused.kube.tried["patch", "pods", HOSTILE] >= WORKERS, "plans refused")
    names = refused.pods(QUIET, 2 * WORKERS)
    until(lambda: sorted(refused.released(QUIET)) == sorted(names), "the other namespace is planned")
    until(lambda: refused.holds(HOSTILE) == 0, "the devices are free")
    until(service._executor.idle, "no write is tried again")
    assert refused.released(HOSTILE) == []
    assert all(refused.world.get(name, HOSTILE).spec.scheduling_gates for name in ("p0", "p1"))


def test_a_refused_plan_is_a_condition_and_an_event_that_name_the_cause(refused: Refused) -> None:
    refused.status = 422
    refused.start()
    refused.pods(HOSTILE, 1)
    condition = until(lambda: _with(refused.condition(HOSTILE, "p0"), "WriteRefused"), "a condition")
    assert condition.status == "False"
    events = until(lambda: _events(refused, "WriteRefused"), "an event")
    assert "refused with 422" in events[0].message
    assert "hint: the pod is planned again when it changes" in events[0].message


def test_the_cause_is_an_event_where_the_condition_is_refused_as_well(refused: Refused) -> None:
    refused.status, refused.writes = 422, ("patch", "patch status")
    refused.service._writes.set_nomination(pods=False, claims=True)
    refused.start()
    refused.pods(HOSTILE, 1)
    (event,) = until(lambda: _events(refused, "WriteRefused"), "an event")
    assert "its condition was refused" in event.message


def test_a_pod_is_planned_when_it_was_changed_so_that_its_plan_is_accepted(refused: Refused) -> None:
    refused.status = 422
    refused.start()
    refused.pods(HOSTILE, 1)
    until(lambda: _with(refused.condition(HOSTILE, "p0"), "WriteRefused"), "set aside")
    refused.status = 0
    refused.world.client.patch(POD, "p0", HOSTILE, body={"metadata": {"annotations": {"example.com/a": None}}})
    refused.world.client.patch(POD, "p0", HOSTILE, body={"metadata": {"labels": {"changed": "yes"}}})
    until(lambda: refused.released(HOSTILE) == ["p0"], "planned")


def test_a_pod_that_does_not_change_is_seldom_tried(refused: Refused) -> None:
    refused.status = 422
    service = refused.start()
    refused.pods(HOSTILE, 1)
    until(lambda: _with(refused.condition(HOSTILE, "p0"), "WriteRefused"), "set aside")
    until(lambda: _events(refused, "WriteRefused"), "the event")
    threading.Event().wait(1.5)  # the condition that it writes is one change of the pod, and causes no more
    refused.world.settle(service)
    assert refused.kube.tried["patch", "pods", HOSTILE] <= 3


def test_a_member_whose_plan_is_refused_takes_the_plans_of_its_gang(refused: Refused) -> None:
    bad: set[str] = set()
    refused.kube.refuse = lambda verb, plural, namespace, body: (
        422 if verb == "patch" and plural == "pods" and body["metadata"].get("uid") in bad else 0
    )
    refused.start()
    gang = GpuRequest(memory_mib=256, core_percent=1, gang="g", gang_size=3)
    for i in range(2):
        refused.world.pod(f"g{i}", gang, namespace=HOSTILE)
    bad.add(refused.world.get("g0", HOSTILE).metadata.uid)
    refused.world.pod("g2", gang, namespace=HOSTILE)
    until(lambda: _with(refused.condition(HOSTILE, "g0"), "WriteRefused"), "a member is set aside")
    until(lambda: refused.holds(HOSTILE) == 0, "no member holds devices")


def test_an_eviction_that_the_api_server_cannot_make_is_given_up(refused: Refused) -> None:
    """Two disruption budgets select one pod: the API server answers each eviction of it with 500."""
    refused.status, refused.writes = 500, ("evict",)
    service = refused.start()
    victim = refused.world.pod("victim", GpuRequest(count=2), namespace=HOSTILE)
    pod = until(lambda: _released(refused, "victim", HOSTILE), "released")
    assert refused.world.bind(service, pod, "a") == (200, {"Error": ""})
    until(lambda: refused.holds(HOSTILE) == 1, "it runs")
    refused.world.pod("first", GpuRequest(count=2), namespace=QUIET, priority=10)
    until(lambda: refused.kube.tried["evict", "pods", HOSTILE] > 1, "its eviction is refused")

    def protected() -> bool:
        with service._lock:
            assert service._core is not None
            return service._core.store.entries[victim.metadata.uid].protected_until_s > 0

    until(protected, "the victim stays")
    until(service._executor.idle, "no write is tried again")


def test_a_binding_that_is_refused_sets_its_pod_aside_and_ends_its_call(refused: Refused) -> None:
    refused.status, refused.writes = 422, ("bind",)
    service = refused.start()
    refused.world.pod("p0", SHARE, namespace=HOSTILE)
    pod = until(lambda: _released(refused, "p0", HOSTILE), "released")
    status, answer = refused.world.bind(service, pod, "a")
    assert status == 200
    assert "refused with 422" in answer["Error"]
    until(lambda: refused.holds(HOSTILE) == 0, "its devices are free")
    until(lambda: _events(refused, "WriteRefused"), "an event")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_overloaded_api_server_delays_all_and_loses_nothing(refused: Refused, status: int) -> None:
    overloaded = threading.Event()
    overloaded.set()
    refused.kube.refuse = lambda verb, plural, namespace, body: (
        status if overloaded.is_set() and plural == "pods" else 0
    )
    service = refused.start()
    names = refused.pods(QUIET, WORKERS), refused.pods(HOSTILE, WORKERS)
    until(lambda: refused.kube.tried["patch status", "pods", QUIET] > 0, "refused")
    until(lambda: refused.kube.tried["patch status", "pods", HOSTILE] > 0, "refused")
    overloaded.clear()
    service._executor.retry_now()
    until(lambda: sorted(refused.released(QUIET)) == sorted(names[0]), "planned")
    if status in (429, 503):
        until(lambda: sorted(refused.released(HOSTILE)) == sorted(names[1]), "planned")


def test_the_pause_that_the_api_server_asks_for_is_kept(refused: Refused) -> None:
    refused.kube.retry_after_s = 1.0
    times: list[float] = []

    def refuse(verb: str, plural: str, namespace: str, body: Any) -> int:
        if plural != "pods":
            return 0
        times.append(time.monotonic())
        return 429 if len(times) < 3 else 0

    refused.kube.refuse = refuse
    refused.start()
    refused.pods(QUIET, 1)
    until(lambda: refused.released(QUIET) == ["p0"], "planned")
    assert all(after - before >= 1.0 for before, after in itertools.pairwise(times[:3]))


def _with(condition: Any, reason: str) -> Any:
    return condition if condition is not None and condition.reason == reason else None


def _events(refused: Refused, reason: str) -> list[Any]:
    return [event for event in refused.world.client.list(EVENT, HOSTILE).items if event.reason == reason]


def _released(refused: Refused, name: str, namespace: str) -> Any:
    pod = refused.world.get(name, namespace)
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    return pod if PLAN in pod.metadata.annotations and PLAN_GATE not in gates else None
