"""Pods that request devices by claims: queues, gangs, shared claims, and allocated devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.kubernetes.planner.claimed import CLAIMS, WHOLE, ClaimCluster, by_claims, named, share
from tests.unit.kubernetes.planner.owners import MOVES
from tests.unit.kubernetes.planner.virtual import asked

from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.facts import EvictPod, NamespaceFacts, QueueFacts, ReleasePod, UngatePod
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import AllocationId, GpuRequest

BOTH = {"a": "claims", "b": "claims"}


def reason_of(cluster: ClaimCluster, uid: str) -> tuple[Reason | None, str]:
    entry = cluster.core.store.entries[uid]
    return entry.reason, in_full(entry.message)


def plan_devices(cluster: ClaimCluster, uid: str) -> set[str]:
    plan = cluster.core.store.entries[uid].plan
    assert plan is not None
    return {part.device for container in plan.containers for part in container.slices}


def test_a_pod_waits_for_a_claim_that_does_not_exist_yet_and_is_planned_when_it_comes() -> None:
    cluster = ClaimCluster({"a": 2}, allocation_apis={"a": "claims"})
    uid = cluster.claimer("later")
    cluster.settle()
    assert reason_of(cluster, uid) == (Reason.NOT_FOUND, "claim later does not exist yet")
    cluster.claim("later")
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_pod_uses_the_claim_that_was_created_from_its_template() -> None:
    cluster = ClaimCluster({"a": 2}, allocation_apis={"a": "claims"})
    uid = cluster.create(
        by_claims(["gpu"]), constraints=CLAIMS, claims=(replace(named(["gpu"])[0], claim="", template="t"),)
    )
    cluster.claim("other-gpu", owner="somebody", pod_claim="gpu")
    cluster.settle()
    assert reason_of(cluster, uid) == (Reason.NOT_FOUND, "claim of template t for its gpu does not exist yet")
    cluster.claim("its-gpu", share(), owner=uid, pod_claim="gpu")
    cluster.decide()
    entry = cluster.core.store.entries[uid]
    assert entry.bundle is not None
    assert entry.bundle.request.memory_mib == 8192


def test_allocated_devices_are_counted_and_pods_planned_there_get_others_of_the_node() -> None:
    cluster = ClaimCluster({"a": 2}, allocation_apis={"a": "claims"})
    first, second = cluster.with_own(), cluster.with_own()
    cluster.decide()
    mine, theirs = plan_devices(cluster, first), plan_devices(cluster, second)
    assert mine.isdisjoint(theirs)
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    claim = cluster.claims[f"{first}-gpu"]
    held = cluster.core.store.entries[second].plan
    assert held is not None
    cluster.update_claim(replace(claim, node="a", held=held.containers[0]))  # the allocator chose the other's device
    assert plan_devices(cluster, first) == theirs
    assert plan_devices(cluster, second) == mine
    assert is_allocated(cluster.core.store.entries[first].plan)
    cluster.check_store()


def test_pod_with_allocated_claims_is_not_planned_on_another_node() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis={"a": "claims"})
    gang = GpuRequest(gang="g", gang_size=2)
    first, second = cluster.with_own(terms=gang), cluster.with_own(terms=gang)
    cluster.decide()
    cluster.carry_out(cluster.todo.pop(0))
    cluster.try_all()
    assert [claim.node for claim in cluster.claims.values()] == ["a", ""], "it waits for the other to be bound"
    cluster.change_allocation_api("a", "tokens")
    cluster.try_all()
    assert not cluster.core.store.scheduler.holds(cluster.core.store.entries[first].id), (
        "none of the nodes is its door's"
    )
    answer = cluster.core.answers.filter(first, ["b"], "", cluster.now_s)
    assert (answer.node, answer.text) == (None, "its claims are allocated on a")
    cluster.change_allocation_api("a", "claims")
    cluster.settle()
    assert cluster.bound() == {first: "a", second: "a"}
    cluster.check_store()


def test_a_gang_of_claims_is_released_together_and_bound_together_or_not_at_all() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis=BOTH)
    gang = GpuRequest(gang="g", gang_size=4)
    members = [cluster.with_own(terms=gang) for _ in range(3)]
    cluster.settle()
    assert cluster.bound() == {}
    assert reason_of(cluster, members[0])[0] is Reason.GANG_INCOMPLETE
    assert all(not claim.node for claim in cluster.claims.values())
    members.append(cluster.with_own(terms=gang))
    cluster.settle()
    assert set(cluster.bound()) == set(members)
    cluster.check_allocation_apis()


def test_over_quota_reason_is_the_same_for_claims_and_resources() -> None:
    queues = [QueueFacts(name="small", limit=1.0)]
    reasons = []
    for by in ("tokens", "claims"):
        cluster = ClaimCluster({"a": 2}, queues, allocation_apis={"a": by})
        if by == "claims":
            uids = []
            for _ in range(2):
                uids.append(cluster.with_own(namespace="team"))
                pod = cluster.pods[uids[-1]]
                assert pod.request is not None
                cluster.set(replace(pod, request=replace(pod.request, queue="small")))
        else:
            uids = [cluster.create(asked(WHOLE, queue="small")) for _ in range(2)]
        cluster.core.namespace_changed(_open())
        cluster.settle()
        assert list(cluster.bound()) == uids[:1]
        reasons.append(reason_of(cluster, uids[1]))
    assert reasons[0] == reasons[1]
    assert reasons[0][0] is Reason.QUEUE_OVER_LIMIT


def _open() -> NamespaceFacts:
    return NamespaceFacts(name="team", allowed=frozenset("*"))


def test_shared_claim_counts_once_and_its_users_follow_it() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis=BOTH)
    cluster.claim("shared")
    first = cluster.claimer("shared", name="first")
    second = cluster.claimer("shared", name="second")
    cluster.decide()
    assert reason_of(cluster, second)[0] is Reason.NOT_FOUND
    assert "claim shared is held by pod team/first" in reason_of(cluster, second)[1]
    assert not [a for a in cluster.todo if isinstance(a, UngatePod)]
    cluster.settle()
    bound = cluster.bound()
    assert bound == {first: bound[first], second: bound[first]}
    assert cluster.core.store.scheduler.scheduler.tree.used("default").gpu_milli == 1000
    cluster.end(first)
    cluster.decide()
    assert cluster.core.store.scheduler.holds(AllocationId(second)), "it counts for the next one"
    assert cluster.core.store.scheduler.scheduler.tree.used("default").gpu_milli == 1000
    cluster.end(second)
    cluster.decide()
    assert cluster.core.store.scheduler.scheduler.tree.used("default").gpu_milli == 0


def test_members_of_a_gang_that_share_one_claim_start_together() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis=BOTH)
    cluster.claim("shared", GpuRequest(count=2, mode="exclusive"))  # type: ignore[arg-type]
    gang = GpuRequest(gang="g", gang_size=3)
    members = [cluster.claimer("shared", terms=gang) for _ in range(2)]
    cluster.settle()
    assert cluster.bound() == {}
    members.append(cluster.claimer("shared", terms=gang))
    cluster.settle()
    assert set(cluster.bound()) == set(members)


def test_eviction_includes_all_users_of_the_claim() -> None:
    queues = [QueueFacts(name="prod", deserved=2.0)]
    cluster = ClaimCluster({"a": 2}, queues, allocation_apis={"a": "claims"})
    cluster.claim("shared", GpuRequest(count=2, mode="exclusive"))  # type: ignore[arg-type]
    borrowers = [cluster.claimer("shared") for _ in range(2)]
    cluster.settle()
    assert set(cluster.bound()) == set(borrowers)
    cluster.core.namespace_changed(_open())
    owner = cluster.with_own()
    pod = cluster.pods[owner]
    assert pod.request is not None
    cluster.set(replace(pod, request=replace(pod.request, queue="prod")))
    cluster.settle()
    assert sorted(cluster.evictions) == sorted(borrowers)
    assert cluster.bound() == {owner: "a"}


def test_pod_waits_until_the_claims_on_its_devices_are_free() -> None:
    queues = [QueueFacts(name="prod", deserved=2.0)]
    cluster = ClaimCluster({"a": 1}, queues, allocation_apis={"a": "claims"})
    borrower = cluster.with_own()
    cluster.settle()
    cluster.core.namespace_changed(_open())
    owner = cluster.with_own()
    pod = cluster.pods[owner]
    assert pod.request is not None
    cluster.set(replace(pod, request=replace(pod.request, queue="prod")))
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.pods.pop(borrower)
    cluster.core.pod_deleted(borrower)  # its claim is not freed yet
    cluster.decide()
    assert not [a for a in cluster.todo if isinstance(a, ReleasePod)]
    cluster.free()
    cluster.settle()
    assert cluster.bound() == {owner: "a"}


def halves(claim: bool) -> tuple[ClaimCluster, dict[str, str]]:
    """Return two nodes of two devices, and the pod on each that has one of them and may be moved.

    With ``claim``, the pods use claims created by name, otherwise claims from a template.
    """
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis=BOTH, options=MOVES)
    more: dict[str, Any] = {"owner": "web", "movable": True}
    several = [
        cluster.claimer(cluster.claim(f"named-{i}"), **more) if claim else cluster.with_own(**more) for i in range(4)
    ]
    cluster.settle()
    nodes = cluster.bound()
    for node in BOTH:
        cluster.end(next(uid for uid in several if nodes[uid] == node))
    cluster.settle()
    assert sorted(cluster.bound().values()) == ["a", "b"]
    return cluster, cluster.bound()


def test_pod_is_moved_with_its_own_claim_and_its_replacement_gets_the_reservation() -> None:
    cluster, before = halves(claim=False)
    large = cluster.claimer(cluster.claim("pair", replace(WHOLE, count=2)), terms=GpuRequest(count=2))
    cluster.decide()
    (moved,) = [action.pod.uid for action in cluster.todo if isinstance(action, EvictPod)]
    was = before[moved]
    (other,) = set(BOTH) - {was}
    assert reason_of(cluster, large)[0] is Reason.WAITS_FOR_MOVE
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    replacement = cluster.with_own(owner="web", movable=True)
    cluster.settle()
    assert cluster.bound() == {uid: node for uid, node in before.items() if uid != moved} | {
        replacement: other,
        large: was,
    }
    cluster.check_allocation_apis()
    cluster.check_store()


def test_pod_with_a_user_created_claim_stays_where_the_claim_is_allocated() -> None:
    cluster, before = halves(claim=True)
    large = cluster.claimer(cluster.claim("pair", replace(WHOLE, count=2)), terms=GpuRequest(count=2))
    cluster.settle()
    assert reason_of(cluster, large)[0] is Reason.NO_CAPACITY
    assert cluster.bound() == before


def test_explanation_says_that_the_model_is_offered_by_the_other_allocation_api() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis={"a": "claims"})
    for _ in range(3):
        last = cluster.with_own()
    cluster.settle()
    message = reason_of(cluster, last)[1]
    assert (
        "1: have NVIDIA A100-SXM4-40GB (40960MiB, by tokens), asked NVIDIA A100-SXM4-40GB (40960MiB, by claims)"
        in message
    )
    assert "1: most free devices 0, asked 1" in message


def test_claims_of_pods_of_other_schedulers_are_counted_for_their_queue() -> None:
    cluster = ClaimCluster({"a": 1}, allocation_apis={"a": "claims"})
    cluster.claim("theirs")
    cluster.allocate_by_hand("theirs", "a")
    waits = cluster.with_own()
    cluster.settle()
    assert waits not in cluster.bound(), "it is a stranger's memory"
    cluster.set_alien("alien", "theirs", "a")
    cluster.decide()
    assert cluster.core.store.scheduler.scheduler.tree.used("default").gpu_milli == 1000
    cluster.end("alien")
    cluster.settle()
    assert cluster.bound() == {waits: "a"}


def test_next_planner_finds_allocated_claims() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, allocation_apis=BOTH, seed=3)
    cluster.claim("shared", share())
    uids = [cluster.with_own() for _ in range(2)] + [cluster.claimer("shared") for _ in range(2)]
    cluster.settle()
    assert set(cluster.bound()) == set(uids)
    used = cluster.core.store.scheduler.scheduler.tree.used("default")
    cluster.take_over()
    assert cluster.core.store.scheduler.scheduler.tree.used("default") == used
    cluster.check_store()


def test_pod_whose_claim_requests_no_devices_of_ours_is_ungated() -> None:
    cluster = ClaimCluster({"a": 1}, allocation_apis={"a": "claims"})
    uid = cluster.claimer("nic")
    cluster.settle()
    assert cluster.pods[uid].gated
    cluster.claim("nic", None)
    cluster.settle()
    assert not cluster.pods[uid].gated
    assert cluster.core.answers.filter(uid, ["a"], "", 1.0).anywhere
    assert cluster.core.answers.bind(uid, "a", 1.0).verdict in (BindVerdict.GO, BindVerdict.DONE)


def test_node_has_a_pending_binding_while_claims_may_be_allocated_there() -> None:
    cluster = ClaimCluster({"a": 1}, allocation_apis={"a": "claims"})
    uid = cluster.with_own()
    cluster.decide()
    store, answers = cluster.core.store, cluster.core.answers
    assert not store.has_pending_binding("a")
    assert answers.filter(uid, ["a"], "", cluster.now_s).node == "a"
    assert store.has_pending_binding("a")
    cluster.core.node_deleted("a")
    assert store.has_pending_binding("a"), "kube-scheduler does not know yet"
    assert answers.bind(uid, "a", cluster.now_s).verdict is BindVerdict.REFUSE
    assert not store.has_pending_binding("a")


def test_unreadable_claim_has_a_reason() -> None:
    cluster = ClaimCluster({"a": 1}, allocation_apis={"a": "claims"})
    cluster.claim(
        "all", None, fault="request gpu: all devices of a node are not a number of devices; hint: say how many"
    )
    uid = cluster.claimer("all")
    cluster.settle()
    assert reason_of(cluster, uid) == (
        Reason.BAD_REQUEST,
        "claim all: request gpu: all devices of a node are not a number of devices; hint: say how many",
    )
