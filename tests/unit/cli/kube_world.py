"""A cluster in memory, for the commands of ``kubectl calabash``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from calabash.adapters.kube import KubeError
from calabash.adapters.kube.objects.core import NAMESPACE, POD, Pod
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE
from calabash.cli.kubectl import group as kubectl_group
from calabash.kubernetes.objects.names import PLAN, REQUEST
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, write_plan
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest, write_request
from calabash.model.errors import Reason
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube


class World:
    """A cluster of one node with two cards: a pod that holds a slice of one, and one that waits."""

    def __init__(self) -> None:
        self.client = MemoryKube()
        for name in ("default", "team"):
            self.client.create(NAMESPACE, {"metadata": {"name": name}})
        self.pod("runs", node="node1")
        uid = self.client.get(POD, "runs", "default").metadata.uid  # type: ignore[union-attr]
        held = {"pod": "default/runs", "podUid": uid, "container": "main", "mode": "vgpu", "policy": "fixed"}
        card = {"model": "Tesla T4", "memoryMib": 15360, "health": "healthy"}
        devices = [
            {
                "uuid": "GPU-0",
                "index": 0,
                **card,
                "mode": "vgpu",
                "slices": [{**held, "allocation": "a", "memoryMib": 8192, "corePercent": 30}],
            },
            {"uuid": "GPU-1", "index": 1, **card},
        ]
        self.set_status({"conditions": [{"type": "Ready", "status": "True"}], "devices": devices})

    def set_status(self, status: dict[str, Any]) -> None:
        """Set the status that the node's agent reports."""
        if self.client.get(GPU_NODE, "node1") is None:
            self.client.create(GPU_NODE, {"metadata": {"name": "node1"}})
        self.client.patch(GPU_NODE, "node1", body={"status": status}, subresource="status")

    def pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        node: str = "",
        waits: str = "",
        owner: str = "web",
        spec: dict[str, Any] | None = None,
        annotations: dict[str, str] | None = None,
        **status: Any,
    ) -> Pod:
        """Create a pod with the fields that admission and the planner set; without an ``owner`` no controller recreates it."""
        owned = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "u", "controller": True}]
        meta: dict[str, Any] = {"name": name, "namespace": namespace, "annotations": annotations or {}}
        if owner:
            meta["ownerReferences"] = owned
        wanted = {"schedulerName": "calabash", "nodeName": node, "containers": [{"name": "main"}], **(spec or {})}
        self.client.create(POD, {"metadata": meta, "spec": wanted}, namespace)
        body: dict[str, Any] = {"phase": "Running" if node else "Pending", **status}
        if waits:
            said = {"type": "PodScheduled", "status": "False", "reason": "NoMemory", "message": waits}
            body["conditions"] = [said]
        return self.client.patch(POD, name, namespace, body={"status": body}, subresource="status")

    def queue(self, name: str, status: dict[str, Any] | None = None, **spec: Any) -> None:
        self.client.create(QUEUE, {"metadata": {"name": name}, "spec": spec})
        if status is not None:
            self.client.patch(QUEUE, name, body={"status": status}, subresource="status")

    def label(self, namespace: str, queue: str) -> None:
        """Label the namespace with the queue of its pods."""
        self.client.patch(NAMESPACE, namespace, body={"metadata": {"labels": {"calabash.dev/queue": queue}}})

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices as the agent reported them."""
        found = self.client.get(GPU_NODE, "node1")
        assert found is not None
        made: list[dict[str, Any]] = msgspec.to_builtins(found.status.devices)
        return made

    def may_not(self, *plurals: str) -> None:
        """Refuse the user to list these kinds in any namespace."""
        client, ask = self.client, self.client.list

        def listed(kind: Any, *words: Any, **more: Any) -> Any:
            if kind.plural in plurals:
                said = f'GET {kind.path()}: {kind.plural} is forbidden: User "jane" cannot list resource'
                raise KubeError(said, reason=Reason.NOT_PERMITTED, status=403)
            return ask(kind, *words, **more)

        client.list = listed  # type: ignore[method-assign]


def asks(count: int = 1, **amounts: Any) -> dict[str, str]:
    """Return the annotation with the request of a pod for ``count`` devices."""
    request = GpuRequest(count=count, **amounts)
    container = ContainerRequest(container="main", kind=ContainerKind.MAIN, request=request)
    gang = GangSource.ANNOTATION if request.gang else GangSource.NONE
    return {REQUEST: write_request(PodRequest(dialect="native", containers=(container,), gang_source=gang))}


def planned(uid: str, *slices: tuple[str, int, int]) -> dict[str, str]:
    """Return the annotation with the plan of a pod; a slice is (device, memory in MiB, percent of compute)."""
    parts = tuple(PlannedSlice(device=d, memory_mib=m, core_percent=c) for d, m, c in slices)
    container = PlannedContainer(name="main", mode="vgpu", slices=parts)
    return {PLAN: write_plan(PodPlan(id="1", pod_uid=uid, node="node1", containers=(container,)))}


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        kubectl_group.main(list(words))
    return int(ended.value.code or 0)
