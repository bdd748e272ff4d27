"""Tests of gangs whose pods belong to a JobSet, a StatefulSet or the PodGroup of another system.

Controllers, API server, admission, planner and kube-scheduler are real. The nodes are fake, and the kinds of other
systems have definitions that accept any object.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.hollow import HollowKubelets
from tests.kube.needs import need
from tests.kube.planned import SYSTEM, Planned, crd
from tests.kube.product import PLANNER, USERS, start_admission

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.objects.names import GANG, GANG_SIZE, GPUS, PLAN

PREFIX = "gangs"
RACK = "topology.kubernetes.io/rack"
GROUPS = {  # API of the groups of each system
    "coscheduling": ("scheduling.x-k8s.io", "v1alpha1"),
    "volcano": ("scheduling.volcano.sh", "v1beta1"),
}


@pytest.fixture(scope="module")
def planned() -> Iterator[Planned]:
    need()
    with Cluster(users=USERS) as cluster:
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for group, version in GROUPS.values():
            made = crd("podgroups", "PodGroup", group=group, version=version, scope="Namespaced")
            cluster.api.create(definitions, made)
            cluster.wait_for(partial(served, cluster, f"/apis/{group}/{version}/podgroups"), "groups")
        made = crd("jobsets", "JobSet", group="jobset.x-k8s.io", version="v1alpha2", scope="Namespaced")
        cluster.api.create(definitions, made)
        cluster.wait_for(lambda: served(cluster, "/apis/jobset.x-k8s.io/v1alpha2/jobsets"), "JobSets")
        admission = start_admission(cluster, settings=AdmissionSettings(topology_levels=(RACK,)))
        try:
            cluster.wait_for(admission.ready, "the admission server")
            options = {
                "--kubeconfig": str(cluster.secrets.kubeconfig(PLANNER)),
                "--identity": "only",
                "--topology-level": RACK,
            }
            with Planned(cluster, 3, 2, prefix=PREFIX, planner=options) as found, HollowKubelets(cluster.api, PREFIX):
                yield found
        finally:
            admission.stop()


def served(cluster: Cluster, path: str) -> bool:
    try:
        cluster.api.get(path)
    except RefusedError:
        return False
    return True


def template(*, gang: str = "", size: int = 0, **more: Any) -> Json:
    """Return a pod that requests a whole card, in the form in which a user writes it into the template of an owner.

    Args:
        gang, size: annotations for the gang; "" for none.
        more: further annotations, labels and fields of the spec.
    """
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"limits": {GPUS: "1"}}}
    annotations = {GANG: gang, GANG_SIZE: str(size)} if gang else {}
    metadata = {"annotations": annotations | more.pop("annotations", {}), "labels": more.pop("labels", {})}
    return {"metadata": metadata, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **more}}


def pod(name: str, **more: Any) -> Json:
    made = template(**more)
    made["metadata"]["name"] = name
    return made


def create(planned: Planned, api: str, namespace: str, plural: str, body: Json) -> Json:
    planned.make_namespace(namespace)
    return planned.api.create(f"/apis/{api}/namespaces/{namespace}/{plural}", body)


def wait_incomplete(planned: Planned, namespace: str, count: int) -> None:
    """Wait until ``count`` pods wait because their gang is incomplete; check that none has a node or a plan."""

    def told() -> bool:
        pods = planned.pods(namespace).values()
        conditions = [c for one in pods for c in one["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        return len(pods) == count and [c["reason"] for c in conditions] == ["GangIncomplete"] * count

    planned.cluster.wait_for(told, f"{count} pods of {namespace} to be told that others are missing")
    assert planned.bound(namespace) == {}
    assert not [one for one in planned.pods(namespace).values() if PLAN in one["metadata"]["annotations"]]


def remove(planned: Planned, namespace: str, kinds: str) -> None:
    planned.cluster.kubectl("delete", kinds, "--all", "--wait=false", "-n", namespace)
    planned.cluster.wait_for(lambda: not planned.pods(namespace), f"the end of {namespace}")


def job(name: str, count: int, pods: Json, owner: Json) -> Json:
    """Return one of the Jobs that the controller of a JobSet creates.

    Args:
        count: number of pods of the Job.
        pods: template of the pods.
        owner: the JobSet.
    """
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    pods["spec"]["restartPolicy"] = "Never"
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": pods}
    return {"metadata": {"name": name, "ownerReferences": [reference]}, "spec": spec}


def test_jobs_of_a_jobset_start_as_one_gang(planned: Planned) -> None:
    where = "jobset"
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "training"}}
    owner = create(planned, "jobset.x-k8s.io/v1alpha2", where, "jobsets", body)
    create(planned, "batch/v1", where, "jobs", job("workers", 3, template(gang="training", size=4), owner))
    wait_incomplete(planned, where, 3)
    create(planned, "batch/v1", where, "jobs", job("leader", 1, template(gang="training", size=4), owner))
    assert len(planned.wait_bound(where, 4)) == 4
    remove(planned, where, "jobs,jobsets")


def stateful_set(name: str, replicas: int, policy: str, pods: Json) -> Json:
    labels = {"app": name}
    pods["metadata"]["labels"] |= labels
    spec = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": policy,
        "selector": {"matchLabels": labels},
        "template": pods,
    }
    return {"metadata": {"name": name}, "spec": spec}


def test_stateful_set_starts_as_one_gang_and_a_lost_member_is_recreated_alone(planned: Planned) -> None:
    where = "stateful"
    made = stateful_set("shards", 3, "Parallel", template(gang="shards", size=3))
    create(planned, "apps/v1", where, "statefulsets", made)
    planned.wait_bound(where, 3)
    before = {name: one["metadata"]["uid"] for name, one in planned.pods(where).items()}
    planned.api.delete(f"/api/v1/namespaces/{where}/pods/shards-1", {"gracePeriodSeconds": 0})

    def again() -> bool:
        now = planned.pods(where)
        if len(planned.bound(where)) != 3 or "shards-1" not in now:
            return False
        return bool(now["shards-1"]["metadata"]["uid"] != before["shards-1"])

    planned.cluster.wait_for(again, "another shards-1 with a node")
    after = {name: one["metadata"]["uid"] for name, one in planned.pods(where).items()}
    assert {name for name in after if after[name] != before[name]} == {"shards-1"}
    remove(planned, where, "statefulsets")


def test_stateful_set_that_creates_pods_one_by_one_waits_with_reason_gang_incomplete(
    planned: Planned,
) -> None:
    where = "ordered"
    create(
        planned, "apps/v1", where, "statefulsets", stateful_set("one", 2, "OrderedReady", template(gang="one", size=2))
    )
    wait_incomplete(planned, where, 1)
    remove(planned, where, "statefulsets")


@pytest.mark.parametrize("system", sorted(GROUPS))
def test_pod_group_of_another_system_is_a_gang(planned: Planned, system: str) -> None:
    group, version = GROUPS[system]
    said: Json = {"labels": {"scheduling.x-k8s.io/pod-group": "band"}}
    if system == "volcano":
        said = {"annotations": {"scheduling.k8s.io/group-name": "band"}, "schedulerName": "volcano"}
    planned.create(system, [pod(f"p{i}", **said) for i in range(2)])
    wait_incomplete(planned, system, 2)  # there is no such group yet
    body = {
        "apiVersion": f"{group}/{version}",
        "kind": "PodGroup",
        "metadata": {"name": "band"},
        "spec": {"minMember": 3},
    }
    create(planned, f"{group}/{version}", system, "podgroups", body)
    wait_incomplete(planned, system, 2)
    planned.create(system, [pod("p2", **said)])
    assert len(planned.wait_bound(system, 3)) == 3
    remove(planned, system, "pods")


def test_pod_group_that_does_not_fit_as_a_whole_gets_no_devices(planned: Planned) -> None:
    group, version = GROUPS["coscheduling"]
    where = "large"
    body = {
        "apiVersion": f"{group}/{version}",
        "kind": "PodGroup",
        "metadata": {"name": "band"},
        "spec": {"minMember": 7},
    }
    create(planned, f"{group}/{version}", where, "podgroups", body)
    planned.create(where, [pod(f"p{i}", labels={"scheduling.x-k8s.io/pod-group": "band"}) for i in range(7)])

    def told() -> bool:
        pods = planned.pods(where).values()
        found = [c for one in pods for c in one["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        return len(found) == 7 and all("nodes are available" in c.get("message", "") for c in found)

    planned.cluster.wait_for(told, "all seven to be told that six devices are not enough")
    assert planned.bound(where) == {}
    planned.create("single", [pod("alone")])
    planned.wait_bound("single", 1)
    remove(planned, where, "pods")
