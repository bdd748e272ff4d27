"""Pods that ask by claims: queues, gangs, sharing, and the truth of what was allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.kubernetes.planner.claimed import CLAIMS, WHOLE, ClaimCluster, by_claims, named, share
from tests.unit.kubernetes.planner.owners import MOVES
from tests.unit.kubernetes.planner.virtual import asked

from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.facts import EvictPod, NamespaceSeen, QueueSeen, ReleasePod, UngatePod
from calabash.model.errors import Reason
from calabash.model.request import AllocationId, GpuRequest

BOTH = {"a": "claims", "b": "claims"}


def told(cluster: ClaimCluster, uid: str) -> tuple[Reason | None, str]:
    return cluster.core.book.entries[uid].told


def plan_devices(cluster: ClaimCluster, uid: str) -> set[str]:
    plan = cluster.core.book.entries[uid].plan
    assert plan is not None
    return {part.device for container in plan.containers for part in container.slices}


def test_a_pod_waits_for_a_claim_that_does_not_exist_yet_and_is_planned_when_it_comes() -> None:
    cluster = ClaimCluster({"a": 2}, doors={"a": "claims"})
    uid = cluster.claimer("later")
    cluster.settle()
    assert told(cluster, uid) == (Reason.NOT_FOUND, "claim later does not exist yet")
    cluster.claim("later")
    cluster.settle()
    assert cluster.bound() == {uid: "a"}


def test_a_claim_of_a_template_is_followed_by_its_owner() -> None:
    cluster = ClaimCluster({"a": 2}, doors={"a": "claims"})
    uid = cluster.create(by_claims(["gpu"]), wish=CLAIMS, claims=(replace(named(["gpu"])[0], claim="", template="t"),))
    cluster.claim("other-gpu", owner="somebody", pod_claim="gpu")
    cluster.settle()
    assert told(cluster, uid) == (Reason.NOT_FOUND, "claim of template t for its gpu does not exist yet")
    cluster.claim("its-gpu", share(), owner=uid, pod_claim="gpu")
    cluster.decide()
    entry = cluster.core.book.entries[uid]
    assert entry.bundle is not None
    assert entry.bundle.request.memory_mib == 8192


def test_what_was_allocated_is_counted_and_who_was_planned_there_goes_to_other_devices_of_its_node() -> None:
    cluster = ClaimCluster({"a": 2}, doors={"a": "claims"})
    first, second = cluster.with_own(), cluster.with_own()
    cluster.decide()
    mine, theirs = plan_devices(cluster, first), plan_devices(cluster, second)
    assert mine.isdisjoint(theirs)
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    claim = cluster.claims[f"{first}-gpu"]
    held = cluster.core.book.entries[second].plan
    assert held is not None
    cluster.tell(replace(claim, node="a", held=held.containers[0]))  # the allocator chose the other's device
    assert plan_devices(cluster, first) == theirs
    assert plan_devices(cluster, second) == mine
    assert is_allocated(cluster.core.book.entries[first].plan)
    cluster.check_book()


def test_who_has_its_claims_on_a_node_that_is_not_offered_is_not_planned_elsewhere() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, doors={"a": "claims"})
    gang = GpuRequest(gang="g", gang_size=2)
    first, second = cluster.with_own(terms=gang), cluster.with_own(terms=gang)
    cluster.decide()
    cluster.carry_out(cluster.todo.pop(0))
    cluster.try_all()
    assert [claim.node for claim in cluster.claims.values()] == ["a", ""], "it waits for the other to be bound"
    cluster.change_door("a", "tokens")
    cluster.try_all()
    assert not cluster.core.book.scheduler.holds(cluster.core.book.entries[first].id), "none of the nodes is its door's"
    answer = cluster.core.answers.filter(first, ["b"], "", cluster.now_s)
    assert (answer.node, answer.text) == (None, "its claims are allocated on a")
    cluster.change_door("a", "claims")
    cluster.settle()
    assert cluster.bound() == {first: "a", second: "a"}
    cluster.check_book()


def test_a_gang_of_claims_is_released_together_and_bound_together_or_not_at_all() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, doors=BOTH)
    gang = GpuRequest(gang="g", gang_size=4)
    members = [cluster.with_own(terms=gang) for _ in range(3)]
    cluster.settle()
    assert cluster.bound() == {}
    assert told(cluster, members[0])[0] is Reason.GANG_INCOMPLETE
    assert all(not claim.node for claim in cluster.claims.values())
    members.append(cluster.with_own(terms=gang))
    cluster.settle()
    assert set(cluster.bound()) == set(members)
    cluster.check_doors()


def test_who_is_over_quota_is_told_as_who_asks_by_tokens() -> None:
    queues = [QueueSeen(name="small", limit=1.0)]
    reasons = []
    for by in ("tokens", "claims"):
        cluster = ClaimCluster({"a": 2}, queues, doors={"a": by})
        if by == "claims":
            uids = []
            for _ in range(2):
                uids.append(cluster.with_own(namespace="team"))
                pod = cluster.pods[uids[-1]]
                assert pod.request is not None
                cluster.set(replace(pod, request=replace(pod.request, queue="small")))
        else:
            uids = [cluster.create(asked(WHOLE, queue="small")) for _ in range(2)]
        cluster.core.namespace(_open())
        cluster.settle()
        assert list(cluster.bound()) == uids[:1]
        reasons.append(told(cluster, uids[1]))
    assert reasons[0] == reasons[1]
    assert reasons[0][0] is Reason.QUEUE_OVER_LIMIT


def _open() -> NamespaceSeen:
    return NamespaceSeen(name="team", allowed=frozenset("*"))


def test_a_claim_that_pods_share_counts_once_and_the_others_follow_it() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, doors=BOTH)
    cluster.claim("shared")
    first = cluster.claimer("shared", name="first")
    second = cluster.claimer("shared", name="second")
    cluster.decide()
    assert told(cluster, second)[0] is Reason.NOT_FOUND
    assert "shared with pod team/first" in told(cluster, second)[1]
    assert not [a for a in cluster.todo if isinstance(a, UngatePod)]
    cluster.settle()
    bound = cluster.bound()
    assert bound == {first: bound[first], second: bound[first]}
    assert cluster.core.book.scheduler.scheduler.tree.used("default").gpu_milli == 1000
    cluster.end(first)
    cluster.decide()
    assert cluster.core.book.scheduler.holds(AllocationId(second)), "it counts for the next one"
    assert cluster.core.book.scheduler.scheduler.tree.used("default").gpu_milli == 1000
    cluster.end(second)
    cluster.decide()
    assert cluster.core.book.scheduler.scheduler.tree.used("default").gpu_milli == 0


def test_members_of_a_gang_that_share_one_claim_start_together() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, doors=BOTH)
    cluster.claim("shared", GpuRequest(count=2, mode="exclusive"))  # type: ignore[arg-type]
    gang = GpuRequest(gang="g", gang_size=3)
    members = [cluster.claimer("shared", terms=gang) for _ in range(2)]
    cluster.settle()
    assert cluster.bound() == {}
    members.append(cluster.claimer("shared", terms=gang))
    cluster.settle()
    assert set(cluster.bound()) == set(members)


def test_who_makes_way_does_so_with_all_that_use_its_claim() -> None:
    queues = [QueueSeen(name="prod", deserved=2.0)]
    cluster = ClaimCluster({"a": 2}, queues, doors={"a": "claims"})
    cluster.claim("shared", GpuRequest(count=2, mode="exclusive"))  # type: ignore[arg-type]
    borrowers = [cluster.claimer("shared") for _ in range(2)]
    cluster.settle()
    assert set(cluster.bound()) == set(borrowers)
    cluster.core.namespace(_open())
    owner = cluster.with_own()
    pod = cluster.pods[owner]
    assert pod.request is not None
    cluster.set(replace(pod, request=replace(pod.request, queue="prod")))
    cluster.settle()
    assert sorted(cluster.evictions) == sorted(borrowers)
    assert cluster.bound() == {owner: "a"}


def test_who_waits_for_devices_of_others_waits_until_their_claims_are_free() -> None:
    queues = [QueueSeen(name="prod", deserved=2.0)]
    cluster = ClaimCluster({"a": 1}, queues, doors={"a": "claims"})
    borrower = cluster.with_own()
    cluster.settle()
    cluster.core.namespace(_open())
    owner = cluster.with_own()
    pod = cluster.pods[owner]
    assert pod.request is not None
    cluster.set(replace(pod, request=replace(pod.request, queue="prod")))
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    cluster.pods.pop(borrower)
    cluster.core.pod_gone(borrower)  # and nobody has freed its claim yet
    cluster.decide()
    assert not [a for a in cluster.todo if isinstance(a, ReleasePod)]
    cluster.free()
    cluster.settle()
    assert cluster.bound() == {owner: "a"}


def halves(claim: bool) -> tuple[ClaimCluster, dict[str, str]]:
    """Two nodes, on each of which a pod that may be moved has one of two devices; by a claim of its own, or by a named one."""
    cluster = ClaimCluster({"a": 2, "b": 2}, doors=BOTH, options=MOVES)
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


def test_a_pod_is_moved_with_the_claim_that_was_made_for_it_and_its_heir_has_the_place_that_was_kept() -> None:
    cluster, before = halves(claim=False)
    large = cluster.claimer(cluster.claim("pair", replace(WHOLE, count=2)), terms=GpuRequest(count=2))
    cluster.decide()
    (moved,) = [action.pod.uid for action in cluster.todo if isinstance(action, EvictPod)]
    was = before[moved]
    (other,) = set(BOTH) - {was}
    assert told(cluster, large)[0] is Reason.WAITS_FOR_MOVE
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    heir = cluster.with_own(owner="web", movable=True)
    cluster.settle()
    assert cluster.bound() == {uid: node for uid, node in before.items() if uid != moved} | {heir: other, large: was}
    cluster.check_doors()
    cluster.check_book()


def test_a_pod_whose_claim_somebody_else_made_stays_where_that_is_allocated() -> None:
    cluster, before = halves(claim=True)
    large = cluster.claimer(cluster.claim("pair", replace(WHOLE, count=2)), terms=GpuRequest(count=2))
    cluster.settle()
    assert told(cluster, large)[0] is Reason.NO_CAPACITY
    assert cluster.bound() == before


def test_who_waits_is_told_that_the_model_is_there_by_the_other_door() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, doors={"a": "claims"})
    for _ in range(3):
        last = cluster.with_own()
    cluster.settle()
    message = told(cluster, last)[1]
    assert (
        "1: have NVIDIA A100-SXM4-40GB (40960MiB, by tokens), asked NVIDIA A100-SXM4-40GB (40960MiB, by claims)"
        in message
    )
    assert "1: most free devices 0, asked 1" in message


def test_claims_of_pods_that_nobody_asked_the_planner_for_are_counted_for_their_queue() -> None:
    cluster = ClaimCluster({"a": 1}, doors={"a": "claims"})
    cluster.claim("theirs")
    cluster.allocate_by_hand("theirs", "a")
    waits = cluster.with_own()
    cluster.settle()
    assert waits not in cluster.bound(), "it is a stranger's memory"
    cluster.set_alien("alien", "theirs", "a")
    cluster.decide()
    assert cluster.core.book.scheduler.scheduler.tree.used("default").gpu_milli == 1000
    cluster.end("alien")
    cluster.settle()
    assert cluster.bound() == {waits: "a"}


def test_who_takes_over_finds_claims_where_they_are() -> None:
    cluster = ClaimCluster({"a": 2, "b": 2}, doors=BOTH, seed=3)
    cluster.claim("shared", share())
    uids = [cluster.with_own() for _ in range(2)] + [cluster.claimer("shared") for _ in range(2)]
    cluster.settle()
    assert set(cluster.bound()) == set(uids)
    used = cluster.core.book.scheduler.scheduler.tree.used("default")
    cluster.take_over()
    assert cluster.core.book.scheduler.scheduler.tree.used("default") == used
    cluster.check_book()


def test_a_claim_that_asks_nothing_of_ours_holds_its_pod_no_longer_than_until_that_is_known() -> None:
    cluster = ClaimCluster({"a": 1}, doors={"a": "claims"})
    uid = cluster.claimer("nic")
    cluster.settle()
    assert cluster.pods[uid].gated
    cluster.claim("nic", None)
    cluster.settle()
    assert not cluster.pods[uid].gated
    assert cluster.core.answers.filter(uid, ["a"], "", 1.0).anywhere
    assert cluster.core.answers.bind(uid, "a", 1.0).verdict in (BindVerdict.GO, BindVerdict.DONE)


def test_a_node_is_busy_while_claims_may_be_allocated_there() -> None:
    cluster = ClaimCluster({"a": 1}, doors={"a": "claims"})
    uid = cluster.with_own()
    cluster.decide()
    book, answers = cluster.core.book, cluster.core.answers
    assert not book.binds_to("a")
    assert answers.filter(uid, ["a"], "", cluster.now_s).node == "a"
    assert book.binds_to("a")
    cluster.core.node_gone("a")
    assert book.binds_to("a"), "kube-scheduler does not know yet"
    assert answers.bind(uid, "a", cluster.now_s).verdict is BindVerdict.REFUSE
    assert not book.binds_to("a")


def test_a_claim_that_cannot_be_counted_says_why() -> None:
    cluster = ClaimCluster({"a": 1}, doors={"a": "claims"})
    cluster.claim(
        "all", None, fault="request gpu: all devices of a node are not a number of devices; hint: say how many"
    )
    uid = cluster.claimer("all")
    cluster.settle()
    assert told(cluster, uid) == (
        Reason.BAD_REQUEST,
        "claim all: request gpu: all devices of a node are not a number of devices; hint: say how many",
    )
