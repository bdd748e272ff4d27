"""Pods that ask by claims: what admission understands of them, and writes into the one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calabash.kubernetes.admission.scope import ClaimsAsked
from calabash.kubernetes.asked import ContainerKind, ContainerRequest, PodRequest, read_request
from calabash.kubernetes.claims.asking import request_of
from calabash.kubernetes.dialects.facts import PodTerms, facts_of
from calabash.kubernetes.dialects.pod import AskingClaim, AskingPod
from calabash.kubernetes.doors import NodeDoor
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, GpuRequest
from calabash.seams.kube import KubeClient
from calabash.seams.kube.claims import (
    DEVICE_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    ResourceClaimSpec,
)

DIALECT = "claims"


def look_up(client: KubeClient, namespace: str, claims: Sequence[AskingClaim]) -> ClaimsAsked:
    """What these claims of a namespace ask; those that are not there are left out. Raises CalabashError when the API server
    does not answer."""
    classes = {found.metadata.name: found for page in client.pages(DEVICE_CLASS) for found in page.items}
    asked: dict[str, GpuRequest | CalabashError | None] = {}
    for claim in claims:
        spec = _spec(client, namespace, claim)
        try:
            if spec is not None:
                asked[claim.name] = request_of(spec, classes)
        except CalabashError as error:
            if error.reason is not Reason.NOT_FOUND:  # a class may come, as a claim may
                asked[claim.name] = error
    return asked


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


def by_either_door(pod: AskingPod, by_tokens: PodRequest | None, claims: ClaimsAsked | None) -> PodRequest | None:
    """What the pod asks for, by whichever door. Raises CalabashError: by both, or by a claim that cannot be counted.

    A claim that is not there yet may be one of ours: the pod is held until the planner knows.
    """
    if claims is None:
        return by_tokens
    wanted = [one for one in pod.spec.resource_claims or [] if claims.get(one.name, GpuRequest()) is not None]
    ours = [one for one in wanted if one.name in claims]
    if by_tokens is not None:
        if ours:
            raise CalabashError(
                f"the pod asks for devices by names of resources and by claim {ours[0].name[:64]}",
                hint="a node gives its devices by one of the two: keep one of them",
            )
        return by_tokens
    if not wanted:
        return None
    facts = facts_of(pod)
    parts = tuple(
        ContainerRequest(
            container=one.name, kind=ContainerKind.MAIN, request=_with_terms(one.name, claims.get(one.name), facts)
        )
        for one in wanted
    )
    return PodRequest(
        dialect=DIALECT,
        containers=parts,
        queue=facts.queue,
        gang_source=facts.gang_source,
        movable=facts.movable,
        door=NodeDoor.CLAIMS,
    )


def _with_terms(name: str, asked: GpuRequest | CalabashError | None, facts: PodTerms) -> GpuRequest:
    if isinstance(asked, CalabashError):
        raise CalabashError(f"claim {name[:64]}: {asked.message}", reason=asked.reason, hint=asked.hint) from asked
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
    """Whether an annotation says what is understood now. Of claims only the pod's own terms count: what they ask for, the
    planner reads from themselves, and one may have come between two questions."""
    if present == wanted or wanted is None:
        return present == wanted
    try:
        one, other = read_request(present), read_request(wanted)
    except CalabashError:
        return False
    both = one.door is NodeDoor.CLAIMS and other.door is NodeDoor.CLAIMS
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
