"""Tests of attacks by a user with the role ``edit`` in one namespace on the planner and another namespace's pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.kube.api import Api, Json
from tests.kube.cluster import Cluster
from tests.kube.needs import need
from tests.kube.planned import Planned, planned_pod

from calabash.kubernetes.objects.names import PLAN_GATE, PLANNED
from calabash.model.request import GpuRequest

HOSTILE, QUIET, USER = "hostile", "quiet", "mallory"
SHARE = GpuRequest(memory_mib=512, core_percent=2)
ANNOTATIONS_MAX = 256 << 10


@pytest.fixture(scope="module")
def planned() -> Iterator[Planned]:
    need()
    with (
        Cluster(users={USER: ("tenants",)}) as cluster,
        Planned(cluster, 2, 2, prefix="n", planner={"--give-back-after": "10"}) as running,
    ):
        for namespace in (HOSTILE, QUIET):
            running.make_namespace(namespace)
        binding = {
            "metadata": {"name": "edits"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        }
        cluster.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{HOSTILE}/rolebindings", binding)
        yield running


@pytest.fixture
def mallory(planned: Planned) -> Api:
    keys = planned.cluster.secrets
    user = Api(keys.server, keys.authority, keys.token(USER))
    planned.cluster.wait_for(partial(_may_list, user), "the role of the user")
    return user


def _may_list(user: Api) -> bool:
    try:
        user.get(f"/api/v1/namespaces/{HOSTILE}/pods")
    except Exception:
        return False
    return True


def full_pod(name: str) -> Json:
    """Return a pod whose annotations are so large that the annotation with a plan cannot be added."""
    pod = planned_pod(name, SHARE)
    annotations = pod["metadata"]["annotations"]
    room = ANNOTATIONS_MAX - sum(len(key) + len(value) for key, value in annotations.items())
    annotations["example.com/full"] = "x" * (room - len("example.com/full") - 16)
    return pod


def condition(planned: Planned, name: str, type_: str) -> Any:
    pod = planned.pods(HOSTILE)[name]
    return next((one for one in pod["status"].get("conditions", ()) if one["type"] == type_), {})


def test_pods_without_room_for_a_plan_delay_no_other_namespace(planned: Planned, mallory: Api) -> None:
    path = f"/api/v1/namespaces/{HOSTILE}/pods"
    planned.each(lambda pod: mallory.create(path, pod), [full_pod(f"full{i}") for i in range(80)])
    planned.cluster.wait_for(
        lambda: condition(planned, "full0", "PodScheduled").get("reason") == "WriteRefused", "a pod is set aside"
    )
    planned.create(QUIET, [planned_pod(f"p{i}", SHARE) for i in range(20)])
    assert len(planned.wait_bound(QUIET, 20)) == 20
    refused = condition(planned, "full0", "PodScheduled")
    assert "Too long" in refused["message"] or "annotations" in refused["message"]
    gates = [gate["name"] for gate in planned.pods(HOSTILE)["full0"]["spec"]["schedulingGates"]]
    assert gates == [PLAN_GATE]
    smaller = {"metadata": {"annotations": {"example.com/full": None}}}
    mallory.patch(f"{path}/full0", smaller)
    planned.cluster.wait_for(lambda: "full0" in planned.bound(HOSTILE), "the pod that was changed is bound")
    planned.clear(HOSTILE)
    planned.clear(QUIET)


def test_pod_with_a_missing_volume_claim_releases_its_devices_and_is_bound_when_the_claim_exists(
    planned: Planned, mallory: Api
) -> None:
    path = f"/api/v1/namespaces/{HOSTILE}/pods"
    whole = GpuRequest(count=2)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    for i in range(2):
        mallory.create(path, planned_pod(f"stuck{i}", whole, volumes=volumes))
    planned.cluster.wait_for(
        lambda: all(condition(planned, f"stuck{i}", "PodScheduled").get("reason") == "Unschedulable" for i in range(2)),
        "kube-scheduler refuses the pods",
    )
    planned.create(QUIET, [planned_pod("whole", whole)])
    planned.wait_bound(QUIET, 1)
    given_back = planned.cluster.wait_for(
        lambda: next(
            (c for i in range(2) if (c := condition(planned, f"stuck{i}", PLANNED)).get("reason") == "PlanUnused"), None
        ),
        "the condition of a pod that holds nothing",
    )
    assert "kube-scheduler has refused the pod" in json.dumps(given_back)
    planned.clear(QUIET)
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": "data",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    volume = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Mi"},
            "hostPath": {"path": "/tmp"},
            "claimRef": {"namespace": HOSTILE, "name": "data"},
        },
    }
    planned.cluster.api.create("/api/v1/persistentvolumes", volume)
    mallory.create(f"/api/v1/namespaces/{HOSTILE}/persistentvolumeclaims", claim)
    assert len(planned.wait_bound(HOSTILE, 2)) == 2
    planned.clear(HOSTILE)
