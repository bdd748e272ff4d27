"""The planner service on an in-memory API server: pods are planned, released and bound over HTTP."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.world import SETTINGS, World, released, until

from calabash.adapters.kube import KubeError
from calabash.adapters.kube.objects.claims import DEVICE_CLASS, RESOURCE_CLAIM
from calabash.adapters.kube.objects.core import EVENT, LEASE, POD, Pod
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY, PLAN, PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.objects.plan import read_plan
from calabash.kubernetes.objects.shards import ALL
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.planner.watch.facts_from_objects import pod_facts
from calabash.kubernetes.planner.watch.mirrors import Mirrors
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest, write_request
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest


def test_a_pod_is_nominated_released_filtered_and_bound(world: World) -> None:
    world.node("a")
    world.node("b")
    service = world.start()
    world.pod("p", GpuRequest(memory_mib=8192, core_percent=20), nodeSelector={"pool": "b"})
    pod = until(lambda: released(world, "p"), "released")
    plan = read_plan(pod.metadata.annotations[PLAN])
    assert (plan.node, plan.pod_uid) == ("b", pod.metadata.uid)
    assert pod.status.nominated_node_name == "b"
    assert world.filter(service, pod, "a", "b") == (200, {"NodeNames": ["b"]})
    assert world.bind(service, pod, "a")[1]["Error"] == "the pod is planned on b"
    assert world.bind(service, pod, "b") == (200, {"Error": ""})
    assert 'calabash_planner_bindings_total{result="ok"} 1\n' in service.figures.page().decode()
    assert world.get("p").spec.node_name == "b"
    assert world.bind(service, pod, "b") == (200, {"Error": ""}), "asked again, answered alike"
    assert service.pods_by_stage() == {"bound": 1}
    assert service.nodes() == 2


def test_a_pod_with_a_claim_is_nominated_from_fewer_nodes_on(world: World) -> None:
    world.node("a")
    world.node("b")
    world.client.patch(GPU_NODE, "b", body={"status": {"door": "claims"}}, subresource="status")
    whole = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "exclusive"'
    selectors = [{"cel": {"expression": whole}}]
    world.client.create(DEVICE_CLASS, {"metadata": {"name": "whole"}, "spec": {"selectors": selectors}})
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "whole"}}]
    world.client.create(
        RESOURCE_CLAIM, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}, "team"
    )
    part = ContainerRequest(container="gpu", kind=ContainerKind.MAIN, request=GpuRequest())
    by_claim = write_request(PodRequest(dialect="claims", containers=(part,), allocation_api=AllocationApi.CLAIMS))
    body = {
        "metadata": {"name": "claims", "annotations": {REQUEST: by_claim}},
        "spec": {
            "schedulerName": SCHEDULER,
            "schedulingGates": [{"name": PLAN_GATE}],
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
        },
    }
    first = world.start(nominate_nodes_min=3, nominate_claims_nodes_min=2)
    world.pod("tokens", GpuRequest())
    world.client.create(POD, body, "team")
    assert until(lambda: released(world, "tokens"), "released").status.nominated_node_name == ""
    assert until(lambda: released(world, "claims"), "released").status.nominated_node_name == "b"
    first.stop()
    world.client.delete(POD, "claims", "team")
    world.start(nominate_nodes_min=3, nominate_claims_nodes_min=3)
    world.client.create(POD, body, "team")
    assert until(lambda: released(world, "claims"), "released").status.nominated_node_name == ""


def test_release_keeps_gates_of_other_systems(world: World) -> None:
    world.node("a")
    service = world.start()
    until(service.leads, "leads")
    world.pod("p", GpuRequest(), gates=[{"name": "example.com/other"}])
    until(lambda: service.mirrors.pods.get("p", "team"), "seen")
    world.settle(service)
    assert [g.name for g in world.get("p").spec.scheduling_gates] == [PLAN_GATE, "example.com/other"]


def test_changed_plan_is_in_the_annotation_before_the_binding(world: World) -> None:
    for name in "ab":
        world.node(name)
    service = world.start()
    world.pod("p", GpuRequest(count=2))
    pod = until(lambda: released(world, "p"), "released")
    first = read_plan(pod.metadata.annotations[PLAN]).node
    other = "b" if first == "a" else "a"
    assert world.filter(service, pod, other) == (200, {"NodeNames": [other]})
    assert world.bind(service, pod, other) == (200, {"Error": ""})
    bound = world.get("p")
    assert (bound.spec.node_name, read_plan(bound.metadata.annotations[PLAN]).node) == (other, other)


def test_gang_bindings_are_held_until_the_last_member_asks(world: World) -> None:
    world.node("a")
    service = world.start()
    for i in range(2):
        world.pod(f"g{i}", GpuRequest(gang="g", gang_size=2))
    pods = [until(lambda n=f"g{i}": released(world, n), "released") for i in range(2)]  # type: ignore[misc]
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(world.bind(service, pods[0], "a")))
    first.start()
    until(lambda: world.held(service, pods[0]), "the first binding is held")
    assert first.is_alive()
    assert world.get("g0").spec.node_name == ""
    assert world.bind(service, pods[1], "a") == (200, {"Error": ""})
    first.join(60)
    assert answers == [(200, {"Error": ""})]
    assert [world.get(f"g{i}").spec.node_name for i in range(2)] == ["a", "a"]


def test_incomplete_gang_is_refused_with_the_number_of_members(world: World) -> None:
    world.node("a")
    service = world.start(hold_s=0.2)
    for i in range(2):
        world.pod(f"g{i}", GpuRequest(gang="g", gang_size=2))
    pod = until(lambda: released(world, "g0"), "released")
    status, answer = world.bind(service, pod, "a")
    assert status == 200
    assert "of 2 members could be bound in time" in answer["Error"]


def test_held_bindings_of_a_gang_are_written_when_the_kubelet_offers_devices_again(world: World) -> None:
    """The agent of a node is replaced while a gang is bound: until it serves, the kubelet would fail the pods."""
    world.node("a")
    service = world.start()
    for i in range(2):
        world.pod(f"g{i}", GpuRequest(gang="g", gang_size=2))
    pods = [until(lambda n=f"g{i}": released(world, n), "released") for i in range(2)]  # type: ignore[misc]
    answers: list[Any] = []
    binders = [threading.Thread(target=lambda pod=pod: answers.append(world.bind(service, pod, "a"))) for pod in pods]
    binders[0].start()
    until(lambda: world.held(service, pods[0]), "the first binding is held")
    world.tokens("a", 0)
    until(lambda: "a" in known_unready(service), "the node to be known to offer nothing")
    binders[1].start()
    until(lambda: world.held(service, pods[1]), "the second binding is held")
    world.settle(service)
    assert answers == []
    world.tokens("a", 128)
    for binder in binders:
        binder.join(30)
    assert answers == [(200, {"Error": ""})] * 2
    assert [world.get(f"g{i}").spec.node_name for i in range(2)] == ["a", "a"]


def known_unready(service: PlannerService) -> set[str]:
    """Return the nodes of which the planner knows that their kubelets offer no device IDs."""
    with service._lock:
        return set(service._core.store.unready) if service._core is not None else set()


def test_pods_without_devices_are_not_filtered(world: World) -> None:
    world.node("a")
    service = world.start()
    until(service.leads, "leads")
    pod = world.pod("plain", None)
    until(lambda: service.mirrors.pods.get("plain", "team"), "seen")
    assert world.filter(service, pod, "x", "y") == (200, {"NodeNames": ["x", "y"]})
    assert world.bind(service, pod, "a") == (200, {"Error": ""})
    assert world.get("plain").spec.node_name == "a"


def test_waiting_reason_is_written_to_condition_and_event(world: World) -> None:
    world.node("a")
    service = world.start()
    pod = world.pod("p", GpuRequest(memory_mib=100_000, core_percent=10))
    condition = until(
        lambda: next((c for c in world.get("p").status.conditions if c.reason == "TooLarge"), None), "condition"
    )
    assert "asked 97.7GiB" in condition.message or "100000" in condition.message
    events = until(lambda: world.client.list(EVENT, "team").items, "event")
    assert [(e.reason, e.involved_object.name, e.count) for e in events] == [("TooLarge", "p", 1)]
    refused = world.filter(service, pod, "a")[1]
    assert refused["NodeNames"] == []
    assert set(refused["FailedAndUnresolvableNodes"]) == {"a"}


def test_second_planner_takes_over_with_every_plan(world: World) -> None:
    world.node("a")
    first = world.start(identity="first")
    until(first.leads, "leads")
    second = world.start(identity="second")
    world.pod("p", GpuRequest())
    pod = until(lambda: released(world, "p"), "released")
    assert world.filter(second, pod, "a")[0] == 503
    first.stop()
    world.services.remove(first)
    until(second.leads, "the other leads")
    assert world.filter(second, pod, "a") == (200, {"NodeNames": ["a"]})
    world.pod("q", GpuRequest(count=2))
    until(lambda: second.mirrors.pods.get("q", "team"), "seen")
    world.settle(second)
    assert released(world, "q") is None, "the plan of the first holds"
    assert world.bind(second, pod, "a") == (200, {"Error": ""})


def test_planner_leads_only_once_all_lists_are_complete_and_logs_the_missing_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, away = world.client.pages, True

    def paged(kind: Any, *words: Any, **more: Any) -> Any:
        if away and kind.plural == "poddisruptionbudgets":
            raise KubeError("not now", reason=Reason.API_DOWN)
        return pages(kind, *words, **more)

    monkeypatch.setattr(world.client, "pages", paged)
    service = world.start()
    until(lambda: service.mirrors.incomplete_kinds() == ["poddisruptionbudgets"], "all else is told")
    assert not service.leads()
    away = False
    until(service.leads, "leads")
    assert service.mirrors.incomplete_kinds() == []


def test_writes_are_made_when_the_api_server_answers_again(world: World) -> None:
    world.node("a")
    service = world.start()
    until(service.leads, "leads")
    world.pod("p", GpuRequest())
    world.client.faults.down = True
    until(lambda: service._api_server_down, "the planner knows that the API server is away")
    world.client.faults.down = False
    world.client.faults.break_watches()
    until(lambda: released(world, "p"), "released")


def test_writes_missed_in_a_short_loss_of_leadership_are_made_later(world: World) -> None:
    world.node("a")
    service = world.start(term_s=0.3)
    until(service.leads, "leads")
    world.client.faults.down = True
    until(lambda: not service.leads(), "the lead is lost")
    world.client.faults.down = False
    world.pod("p", GpuRequest())
    until(lambda: released(world, "p"), "released")


def test_extender_refuses_invalid_requests(world: World) -> None:
    service = world.start()
    until(service.leads, "leads")
    for body in ({}, {"Pod": 3, "NodeNames": []}, {"Pod": {"metadata": {"uid": 7}}, "NodeNames": "x"}):
        assert world.ask(service, "filter", body)[0] == 400
    assert world.ask(service, "nothing", {})[0] == 404


def test_scheduler_configuration_names_the_extender_and_the_ignored_resources() -> None:
    found = scheduler_configuration("http://planner:7070", leaderElection={"leaderElect": True})
    asking, binding, nominal = found["extenders"]
    assert (asking["filterVerb"], asking["preemptVerb"], asking["httpTimeout"]) == ("filter", "preempt", "1s")
    assert (binding["bindVerb"], binding["httpTimeout"]) == ("bind", "60s")
    assert {r["name"] for r in nominal["managedResources"] if r["ignoredByScheduler"]} == {GPUS, MEMORY, CORES}
    assert "managedResources" not in asking, "else only pods with these resources were asked about"
    assert found["percentageOfNodesToScore"] == 100
    assert not any(e.get("ignorable") for e in found["extenders"])
    assert found["leaderElection"] == {"leaderElect": True}


def test_request_is_read_from_the_spec_if_admission_wrote_none() -> None:
    limits = {GPUS: "2", MEMORY: "8Gi", CORES: "30"}
    raw = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": {PLAN: "not a plan"}},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}, {"key": "v", "value": "1"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
                        ]
                    }
                }
            },
        },
    }
    facts = pod_facts(msgspec.convert(raw, Pod))
    assert facts is not None
    assert facts.request is not None
    request = facts.request.containers[0].request
    assert (request.count, request.memory_mib, request.core_percent) == (2, 8192, 30)
    assert facts.constraints.selector == ("zone in (a,b)",)
    assert facts.constraints.tolerations == frozenset(("k:NoSchedule", "v=1"))
    assert facts.plan is None


def test_unreadable_request_is_a_fault_and_not_a_pod_without_devices() -> None:
    raw = {"metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": {REQUEST: "{"}}}
    facts = pod_facts(msgspec.convert(raw, Pod))
    assert facts is not None
    assert facts.request is None
    assert "cannot be read" in facts.fault


def test_lease_is_renewed_while_a_large_core_is_built(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node("a")
    building = threading.Event()
    emit_all = Mirrors.emit_all

    def renewed() -> str | None:
        lease = world.client.get(LEASE, ALL.lease, SETTINGS.namespace)
        assert lease is not None
        return lease.spec.renew_time

    def slow(mirrors: Mirrors, core: Core) -> None:
        building.set()
        for _ in range(2):
            before = renewed()
            until(lambda before=before: renewed() != before, "the lease is renewed meanwhile")  # type: ignore[misc]
        emit_all(mirrors, core)

    monkeypatch.setattr(Mirrors, "emit_all", slow)
    service = world.start()
    assert building.wait(60)
    world.pod("p", GpuRequest())
    until(lambda: released(world, "p"), "released")
    assert service.lead.term() == 1, "the term in which the core was built"


@pytest.mark.parametrize(
    ("due_in_s", "at_once", "wait_s"), [(0.0, True, 0.0), (0.25, False, 0.25), (90.0, False, 1.0), (None, False, 1.0)]
)
def test_planner_decides_again_at_once_or_at_the_time_that_the_scheduler_names(
    world: World, due_in_s: float | None, at_once: bool, wait_s: float
) -> None:
    service = PlannerService(world.client, SETTINGS)
    core: Any = SimpleNamespace(
        decide=lambda _: None,
        take_actions=list,
        answers=SimpleNamespace(take_expired=lambda _: [], release_ready_holds=list),
        store=SimpleNamespace(scheduler=SimpleNamespace(nodes=(), due_in_s=lambda _: due_in_s)),
    )
    service._core = core
    service._due.clear()
    service._decide_once()
    assert service._due.is_set() is at_once
    assert service._wait_s == wait_s
