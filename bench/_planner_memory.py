"""Resident memory of a planner of a large cluster, filled from objects as the API server sends them.

Runs as a process of its own (``python -m bench._planner_memory NODES PODS``) and prints MiB, because memory that was used
before in the same process would count as well.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import calabash.kubernetes.planner.run  # noqa: F401  all that the service loads
from calabash.adapters.kube.mirror.cache import MirrorCache, MirrorChange
from calabash.adapters.kube.objects.core import Node, Pod
from calabash.adapters.kube.objects.resources import GpuNode
from calabash.kubernetes.objects.names import PLAN, REQUEST, SCHEDULER
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, write_plan
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts, node_facts, pod_facts
from calabash.kubernetes.planner.watch.pruning import GpuNodePruner, PodPruner, keep_node
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest, write_request
from calabash.model.request import GpuRequest

GPUS = 8
ASKED = GpuRequest(memory_mib=30_000, core_percent=60)


def _pod_uid(number: int) -> str:
    return f"{number:08x}-1111-2222-3333-444455556666"


def _device_uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-{index:04x}-5555-6666-777788889999"


def node_object(number: int) -> dict[str, Any]:
    """Return a node with usual labels."""
    name = f"node-{number:05}"
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "rack": "r1"}
    return {
        "metadata": {"name": name, "uid": f"n{number}", "resourceVersion": str(number), "labels": labels},
        "status": {"allocatable": {"cpu": "128", "memory": "1Ti", "pods": "110", "calabash.dev/gpus": "64"}},
    }


def devices_object(number: int, pods: int, nodes: int) -> dict[str, Any]:
    """Return the object by which the node's agent reports its devices."""
    peers = [_device_uuid(number, index) for index in range(GPUS)]
    devices = [
        {
            "uuid": uuid,
            "index": index,
            "model": "NVIDIA A100-SXM4-40GB",
            "memoryMib": 40_960,
            "health": "healthy",
            "numaNode": index // 4,
            "pciBusId": f"00000000:{index:02X}:00.0",
            "nvlinkPeers": [peer for peer in peers if peer != uuid],
            "modes": ["exclusive", "timeslice", "vgpu"],
            "slices": [
                {
                    "pod": "team/pod",
                    "podUid": _pod_uid(holder),
                    "container": "main",
                    "mode": "vgpu",
                    "policy": "fixed",
                    "allocation": f"a{holder}",
                    "memoryMib": 30_000,
                    "corePercent": 60,
                }
                for holder in range(number + index * nodes, pods, nodes * GPUS)
            ],
        }
        for index, uuid in enumerate(peers)
    ]
    return {
        "metadata": {"name": f"node-{number:05}", "uid": f"d{number}", "resourceVersion": str(number)},
        "spec": {},
        "status": {"devices": devices},
    }


def pod_object(number: int, nodes: int, request: str) -> dict[str, Any]:
    """Return a pod of a job of eight that runs where its plan says."""
    node, index = number % nodes, number // nodes % GPUS
    uid, job = _pod_uid(number), number // 8
    part = PlannedSlice(device=_device_uuid(node, index), memory_mib=30_000, core_percent=60)
    container = PlannedContainer(name="main", mode="vgpu", slices=(part,))
    plan = PodPlan(id=f"{number:016x}", pod_uid=uid, node=f"node-{node:05}", containers=(container,))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{job}", "uid": f"j{job}", "controller": True}
    return {
        "metadata": {
            "name": f"job-{job}-{number % 8}-abcde",
            "namespace": f"team-{job % 20}",
            "uid": uid,
            "resourceVersion": str(number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"batch.kubernetes.io/job-name": f"job-{job}", "app": "train"},
            "annotations": {REQUEST: request, PLAN: write_plan(plan)},
            "ownerReferences": [owner],
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "nodeName": plan.node,
            "containers": [{"name": "main", "resources": {"limits": {"calabash.dev/gpus": "1"}}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def fill(nodes: int, pods: int) -> tuple[Core, list[MirrorCache[Any]]]:
    """Return a core and its mirrors of a cluster in which every pod has what its plan says."""
    numbers = itertools.count()
    core = Core(new_id=lambda: f"plan-{next(numbers)}")

    def told(change: MirrorChange[Pod]) -> None:
        facts = pod_facts(change.after) if change.after is not None else None
        if facts is not None:
            core.pod_changed(facts, 1.0)

    def same(one: object) -> None:
        del one

    node_mirror: MirrorCache[Node] = MirrorCache(same, keep_node)
    device_mirror: MirrorCache[GpuNode] = MirrorCache(same, GpuNodePruner())
    pod_mirror: MirrorCache[Pod] = MirrorCache(told, PodPruner())
    for number in range(nodes):
        node_mirror.put(_decoded(node_object(number), Node))
        device_mirror.put(_decoded(devices_object(number, pods, nodes), GpuNode))
    for node in node_mirror.snapshot().values():
        core.node_changed(node_facts(node), 0.0)
    for devices in device_mirror.snapshot().values():
        core.devices_changed(gpu_node_facts(devices), 0.0)
    part = ContainerRequest(container="main", kind=ContainerKind.MAIN, request=ASKED)
    request = write_request(PodRequest(dialect="native", containers=(part,)))
    for number in range(pods):
        pod_mirror.put(_decoded(pod_object(number, nodes, request), Pod))
    core.start(1.0)
    core.decide(2.0)
    return core, [node_mirror, device_mirror, pod_mirror]


def resident_mib() -> float:
    """Return the resident memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _decoded(sent: dict[str, Any], kind: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(sent), type=kind)


def main() -> None:
    """Print the resident memory in MiB, the number of pods in the scheduler, and the CPU time in seconds."""
    nodes, pods = int(sys.argv[1]), int(sys.argv[2])
    began_s = time.process_time()
    core, mirrors = fill(nodes, pods)
    took_s = time.process_time() - began_s
    gc.collect()
    held = sum(entry.plan is not None for entry in core.store.entries.values())
    print(f"{resident_mib():.1f} {held} {took_s:.2f}")
    del mirrors


if __name__ == "__main__":
    main()
