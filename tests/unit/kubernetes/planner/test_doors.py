"""A node has one door: who asks by the other is planned elsewhere, and told where there is none."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.binder.cluster.device_kinds import Wish
from calabash.kubernetes.objects.allocation_api import NodeDoor, door_named
from calabash.kubernetes.planner.state.facts import ReleasePod
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest

TOKENS, CLAIMS = Wish(door=NodeDoor.TOKENS), Wish(door=NodeDoor.CLAIMS)


def with_doors(**doors: str) -> Cluster:
    cluster = Cluster(dict.fromkeys(doors, 2))
    for name, door in doors.items():
        change_door(cluster, name, door)
    return cluster


def change_door(cluster: Cluster, name: str, door: str) -> None:
    node, told = cluster.nodes[name]
    cluster.nodes[name] = (replace(node, door=door), told)
    cluster.core.node(cluster.nodes[name][0], cluster.now_s)


def test_a_label_wins_over_what_an_agent_tells_and_tokens_are_what_nobody_says() -> None:
    assert door_named("claims", "tokens") is NodeDoor.CLAIMS
    assert door_named("", "claims") is NodeDoor.CLAIMS
    assert door_named("window", "") is NodeDoor.TOKENS


def test_pods_go_to_nodes_of_their_own_door() -> None:
    cluster = with_doors(a="tokens", b="claims")
    by_token = [cluster.create(GpuRequest(), wish=TOKENS) for _ in range(2)]
    by_claim = [cluster.create(GpuRequest(), wish=CLAIMS) for _ in range(2)]
    cluster.settle()
    assert cluster.bound() == {**dict.fromkeys(by_token, "a"), **dict.fromkeys(by_claim, "b")}
    third = cluster.create(GpuRequest(), wish=TOKENS)
    cluster.settle()
    assert third not in cluster.bound()


def test_who_asks_by_a_door_that_no_node_has_is_told_so() -> None:
    cluster = with_doors(a="tokens")
    uid = cluster.create(GpuRequest(), wish=CLAIMS)
    cluster.settle()
    assert cluster.core.book.entries[uid].told == (
        Reason.NO_DEVICES,
        "no node gives its devices by claims; ask for less, or for other devices",
    )


def test_a_node_of_claims_takes_part_though_its_kubelet_offers_no_tokens() -> None:
    cluster = with_doors(a="claims")
    node, told = cluster.nodes["a"]
    cluster.nodes["a"] = (replace(node, offers=False), told)
    cluster.core.node(cluster.nodes["a"][0], cluster.now_s)
    uid = cluster.create(GpuRequest(), wish=CLAIMS)
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_a_node_that_changes_its_door_keeps_who_runs_and_what_was_planned_goes_elsewhere() -> None:
    cluster = with_doors(a="tokens", b="tokens")
    runs = cluster.create(GpuRequest(), wish=TOKENS)
    cluster.settle()
    there = cluster.bound()[runs]
    other = {"a": "b", "b": "a"}[there]
    planned = cluster.create(GpuRequest(), wish=TOKENS, name="planned")
    cluster.decide()
    assert [a.plan.node for a in cluster.todo if isinstance(a, ReleasePod)] == [there], "beside the first"
    change_door(cluster, there, "claims")
    by_claims = [cluster.create(GpuRequest(), wish=CLAIMS) for _ in range(2)]
    cluster.settle()
    bound = cluster.bound()
    assert bound[runs] == there
    assert bound[planned] == other
    assert [uid for uid in by_claims if uid in bound] == by_claims[:1], "the other device is still the first's"
    cluster.check()
