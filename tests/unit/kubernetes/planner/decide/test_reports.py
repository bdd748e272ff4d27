"""Reports of waiting pods, and nodes whose kubelets offer no device IDs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.virtual import Cluster, device
from tests.unit.kubernetes.planner.world import World, released, until

import calabash
from calabash.adapters.kube.objects.core import Node
from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.kubernetes.planner.decide.core import HOLD_S
from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.decide.unused_plans import REFUSED_S
from calabash.kubernetes.planner.state.facts import GpuNodeFacts, NamespaceFacts, NodeFacts, QueueFacts, Report
from calabash.kubernetes.planner.watch.facts_from_objects import node_facts
from calabash.model.errors import Reason
from calabash.model.messages import QueueName, in_full, mentions
from calabash.model.request import GpuRequest, ModeName, Selector

WHOLE = GpuRequest()


def reports(cluster: Cluster, uid: str) -> list[Report]:
    return [r for r in cluster.reports if r.pod.uid == uid]


def pass_s(cluster: Cluster, seconds: float) -> None:
    """Let time pass, with a decision every second, as in the service."""
    for _ in range(int(seconds)):
        cluster.now_s += 1.0
        cluster.settle(2)


def test_waiting_reason_is_reported_once_with_numbers_after_a_second() -> None:
    cluster = Cluster({"a": 1})
    cluster.create(WHOLE)
    cluster.settle()
    uid = cluster.create(WHOLE)
    cluster.settle()
    assert reports(cluster, uid) == []
    pass_s(cluster, 60)
    (report,) = reports(cluster, uid)
    assert report.reason is Reason.NO_CAPACITY
    assert "0/1 nodes are available" in in_full(report.message)


def test_report_of_a_pod_over_the_limit_of_its_queue_has_the_queue_as_argument() -> None:
    cluster = Cluster({"a": 2}, [QueueFacts(name="small", limit=1.0)])
    cluster.core.namespace_changed(NamespaceFacts(name="team", queue="small"))
    cluster.create(WHOLE)
    cluster.settle()
    uid = cluster.create(WHOLE)
    pass_s(cluster, 3)
    (report,) = reports(cluster, uid)
    assert report.reason is Reason.QUEUE_OVER_LIMIT
    assert mentions(report.message, QueueName("small"))


def test_pod_planned_within_a_second_has_no_report() -> None:
    cluster = Cluster({"a": 1})
    first = cluster.create(WHOLE)
    cluster.settle()
    uid = cluster.create(WHOLE)
    cluster.settle()
    cluster.end(first)
    cluster.settle()
    assert uid in cluster.bound()
    pass_s(cluster, 5)
    assert cluster.reports == []


def test_end_of_a_reported_wait_is_reported() -> None:
    cluster = Cluster({"a": 1})
    first = cluster.create(WHOLE)
    cluster.settle()
    uid = cluster.create(WHOLE)
    pass_s(cluster, 3)
    cluster.end(first)
    cluster.settle()
    waits, planned = reports(cluster, uid)
    assert (waits.reason, planned.reason, in_full(planned.message)) == (Reason.NO_CAPACITY, None, "planned on a")


def test_changing_numbers_are_reported_every_ten_seconds() -> None:
    cluster = Cluster({"a": 1})
    cluster.create(WHOLE)
    cluster.settle()
    uid = cluster.create(WHOLE)
    for second in range(30):
        cluster.core.store.actions.set_reason(
            cluster.core.store.entries[uid], Reason.NO_CAPACITY, f"{second} are before it"
        )
        pass_s(cluster, 1)
    said = [in_full(r.message) for r in reports(cluster, uid)]
    assert said == [f"{second} are before it" for second in (1, 12, 23)]
    cluster.core.store.actions.set_reason(cluster.core.store.entries[uid], Reason.QUEUE_OVER_LIMIT, "another reason")
    pass_s(cluster, 2)
    assert reports(cluster, uid)[-1].reason is Reason.QUEUE_OVER_LIMIT, "that is told at once"


def of_models(**models: tuple[str, ...]) -> Cluster:
    """Return a cluster with a node for each device model, whose agent serves the given sharing modes."""
    cluster = Cluster({})
    for number, (model, modes) in enumerate(models.items()):
        card = replace(device(number), model=model)
        served = frozenset(ModeName(mode) for mode in modes)
        seen = GpuNodeFacts(name=f"n{number}", devices=(NodeDevice(device=card, modes=served),))
        cluster.nodes[seen.name] = (NodeFacts(name=seen.name, labels={}), seen)
        cluster.core.devices_changed(seen, cluster.now_s)
        cluster.core.node_changed(cluster.nodes[seen.name][0], cluster.now_s)
    return cluster


def test_hint_names_other_models_if_the_chosen_one_is_busy_in_another_mode() -> None:
    cluster = of_models(T4=("vgpu", "timeslice"), A10=("vgpu", "timeslice"))
    small = Selector(models=("T4",))
    cluster.create(GpuRequest(mode=ModeName("timeslice"), selector=small))
    cluster.settle()
    uid = cluster.create(GpuRequest(memory_mib=2048, core_percent=30, selector=small))
    pass_s(cluster, 3)
    (report,) = reports(cluster, uid)
    assert report.reason is Reason.MODE_CONFLICT
    assert in_full(report.message).endswith("hint: would fit on another device model (A10)")


def test_hint_names_no_unsuitable_models_if_none_was_chosen() -> None:
    cluster = of_models(T4=("vgpu", "timeslice"), A10=("exclusive",))
    cluster.create(GpuRequest(mode=ModeName("timeslice")))
    cluster.settle()
    uid = cluster.create(GpuRequest(memory_mib=2048, core_percent=30))
    pass_s(cluster, 3)
    (report,) = reports(cluster, uid)
    assert report.reason is Reason.MODE_CONFLICT
    assert "another device model" not in in_full(report.message)


def test_explanation_names_the_pod_for_which_devices_are_reserved() -> None:
    cluster = Cluster({"a": 1})
    first = cluster.create(GpuRequest(mode=ModeName("timeslice")))
    cluster.settle()
    waiting = cluster.create(GpuRequest(memory_mib=2048, core_percent=30), name="0f8fad5b-d9cb-469f-a165-70867728950e")
    pass_s(cluster, 3)
    late = cluster.create(GpuRequest(mode=ModeName("timeslice")))
    pass_s(cluster, 3)
    assert reports(cluster, waiting)[0].reason is Reason.MODE_CONFLICT
    assert f"for team/{waiting}," in in_full(reports(cluster, late)[0].message)
    cluster.end(first)
    cluster.settle()
    assert waiting in cluster.bound(), "who waits for another mode has the card when the last one leaves"


# ---- nodes that are not ready -----------------------------------------------------------------------------------------


def offers(cluster: Cluster, name: str, yes: bool) -> None:
    node, devices = cluster.nodes[name]
    cluster.nodes[name] = (replace(node, offers_device_ids=yes), devices)
    cluster.core.node_changed(cluster.nodes[name][0], cluster.now_s)


def test_a_node_whose_kubelet_offers_no_devices_takes_nothing_new_and_keeps_what_it_has() -> None:
    cluster = Cluster({"a": 2})
    before = cluster.create(WHOLE)
    cluster.settle()
    offers(cluster, "a", False)
    uid = cluster.create(WHOLE)
    pass_s(cluster, 3)
    assert cluster.bound() == {before: "a"}
    (report,) = reports(cluster, uid)
    assert "1 nodes get no pods now: the kubelet of a offers no calabash.dev/gpus now" in in_full(report.message)
    assert cluster.core.store.scheduler.holds(cluster.core.store.entries[before].id)
    offers(cluster, "a", True)
    cluster.settle()
    assert set(cluster.bound()) == {before, uid}


def test_node_whose_kubelet_offers_only_the_tokens_in_use_takes_nothing_new() -> None:
    """An agent that can grant nothing, as on a full disk, leaves the kubelet only the device IDs of running pods."""
    cluster = Cluster({"a": 2})
    before = cluster.create(WHOLE)
    cluster.settle()
    tokens_of(cluster, "a", 1)
    later = cluster.create(WHOLE)
    pass_s(cluster, 3)
    assert set(cluster.bound()) == {before}
    tokens_of(cluster, "a", 2)
    cluster.settle()
    assert set(cluster.bound()) == {before, later}


def has_agent(cluster: Cluster, name: str, version: str) -> None:
    """Set the version of the agent that reports the devices of a node."""
    node, devices = cluster.nodes[name]
    cluster.nodes[name] = (node, replace(devices, agent_version=version))
    cluster.core.devices_changed(cluster.nodes[name][1], cluster.now_s)


def test_node_whose_agent_is_newer_than_the_planner_takes_nothing_new_and_the_waiting_pod_is_told_the_versions() -> (
    None
):
    cluster = Cluster({"a": 2})
    has_agent(cluster, "a", calabash.__version__)
    before = cluster.create(WHOLE)
    cluster.settle()
    has_agent(cluster, "a", "0.9.0")
    uid = cluster.create(WHOLE)
    pass_s(cluster, 3)
    assert cluster.bound() == {before: "a"}
    (report,) = reports(cluster, uid)
    text = in_full(report.message)
    assert f"the agent of node a is calabash 0.9.0, and planner {calabash.__version__} supports agents of" in text
    assert "hint: upgrade the agents with the planner" in text
    has_agent(cluster, "a", calabash.__version__)
    cluster.settle()
    assert set(cluster.bound()) == {before, uid}


def tokens_of(cluster: Cluster, name: str, count: int) -> None:
    """Set the number of device IDs (tokens) that the kubelet of a node offers."""
    node, devices = cluster.nodes[name]
    cluster.nodes[name] = (replace(node, device_ids=count), devices)
    cluster.core.node_changed(cluster.nodes[name][0], cluster.now_s)


def test_released_pod_is_refused_a_node_whose_kubelet_offers_no_devices_and_bound_once_it_does() -> None:
    """kube-scheduler does not count a kubelet's device IDs: the planner refuses the node, where the pod would fail."""
    cluster = Cluster({"a": 2})
    uid = cluster.create(WHOLE)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    assert not cluster.pods[uid].gated
    assert cluster.core.answers.planned_node(uid) == "a"
    offers(cluster, "a", False)
    assert cluster.core.answers.planned_node(uid) is None
    answer = cluster.core.answers.filter(uid, ["a"], "a", cluster.now_s)
    assert (answer.node, answer.text) == (None, "the kubelet of a offers no calabash.dev/gpus now")
    pass_s(cluster, 3)
    assert cluster.bound() == {}
    assert cluster.core.store.scheduler.holds(cluster.core.store.entries[uid].id), "its plan stays for a while"
    offers(cluster, "a", True)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_released_pod_goes_elsewhere_if_the_kubelet_of_its_node_offers_no_devices_for_long() -> None:
    cluster = Cluster({"a": 2})
    uid = cluster.create(WHOLE)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    offers(cluster, "a", False)
    cluster.add_node("b")
    pass_s(cluster, REFUSED_S - 2)
    assert cluster.bound() == {}
    pass_s(cluster, 5)
    assert cluster.bound() == {uid: "b"}


