"""Objects of one node with eight cards, as complete as kubelets and agents send them, to measure the cost of large clusters."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from bench._planner_memory import ASKED
from calabash.adapters.kube.objects.resources import GpuNodeDevice, GpuNodeMigProfile, GpuNodeSlice
from calabash.kubernetes.claims.slices import SliceFacts, slice_name, slices_of
from calabash.kubernetes.objects.names import PLAN, POOL, REQUEST, SCHEDULER
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, write_plan
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest, write_request
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.sched.cluster.mig_tables import GEOMETRIES
from calabash.sharing.registry import SHARING_MODES

GPUS = 8
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
GPU_NODES = "/apis/calabash.dev/v1alpha1/gpunodes"
_WHEN = "2026-01-01T00:00:00Z"
_MODEL = "NVIDIA H100 80GB HBM3"
_MIG = (
    ("1g.10gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7, 9_856),
    ("1g.20gb", 1, 2, (0, 2, 4, 6), 4, 20_096),
    ("2g.20gb", 2, 2, (0, 2, 4), 3, 20_096),
    ("3g.40gb", 3, 4, (0, 4), 2, 40_320),
    ("4g.40gb", 4, 4, (0,), 1, 40_320),
    ("7g.80gb", 7, 8, (0,), 1, 81_152),
)
_REQUEST = write_request(
    PodRequest(
        dialect="native",
        containers=(ContainerRequest(container="main", kind=ContainerKind.MAIN, request=ASKED),),
    )
)


def node_name(number: int) -> str:
    return f"node-{number:05}"


def device_uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-{index:04x}-5555-6666-777788889999"


def node_body(number: int, images: int = 50) -> dict[str, Any]:
    """Return a Node as its kubelet reports it: most of it are names of images, of which kubelets report fifty."""
    name = node_name(number)
    room = {"cpu": "128", "memory": "2Ti", "pods": "250", "ephemeral-storage": "7Ti", "calabash.dev/gpus": "256"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "hgx-h100-8",
        "topology.kubernetes.io/zone": f"zone-{number % 4}",
        "topology.kubernetes.io/rack": f"rack-{number // 8}",
        POOL: "ab"[number % 2],
    }
    conditions = [
        {
            "type": kind,
            "status": str(kind == "Ready"),
            "reason": f"Kubelet{kind}",
            "message": f"kubelet tells of {kind}",
            "lastHeartbeatTime": _WHEN,
            "lastTransitionTime": _WHEN,
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    digest = "0123456789abcdef" * 4
    listed = [
        {
            "names": [f"registry.example/team/image-{i}@sha256:{digest}", f"registry.example/team/image-{i}:1.{i}.0"],
            "sizeBytes": 3_000_000_000 + i,
        }
        for i in range(images)
    ]
    status = {
        "capacity": room,
        "allocatable": room,
        "conditions": conditions,
        "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}, {"type": "Hostname", "address": name}],
        "images": listed,
        "nodeInfo": {
            "machineID": "0" * 32,
            "systemUUID": "0" * 36,
            "bootID": "0" * 36,
            "kernelVersion": "6.8.0-60-generic",
            "osImage": "Ubuntu 24.04.2 LTS",
            "containerRuntimeVersion": "containerd://2.3.7",
            "kubeletVersion": "v1.36.3",
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def gpu_node_status(number: int, *, slices: int = 1, used_mib: int = 1000, mig: bool = False) -> dict[str, Any]:
    """Return the status that an agent reports, with ``slices`` on each card."""
    uuids = [device_uuid(number, index) for index in range(GPUS)]
    profiles = tuple(
        GpuNodeMigProfile(name=name, compute=compute, slices=size, starts=starts, limit=limit, memory_mib=memory_mib)
        for name, compute, size, starts, limit, memory_mib in (_MIG if mig else ())
    )
    devices = [
        GpuNodeDevice(
            uuid=uuid,
            index=index,
            model=_MODEL,
            memory_mib=81_559,
            health="healthy",
            numa_node=index // 4,
            pci_bus_id=f"00000000:{index:02X}:00.0",
            nvlink_peers=tuple(peer for peer in uuids if peer != uuid),
            modes=tuple(sorted(SHARING_MODES)),
            mode="vgpu" if slices else "",
            slices=tuple(_given(number, index, which, used_mib) for which in range(slices)),
            memory_used_mib=used_mib,
            utilization_percent=used_mib % 100,
            mig_profiles=profiles,
        )
        for index, uuid in enumerate(uuids)
    ]
    ready = {"type": "Ready", "status": "True", "reason": "AgentReady", "message": "", "lastTransitionTime": _WHEN}
    return {
        "agentVersion": "1.0.0",
        "driverVersion": "570.124.06",
        "observedAt": _WHEN,
        "usedAt": f"2026-01-01T00:{used_mib // 60 % 60:02}:{used_mib % 60:02}Z",
        "conditions": [ready],
        "summary": {"devices": "8/8", "model": _MODEL, "memory": "234/637 GiB", "slices": GPUS * slices},
        "devices": [msgspec.to_builtins(device) for device in devices],
    }


def _given(number: int, index: int, which: int, used_mib: int) -> GpuNodeSlice:
    return GpuNodeSlice(
        pod=f"team-{index}/job-{number}-{which}-abcde",
        pod_uid=f"{number:08x}-1111-2222-{index:04x}-{which:012x}",
        container="main",
        mode="vgpu",
        policy="fixed",
        allocation=f"k8s-{number:08x}11112222{index:04x}{which:012x}-main",
        memory_mib=30_000,
        core_percent=60,
        memory_used_mib=used_mib,
        core_used_percent=used_mib % 100,
    )


def pod_body(number: int, node: int, index: int, uid: str = "0" * 36) -> dict[str, Any]:
    """Return a pod that runs where its plan says, with the usual fields of a job's container; the plan names the pod's UID."""
    name = f"job-{number}-abcde"
    part = PlannedSlice(device=device_uuid(node, index), memory_mib=30_000, core_percent=60)
    container = PlannedContainer(name="main", mode="vgpu", slices=(part,))
    plan = PodPlan(id=f"{number:016x}", pod_uid=uid, node=node_name(node), containers=(container,))
    limits = {"calabash.dev/gpus": "1", "calabash.dev/memory": "30000Mi", "calabash.dev/cores": "60", "cpu": "8"}
    main = {
        "name": "main",
        "image": "registry.example/team/train:1.2.3",
        "command": ["python", "-m", "train", "--config=/etc/train/config.yaml"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(10)],
        "resources": {"limits": limits, "requests": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "train", "team": f"team-{number % 20}"},
            "annotations": {REQUEST: _REQUEST, PLAN: write_plan(plan)},
        },
        "spec": {"schedulerName": SCHEDULER, "nodeName": plan.node, "containers": [main]},
    }


def resource_slices(number: int, *, mig: bool = True) -> list[dict[str, Any]]:
    """Return the ResourceSlices of a node as its agent publishes them; ``mig``: with every MIG placement."""
    peers = [DeviceUuid(device_uuid(number, index)) for index in range(GPUS)]
    cards = [
        Device(
            uuid=uuid,
            index=index,
            vendor="nvidia",
            model=_MODEL,
            memory_mib=81_559,
            compute_capability=(9, 0),
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            numa_node=index // 4,
            nvlink_peers=tuple(peer for peer in peers if peer != uuid),
            mig=GEOMETRIES["H100"] if mig else None,
        )
        for index, uuid in enumerate(peers)
    ]
    idle = tuple(DeviceSnapshot(device=card, mode=None, held=()) for card in cards)
    name = node_name(number)
    snapshot = NodeSnapshot(node=NodeName(name), devices=idle, allocations=(), membership="kernel", slots="tmpfs")
    roots = {card.uuid: "pci0000:00" for card in cards}
    facts = SliceFacts(driver_version="570.124.06", cuda_version="12.8", pcie_roots=roots)
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": slice_name(name, place)},
            "spec": msgspec.to_builtins(spec) | {"pool": msgspec.to_builtins(spec.pool) | {"generation": 1}},
        }
        for place, spec in enumerate(slices_of(snapshot, facts))
    ]


def json_bytes(*objects: Any) -> int:
    """Return the size of the objects as they are sent."""
    return sum(len(json.dumps(one, separators=(",", ":")).encode()) for one in objects)
