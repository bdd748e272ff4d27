"""Pods that ask by claims, on invented nodes whose slices are the agent's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.kube.api import Json
from tests.kube.planned import Planned

from calabash.adapters.kube import load_client
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.claims.slice_publisher import SlicePublisher
from calabash.kubernetes.claims.slices import SliceFacts
from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.kubernetes.objects.names import PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest, write_request
from calabash.model.device import NodeName
from calabash.model.request import GpuRequest
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
WHOLE = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "exclusive"'


def publish(planned: Planned, nodes: Sequence[str]) -> None:
    """The class of whole cards, and the slices of these nodes as their agents would write them."""
    spec = {"selectors": [{"cel": {"expression": WHOLE}}]}
    planned.api.create("/apis/resource.k8s.io/v1/deviceclasses", {"metadata": {"name": "calabash.dev"}, "spec": spec})
    client = load_client(planned.cluster.kubeconfig)
    for node in nodes:
        told = client.get(GPU_NODE, node)
        assert told is not None
        states = [DeviceSnapshot(device=one.device, mode=None, held=()) for one in gpu_node_facts(told).devices]
        snapshot = NodeSnapshot(
            node=NodeName(node), devices=tuple(states), allocations=(), membership="kernel", slots="tmpfs"
        )
        publisher = SlicePublisher(client, node)
        planned.cluster.wait_for(partial(publisher.publish, snapshot, SliceFacts()), f"slices of {node}")


def told_claims(planned: Planned, node: str) -> None:
    """Its agent says that its devices are asked for by claims."""
    planned.api.patch(f"/apis/calabash.dev/v1alpha1/gpunodes/{node}/status", {"status": {"door": "claims"}})


def template(planned: Planned, namespace: str, count: int = 1) -> None:
    """What claims for so many whole cards are made of, in a namespace of its own."""
    planned.make_namespace(namespace)
    exactly = {"deviceClassName": "calabash.dev", "count": count}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
    planned.api.create(path, {"metadata": {"name": "whole"}, "spec": spec})


def claimer(
    name: str,
    terms: GpuRequest | None = None,
    *,
    claim: str = "",
    scheduler: str = SCHEDULER,
    movable: bool = False,
    **spec: Any,
) -> Json:
    """A pod as admission leaves it; its claim is made of ``template``'s, or the one of this name."""
    request = terms or GpuRequest()
    part = ContainerRequest(container="gpu", kind=ContainerKind.MAIN, request=request)
    source = GangSource.ANNOTATION if request.gang else GangSource.NONE
    asked = PodRequest(dialect="claims", containers=(part,), gang_source=source, door=NodeDoor.CLAIMS, movable=movable)
    named = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "whole"}
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "metadata": {"name": name, "annotations": {REQUEST: write_request(asked)}},
        "spec": {
            "schedulerName": scheduler,
            "schedulingGates": [{"name": PLAN_GATE}],
            "containers": [container],
            "resourceClaims": [{"name": "gpu", **named}],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }


def given(planned: Planned, namespace: str) -> list[tuple[str, str]]:
    """All (node, device) that are allocated in a namespace."""
    claims = planned.api.get(CLAIMS.format(namespace))["items"]
    return [
        (one["pool"], one["device"])
        for claim in claims
        for one in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]


def waits(planned: Planned, namespace: str, name: str, reason: str) -> Json:
    """Until a pod is told why it waits; what it is told."""

    def said() -> Json | None:
        conditions = planned.pods(namespace)[name]["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled" and c["reason"] == reason), None)

    found = planned.cluster.wait_for(said, f"{name} is told {reason}")
    assert found is not None
    return found


def remove(planned: Planned, namespace: str) -> None:
    planned.clear(namespace)
    planned.cluster.wait_for(lambda: not given(planned, namespace), "its claims are free")