def held_gang(cluster: Cluster) -> tuple[str, str]:
    """Create a gang of two pods on nodes ``a`` and ``b``, and ask to bind the one on ``a``, which is held back.

    Returns the UIDs of the pods, the one on ``a`` first.
    """
    members = [cluster.create(GpuRequest(gang="g", gang_size=2)) for _ in range(2)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    first, second = sorted(members, key=lambda uid: str(cluster.core.answers.planned_node(uid)))
    assert cluster.core.answers.bind(first, "a", cluster.now_s).verdict is BindVerdict.HOLD
    return first, second


def test_held_binding_of_a_gang_waits_until_the_kubelet_of_its_node_offers_devices_again() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    first, second = held_gang(cluster)
    offers(cluster, "a", False)
    assert cluster.core.answers.bind(second, "b", cluster.now_s).verdict is BindVerdict.HOLD
    for _ in range(5):
        cluster.now_s += 1.0
        cluster.decide()
        assert (cluster.core.answers.release_ready_holds(), cluster.core.answers.take_expired(cluster.now_s)) == (
            [],
            [],
        )
    offers(cluster, "a", True)
    assert set(cluster.core.answers.release_ready_holds()) == {first, second}
    assert [cluster.bind(first), cluster.bind(second)] == ["a", "b"]


def test_held_bindings_are_refused_in_time_and_say_which_kubelet_offers_no_devices() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    first, second = held_gang(cluster)
    offers(cluster, "a", False)
    assert cluster.core.answers.bind(second, "b", cluster.now_s).verdict is BindVerdict.HOLD
    refused = dict(cluster.core.answers.take_expired(cluster.now_s + HOLD_S + 1))
    why = "gang g: members could not be bound in time, because the kubelet of a offers no calabash.dev/gpus now"
    assert refused[first] == why
    assert set(refused) == {first, second}
    assert cluster.bound() == {}
    offers(cluster, "a", True)
    cluster.settle()
    assert cluster.bound() == {first: "a", second: "b"}


def test_released_member_is_not_bound_if_its_kubelet_offers_no_devices_by_then() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    first, second = held_gang(cluster)
    assert cluster.bind(second, "b") == "b"
    assert cluster.core.answers.released_holds() == [first]
    offers(cluster, "a", False)
    answer = cluster.core.answers.bind(first, "a", cluster.now_s)
    assert (answer.verdict, answer.text) == (BindVerdict.REFUSE, "the kubelet of a offers no calabash.dev/gpus now")
    offers(cluster, "a", True)
    cluster.settle()
    assert cluster.bound() == {first: "a", second: "b"}


def test_pod_is_not_bound_if_its_kubelet_stopped_offering_devices_after_the_filter() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(WHOLE)
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    assert cluster.core.answers.planned_node(uid) == "a"
    offers(cluster, "a", False)
    assert cluster.core.answers.bind(uid, "a", cluster.now_s).verdict is BindVerdict.REFUSE
    offers(cluster, "a", True)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_a_pod_goes_to_the_node_that_is_ready() -> None:
    cluster = Cluster({"a": 2, "b": 2})
    offers(cluster, "a", False)
    pods = [cluster.create(WHOLE) for _ in range(2)]
    cluster.settle()
    assert cluster.bound() == dict.fromkeys(pods, "b")
    cluster.lose_node("a")
    cluster.create(WHOLE)
    cluster.settle()
    assert cluster.core.store.unready == {}


@pytest.mark.parametrize(
    ("allocatable", "ready"), [({}, False), ({"calabash.dev/gpus": "0"}, False), ({"calabash.dev/gpus": "128"}, True)]
)
def test_a_kubelet_offers_devices_when_it_has_tokens_to_allocate(allocatable: dict[str, str], ready: bool) -> None:
    raw: dict[str, Any] = {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}
    assert node_facts(msgspec.convert(raw, Node)).offers_device_ids is ready


def test_a_pod_is_released_when_the_kubelet_begins_to_offer_devices(world: World) -> None:
    world.node("a", tokens=0)
    service = world.start()
    until(service.leads, "leads")
    world.pod("p", WHOLE)
    until(lambda: service.mirrors.pods.get("p", "team"), "seen")
    assert released(world, "p") is None
    world.tokens("a", 16)
    until(lambda: released(world, "p"), "released")
