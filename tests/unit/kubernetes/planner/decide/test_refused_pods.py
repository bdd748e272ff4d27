"""Pods that failed because their kubelet refused them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.kubernetes.planner.virtual import Cluster
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube.objects.core import EVENT, POD
from calabash.kubernetes.planner.state.facts import SweepPod
from calabash.model.request import GpuRequest

OWNER = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]


def sweeps(cluster: Cluster) -> list[SweepPod]:
    return [action for action in cluster.core.take_actions() if isinstance(action, SweepPod)]


def test_refused_pod_is_swept_once_and_its_devices_are_free_at_once() -> None:
    cluster = Cluster({"a": 1})
    uid = cluster.create(GpuRequest())
    cluster.settle()
    failed = replace(cluster.pods.pop(uid), finished=True, refusal="OutOfcpu: no room")
    for _ in range(2):
        cluster.core.pod_changed(failed, cluster.now_s)
    assert [(s.pod.uid, s.is_recreated) for s in sweeps(cluster)] == [(uid, True)]
    replacement = cluster.create(GpuRequest())
    cluster.settle()
    assert cluster.bound() == {replacement: "a"}


def test_ended_or_terminating_pod_is_not_swept() -> None:
    cluster = Cluster({"a": 2})
    for more in ({}, {"refusal": "OutOfcpu", "leaving": True}):
        uid = cluster.create(GpuRequest())
        cluster.settle()
        cluster.core.pod_changed(replace(cluster.pods.pop(uid), finished=True, **more), cluster.now_s)  # type: ignore[arg-type]
    assert sweeps(cluster) == []


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfmemory", "OutOfcalabash.dev/gpus"])
def test_refused_pod_is_deleted_only_if_its_controller_recreates_it(world: World, reason: str) -> None:
    client = world.client
    world.node("a")
    service = world.start()
    for name, owners in (("owned", OWNER), ("alone", [])):
        world.pod(name, GpuRequest())
        client.patch(POD, name, "team", body={"metadata": {"ownerReferences": owners}})
        pod = until(lambda n=name: released(world, n), "released")  # type: ignore[misc]
        assert world.bind(service, pod, "a") == (200, {"Error": ""})
        status = {"phase": "Failed", "reason": reason, "message": "Pod was rejected: 7 of 5"}
        client.patch(POD, name, "team", body={"status": status}, subresource="status")

    def gone() -> bool:
        pod = client.get(POD, "owned", "team")
        return pod is None or pod.metadata.deletion_timestamp is not None

    until(gone, "deleted")

    def said() -> dict[str, str]:
        events = client.list(EVENT, "team").items
        return {e.involved_object.name: e.message for e in events if e.reason == "KubeletRefused"}

    until(lambda: len(said()) == 2, "events")
    assert f"{reason}: Pod was rejected: 7 of 5" in said()["owned"]
    assert "its controller creates another" in said()["owned"]
    assert "hint: delete the pod and create it again" in said()["alone"]
    assert world.get("alone").metadata.deletion_timestamp is None
