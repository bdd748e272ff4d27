"""Tests of gangs that admission reads from the owners of pods."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from tests.unit.kubernetes.admission.owned_pods import MANIFESTS, Reviews, manifest, owned_pod, pods_of

from calabash.kubernetes.admission import service
from calabash.kubernetes.admission.owners import CACHE_S, ENTRIES_MAX, STALE_S, WAITING_MAX, OwnerCache
from calabash.kubernetes.admission.scope import NO_OWNER, OwnerAnswer, OwnerResult
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.dialects.pod import AskingOwner
from calabash.kubernetes.gang_member import read_member
from calabash.kubernetes.gangs.explain import explain_file
from calabash.kubernetes.gangs.table import OWNERS, table_with
from calabash.kubernetes.objects import names
from calabash.kubernetes.pod_request import GangSource, read_request
from calabash.model.errors import CalabashError, Reason

Json = dict[str, Any]
JOB_SET: Json = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {"replicatedJobs": [{"name": "slice", "template": {"spec": {"parallelism": 3, "completions": 3}}}]},
}
JOB: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train-slice-0"}, "spec": {"parallelism": 3}}
SLICE = {"jobset.sigs.k8s.io/replicatedjob-name": "slice"}


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


def gang_of(pod: Json) -> tuple[str, int]:
    """Return the name and the size of a pod's gang, as the planner of every version reads it; ("", 1) for none."""
    asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
    first = asked.containers[0].request
    assert asked.gang_source is (GangSource.ANNOTATION if first.gang else GangSource.NONE)
    return first.gang, first.gang_size


OWNED = sorted(
    path.stem
    for path in MANIFESTS.glob("*.yaml")
    if (one := explain_file(path.read_text(), "", table_with())[0]).gangs
    and (entry := table_with().get(f"{one.api_version.rpartition('/')[0]}/{one.kind}")) is not None
    and entry.named_by is None
    and not entry.delegates_to
)


def test_every_kind_that_creates_pods_has_a_manifest() -> None:
    kinds = {manifest(name)["kind"] for name in OWNED}
    assert kinds == {owner.kind for owner in OWNERS if owner.named_by is None and not owner.delegates_to}


@pytest.mark.parametrize("name", OWNED)
def test_pods_of_a_gang_get_one_name_and_the_number_that_starts_together(reviews: Reviews, name: str) -> None:
    tree = manifest(name)
    (described,) = explain_file((MANIFESTS / f"{name}.yaml").read_text(), "", table_with())
    (gang,) = described.gangs
    members = list(pods_of(reviews, tree, reviews.create(tree)))
    admitted = reviews.admit([pod for _, _, pod in members])
    assert reviews.warnings == []
    found: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for (copy, role, _), pod in zip(members, admitted, strict=True):
        step = next(one.step for one in gang.roles if one.name == role) if gang.in_steps else 0
        if names.REQUEST in pod["metadata"]["annotations"] and gang.waits_for(step) == 1:
            assert gang_of(pod) == ("", 1)  # the leader that starts first is alone in its step
        elif names.REQUEST in pod["metadata"]["annotations"]:
            found.setdefault((copy, step), set()).add(gang_of(pod))
            said = read_member(pod["metadata"]["annotations"][names.GANG_MEMBER])
            assert (said.gang, said.size) == gang_of(pod)
            assert (said.owner, said.role) == (f"{described.kind}/{described.name}", role)
    assert found or name == "job-with-minimum"  # its pods request no devices
    assert all(len(gangs) == 1 for gangs in found.values())
    called = Counter(gang for gangs in found.values() for gang, _ in gangs)
    assert all(count == 1 for count in called.values()), "two gangs of one owner have the same name"
    for (_, step), gangs in found.items():
        assert {size for _, size in gangs} == {gang.waits_for(step)}


@pytest.mark.parametrize("name", ["ray-job", "ray-service", "train-job"])
def test_pod_that_a_delegating_object_creates_itself_starts_alone(reviews: Reviews, name: str) -> None:
    tree = manifest(name)
    admitted = reviews.admit([pod for _, _, pod in pods_of(reviews, tree, reviews.create(tree))])
    asking = [pod for pod in admitted if names.REQUEST in pod["metadata"]["annotations"]]
    assert asking
    assert {gang_of(pod) for pod in asking} == {("", 1)}
    assert not any(names.GANG_MEMBER in pod["metadata"]["annotations"] for pod in admitted)


