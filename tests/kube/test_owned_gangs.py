"""Tests of gangs that admission reads from the objects that create the pods.

Jobs, StatefulSets and their pods are created by the real kube-controller-manager; API server, admission, planner and
kube-scheduler are real as well. The JobSet has a definition that accepts any object, and the test creates its Jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kube.api import Json
from tests.kube.planned import Planned
from tests.kube.test_gang_owners import RACK, create, job, remove, stateful_set, template
from tests.kube.test_gang_owners import planned as planned  # noqa: PLC0414 - a fixture: six devices on three nodes

from calabash.kubernetes.objects.names import GANG_OF_OWNER, PLAN_GATE

JOB_SETS = "jobset.x-k8s.io/v1alpha2"


def explained_by_kubectl(planned: Planned, namespace: str, pod: str) -> str:
    """Return what ``kubectl calabash why`` prints about a pod."""
    program = Path(sys.executable).with_name("kubectl-calabash")
    environment = os.environ | {"KUBECONFIG": str(planned.cluster.kubeconfig)}
    words = [str(program), "why", pod, "-n", namespace]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def occupied(planned: Planned) -> None:
    """Use one of the six devices."""
    pod = template()
    pod["metadata"]["name"] = "filler"
    planned.create("filler", [pod])
    planned.wait_bound("filler", 1)


def wait_held(planned: Planned, namespace: str, count: int) -> str:
    """Wait until all pods exist and explain why they wait; check that none may run, and return one explanation."""

    def explained() -> bool:
        pods = planned.pods(namespace).values()
        told = [c for one in pods for c in one["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        return len(pods) == count and len(told) == count and all("member" in c.get("message", "") for c in told)

    planned.cluster.wait_for(explained, f"{count} pods of {namespace} to be told why they wait")
    assert planned.bound(namespace) == {}
    for one in planned.pods(namespace).values():
        assert [gate["name"] for gate in one["spec"]["schedulingGates"]] == [PLAN_GATE]
    return explained_by_kubectl(planned, namespace, min(planned.pods(namespace)))


def indexed_job(pods: int) -> tuple[str, str, Json]:
    body = job("learn", pods, template(), {"apiVersion": "v1", "kind": "None", "metadata": {"name": "", "uid": ""}})
    body["metadata"] = {"name": "learn", "annotations": {GANG_OF_OWNER: "true"}}
    return "batch/v1", "jobs", body


def parallel_set(pods: int) -> tuple[str, str, Json]:
    body = stateful_set("shards", pods, "Parallel", template())
    body["metadata"]["annotations"] = {GANG_OF_OWNER: "true"}
    return "apps/v1", "statefulsets", body


@pytest.mark.parametrize(
    ("made", "owner"),
    [(indexed_job, "Job learn, role worker"), (parallel_set, "StatefulSet shards, role replica")],
    ids=["job", "stateful-set"],
)
def test_annotated_owner_starts_all_pods_or_none(planned: Planned, made: Any, owner: str) -> None:
    api, plural, body = made(6)
    where = f"whole-{plural}"
    occupied(planned)
    create(planned, api, where, plural, body)
    said = wait_held(planned, where, 6)
    assert f"member of {owner}" in said
    assert "6 of 6 members exist" in said
    assert "5 of 6 members fit" in said
    planned.clear("filler")
    assert len(planned.wait_bound(where, 6)) == 6
    remove(planned, where, plural)


def test_jobs_of_a_job_set_start_with_their_coordinator_or_not_at_all(planned: Planned) -> None:
    where = "training"
    parts: list[Json] = [
        {"name": name, "template": {"spec": {"parallelism": count, "completions": count, "template": pods}}}
        for name, count, pods in (("coordinator", 1, without_devices()), ("slice", 6, template()))
    ]
    body = {"apiVersion": JOB_SETS, "kind": "JobSet", "metadata": {"name": "train"}, "spec": {"replicatedJobs": parts}}
    owner = create(planned, JOB_SETS, where, "jobsets", body)
    occupied(planned)
    for part in parts:
        pods = part["template"]["spec"]["template"]
        pods["metadata"]["labels"] = {"jobset.sigs.k8s.io/replicatedjob-name": part["name"]}
        if part["name"] == "slice":
            said = wait_held(planned, where, 1)
            assert "member of JobSet train, role coordinator" in said
            assert "1 of 7 members exist, 6 are missing" in said
        count = part["template"]["spec"]["parallelism"]
        create(planned, "batch/v1", where, "jobs", job(f"train-{part['name']}-0", count, pods, owner))
    said = wait_held(planned, where, 7)
    assert "member of JobSet train, role coordinator" in said
    assert "1 of them have a plan or request no devices" in said
    planned.clear("filler")
    assert len(planned.wait_bound(where, 7)) == 7
    remove(planned, where, "jobs,jobsets")


def without_devices() -> Json:
    pods = template()
    del pods["spec"]["containers"][0]["resources"]
    return pods


def test_job_without_annotation_starts_what_has_room(planned: Planned) -> None:
    where = "single"
    api, plural, body = indexed_job(7)
    del body["metadata"]["annotations"]
    create(planned, api, where, plural, body)
    assert len(planned.wait_bound(where, 6)) == 6
    remove(planned, where, plural)


def test_pods_of_a_deployment_and_plain_jobs_without_devices_are_not_held(planned: Planned) -> None:
    where = "plain"
    body = job("work", 2, without_devices(), {"apiVersion": "v1", "kind": "None", "metadata": {"name": "", "uid": ""}})
    body["metadata"] = {"name": "work", "annotations": {GANG_OF_OWNER: "true"}}
    create(planned, "batch/v1", where, "jobs", body)
    labels = {"app": "web"}
    pods = without_devices()
    pods["metadata"]["labels"] = labels
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pods}
    create(planned, "apps/v1", where, "deployments", {"metadata": {"name": "web"}, "spec": spec})
    planned.wait_bound(where, 3)
    assert {one["spec"]["schedulerName"] for one in planned.pods(where).values()} == {"default-scheduler"}
    remove(planned, where, "jobs,deployments")


def test_job_that_requires_a_rack_starts_in_one_or_waits(planned: Planned) -> None:
    where, racks = "near", ("r1", "r1", "r2")
    for node, rack in zip(planned.nodes, racks, strict=True):
        planned.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {RACK: rack}}})
    api, plural, body = indexed_job(4)
    body["metadata"]["annotations"]["kai.scheduler/topology-required-placement"] = RACK
    occupied(planned)  # on one of the nodes; moved to the first rack, so that no rack holds four
    (filled,) = planned.bound("filler").values()
    if racks[planned.nodes.index(filled)] == "r2":
        planned.api.patch(f"/api/v1/nodes/{filled}", {"metadata": {"labels": {RACK: "r1"}}})
        planned.api.patch(f"/api/v1/nodes/{planned.nodes[1]}", {"metadata": {"labels": {RACK: "r2"}}})
    create(planned, api, where, plural, body)
    said = wait_held(planned, where, 4)
    assert "r1 holds 3" in said
    assert "r2 holds 2" in said
    planned.clear("filler")
    bound = planned.wait_bound(where, 4)
    labels = {planned.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][RACK] for node in bound.values()}
    assert labels == {"r1"}
    remove(planned, where, plural)
