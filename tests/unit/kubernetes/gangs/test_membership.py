"""Each pod that the controller of a kind would create has one role, and the roles have the counts of the pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.gangs import controllers

from calabash.kubernetes.gangs.membership import entry_of, gang_owner, member_of, named_group
from calabash.kubernetes.gangs.resolve import gangs_of
from calabash.kubernetes.gangs.table import table_with

Json = dict[str, Any]
TABLE = table_with()
NAMES = st.lists(
    st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,3})?", fullmatch=True).filter(
        lambda name: name not in ("head", "headgroup")
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
SMALL = st.integers(0, 5)


def parts(fields: dict[str, st.SearchStrategy[Any]], name: str = "name") -> st.SearchStrategy[list[Json]]:
    """Return lists of objects with different names and some of the fields."""

    def named(names: list[str]) -> st.SearchStrategy[list[Json]]:
        return st.tuples(*(st.fixed_dictionaries({name: st.just(one)}, optional=fields) for one in names)).map(list)

    return NAMES.flatmap(named)


JOB = st.fixed_dictionaries({"spec": st.fixed_dictionaries({}, optional={"parallelism": SMALL, "completions": SMALL})})
JOB_SET = parts({"replicas": SMALL}).flatmap(
    lambda found: st.tuples(*(JOB for _ in found)).map(
        lambda jobs: {"replicatedJobs": [{**part, "template": job} for part, job in zip(found, jobs, strict=True)]}
    )
)
LEADER_WORKER_SET = st.fixed_dictionaries(
    {"leaderWorkerTemplate": st.fixed_dictionaries({}, optional={"size": st.integers(1, 6)})},
    optional={"replicas": SMALL},
)
REPLICAS = st.fixed_dictionaries({}, optional={"replicas": SMALL})
PYTORCH_JOB = st.dictionaries(st.sampled_from(["Master", "Worker"]), REPLICAS, min_size=1).map(
    lambda specs: {"pytorchReplicaSpecs": specs}
)
RAY_CLUSTER = parts({"replicas": SMALL, "numOfHosts": st.integers(1, 4), "suspend": st.booleans()}, "groupName").map(
    lambda groups: {"headGroupSpec": {}, "workerGroupSpecs": groups}
)
VOLCANO_JOB = parts({"replicas": SMALL, "minAvailable": SMALL}).map(lambda tasks: {"tasks": tasks})
SPARK = st.fixed_dictionaries(
    {"driver": st.just({}), "executor": st.fixed_dictionaries({}, optional={"instances": SMALL})}
)


@st.composite
def pod_clique_sets(draw: st.DrawFn) -> Json:
    names = draw(NAMES)
    sizes = st.fixed_dictionaries({}, optional={"replicas": st.integers(0, 4), "minAvailable": st.integers(1, 4)})
    template: Json = {"cliques": [{"name": name, "spec": draw(sizes)} for name in names]}
    scaled = draw(st.lists(st.sampled_from(names), unique=True))
    if scaled:
        template["podCliqueScalingGroups"] = [{"name": "sg", "cliqueNames": scaled, **draw(sizes)}]
    return {"template": template, "replicas": draw(st.integers(1, 3))}


Controller = Callable[[Json], Iterator[tuple[str, Json]]]
KINDS: dict[str, tuple[str, st.SearchStrategy[Json], Controller]] = {
    "JobSet": ("jobset.x-k8s.io/v1alpha2", JOB_SET, controllers.job_set),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", LEADER_WORKER_SET, controllers.leader_worker_set),
    "PyTorchJob": (
        "kubeflow.org/v1",
        PYTORCH_JOB,
        lambda spec: controllers.kubeflow(spec["pytorchReplicaSpecs"]),
    ),
    "RayCluster": ("ray.io/v1", RAY_CLUSTER, controllers.ray_cluster),
    "Job": ("batch.volcano.sh/v1alpha1", VOLCANO_JOB, controllers.volcano_job),
    "PodCliqueSet": ("grove.io/v1alpha1", pod_clique_sets(), controllers.pod_clique_set),
    "SparkApplication": ("sparkoperator.k8s.io/v1beta2", SPARK, controllers.spark_application),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
def test_every_pod_of_a_controller_has_one_role_and_roles_have_the_counts_of_its_pods(
    kind: str, data: st.DataObject
) -> None:
    api, specs, controller = KINDS[kind]
    spec = data.draw(specs)
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": "set"}, "spec": spec}
    owner = entry_of(TABLE, manifest)
    assert owner is not None
    (gang,) = gangs_of(owner, manifest)
    assert 0 <= gang.minimum <= gang.size
    assert all(0 <= role.minimum <= role.count <= (role.maximum or role.count) for role in gang.roles)
    assert 0 <= gang.waits_for() <= gang.minimum
    counted: Counter[str] = Counter()
    copies: set[str] = set()
    for role, pod in controller(spec):
        member = member_of(owner, manifest, pod)
        assert member.role == role
        counted[role] += 1
        copies.add(member.copy)
    assert counted == Counter({role.name: role.count * gang.copies for role in gang.roles if role.count * gang.copies})
    assert len(copies) == (gang.copies if counted else 0)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "replicas",
                    "name",
                    "template",
                    "spec",
                    "replicatedJobs",
                    "parallelism",
                    "metadata",
                    "annotations",
                    "tasks",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


def owner_of(api: str, kind: str, name: str, **spec: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


JOB_OF_SET = owner_of("batch/v1", "Job", "train-slice-0", parallelism=4)
SET = owner_of("jobset.x-k8s.io/v1alpha2", "JobSet", "train", replicatedJobs=[{"name": "a", "template": {}}])
TRAIN_JOB = owner_of("trainer.kubeflow.org/v1alpha1", "TrainJob", "train", trainer={"numNodes": 9})


def chosen(*owners: Json) -> str:
    """Return the kind of the object whose pods are a gang; "" for none."""
    found = gang_owner(TABLE, owners)
    return found[0].kind if found is not None else ""


def test_jobset_counts_between_its_jobs_and_the_train_job_that_delegates_to_it() -> None:
    assert chosen(JOB_OF_SET, SET, TRAIN_JOB) == "JobSet"


@pytest.mark.parametrize(
    ("version", "labels"),
    [
        ("v1", {"training.kubeflow.org/replica-type": "launcher", "training.kubeflow.org/job-role": "master"}),
        ("v2beta1", {"training.kubeflow.org/job-role": "launcher"}),
    ],
)
def test_launcher_of_both_mpi_controllers_has_its_role(version: str, labels: dict[str, str]) -> None:
    specs = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
    manifest = owner_of(f"kubeflow.org/{version}", "MPIJob", "pi", mpiReplicaSpecs=specs)
    owner = entry_of(TABLE, manifest)
    assert owner is not None
    assert member_of(owner, manifest, {"metadata": {"labels": labels}}).role == "launcher"


def test_pod_of_an_object_that_delegates_is_no_member_without_the_delegate() -> None:
    later = {**SET, "apiVersion": "jobset.x-k8s.io/v9"}
    assert chosen(JOB_OF_SET, TRAIN_JOB) == ""
    assert chosen(JOB_OF_SET, later, TRAIN_JOB) == ""


def test_job_counts_only_with_the_annotation_and_not_if_a_jobset_owns_it() -> None:
    annotated = {**JOB_OF_SET, "metadata": {"annotations": {"calabash.dev/gang-of-owner": "true"}}}
    assert chosen(JOB_OF_SET) == ""
    assert chosen(annotated) == "Job"
    assert chosen(annotated, SET) == "JobSet"


def test_annotation_false_excludes_a_kind_that_is_always_a_gang() -> None:
    refused = {**SET, "metadata": {"annotations": {"calabash.dev/gang-of-owner": "false"}}}
    assert chosen(JOB_OF_SET, refused) == ""


def test_worker_of_a_leader_worker_set_is_found_four_levels_up_and_not_five() -> None:
    replica_set = owner_of("apps/v1", "StatefulSet", "chat")
    leader = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-0"}}
    owner = owner_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "chat")
    assert chosen(replica_set, leader, replica_set, owner) == "LeaderWorkerSet"
    assert chosen(replica_set, replica_set, leader, replica_set, owner) == ""


@pytest.mark.parametrize(
    ("key", "pod"),
    [
        ("scheduling.k8s.io/PodGroup", {"spec": {"schedulingGroup": {"podGroupName": "ring"}}}),
        ("scheduling.x-k8s.io/PodGroup", {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "ring"}}}),
        ("scheduling.volcano.sh/PodGroup", {"metadata": {"annotations": {"scheduling.k8s.io/group-name": "ring"}}}),
        ("scheduling.run.ai/PodGroup", {"metadata": {"annotations": {"pod-group-name": "ring"}}}),
    ],
)
def test_pod_names_its_group_in_the_form_of_one_system_only(key: str, pod: Json) -> None:
    assert {name: group for name, owner in TABLE.items() if (group := named_group(owner, pod))} == {key: "ring"}


def test_subgroup_label_of_kai_is_the_role_and_a_pod_without_it_is_one_of_the_others() -> None:
    groups = [{"name": "a", "minMember": 2}, {"name": "b", "minMember": 1}]
    manifest = owner_of("scheduling.run.ai/v2alpha2", "PodGroup", "g", minMember=4, subGroups=groups)
    owner = entry_of(TABLE, manifest)
    assert owner is not None
    labelled = {"metadata": {"labels": {"kai.scheduler/subgroup-name": "b"}}}
    assert member_of(owner, manifest, labelled).role == "b"
    assert member_of(owner, manifest, {}).role == "others"


@given(pod=ANYTHING, owner=ANYTHING)
def test_pod_and_owners_of_any_form_are_read_without_failure(pod: Any, owner: Any) -> None:
    assert gang_owner(TABLE, [owner, owner]) is None
    for entry in TABLE.values():
        assert isinstance(named_group(entry, pod), str)