def test_owner_is_found_through_the_controllers_between(reviews: Reviews) -> None:
    chat = reviews.create(manifest("leader-worker-set"))
    leaders = reviews.create({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "chat"}}, chat)
    group = {"leaderworkerset.sigs.k8s.io/group-index": "1"}
    leader = reviews.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-1"}}, leaders)
    workers = reviews.create({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "chat-1"}}, leader)
    pods = [
        owned_pod("chat-1-0", leaders, group | {"leaderworkerset.sigs.k8s.io/worker-index": "0"}),
        owned_pod("chat-1-1", workers, group | {"leaderworkerset.sigs.k8s.io/worker-index": "1"}),
    ]
    first, second = (gang_of(pod) for pod in reviews.admit(pods))
    assert first == second
    assert first[0].startswith("LeaderWorkerSet/chat/1@")
    assert first[1] == 5


def test_topology_of_the_owner_is_written_if_the_cluster_has_the_level_and_warned_of_if_not() -> None:
    job_set = manifest("job-set")
    job_set["metadata"]["annotations"] = {
        "kai.scheduler/topology-required-placement": "example.com/block",
        "kai.scheduler/topology-preferred-placement": "example.com/row",
    }
    reviews = Reviews(AdmissionSettings(topology_levels=("example.com/block", "example.com/rack")))
    labels = SLICE | {"jobset.sigs.k8s.io/job-index": "1", "batch.kubernetes.io/job-completion-index": "2"}
    pod = asyncio.run(reviews.review(owned_pod("p", reviews.create(job_set), labels)))
    member = json.loads(pod["metadata"]["annotations"][names.GANG_MEMBER])
    assert member["topology"] == {"required": "example.com/block", "rank": 1 + 4 + 2}
    assert member["rank"] == "6"
    (warning,) = reviews.warnings
    assert "requests the topology level example.com/row, which has no effect" in warning
    assert "topology.levels" in warning


def test_many_pods_of_one_owner_need_one_lookup(reviews: Reviews) -> None:
    job = reviews.create(JOB, reviews.create(JOB_SET))
    admitted = reviews.admit([owned_pod(f"p{i}", job, SLICE) for i in range(200)])
    assert reviews.reads == ["train-slice-0"]
    assert len({gang_of(pod) for pod in admitted}) == 1
    assert set(reviews.results) == {OwnerResult.GANG}


def test_owners_of_the_same_name_have_different_gangs(reviews: Reviews) -> None:
    gangs = []
    for namespace in ("team", "other"):
        owner = reviews.create(JOB_SET, namespace=namespace)
        (pod,) = reviews.admit([owned_pod("p", owner, SLICE)], namespace)
        gangs.append(gang_of(pod)[0])
    assert gangs[0] != gangs[1]


def test_pod_that_names_the_owner_of_another_namespace_is_no_member(reviews: Reviews) -> None:
    theirs = reviews.create(JOB_SET, namespace="other")
    (pod,) = reviews.admit([owned_pod("p", theirs, SLICE)])
    assert gang_of(pod) == ("", 1)


def test_pod_with_the_uid_of_an_owner_that_was_deleted_is_no_member(reviews: Reviews) -> None:
    owner = reviews.create(JOB_SET) | {"uid": "earlier"}
    (pod,) = reviews.admit([owned_pod("p", owner, SLICE)])
    assert gang_of(pod) == ("", 1)


def test_gang_that_a_pod_states_itself_wins(reviews: Reviews) -> None:
    owner = reviews.create(JOB_SET)
    stated = {names.GANG: "mine", names.GANG_SIZE: "2"}
    (pod,) = reviews.admit([owned_pod("p", owner, SLICE, said=stated)])
    assert gang_of(pod) == ("mine", 2)
    assert names.GANG_MEMBER not in pod["metadata"]["annotations"]
    assert reviews.reads == []


