"""Tests of invalid and hostile objects: they are refused with the field and the limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.gangs.test_membership import ANYTHING, owner_of

from calabash.kubernetes.gangs.membership import entry_of
from calabash.kubernetes.gangs.resolve import gangs_of, without_gang
from calabash.kubernetes.gangs.table import OWNERS, table_with
from calabash.model.errors import CalabashError


def refusal(manifest: dict[str, Any]) -> str:
    owner = entry_of(table_with(), manifest)
    assert owner is not None
    with pytest.raises(CalabashError) as caught:
        gangs_of(owner, manifest)
    assert caught.value.hint
    return caught.value.message


def job_set(*jobs: Any, **spec: Any) -> dict[str, Any]:
    return owner_of("jobset.x-k8s.io/v1alpha2", "JobSet", "train", replicatedJobs=list(jobs), **spec)


def part(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "template": {}, **more}


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (job_set(), "the JobSet has no roles: spec.replicatedJobs is missing or empty"),
        (job_set({"template": {}}), "spec.replicatedJobs.0.name is missing"),
        (job_set(3), "spec.replicatedJobs.0 is not a map"),
        (job_set(part("a"), part("a")), "two roles are called 'a'"),
        (job_set(part("a", replicas=-1)), "spec.replicatedJobs.0.replicas is -1, out of range"),
        (job_set(part("a", replicas="2")), "spec.replicatedJobs.0.replicas is '2', not a whole number"),
        (job_set(part("a", replicas=True)), "spec.replicatedJobs.0.replicas is True, not a whole number"),
        (job_set(part("a", replicas=10**30)), f"spec.replicatedJobs.0.replicas is {10**30}, out of range"),
        (
            job_set(part("a", replicas=1000, template={"spec": {"parallelism": 1000, "completions": 1000}})),
            "role a has 1000000 pods",
        ),
        (job_set(*(part(f"r{i}", replicas=90_000) for i in range(2))), "the JobSet has 180000 pods"),
        (job_set(*(part(f"r{i}") for i in range(257))), "spec.replicatedJobs has 257 entries"),
        (job_set(part("a", dependsOn=[{"name": "b"}])), "role a starts after 'b', which is no role"),
        (
            job_set(part("a", dependsOn=[{"name": "b"}]), part("b", dependsOn=[{"name": "a"}])),
            "roles start after each other: a, b",
        ),
        (
            owner_of("kubeflow.org/v1", "JAXJob", "j", jaxReplicaSpecs=[]),
            "spec.jaxReplicaSpecs is not a map",
        ),
        (
            owner_of(
                "kubeflow.org/v1",
                "PyTorchJob",
                "p",
                pytorchReplicaSpecs={"Worker": {}},
                elasticPolicy={"minReplicas": 3, "maxReplicas": 2},
            ),
            "spec.elasticPolicy.minReplicas is 3, more than spec.elasticPolicy.maxReplicas, 2",
        ),
        (
            owner_of("batch.volcano.sh/v1alpha1", "Job", "v", minAvailable=4, tasks=[{"name": "a", "replicas": 3}]),
            "the minimum of 4 exceeds the 3 pods of the Job",
        ),
        (
            owner_of(
                "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "l", replicas=200, leaderWorkerTemplate={"size": 999}
            ),
            "999 pods in 200 gangs are too many",
        ),
    ],
)
def test_invalid_object_is_refused_with_the_field(manifest: dict[str, Any], message: str) -> None:
    assert refusal(manifest) == message


@pytest.mark.parametrize("minimum", ["0", "-1", "two", "1e3", "9999999", ""])
def test_minimum_in_an_annotation_is_a_positive_number(minimum: str) -> None:
    manifest = job_set(part("a", replicas=3))
    manifest["metadata"]["annotations"] = {"calabash.dev/gang-size": minimum}
    assert refusal(manifest) == f"calabash.dev/gang-size is {minimum!r}"


def test_minimum_in_an_annotation_replaces_that_of_the_object() -> None:
    manifest = owner_of("batch.volcano.sh/v1alpha1", "Job", "v", minAvailable=3, tasks=[{"name": "a", "replicas": 3}])
    manifest["metadata"]["annotations"] = {"kai.scheduler/batch-min-member": "2"}
    owner = entry_of(table_with(), manifest)
    assert owner is not None
    assert gangs_of(owner, manifest)[0].minimum == 2


def test_stateful_set_that_creates_pods_one_by_one_forms_no_gang() -> None:
    manifest = owner_of("apps/v1", "StatefulSet", "s", replicas=3)
    owner = entry_of(table_with(), manifest)
    assert owner is not None
    assert without_gang(owner, manifest).startswith("pods of a StatefulSet start one by one")
    manifest["metadata"]["annotations"] = {"calabash.dev/gang-of-owner": "true"}
    assert without_gang(owner, manifest) == (
        "spec.podManagementPolicy is OrderedReady, and only Parallel creates all pods at once"
    )
    manifest["spec"]["podManagementPolicy"] = "Parallel"
    assert without_gang(owner, manifest) == ""


@pytest.mark.parametrize("place", ["object", "job template", "pod template"])
def test_job_set_that_creates_pods_after_the_leader_of_each_job_forms_no_gang(place: str) -> None:
    job: dict[str, Any] = {"metadata": {}, "spec": {"parallelism": 2, "template": {"metadata": {}, "spec": {}}}}
    manifest = owner_of("jobset.x-k8s.io/v1alpha2", "JobSet", "s", replicatedJobs=[{"name": "a", "template": job}])
    owner = entry_of(table_with(), manifest)
    assert owner is not None
    assert without_gang(owner, manifest) == ""
    parts = {"object": manifest, "job template": job, "pod template": job["spec"]["template"]}
    parts[place]["metadata"]["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "example.com/rack"}
    assert without_gang(owner, manifest) == (
        "with the annotation alpha.jobset.sigs.k8s.io/exclusive-topology, pods are created when another pod has been"
        " scheduled"
    )


def test_leader_worker_set_that_creates_workers_after_the_leader_is_scheduled_forms_no_gang() -> None:
    template = {"size": 3, "workerTemplate": {"spec": {}}}
    manifest = owner_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "l", leaderWorkerTemplate=template)
    owner = entry_of(table_with(), manifest)
    assert owner is not None
    assert without_gang(owner, manifest) == ""
    manifest["metadata"]["annotations"] = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "example.com/rack"}
    assert "when another pod has been scheduled" in without_gang(owner, manifest)


@given(owner=st.sampled_from(OWNERS), spec=ANYTHING, metadata=ANYTHING)
def test_object_of_any_form_is_a_gang_with_consistent_numbers_or_refused(owner: Any, spec: Any, metadata: Any) -> None:
    manifest = {
        "apiVersion": f"{owner.group}/{owner.versions[0]}",
        "kind": owner.kind,
        "metadata": metadata,
        "spec": spec,
    }
    without_gang(owner, manifest)
    try:
        gangs = gangs_of(owner, manifest)
    except CalabashError:
        return
    for gang in gangs:
        assert 0 <= gang.minimum <= gang.size <= 100_000
        assert gang.size == sum(role.count for role in gang.roles)
