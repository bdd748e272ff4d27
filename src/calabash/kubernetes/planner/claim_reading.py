"""From claims of the API server, and what pods say of theirs, to what the planner is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from calabash.kubernetes.claims.allocated import claim_plan
from calabash.kubernetes.claims.asking import request_of
from calabash.kubernetes.claims.names import DRIVER
from calabash.kubernetes.plan import PlannedContainer
from calabash.kubernetes.planner.facts import ClaimSeen, PodClaimSeen
from calabash.model.device import Device
from calabash.model.errors import CalabashError
from calabash.seams.kube.claims import DeviceClass, ResourceClaim, ResourceClaimStatus
from calabash.seams.kube.meta import ObjectMeta
from calabash.seams.kube.objects import Pod

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
EXTENDED = "extended-resources"
CLAIMS_MAX = 64

DevicesOf = Callable[[str], Sequence[Device]]


def pod_claims(pod: Pod) -> tuple[PodClaimSeen, ...]:
    """The claims that a pod names, with those that were made for it by their names; also the one that a scheduler made for
    what its containers ask by names of resources."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    found = [
        PodClaimSeen(
            name=one.name,
            claim=one.resource_claim_name or made.get(one.name) or "",
            template=one.resource_claim_template_name or "",
        )
        for one in pod.spec.resource_claims[:CLAIMS_MAX]
        if made.get(one.name, "") is not None  # else none is needed
    ]
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        found.append(PodClaimSeen(name=EXTENDED, claim=extended.resource_claim_name))
    return tuple(found)


def keep_claim(claim: ResourceClaim) -> ResourceClaim:
    """``keep`` of a mirror of claims: what is asked, what was allocated, and whose it is."""
    meta = claim.metadata
    annotations = {name: text for name, text in meta.annotations.items() if name == POD_CLAIM}
    owner = meta.controller
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
        spec=claim.spec,
        status=ResourceClaimStatus(allocation=claim.status.allocation),
    )


def claim_facts(claim: ResourceClaim, classes: Mapping[str, DeviceClass], devices_of: DevicesOf) -> ClaimSeen:
    """What the planner is told of a claim.

    Args:
        devices_of: the devices of a node, as far as its agent has told.
    """
    meta = claim.metadata
    owner = meta.controller if meta.controller is not None and meta.controller.kind == "Pod" else None
    pod_claim = meta.annotations.get(POD_CLAIM, "")
    request, fault = None, ""
    try:
        request = request_of(claim.spec, classes)
    except CalabashError as error:
        fault = str(error).replace("\n", "; ")
    node, held = _held(claim, devices_of)
    return ClaimSeen(
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
    """Where it is allocated, and what it has there; the latter None where that cannot be said, or is nothing."""
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