@pytest.mark.parametrize("of_pod", [True, False])
def test_annotation_false_excludes(reviews: Reviews, of_pod: bool) -> None:
    off = {names.GANG_OF_OWNER: "false"}
    owner = reviews.create(JOB_SET if of_pod else {**JOB_SET, "metadata": {"name": "train", "annotations": off}})
    (pod,) = reviews.admit([owned_pod("p", owner, SLICE, said=off if of_pod else {})])
    assert gang_of(pod) == ("", 1)


def test_pods_of_deployments_and_of_unknown_kinds_cost_no_lookup(reviews: Reviews) -> None:
    base = {"name": "x", "uid": "u", "controller": True}
    pods = [
        owned_pod("p", base | {"apiVersion": "apps/v1", "kind": "ReplicaSet"}),
        owned_pod("q", base | {"apiVersion": "example.com/v1", "kind": "Thing"}),
    ]
    assert [gang_of(pod) for pod in reviews.admit(pods)] == [("", 1)] * 2
    assert (reviews.reads, reviews.results) == ([], [])


def test_kind_that_an_administrator_adds_forms_gangs() -> None:
    flock = {
        "system": "Flock",
        "group": "flock.example.com",
        "kind": "Flock",
        "plural": "flocks",
        "versions": ["v1"],
        "roles": [{"at": "spec.members", "each": "list", "nameAt": "as", "replicas": ["number"]}],
        "minimum": ["spec.quorum"],
        "roleLabels": ["flock.example.com/as"],
    }
    reviews = Reviews(AdmissionSettings(gang_owners=[flock]))
    spec = {"quorum": 4, "members": [{"as": "goose", "number": 5}]}
    tree = {"apiVersion": "flock.example.com/v1", "kind": "Flock", "metadata": {"name": "v"}, "spec": spec}
    (pod,) = reviews.admit([owned_pod("p", reviews.create(tree))])
    assert gang_of(pod)[1] == 4


def test_invalid_kind_of_an_administrator_is_refused_with_its_place() -> None:
    with pytest.raises(CalabashError, match=r"gangs\.owners\[0\]"):
        _ = AdmissionSettings(gang_owners=[{"kind": "Flock"}]).gang_table


def test_invalid_owner_gives_a_warning_and_the_pod_starts_alone(reviews: Reviews) -> None:
    part = {"name": "slice", "replicas": -1, "template": {"spec": {}}}
    owner = reviews.create({**JOB_SET, "spec": {"replicatedJobs": [part]}})
    pod = asyncio.run(reviews.review(owned_pod("p", owner, SLICE)))
    assert gang_of(pod) == ("", 1)
    (warning,) = reviews.warnings
    assert "JobSet train: spec.replicatedJobs.0.replicas is -1" in warning
    assert reviews.results == [OwnerResult.INVALID]


def test_forbidden_lookup_is_a_warning_and_a_result(reviews: Reviews, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = reviews.create(JOB_SET)

    def refuse(*_: object) -> None:
        raise CalabashError("forbidden", reason=Reason.NOT_PERMITTED)

    monkeypatch.setattr(reviews.kube, "get", refuse)
    pod = asyncio.run(reviews.review(owned_pod("p", owner, SLICE)))
    assert gang_of(pod) == ("", 1)
    (warning,) = reviews.warnings
    assert "JobSet train cannot be read" in warning
    assert reviews.results == [OwnerResult.FORBIDDEN]


def test_kind_that_is_not_installed_is_no_owner(reviews: Reviews) -> None:
    absent = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "x", "uid": "u", "controller": True}
    (pod,) = reviews.admit([owned_pod("p", absent)])
    assert gang_of(pod) == ("", 1)
    assert set(reviews.results) == {OwnerResult.NONE}


def test_pod_is_refused_while_the_api_server_is_down_but_not_if_its_owner_is_known(reviews: Reviews) -> None:
    owner = reviews.create(JOB_SET)
    reviews.kube.faults.down = True
    refused = asyncio.run(reviews.answer(owned_pod("p", owner, SLICE)))
    assert (refused["allowed"], refused["status"]["code"]) == (False, 503)
    reviews.kube.faults.down = False
    (known,) = reviews.admit([owned_pod("p", owner, SLICE)])
    reviews.kube.faults.down = True
    now_s = time.monotonic() + CACHE_S + 1
    reviews.service._owners._clock_s = lambda: now_s
    pod = asyncio.run(reviews.review(owned_pod("q", owner, SLICE)))
    assert gang_of(pod) == gang_of(known)
    assert reviews.warnings == []


