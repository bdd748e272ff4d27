"""Request handler of the admission server: the paths ``/mutate``, ``/validate`` and ``/claims``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from http import HTTPStatus
from typing import Protocol

from calabash.kubernetes.admission.claim_pods import asked_by_name
from calabash.kubernetes.admission.claims import answer_claims
from calabash.kubernetes.admission.membership import states_gang
from calabash.kubernetes.admission.owners import OwnerCache, is_read
from calabash.kubernetes.admission.review import (
    AdmissionQuestion,
    Answer,
    allowed,
    answer_mutate,
    answer_validate,
    denied,
    read_review,
    with_name,
)
from calabash.kubernetes.admission.scope import ClaimsAsked, NamespaceTerms, OwnerAnswer, OwnerResult, is_exempt
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.claims.device_names import CLASS_RESOURCE, EXTENDED
from calabash.kubernetes.dialects.pod import AskingClaim, AskingOwner, read_pod
from calabash.kubernetes.gangs.table import read_kinds
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1 import HttpQuestion, HttpReply

MUTATE, VALIDATE, CLAIMS = "/mutate", "/validate", "/claims"
LOOKUP_S = 2.0

_ANSWERS: Mapping[str, Answer] = {MUTATE: answer_mutate, VALIDATE: answer_validate, CLAIMS: answer_claims}

_UNKNOWN_CLASSES = CalabashError(
    "the device classes are unknown: the API server did not answer", hint="create the pod again"
)


class ReviewResult(StrEnum):
    """Outcome of a review, as counted in the metrics.

    UNREADABLE: the body was not an AdmissionReview. FAILED: the review ended with an unexpected exception.
    """

    ALLOWED = "allowed"
    DENIED = "denied"
    UNREADABLE = "unreadable"
    FAILED = "failed"


class AdmissionFacts(Protocol):
    """Facts about the cluster that reviews depend on."""

    def cached_terms(self, namespace: str) -> NamespaceTerms | None:
        """Return the cached terms of a namespace; None if the cache does not have it. Must not block."""
        ...

    def read_terms(self, namespace: str) -> NamespaceTerms | None:
        """Read the terms of a namespace from the API server; None if it does not exist. May block."""
        ...

    def read_owner(self, namespace: str, owner: AskingOwner, /) -> OwnerAnswer:
        """Find the gang owner of the pods of a controller; see ``owners.OwnerReader``. May block."""
        ...

    def read_claims(self, namespace: str, claims: Sequence[AskingClaim], by_name: Mapping[str, int], /) -> ClaimsAsked:
        """Read the requests of a pod's claims from the API server; see ``claim_pods.look_up``. May block."""
        ...


class ReviewListener(Protocol):
    """Receiver of the results of reviews."""

    def denied(self, namespace: str, name: str, error: CalabashError) -> None:
        """Called for every denied object with its namespace, its name and the error."""
        ...

    def owner_answered(self, result: OwnerResult) -> None:
        """Called for every review that looked up the owner of a pod."""
        ...

    def answered(self, path: str, result: ReviewResult, seconds: float) -> None:
        """Called for every review with the path without its slash, the result and the seconds it took."""
        ...


