"""Disruption budgets: the choice of victims, explanations, and borrowed devices that no budget protects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.virtual import Cluster
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube.objects.core import EVENT, NAMESPACE, PDB, POD, PodDisruptionBudget
from calabash.adapters.kube.objects.resources import QUEUE
from calabash.kubernetes.planner.state.budgets import BudgetFacts, LabelTerm
from calabash.kubernetes.planner.state.facts import EvictPod, NamespaceFacts, PodFacts, QueueFacts
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.planner.state.queues import KubeQueues
from calabash.kubernetes.planner.watch.facts_from_objects import budget_facts
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest
from calabash.sched import (
    Evict,
    GpuSpec,
    Move,
    NodePlacement,
    NodeSpec,
    Options,
    QueueSpec,
    Request,
    Scheduler,
    Shape,
    set_evictable,
)

WHOLE = GpuRequest()
PROD = QueueFacts(name="prod", deserved=2.0)
OWN = QueueFacts(name="default", deserved=2.0)
HIGH = 1000  # priority of a pod that may replace others of its queue


def app(name: str) -> tuple[LabelTerm, ...]:
    return (LabelTerm(key="app", operator="In", values=(name,)),)


def budget(name: str, allowed: int, *, terms: tuple[LabelTerm, ...] | None = None) -> BudgetFacts:
    return BudgetFacts(namespace="team", name=name, terms=app(name) if terms is None else terms, allowed=allowed)


def borrowed(**labels: str) -> tuple[Cluster, list[str]]:
    """Return a cluster whose two devices ``prod`` deserves, and the pods (name, label ``app``) that borrow them."""
    cluster = Cluster({"a": 2}, [PROD])
    pods = [cluster.create(WHOLE, name=name, labels={"app": app}) for name, app in labels.items()]
    cluster.settle()
    assert len(cluster.bound()) == 2
    cluster.core.namespace_changed(NamespaceFacts(name="shop", queue="prod"))
    return cluster, pods


def owned(**labels: str) -> tuple[Cluster, list[str]]:
    """Return a cluster of two devices, and the pods that have one each in a queue that deserves both."""
    cluster = Cluster({"a": 2}, [OWN])
    pods = [cluster.create(WHOLE, name=name, labels={"app": app}) for name, app in labels.items()]
    cluster.settle()
    assert len(cluster.bound()) == 2
    return cluster, pods


@pytest.mark.parametrize("kept", ["db", "web"])
def test_of_two_victims_the_one_without_a_budget_is_evicted(kept: str) -> None:
    cluster, _ = borrowed(p0="db", p1="web")
    cluster.core.budget_changed(budget(kept, 0))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert [cluster_app(u) for u in cluster.evictions] == ["web" if kept == "db" else "db"]
    assert uid in cluster.bound()
    cluster.check()


def cluster_app(uid: str) -> str:
    return {"p0": "db", "p1": "web"}[uid]


def test_pod_waits_with_the_names_of_budgets_until_one_allows_an_eviction() -> None:
    cluster, _ = owned(p0="db", p1="db")
    cluster.core.budget_changed(budget("db", 0))
    uid = cluster.create(WHOLE, priority=HIGH, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []
    entry = cluster.core.store.entries[uid]
    assert entry.stage is Stage.WAITING
    assert "2 pods that could be evicted are protected now: 1 disruption budget of another namespace" in in_full(
        entry.message
    )
    cluster.core.budget_changed(budget("db", 1))
    cluster.settle()
    assert len(cluster.evictions) == 1
    assert uid in cluster.bound()


def test_deleted_budget_protects_no_pod() -> None:
    cluster, _ = owned(p0="db", p1="db")
    cluster.core.budget_changed(budget("db", 0))
    uid = cluster.create(WHOLE, priority=HIGH, namespace="shop")
    cluster.settle()
    cluster.core.budget_changed(budget("db", 0), there=False)
    cluster.settle()
    assert uid in cluster.bound()


def test_pod_with_two_budgets_is_not_evicted() -> None:
    cluster, _ = owned(p0="db", p1="db")
    cluster.core.budget_changed(budget("db", 5))
    cluster.core.budget_changed(budget("all", 5, terms=()))
    uid = cluster.create(WHOLE, priority=HIGH, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []
    assert "1 disruption budget of another namespace" in in_full(cluster.core.store.entries[uid].message)


def test_next_planner_respects_existing_budgets() -> None:
    cluster, _ = owned(p0="db", p1="db")
    cluster.restarted()
    cluster.core.budget_changed(budget("db", 0))
    cluster.create(WHOLE, priority=HIGH, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []


def test_label_terms_match_as_in_kubernetes() -> None:
    def terms(selector: dict[str, object] | None) -> tuple[LabelTerm, ...] | None:
        raw = {
            "metadata": {"name": "b", "namespace": "team"},
            "spec": {"selector": selector} if selector is not None else {},
        }
        return budget_facts(msgspec.convert(raw, PodDisruptionBudget)).terms

    assert terms(None) is None, "no selector selects nobody"
    assert terms({}) == (), "an empty one selects all"
    expressions = [{"key": "tier", "operator": "NotIn", "values": ["x"]}, {"key": "app", "operator": "Exists"}]
    found = terms({"matchLabels": {"app": "db"}, "matchExpressions": expressions})
    assert found is not None
    for labels, holds in (({"app": "db"}, True), ({"app": "db", "tier": "x"}, False), ({"tier": "y"}, False)):
        assert all(term.matches(labels) for term in found) is holds
    assert LabelTerm(key="a", operator="DoesNotExist").matches({})
    assert not LabelTerm(key="a", operator="Gt", values=("1",)).matches({"a": "2"}), (
        "what is not known holds for nobody"
    )


def test_service_watches_budgets_and_writes_the_reason_of_an_eviction(world: World) -> None:
    client = world.client
    world.node("a")
    client.create(QUEUE, {"metadata": {"name": "default"}, "spec": {"deserved": 2}})
    client.create(NAMESPACE, {"metadata": {"name": "shop"}})
    body = {"metadata": {"name": "db", "namespace": "team"}, "spec": {"selector": {"matchLabels": {"app": "db"}}}}
    client.create(PDB, body, "team")
    service = world.start()
    for name in ("p0", "p1"):
        world.pod(name, WHOLE)
        client.patch(POD, name, "team", body={"metadata": {"labels": {"app": "db"}}})
        pod = until(lambda n=name: released(world, n), "released")  # type: ignore[misc]
        assert world.bind(service, pod, "a") == (200, {"Error": ""})
        client.patch(POD, name, "team", body={"status": {"phase": "Running"}}, subresource="status")
    world.pod("s", WHOLE, namespace="shop", priority=HIGH)
    condition = until(
        lambda: next((c for c in world.get("s", "shop").status.conditions if c.type == "PodScheduled"), None), "told"
    )
    assert "1 disruption budget of another namespace" in condition.message
    assert not [p for p in client.list(POD, "team").items if p.metadata.deletion_timestamp]
    client.patch(PDB, "db", "team", body={"status": {"disruptionsAllowed": 1}}, subresource="status")
    leaving = until(lambda: [p for p in client.list(POD, "team").items if p.metadata.deletion_timestamp], "evicted")
    assert len(leaving) == 1
    world.settle(service)
    assert released(world, "s", "shop") is None, "not before it is gone, which takes its grace"
    events = [e for e in client.list(EVENT, "team").items if e.reason == "Preempt"]
    assert [e.involved_object.name for e in events] == [leaving[0].metadata.name]
    assert "evicted from a for 1 pod of another namespace (preempt)" in events[0].message
    client.faults.release("team", leaving[0].metadata.name)
    until(lambda: released(world, "s", "shop"), "released once its devices are free")


def test_explanation_has_the_reason_and_the_budget() -> None:
    cluster, _ = owned(p0="db", p1="db")
    cluster.core.budget_changed(budget("db", 0))
    uid = cluster.create(WHOLE, priority=HIGH, namespace="shop")
    cluster.settle()
    assert cluster.core.store.entries[uid].reason is Reason.QUEUE_OVER_DESERVED


# ---- loans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budgets", [1, 2])
def test_borrowed_devices_are_reclaimed_although_budgets_protect_every_borrower(budgets: int) -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    for number in range(budgets):
        cluster.core.budget_changed(budget(f"db{number}", 0, terms=app("db")))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.decide()
    evictions = [action for action in cluster.todo if isinstance(action, EvictPod)]
    assert [action.owed for action in evictions] == [True]
    cluster.settle()
    assert len(cluster.evictions) == 1
    assert uid in cluster.bound()


def test_pod_within_a_guarantee_is_not_owed() -> None:
    cluster, _ = owned(p0="db", p1="web")
    cluster.create(WHOLE, priority=HIGH, namespace="shop")
    cluster.decide()
    assert [action.owed for action in cluster.todo if isinstance(action, EvictPod)] == [False]


def test_moved_pod_is_not_owed_and_a_kept_one_is_not_moved() -> None:
    scheduler = Scheduler(
        [NodeSpec(name=name, cpu_milli=1000, memory_mib=1000, gpus=(GpuSpec(), GpuSpec())) for name in "ab"],
        [QueueSpec(name="q")],
        options=Options(defragment_moves_max=4),
    )
    for row in (0, 1):
        request = Request(id=f"r{row}", shape=Shape(gpu_count=1, gpu_milli=1000), queue="q", guarded=True)
        scheduler.adopt(request, placement=NodePlacement(node=row, devices=(0,)), started_at_s=0.0)
    scheduler.submit(Request(id="large", shape=Shape(gpu_count=2, gpu_milli=1000), queue="q"))
    assert not [d for d in scheduler.cycle(100.0) if isinstance(d, Move | Evict)]
    set_evictable(scheduler, "r0", evictable=True)
    assert [type(d) for d in scheduler.cycle(200.0) if isinstance(d, Move | Evict)] == [Move]


@pytest.mark.parametrize("namespace", ["team", "kube-system"])
def test_priority_of_the_system_counts_in_namespaces_of_the_system_only(namespace: str) -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    uid = cluster.create(WHOLE, namespace=namespace, priority=2_000_001_000)
    cluster.settle()
    counts = namespace == "kube-system"
    assert (uid in cluster.bound()) is counts, "it does not evict others of its queue"
    assert len(cluster.evictions) == counts
    for name in list(cluster.bound()):
        if name != uid:
            cluster.end(name)
    cluster.settle()
    assert uid in cluster.bound()
    asker = cluster.create(GpuRequest(count=2), namespace="shop")
    cluster.settle()
    assert (asker in cluster.bound()) is not counts, "it gives back what it borrowed"


def test_namespaces_of_the_system_are_the_administrators_to_name(world: World) -> None:
    service = world.start(system_namespaces=("infra",))
    until(service.leads, "leads")
    core = service._core
    assert core is not None
    requests = core.pods.requests
    counted = {
        name: requests.priority(
            PodFacts(uid="u", namespace=name, name="p", created_at_s=0.0, request=None, priority=2**31 - 1)
        )
        for name in ("infra", "calabash-system", "kube-system", "team")
    }
    assert counted == {"infra": 2**31 - 1, "calabash-system": 2**31 - 1, "kube-system": 0, "team": 0}


def test_grace_of_an_evicted_pod_is_that_of_its_queue_or_of_one_above() -> None:
    queues = KubeQueues()
    assert queues.eviction_grace_s("default") == 300
    queues.set_queues(
        [
            QueueFacts(name="org", eviction_grace_s=60),
            QueueFacts(name="lab", parent="org"),
            QueueFacts(name="fast", parent="org", eviction_grace_s=5),
            QueueFacts(name="circle", parent="circle"),
        ]
    )
    found = {name: queues.eviction_grace_s(name) for name in ("org", "lab", "fast", "circle", "absent")}
    assert found == {"org": 60, "lab": 60, "fast": 5, "circle": 300, "absent": 300}


KNOBS: dict[str, dict[str, Any]] = {
    "grace": {"spec": {"terminationGracePeriodSeconds": 1_000_000_000}},
    "budget": {"budget": 0},
    "two budgets": {"budget": 5, "second": True},
    "finalizer": {"metadata": {"finalizers": ["example.org/keep"]}},
    "hook": {"spec": {"containers": [{"name": "main", "lifecycle": {"preStop": {"sleep": {"seconds": 10**9}}}}]}},
    "priority": {"spec": {"priority": 2_000_001_000, "preemptionPolicy": "Never"}},
    "marks": {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}},
    "own marks": {"metadata": {"annotations": {"calabash.dev/movable": "false", "calabash.dev/preemptible": "false"}}},
    "already leaving": {"leaving": True, "spec": {"terminationGracePeriodSeconds": 1_000_000_000}},
}


@pytest.mark.parametrize("knob", KNOBS)
def test_no_tenant_setting_prevents_reclaiming_borrowed_devices(world: World, knob: str) -> None:
    """The borrower is evicted with its queue's grace period, whatever its pod's own settings are."""
    client, more = world.client, KNOBS[knob]
    world.node("a")
    client.create(QUEUE, {"metadata": {"name": "default"}, "spec": {"evictionGraceSeconds": 7}})
    client.create(QUEUE, {"metadata": {"name": "prod"}, "spec": {"deserved": 2}})
    client.create(NAMESPACE, {"metadata": {"name": "shop", "labels": {"calabash.dev/queue": "prod"}}})
    service = world.start()
    world.pod("borrower", GpuRequest(count=2), **more.get("spec", {}))
    client.patch(POD, "borrower", "team", body={"metadata": {"labels": {"app": "db"}, **more.get("metadata", {})}})
    pod = until(lambda: released(world, "borrower"), "released")
    assert world.bind(service, pod, "a") == (200, {"Error": ""})
    client.patch(POD, "borrower", "team", body={"status": {"phase": "Running"}}, subresource="status")
    for name in ("first", "second")[: 0 if "budget" not in more else 2 if more.get("second") else 1]:
        selector = {"selector": {"matchLabels": {"app": "db"}}}
        client.create(PDB, {"metadata": {"name": name, "namespace": "team"}, "spec": selector}, "team")
        body = {"status": {"disruptionsAllowed": more["budget"]}}
        client.patch(PDB, name, "team", body=body, subresource="status")
    if more.get("leaving"):
        client.delete(POD, "borrower", "team")
    world.settle(service)
    world.pod("owner", GpuRequest(count=2), namespace="shop")

    def grace_s() -> int | None:
        now = world.get("borrower").metadata
        return now.deletion_grace_period_seconds if now.deletion_timestamp else None

    until(lambda: (found := grace_s()) is not None and found <= 7, "asked to end within the time of its queue")
    assert grace_s() == 7
    overruled = [e for e in client.list(EVENT, "team").items if e.reason == "BudgetOverruled"]
    assert bool(overruled) is (knob in ("budget", "two budgets"))
