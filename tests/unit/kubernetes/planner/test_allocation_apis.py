"""Nodes offer devices by one allocation API: pods of the other are planned elsewhere, or wait with a reason."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.binder.cluster.device_kinds import PlacementConstraints
from calabash.kubernetes.objects.allocation_api import AllocationApi, allocation_api_named
from calabash.kubernetes.planner.state.facts import ReleasePod
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest

TOKENS, CLAIMS = (
    PlacementConstraints(allocation_api=AllocationApi.TOKENS),
    PlacementConstraints(allocation_api=AllocationApi.CLAIMS),
)


def with_allocation_apis(**allocation_apis: str) -> Cluster:
    cluster = Cluster(dict.fromkeys(allocation_apis, 2))
    for name, allocation_api in allocation_apis.items():
        change_allocation_api(cluster, name, allocation_api)
    return cluster


def change_allocation_api(cluster: Cluster, name: str, allocation_api: str) -> None:
    node, told = cluster.nodes[name]
    cluster.nodes[name] = (replace(node, allocation_api=allocation_api), told)
    cluster.core.node_changed(cluster.nodes[name][0], cluster.now_s)


def test_node_label_overrides_the_agent_and_device_plugin_is_the_default() -> None:
    assert allocation_api_named("claims", "tokens") is AllocationApi.CLAIMS
    assert allocation_api_named("", "claims") is AllocationApi.CLAIMS
    assert allocation_api_named("window", "") is AllocationApi.TOKENS


def test_pods_go_to_nodes_of_their_allocation_api() -> None:
    cluster = with_allocation_apis(a="tokens", b="claims")
    by_token = [cluster.create(GpuRequest(), constraints=TOKENS) for _ in range(2)]
    by_claim = [cluster.create(GpuRequest(), constraints=CLAIMS) for _ in range(2)]
    cluster.settle()
    assert cluster.bound() == {**dict.fromkeys(by_token, "a"), **dict.fromkeys(by_claim, "b")}
    third = cluster.create(GpuRequest(), constraints=TOKENS)
    cluster.settle()
    assert third not in cluster.bound()


def test_pod_waits_with_a_reason_if_no_node_has_its_allocation_api() -> None:
    cluster = with_allocation_apis(a="tokens")
    uid = cluster.create(GpuRequest(), constraints=CLAIMS)
    cluster.settle()
    entry = cluster.core.store.entries[uid]
    assert entry.reason is Reason.NO_DEVICES
    assert entry.message == "no node gives its devices by claims; ask for less, or for other devices"


def test_claim_node_is_used_although_its_kubelet_offers_no_device_ids() -> None:
    cluster = with_allocation_apis(a="claims")
    node, told = cluster.nodes["a"]
    cluster.nodes["a"] = (replace(node, offers_device_ids=False), told)
    cluster.core.node_changed(cluster.nodes["a"][0], cluster.now_s)
    uid = cluster.create(GpuRequest(), constraints=CLAIMS)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_node_that_changes_its_allocation_api_keeps_running_pods_and_loses_plans() -> None:
    cluster = with_allocation_apis(a="tokens", b="tokens")
    runs = cluster.create(GpuRequest(), constraints=TOKENS)
    cluster.settle()
    there = cluster.bound()[runs]
    other = {"a": "b", "b": "a"}[there]
    planned = cluster.create(GpuRequest(), constraints=TOKENS, name="planned")
    cluster.decide()
    assert [a.plan.node for a in cluster.todo if isinstance(a, ReleasePod)] == [there], "beside the first"
    change_allocation_api(cluster, there, "claims")
    by_claims = [cluster.create(GpuRequest(), constraints=CLAIMS) for _ in range(2)]
    cluster.settle()
    bound = cluster.bound()
    assert bound[runs] == there
    assert bound[planned] == other
    assert [uid for uid in by_claims if uid in bound] == by_claims[:1], "the other device is still the first's"
    cluster.check()