def test_pod_is_refused_while_the_api_server_is_silent_and_held_no_longer_than_the_limit(
    reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    ended = threading.Event()
    monkeypatch.setattr(service, "LOOKUP_S", 0.05)
    silent = Reviews()
    silent.service._owners._wait_s = 0.05
    monkeypatch.setattr(silent, "read_owner", lambda *_: ended.wait(60) or NO_OWNER)
    silent.service._owners._read = silent.read_owner
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "u", "controller": True}

    async def reviewed() -> Json:
        try:
            return await silent.answer(owned_pod("p", owner))
        finally:
            ended.set()

    refused = asyncio.run(reviewed())
    assert not refused["allowed"]
    assert (refused["status"]["code"], refused["status"]["reason"]) == (503, "ServiceUnavailable")
    assert refused["status"]["message"].startswith(
        "Job x, the owner of the pod, cannot be read: the API server did not"
    )
    assert silent.results == [OwnerResult.UNANSWERED]


def test_cache_is_bounded_and_forgets() -> None:
    now, reads = [0.0], 0

    def read(namespace: str, owner: AskingOwner) -> OwnerAnswer:
        nonlocal reads
        reads += 1
        if owner.name == "down":
            raise CalabashError("no answer", reason=Reason.API_DOWN)
        return NO_OWNER

    async def ask() -> None:
        cache = OwnerCache(read, 60.0, lambda: now[0])
        owner = AskingOwner(kind="Job", name="a", uid="a")
        for at_s, expected in ((0.0, 1), (CACHE_S - 1, 1), (CACHE_S + 1, 2), (CACHE_S + 2, 2)):
            now[0] = at_s
            assert await cache.answer("team", owner) is NO_OWNER
            assert reads == expected
        down = AskingOwner(kind="Job", name="down", uid="a")
        now[0] += CACHE_S
        assert await cache.answer("team", down) is NO_OWNER
        now[0] += STALE_S
        assert (await cache.answer("team", down)).result is OwnerResult.UNANSWERED
        for number in range(ENTRIES_MAX + 10):
            await cache.answer("team", AskingOwner(kind="Job", name="b", uid=f"b{number}"))
        assert len(cache._kept) == ENTRIES_MAX
        many = [AskingOwner(kind="Job", name="c", uid=f"c{i}") for i in range(WAITING_MAX + 20)]
        answers = await asyncio.gather(*(cache.answer("team", one) for one in many))
        assert Counter(one.result for one in answers) == {OwnerResult.NONE: WAITING_MAX, OwnerResult.UNANSWERED: 20}
        assert cache._running == {}

    asyncio.run(ask())


def test_annotation_of_an_earlier_review_is_removed_from_a_pod_without_gang(reviews: Reviews) -> None:
    pod = {
        "metadata": {"name": "p", "annotations": {names.GANG_MEMBER: json.dumps({"version": 1, "gang": "x"})}},
        "spec": {"containers": [{"name": "main"}]},
    }
    assert names.GANG_MEMBER not in asyncio.run(reviews.review(pod))["metadata"]["annotations"]


def test_request_with_another_queue_or_amount_is_refused_also_for_a_member(reviews: Reviews) -> None:
    owner = reviews.create(JOB_SET)
    (pod,) = reviews.admit([owned_pod("p", owner, SLICE)])
    text = pod["metadata"]["annotations"][names.REQUEST]
    for changed in (
        text.replace('"gang"', '"queue":"prod","gang"'),
        text.replace('"tenant":"team"', '"tenant":"other"'),
    ):
        assert changed != text
        pod["metadata"]["annotations"][names.REQUEST] = changed
        with pytest.raises(AssertionError, match="does not agree"):
            asyncio.run(reviews.review(pod, "/validate"))