class AdmissionService:
    """Answer admission reviews over HTTP.

    Args:
        settings: settings of admission.
        facts: facts about the cluster. What it reads from the API server is used only if it arrives within
            ``LOOKUP_S``.
        listener: receives the results of reviews.
    """

    def __init__(self, settings: AdmissionSettings, facts: AdmissionFacts, listener: ReviewListener) -> None:
        self._settings = settings
        self._facts = facts
        self._listener = listener
        self._owner_kinds = read_kinds(settings.gang_table)
        self._owners = OwnerCache(facts.read_owner, LOOKUP_S)

    async def handle(self, question: HttpQuestion) -> HttpReply:
        """Answer one HTTP request: with 404 for an unknown path, 405 for a method other than POST, or the review."""
        if question.path not in _ANSWERS:
            return HttpReply(status=HTTPStatus.NOT_FOUND)
        if question.method != "POST":
            return HttpReply(status=HTTPStatus.METHOD_NOT_ALLOWED)
        began_s, result = time.monotonic(), ReviewResult.FAILED
        try:
            result, reply = await self._review(question)
        finally:
            self._listener.answered(question.path[1:], result, time.monotonic() - began_s)
        return reply

    async def _review(self, question: HttpQuestion) -> tuple[ReviewResult, HttpReply]:
        try:
            review = read_review(question.body)
        except CalabashError as error:
            reply = HttpReply(status=HTTPStatus.BAD_REQUEST, body=str(error).encode(), content_type="text/plain")
            return ReviewResult.UNREADABLE, reply
        facts = with_name(await self._namespace(review.namespace), review)
        try:
            looked_up = asyncio.gather(self._claims(review), self._owner(question.path, review, facts))
            claims, owner = await looked_up
            facts = replace(facts, claims=claims, owner=owner)
        except CalabashError as error:
            return ReviewResult.DENIED, HttpReply(body=denied(review, error))
        answer = _ANSWERS[question.path]
        try:
            return ReviewResult.ALLOWED, HttpReply(body=allowed(review, answer(review, facts, self._settings)))
        except CalabashError as error:
            self._listener.denied(review.namespace, review.name, error)
            return ReviewResult.DENIED, HttpReply(body=denied(review, error))

    async def _claims(self, review: AdmissionQuestion) -> ClaimsAsked | None:
        """Return the requests that a new pod makes by claims and by extended resource names, by the name of the claim.

        Returns None if the object is not being created, or contains neither a claim nor such a name.

        If the API server does not answer within ``LOOKUP_S``, all claims are treated as unknown: a pod with claims is
        held until the planner has read them, and a pod that asks by extended resource names is refused.

        Raises:
            CalabashError: the object is not a pod, or an amount is not a whole number of devices.
        """
        if review.operation != "CREATE":
            return None
        extended = self._settings.extended_resources
        raw = bytes(review.object)
        if not any(word.encode() in raw for word in ('"resourceClaims"', CLASS_RESOURCE, *extended)):
            return None
        pod = read_pod(review.object)
        claims, by_name = pod.spec.resource_claims or [], asked_by_name(pod, extended)
        if not (claims or by_name):
            return None
        try:
            looking = asyncio.to_thread(self._facts.read_claims, review.namespace, tuple(claims), by_name)
            return await asyncio.wait_for(looking, LOOKUP_S)
        except (CalabashError, TimeoutError):
            return {EXTENDED: _UNKNOWN_CLASSES} if by_name else {}

    async def _owner(self, path: str, review: AdmissionQuestion, facts: NamespaceTerms) -> OwnerAnswer | None:
        """Return the answer about the owner of a new pod that may be a member of its gang; None for other objects.

        Raises:
            CalabashError: the object is not a pod; API_DOWN if the API server does not answer. The pod is then refused,
                and its controller creates it again: without its gang, it would start alone, or its gang would wait for
                it for ever.
        """
        if path != MUTATE or review.operation != "CREATE" or review.sub_resource:
            return None
        if b'"ownerReferences"' not in bytes(review.object) or is_exempt(facts, self._settings):
            return None
        pod = read_pod(review.object)
        owner = pod.controller
        if owner is None or states_gang(pod) or not is_read(self._owner_kinds, owner):
            return None
        answer = await self._owners.answer(review.namespace, owner)
        self._listener.owner_answered(answer.result)
        if answer.result is OwnerResult.UNANSWERED:
            raise CalabashError(
                f"{owner.kind[:63]} {owner.name[:100]}, the owner of the pod, cannot be read: the API server did not answer"
                f" within {LOOKUP_S:g} s",
                reason=Reason.API_DOWN,
                hint="the controller creates the pod again; the gang of the pod is read from its owner",
            )
        return answer

    async def _namespace(self, name: str) -> NamespaceTerms | None:
        known = self._facts.cached_terms(name)
        if known is not None or not name:
            return known
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._facts.read_terms, name), LOOKUP_S)
        except (CalabashError, TimeoutError):
            return None
