"""Pods that ask for devices by resource claims: read their requests and write them into the canonical form.

A container may also ask for devices of a DeviceClass without a claim, by the name of an extended resource in its
limits. The name is the class's ``extendedResourceName``, or the implicit name that Kubernetes gives to every class
(``deviceclass.resource.kubernetes.io/CLASS``). kube-scheduler then creates the claim when it schedules the pod. Such a
pod is planned by the request of that future claim, which is stored under the name ``EXTENDED``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.claims import (
    DEVICE_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from calabash.kubernetes.admission.scope import ClaimsAsked
from calabash.kubernetes.claims.device_names import CLASS_RESOURCE, EXTENDED
from calabash.kubernetes.claims.requests import request_of
from calabash.kubernetes.dialects.facts import PodTerms, facts_of
from calabash.kubernetes.dialects.pod import AskingClaim, AskingPod
from calabash.kubernetes.dialects.registry import is_ours_to_translate
from calabash.kubernetes.dialects.translate import containers_of
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.quantity import parse_quantity, whole
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest, read_request
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, GpuRequest

DIALECT = "claims"


def asked_by_name(pod: AskingPod, extended: Collection[str]) -> dict[str, int]:
    """Return how many devices the containers ask for by extended resource names of device classes, by resource name.

    Args:
        extended: values of ``extendedResourceName`` of Calabash's classes. The implicit names of classes are always
            recognized.

    Raises:
        CalabashError: an amount is not a number of devices.
    """
    found: dict[str, Fraction] = {}
    for place in containers_of(pod):
        resources = place.container.resources
        amounts = {**(resources.requests or {}), **(resources.limits or {})} if resources is not None else {}
        for name, written in amounts.items():
            named = name.startswith(CLASS_RESOURCE) or name in extended
            if named and not is_ours_to_translate(name):
                found[name] = found.get(name, Fraction(0)) + parse_quantity(written, what=name)
    return {name: whole(amount, what=name) for name, amount in found.items() if amount}


def look_up(
    client: KubeClient, namespace: str, claims: Sequence[AskingClaim], by_name: Mapping[str, int]
) -> ClaimsAsked:
    """Read claims of a pod and the device classes from the API server; return the requests of the claims by name.

    Claims that do not exist, and claims whose class does not exist, are left out. If the devices of a claim cannot be
    counted, its value is the error.

    Args:
        namespace: namespace of the pod.
        claims: entries of the pod's ``spec.resourceClaims``.
        by_name: devices that containers ask for by extended resource names (``asked_by_name``). If not empty, the
            result contains the request of the claim that kube-scheduler will create for them, under ``EXTENDED``.

    Raises:
        CalabashError: the API server does not answer.
    """
    classes = {found.metadata.name: found for page in client.pages(DEVICE_CLASS) for found in page.items}
    asked: dict[str, GpuRequest | CalabashError | None] = {}
    for claim in claims:
        spec = _spec(client, namespace, claim)
        try:
            if spec is not None:
                asked[claim.name] = request_of(spec, classes)
        except CalabashError as error:
            if error.reason is not Reason.NOT_FOUND:  # a class may be created later, as a claim may
                asked[claim.name] = error
    if by_name:
        try:
            asked[EXTENDED] = request_of(_extended_claim(by_name, classes), classes)
        except CalabashError as error:
            asked[EXTENDED] = error
    return asked


def _extended_claim(by_name: Mapping[str, int], classes: Mapping[str, DeviceClass]) -> ResourceClaimSpec:
    """Return the claim that kube-scheduler will create for a pod's extended resources.

    If several classes have the same extended resource name, kube-scheduler uses the newest class, and so does this
    function.
    """
    named: dict[str, str] = {}
    for found in sorted(classes.values(), key=lambda c: c.metadata.name, reverse=True):
        name = found.spec.extended_resource_name
        before = classes[named[name]].metadata.creation_timestamp if name in named else None
        if name and (found.metadata.creation_timestamp or "") >= (before or ""):
            named[name] = found.metadata.name
    requests = [
        DeviceRequest(
            name=f"r{number}",
            exactly=ExactDeviceRequest(
                device_class_name=named.get(name) or name.removeprefix(CLASS_RESOURCE), count=count
            ),
        )
        for number, (name, count) in enumerate(by_name.items())
    ]
    return ResourceClaimSpec(devices=DeviceClaim(requests=tuple(requests)))


def _spec(client: KubeClient, namespace: str, claim: AskingClaim) -> ResourceClaimSpec | None:
    try:
        if claim.resource_claim_name:
            found = client.get(RESOURCE_CLAIM, claim.resource_claim_name, namespace)
            return found.spec if found is not None else None
        if claim.resource_claim_template_name:
            made_of = client.get(RESOURCE_CLAIM_TEMPLATE, claim.resource_claim_template_name, namespace)
            return made_of.spec.spec if made_of is not None else None
    except ValueError:  # no object has such a name
        return None
    return None


def by_either_api(pod: AskingPod, by_tokens: PodRequest | None, claims: ClaimsAsked | None) -> PodRequest | None:
    """Return the request of the pod, made by resource names or by claims; None if the pod asks for no device.

    A claim that does not exist yet is treated as a claim for one device of Calabash. The pod is held by its scheduling
    gate until the planner can read the claim.

    Args:
        by_tokens: the request made by resource names, or None. (A device plug-in identifies the devices of such a
            request by device IDs.)
        claims: the requests made by claims (``NamespaceTerms.claims``).

    Raises:
        CalabashError: the pod asks by resource names and by claims, or by a claim whose devices cannot be counted.
    """
    if claims is None:
        return by_tokens
    named = [one.name for one in pod.spec.resource_claims or []]
    wanted = [name for name in named if claims.get(name, GpuRequest()) is not None]
    ours = [name for name in wanted if name in claims]
    extended = claims.get(EXTENDED) is not None
    if ours and (by_tokens is not None or extended):
        raise CalabashError(
            f"the pod asks for devices by names of resources and by claim {ours[0][:64]}",
            hint="a node offers its devices in one of these two ways: use only one of them",
        )
    if extended and (by_tokens is not None or wanted):
        raise CalabashError(
            "the pod asks for devices by the name of a device class and in another way",
            hint="keep one of them, or ask for all devices by one claim",
        )
    if by_tokens is not None:
        return by_tokens
    if extended:
        wanted = [EXTENDED]
    if not wanted:
        return None
    facts = facts_of(pod)
    parts = tuple(
        ContainerRequest(container=name, kind=ContainerKind.MAIN, request=_with_terms(name, claims.get(name), facts))
        for name in wanted
    )
    return PodRequest(
        dialect=DIALECT,
        containers=parts,
        queue=facts.queue,
        gang_source=facts.gang_source,
        movable=facts.movable,
        allocation_api=AllocationApi.CLAIMS,
    )


def _with_terms(name: str, asked: GpuRequest | CalabashError | None, facts: PodTerms) -> GpuRequest:
    if isinstance(asked, CalabashError):
        what = "devices asked for by the name of a device class" if name == EXTENDED else f"claim {name[:64]}"
        raise CalabashError(f"{what}: {asked.message}", reason=asked.reason, hint=asked.hint) from asked
    return replace(
        asked if asked is not None else GpuRequest(),
        priority=facts.priority,
        tenant=facts.tenant,
        queue=facts.queue or DEFAULT_QUEUE,
        gang=facts.gang,
        gang_size=facts.gang_size,
        run_time_s=facts.run_time_s,
    )


def same_request(present: str, wanted: str | None) -> bool:
    """Return True if a request annotation agrees with the request that admission reads from the pod in this review.

    If both requests are made by claims, only the terms of the pod (queue, gang, priority, tenant, run time) are
    compared. The amounts may differ because a claim can be created between two reviews of the pod, and they do not
    matter because the planner reads the claims themselves.

    Args:
        present: the value of the annotation.
        wanted: the encoded request of this review; None if the pod asks for no device.
    """
    if present == wanted or wanted is None:
        return present == wanted
    try:
        one, other = read_request(present), read_request(wanted)
    except CalabashError:
        return False
    both = one.allocation_api is AllocationApi.CLAIMS and other.allocation_api is AllocationApi.CLAIMS
    return both and _terms(one) == _terms(other)


def _terms(asked: PodRequest) -> PodRequest:
    return replace(
        asked,
        containers=tuple(
            replace(
                part,
                request=GpuRequest(
                    priority=part.request.priority,
                    tenant=part.request.tenant,
                    queue=part.request.queue,
                    gang=part.request.gang,
                    gang_size=part.request.gang_size,
                    run_time_s=part.request.run_time_s,
                ),
            )
            for part in asked.containers
        ),
    )
