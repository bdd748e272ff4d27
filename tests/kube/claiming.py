"""Pods with ResourceClaims on fake nodes, whose ResourceSlices are published by the code of the agent."""

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
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest, write_request
from calabash.model.device import NodeName
from calabash.model.request import GpuRequest
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
WHOLE = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "exclusive"'


def publish(planned: Planned, nodes: Sequence[str]) -> None:
    """Create the device class of whole cards, and the ResourceSlices of these nodes as their agents would publish them."""
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


def report_claims(planned: Planned, node: str) -> None:
    """Report, as the node's agent would, that the allocation API of the node is ``claims``."""
    planned.api.patch(f"/apis/calabash.dev/v1alpha1/gpunodes/{node}/status", {"status": {"door": "claims"}})


def template(planned: Planned, namespace: str, count: int = 1) -> None:
    """Create a namespace and a ResourceClaimTemplate for ``count`` whole cards in it."""
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
    """Return a pod with a claim, in the form that admission gives it.

    Args:
        name: name of the pod.
        terms: request of the pod; None for a whole card.
        claim: name of the claim; "" to let Kubernetes create one from the namespace's template.
        scheduler: the scheduler of the pod.
        movable: True if the planner may move the pod.
        spec: further fields of the pod's spec.
    """
    request = terms or GpuRequest()
    part = ContainerRequest(container="gpu", kind=ContainerKind.MAIN, request=request)
    source = GangSource.ANNOTATION if request.gang else GangSource.NONE
    asked = PodRequest(
        dialect="claims", containers=(part,), gang_source=source, allocation_api=AllocationApi.CLAIMS, movable=movable
    )
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


def allocated_devices(planned: Planned, namespace: str) -> list[tuple[str, str]]:
    """Return the node and the name of each device that is allocated to a claim of a namespace."""
    claims = planned.api.get(CLAIMS.format(namespace))["items"]
    return [
        (one["pool"], one["device"])
        for claim in claims
        for one in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]


def wait_for_reason(planned: Planned, namespace: str, name: str, reason: str) -> Json:
    """Wait until the condition PodScheduled has this reason, and return the condition."""

    def condition() -> Json | None:
        conditions = planned.pods(namespace)[name]["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled" and c["reason"] == reason), None)

    found = planned.cluster.wait_for(condition, f"{name} is told {reason}")
    assert found is not None
    return found


def remove(planned: Planned, namespace: str) -> None:
    planned.clear(namespace)
    planned.cluster.wait_for(lambda: not allocated_devices(planned, namespace), "its claims are free")
