"""No device is given twice while planners stop, hang and continue, and answers of the API server are lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.world import SETTINGS, World, released, until

from calabash.adapters.kube.objects.core import POD
from calabash.adapters.kube.objects.groups import VOLCANO_GROUP
from calabash.kubernetes.leader.lease import Election
from calabash.kubernetes.objects.names import PLAN_GATE
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.watch import groups as watch_groups
from calabash.kubernetes.pod_request import GangSource
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube


class LateKube:
    """A second client of the same API server, whose watches of pods the test can stop from delivering changes."""

    def __init__(self, client: MemoryKube) -> None:
        self._client = client
        self.stopped = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def within(self, timeout_s: float) -> LateKube:
        return self

    def watch(self, kind: Any, *words: Any, **more: Any) -> Any:
        watch = self._client.watch(kind, *words, **more)
        something = watch._something
        if kind is POD:
            watch._something = lambda: watch._closed or (not self.stopped.is_set() and something())  # type: ignore[method-assign]
        return watch


def test_new_leader_knows_earlier_writes_that_its_watch_did_not_deliver(world: World) -> None:
    first = world.start(identity="first")
    until(first.leads, "leads")
    way = LateKube(world.client)
    second = PlannerService(way, replace(SETTINGS, identity="second"))
    second.start()
    world.services.append(second)
    world.pod("p", GpuRequest(count=2), gates=[{"name": "example.com/other"}], priority=1)
    world.pod("q", GpuRequest(count=2))
    until(lambda: second.mirrors.pods.get("q", "team"), "known to both")
    way.stopped.set()
    body = {"spec": {"schedulingGates": [{"name": PLAN_GATE}]}}
    world.client.patch(POD, "p", "team", body=body)

    def gates() -> int:
        seen = first.mirrors.pods.get("p", "team")
        return len(seen.spec.scheduling_gates) if seen is not None else 0

    until(lambda: gates() == 1, "the first knows")
    world.node("a")
    pod = until(lambda: released(world, "p"), "released")
    assert world.bind(first, pod, "a") == (200, {"Error": ""})
    first.stop()
    world.services.remove(first)
    until(second.leads, "the other leads")
    entry = second.last_seen(PodName(uid=pod.metadata.uid, namespace="team", name="p"))
    assert entry is not None
    assert entry.spec.node_name == "a"
    world.settle(second)
    assert released(world, "q") is None, "its devices would be those of the first"


def test_approved_binding_is_not_written_after_leadership_is_lost(world: World) -> None:
    world.node("a")
    service = world.start()
    made = world.pod("p", GpuRequest())
    until(lambda: released(world, "p"), "released")
    pod = PodName(uid=made.metadata.uid, namespace="team", name="p")
    answer = service.bind(pod, "a")
    assert answer.verdict is BindVerdict.GO
    service.lead.stop()
    with pytest.raises(CalabashError, match="does not lead"):
        service.write_binding(pod, "a", answer)
    assert world.get("p").spec.node_name == ""


def test_held_bindings_are_refused_when_leadership_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node("a")
    service = world.start()
    for i in range(2):
        world.pod(f"g{i}", GpuRequest(gang="g", gang_size=2))
    pod = until(lambda: released(world, "g0"), "released")
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(world.bind(service, pod, "a")))
    asking.start()
    until(lambda: world.held(service, pod), "the binding is held")
    assert asking.is_alive()
    monkeypatch.setattr(Election, "leads", lambda _: False)  # as after the end of its term
    asking.join(60)
    assert answers == [(200, {"Error": "this planner does not lead; another answers"})]
    monkeypatch.undo()
    until(service.leads, "leads again")
    assert world.get("g0").spec.node_name == ""


def test_deleted_pod_that_kube_scheduler_still_asks_about_holds_no_devices(world: World) -> None:
    world.node("a")
    service = world.start()
    until(service.leads, "leads")
    stale = world.pod("p", GpuRequest(count=2), gates=[{"name": "example.com/other"}])
    stale = msgspec.structs.replace(stale, spec=msgspec.structs.replace(stale.spec, scheduling_gates=()))
    world.client.delete(POD, "p", "team", grace_s=0)
    until(lambda: service.mirrors.pods.get("p", "team") is None, "its end is known")
    world.filter(service, stale, "a")
    world.pod("q", GpuRequest(count=2))
    until(lambda: released(world, "q"), "released")


def test_binding_is_written_when_the_api_server_answers_again(world: World) -> None:
    world.node("a")
    service = world.start()
    world.pod("p", GpuRequest())
    pod = until(lambda: released(world, "p"), "released")
    world.client.faults.down = True
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(world.bind(service, pod, "a")))
    asking.start()
    until(lambda: service._api_server_down, "the planner knows that the API server is away")
    assert asking.is_alive(), "it is neither bound nor refused"
    world.client.faults.down = False
    asking.join(60)
    assert answers == [(200, {"Error": ""})]
    assert world.get("p").spec.node_name == "a"


GROUP = {"metadata": {"name": "g", "namespace": "team"}, "spec": {"minMember": 2}}


def members(service: PlannerService) -> int | None:
    """Return the size of the gang group in the core; None if it is unknown."""
    core = service.mirrors.core
    return core.pods.requests.groups.get((GangSource.VOLCANO, "team", "g")) if core is not None else None


def test_groups_are_known_although_the_api_server_was_down_at_the_start(world: World) -> None:
    world.node("a")
    world.client.create(VOLCANO_GROUP, GROUP, "team")
    world.client.faults.down = True
    service = world.start()
    until(lambda: service._api_server_down, "the planner knows that the API server is away")
    world.client.faults.down = False
    until(service.leads, "leads")
    assert members(service) == 2


def test_group_kind_installed_later_is_watched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_groups, "ASK_EVERY_S", 0.05)
    world.client.faults.absent.add("podgroups")
    service = world.start()
    until(service.leads, "leads")
    world.client.faults.absent.clear()
    world.client.create(VOLCANO_GROUP, GROUP, "team")
    until(lambda: members(service) == 2, "the group is known")
