"""Convert resource claims, and the claims that pods name, to facts of the planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from calabash.adapters.kube.objects.claims import (
    AllocatedDevices,
    ClaimAllocation,
    DeviceClass,
    OpaqueConfig,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from calabash.adapters.kube.objects.core import Pod
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.kubernetes.claims.allocated import claim_plan
from calabash.kubernetes.claims.device_names import DRIVER, EXTENDED
from calabash.kubernetes.claims.nvidia import NVIDIA_DRIVER
from calabash.kubernetes.claims.requests import request_of
from calabash.kubernetes.object_limits import REST_BYTES_MAX, TEXT_MAX
from calabash.kubernetes.objects.plan import PlannedContainer
from calabash.kubernetes.planner.state.facts import ClaimFacts, PodClaimFacts
from calabash.model.device import Device
from calabash.model.errors import CalabashError

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
CLAIMS_MAX = 64
OVERSIZED = "calabash.dev/oversized"  # annotation of a pruned claim, with its size; users' annotations are dropped
_RESULTS_MAX = 32  # as the API server allows
_ENCODE = msgspec.json.Encoder().encode

DevicesOf = Callable[[str], Sequence[Device]]


def pod_claims(pod: Pod) -> tuple[PodClaimFacts, ...]:
    """Return the claims that a pod names, including claims that were created for it from templates.

    If kube-scheduler created a claim for extended resources of the containers, this claim is included as well.
    """
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    found = [
        PodClaimFacts(
            name=one.name,
            claim=one.resource_claim_name or made.get(one.name) or "",
            template=one.resource_claim_template_name or "",
        )
        for one in pod.spec.resource_claims[:CLAIMS_MAX]
        if made.get(one.name, "") is not None  # else the pod needs none
    ]
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        found.append(PodClaimFacts(name=EXTENDED, claim=extended.resource_claim_name))
    return tuple(found)


def keep_claim(claim: ResourceClaim) -> ResourceClaim:
    """Return the part of a claim that the planner reads: its requests, its allocation, and the pod that owns it.

    Parameters for other drivers are dropped. If the claim is still too large, its requests are replaced by the
    annotation ``OVERSIZED`` with the size in bytes.
    """
    meta = claim.metadata
    annotations = {name: text[:TEXT_MAX] for name, text in meta.annotations.items() if name == POD_CLAIM}
    owner = meta.controller
    spec = msgspec.structs.replace(
        claim.spec,
        devices=msgspec.structs.replace(
            claim.spec.devices, config=tuple(c for c in claim.spec.devices.config if _is_read(c.opaque))
        ),
    )
    allocation = claim.status.allocation
    if allocation is not None:
        config = tuple(c for c in allocation.devices.config if _is_read(c.opaque))
        devices = msgspec.structs.replace(allocation.devices, config=config)
        allocation = ClaimAllocation(devices=devices)
    size = _size(spec, allocation)
    if size > REST_BYTES_MAX:
        annotations[OVERSIZED] = str(size)
        spec = ResourceClaimSpec()
        if allocation is not None:
            results = tuple(r for r in allocation.devices.results if r.driver == DRIVER)
            allocation = ClaimAllocation(devices=AllocatedDevices(results=results[:_RESULTS_MAX]))
    return ResourceClaim(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
            annotations=annotations,
            owner_references=(owner,) if owner is not None else (),
        ),
        spec=spec,
        status=ResourceClaimStatus(allocation=allocation),
    )


def _is_read(opaque: OpaqueConfig | None) -> bool:
    return opaque is not None and opaque.driver in (DRIVER, NVIDIA_DRIVER)


def _size(*parts: object) -> int:
    """Return the encoded size of the objects in bytes; REST_BYTES_MAX + 1 if one is nested too deeply to be encoded."""
    try:
        return sum(len(_ENCODE(part)) for part in parts)
    except (RecursionError, ValueError):
        return REST_BYTES_MAX + 1


def claim_facts(claim: ResourceClaim, classes: Mapping[str, DeviceClass], devices_of: DevicesOf) -> ClaimFacts:
    """Return the facts of a claim.

    Args:
        classes: device classes by name.
        devices_of: returns the devices of a node that its agent has reported.
    """
    meta = claim.metadata
    owner = meta.controller if meta.controller is not None and meta.controller.kind == "Pod" else None
    pod_claim = meta.annotations.get(POD_CLAIM, "")
    request, fault = None, ""
    oversized = meta.annotations.get(OVERSIZED)
    if oversized is not None:
        fault = f"the claim has {oversized} bytes, at most {REST_BYTES_MAX} are read; hint: name fewer requests and selectors"
    else:
        try:
            request = request_of(claim.spec, classes)
        except CalabashError as error:
            fault = str(error).replace("\n", "; ")
    node, held = _held(claim, devices_of)
    return ClaimFacts(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        owner=owner.uid if owner is not None else "",
        pod_claim=pod_claim if owner is not None else "",
        request=request,
        fault=fault,
        node=node,
        held=held,
        leaving=meta.deletion_timestamp is not None,
    )


def _held(claim: ResourceClaim, devices_of: DevicesOf) -> tuple[str, PlannedContainer | None]:
    """Return the node on which the claim is allocated, and the devices and amounts that it has there.

    The node is "" if the claim is not allocated. The devices are None if the node's agent has not reported them.
    """
    allocation = claim.status.allocation
    pools = [one.pool for one in allocation.devices.results if one.driver == DRIVER] if allocation is not None else []
    if not pools:
        return "", None
    node = pools[0]
    try:
        plan = claim_plan(claim, node, devices_of(node))
        if plan.admin_access:
            return "", None
        return node, msgspec.convert(
            {"name": claim.metadata.name, "mode": plan.mode, "policy": plan.policy, "slices": plan.slices},
            PlannedContainer,
        )
    except (CalabashError, msgspec.ValidationError):
        return node, None
