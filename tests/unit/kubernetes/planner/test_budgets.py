"""Disruption budgets that are watched: who makes way for others, and what is said when nobody may."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.kubernetes.planner.virtual import Cluster
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.kubernetes.planner.book import Stage
from calabash.kubernetes.planner.budgets import BudgetSeen, LabelTerm
from calabash.kubernetes.planner.facts import NamespaceSeen, QueueSeen
from calabash.kubernetes.planner.reading import budget_facts
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest
from calabash.seams.kube.objects import EVENT, NAMESPACE, PDB, POD, PodDisruptionBudget
from calabash.seams.kube.resources import QUEUE

WHOLE = GpuRequest()
PROD = QueueSeen(name="prod", deserved=2.0)


def app(name: str) -> tuple[LabelTerm, ...]:
    return (LabelTerm(key="app", operator="In", values=(name,)),)


def budget(name: str, allowed: int, *, terms: tuple[LabelTerm, ...] | None = None) -> BudgetSeen:
    return BudgetSeen(namespace="team", name=name, terms=app(name) if terms is None else terms, allowed=allowed)


def borrowed(**labels: str) -> tuple[Cluster, list[str]]:
    """Two devices, lent to one pod each with the label ``app``; ``prod`` deserves both."""
    cluster = Cluster({"a": 2}, [PROD])
    pods = [cluster.create(WHOLE, name=name, labels={"app": app}) for name, app in labels.items()]
    cluster.settle()
    assert len(cluster.bound()) == 2
    cluster.core.namespace(NamespaceSeen(name="shop", queue="prod"))
    return cluster, pods


@pytest.mark.parametrize("kept", ["db", "web"])
def test_of_two_that_could_make_way_the_one_goes_that_no_budget_keeps(kept: str) -> None:
    cluster, _ = borrowed(p0="db", p1="web")
    cluster.core.budget(budget(kept, 0))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert [cluster_app(u) for u in cluster.evictions] == ["web" if kept == "db" else "db"]
    assert uid in cluster.bound()
    cluster.check()


def cluster_app(uid: str) -> str:
    return {"p0": "db", "p1": "web"}[uid]


def test_where_budgets_keep_all_the_newcomer_waits_and_is_told_which_and_goes_on_when_one_allows_it() -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    cluster.core.budget(budget("db", 0))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []
    entry = cluster.core.book.entries[uid]
    assert entry.stage is Stage.WAITING
    assert "2 that could make way may not be stopped now: 1 disruption budget of another namespace" in entry.told[1]
    cluster.core.budget(budget("db", 1))
    cluster.settle()
    assert len(cluster.evictions) == 1
    assert uid in cluster.bound()


def test_a_budget_that_is_gone_keeps_nobody() -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    cluster.core.budget(budget("db", 0))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    cluster.core.budget(budget("db", 0), there=False)
    cluster.settle()
    assert uid in cluster.bound()


def test_a_pod_with_two_budgets_is_left_alone_for_the_api_server_would_evict_it_never() -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    cluster.core.budget(budget("db", 5))
    cluster.core.budget(budget("all", 5, terms=()))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []
    assert "1 disruption budget of another namespace" in cluster.core.book.entries[uid].told[1]


def test_a_planner_that_takes_over_heeds_the_budgets_that_there_are() -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    cluster.restarted()
    cluster.core.budget(budget("db", 0))
    cluster.core.namespace(NamespaceSeen(name="shop", queue="prod"))
    cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert cluster.evictions == []


def test_selectors_are_read_as_kubernetes_means_them() -> None:
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
        assert all(term.holds(labels) for term in found) is holds
    assert LabelTerm(key="a", operator="DoesNotExist").holds({})
    assert not LabelTerm(key="a", operator="Gt", values=("1",)).holds({"a": "2"}), "what is not known holds for nobody"


def test_the_service_watches_budgets_and_tells_the_victim_why_it_goes(world: World) -> None:
    client = world.client
    world.node("a")
    client.create(QUEUE, {"metadata": {"name": "prod"}, "spec": {"deserved": 2}})
    client.create(NAMESPACE, {"metadata": {"name": "shop", "labels": {"calabash.dev/queue": "prod"}}})
    body = {"metadata": {"name": "db", "namespace": "team"}, "spec": {"selector": {"matchLabels": {"app": "db"}}}}
    client.create(PDB, body, "team")
    service = world.start()
    for name in ("p0", "p1"):
        world.pod(name, WHOLE)
        client.patch(POD, name, "team", body={"metadata": {"labels": {"app": "db"}}})
        pod = until(lambda n=name: released(world, n), "released")  # type: ignore[misc]
        assert world.bind(service, pod, "a") == (200, {"Error": ""})
        client.patch(POD, name, "team", body={"status": {"phase": "Running"}}, subresource="status")
    world.pod("s", WHOLE, namespace="shop")
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
    events = [e for e in client.list(EVENT, "team").items if e.reason == "Reclaim"]
    assert [e.involved_object.name for e in events] == [leaving[0].metadata.name]
    assert "stopped for 1 pod of another namespace (reclaim) on a" in events[0].message
    client.faults.release("team", leaving[0].metadata.name)
    until(lambda: released(world, "s", "shop"), "released once its devices are free")


def test_the_reason_is_no_capacity_with_the_budget_beside_it() -> None:
    cluster, _ = borrowed(p0="db", p1="db")
    cluster.core.budget(budget("db", 0))
    uid = cluster.create(WHOLE, namespace="shop")
    cluster.settle()
    assert cluster.core.book.entries[uid].told[0] in (Reason.NO_CAPACITY, Reason.NO_CORES, Reason.NO_MEMORY)
