"""Pruned objects give the same facts as whole objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.virtual import asked

from calabash.adapters.kube.objects.core import Node, Pod
from calabash.adapters.kube.objects.resources import GpuNode
from calabash.kubernetes.objects.names import GPUS, PLAN, PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts, node_facts, pod_facts
from calabash.kubernetes.planner.watch.pruning import GpuNodePruner, PodPruner, keep_node
from calabash.kubernetes.pod_request import write_request
from calabash.model.device import Health
from calabash.model.request import GpuRequest

PLAN_TEXT = (
    '{"version":1,"id":"i","pod_uid":"u","node":"n","containers":[{"name":"main","mode":"vgpu",'
    '"slices":[{"device":"GPU-0","memory_mib":1,"core_percent":1}]}]}'
)


def pod(**annotations: str) -> dict[str, Any]:
    """Return a pod with all fields that the planner reads, and others."""
    states = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    conditions = [{"type": name, "status": "False", "reason": "Unschedulable"} for name in ("Ready", "PodScheduled")]
    owners = [{"kind": "Set", "name": "s", "uid": "1"}, {"kind": "Job", "name": "j", "uid": "2", "controller": True}]
    return {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u",
            "labels": {"app": "a"},
            "annotations": {"others.dev/large": "x" * 4096, **annotations},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": owners,
            "finalizers": ["x.dev/hold"],
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "schedulingGates": [{"name": PLAN_GATE}],
            "containers": [{"name": "main", "resources": {"limits": {GPUS: "1", "calabash.dev/memory": "1Gi"}}}],
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "priority": 7,
        },
        "status": {
            "phase": "Failed",
            "reason": "OutOfcpu",
            "message": "no room",
            "nominatedNodeName": "n",
            "conditions": conditions,
            "containerStatuses": [states],
        },
    }


REQUESTED = {REQUEST: write_request(asked(GpuRequest())), PLAN: PLAN_TEXT}


@pytest.mark.parametrize("annotations", [REQUESTED, {PLAN: PLAN_TEXT}, {REQUEST: "{"}, {}])
def test_pruned_pod_has_equal_facts(annotations: dict[str, str]) -> None:
    whole = msgspec.convert(pod(**annotations), Pod)
    kept = PodPruner()(whole)
    assert pod_facts(kept) == pod_facts(whole)
    assert pod_facts(whole) is not None
    assert kept.spec.scheduling_gates == whole.spec.scheduling_gates
    assert kept.status.container_statuses == ()


def test_time_of_binding_is_read_from_the_condition() -> None:
    bound = pod(**REQUESTED)
    bound["spec"]["nodeName"] = "n"
    bound["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
    ]
    whole = msgspec.convert(bound, Pod)
    told = pod_facts(PodPruner()(whole))
    assert told is not None
    assert told == pod_facts(whole)
    assert told.bound_at_s == told.created_at_s + 5
    waiting = pod_facts(msgspec.convert(pod(**REQUESTED), Pod))
    assert waiting is not None
    assert waiting.bound_at_s == 0.0


def test_pruning_keeps_containers_only_if_the_request_is_read_from_them() -> None:
    keep = PodPruner()
    kept = keep(msgspec.convert(pod(**REQUESTED), Pod))
    assert set(kept.metadata.annotations) == {REQUEST, PLAN}
    assert kept.spec.containers == ()
    whole = msgspec.convert(pod(), Pod)
    assert keep(whole).spec.containers == whole.spec.containers
    assert keep(whole).metadata.annotations == {}, "no dialect reads others.dev/large"


def test_pruned_node_has_equal_facts() -> None:
    node = msgspec.convert(
        {
            "metadata": {"name": "n", "uid": "u", "labels": {"zone": "a"}, "annotations": {"large": "x" * 4096}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True},
            "status": {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "63", "calabash.dev/gpus": "8"}},
        },
        Node,
    )
    kept = keep_node(node)
    assert node_facts(kept) == node_facts(node)
    assert node_facts(kept).offers_device_ids
    assert (kept.metadata.annotations, kept.status.capacity) == ({}, {})


def test_pruned_gpu_node_has_equal_facts_and_shares_strings() -> None:
    uuids = [f"GPU-{i}" for i in range(2)]
    piece = {"pod": "team/p", "podUid": "u", "container": "main", "mode": "vgpu", "policy": "fixed", "allocation": "x"}
    found = [
        {
            "uuid": uuid,
            "index": i,
            "model": "A100",
            "memoryMib": 40960,
            "health": "healthy",
            "numaNode": 1,
            "pciBusId": f"0000:{i:02x}:00.0",
            "nvlinkPeers": [other for other in uuids if other != uuid] + ["GPU-elsewhere"],
            "modes": ["exclusive", "vgpu"],
            "slices": [{**piece, "memoryMib": 512}],
            "foreignMib": 3,
        }
        for i, uuid in enumerate(uuids)
    ]
    value = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}, "status": {"devices": found}}
    node = msgspec.json.decode(msgspec.json.encode(value), type=GpuNode)
    kept = GpuNodePruner()(node)
    assert gpu_node_facts(kept) == gpu_node_facts(node)
    first, second = kept.status.devices
    assert first.model is second.model
    assert first.modes is second.modes
    assert first.nvlink_peers[0] is second.uuid


def test_drained_device_is_unhealthy_before_its_agent_reports_it() -> None:
    devices = [
        {"uuid": f"GPU-{i}", "index": i, "model": "A100", "memoryMib": 40960, "health": "healthy"} for i in range(2)
    ]
    spec = {
        "devices": {"GPU-1": {"drained": True, "reason": "a new fan"}, "GPU-0": {"order": {"id": "1", "what": "test"}}}
    }
    value = {"metadata": {"name": "n"}, "spec": spec, "status": {"devices": devices}}
    kept = GpuNodePruner()(msgspec.json.decode(msgspec.json.encode(value), type=GpuNode))
    assert [found.device.health for found in gpu_node_facts(kept).devices] == [Health.HEALTHY, Health.LOST]


def test_device_usage_does_not_change_a_pruned_gpu_node() -> None:
    piece = {"pod": "team/p", "podUid": "u", "container": "main", "mode": "vgpu", "policy": "fixed", "allocation": "x"}

    def told(memory_mib: int, percent: int, given_mib: int = 512) -> GpuNode:
        part = {**piece, "memoryMib": given_mib, "memoryUsedMib": memory_mib, "coreUsedPercent": percent}
        device = {"uuid": "GPU-0", "index": 0, "model": "A100", "memoryMib": 40960, "health": "healthy"}
        use = {"memoryUsedMib": memory_mib, "utilizationPercent": percent}
        status = {"usedAt": f"2026-01-01T00:00:{percent:02}Z", "devices": [{**device, **use, "slices": [part]}]}
        return GpuNodePruner()(msgspec.convert({"metadata": {"name": "n"}, "status": status}, GpuNode))

    assert told(100, 10).status == told(300, 50).status
    assert told(100, 10).status != told(100, 10, given_mib=513).status


def test_device_listed_twice_counts_once() -> None:
    piece = {"pod": "team/p", "podUid": "u", "container": "main", "mode": "vgpu", "policy": "fixed", "allocation": "x"}
    device = {"uuid": "GPU-0", "index": 0, "model": "A100", "memoryMib": 40960, "health": "healthy", "slices": [piece]}
    value = {"metadata": {"name": "n"}, "status": {"devices": [device, {**device, "index": 1}]}}
    seen = gpu_node_facts(msgspec.convert(value, GpuNode))
    assert [found.device.index for found in seen.devices] == [0]
    assert [part.pod_uid for part in seen.slices] == ["u"]
