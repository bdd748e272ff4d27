"""Decode AdmissionReview requests and encode their responses (``admission.k8s.io/v1``). Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

import msgspec

from calabash.adapters.kube.scanning import repaired
from calabash.kubernetes.admission.mutate import NOTHING, Mutation, mutate
from calabash.kubernetes.admission.scope import NamespaceTerms
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.validate import validate
from calabash.kubernetes.dialects.pod import AskingPod, read_pod
from calabash.model.errors import CalabashError, Reason

_API_VERSION = "admission.k8s.io/v1"
_WARNING_MAX = 250
_MESSAGE_MAX = 2048
_NULL = msgspec.Raw(b"null")

Judge = Callable[["AdmissionQuestion", NamespaceTerms], Mutation]
Answer = Callable[["AdmissionQuestion", NamespaceTerms, AdmissionSettings], Mutation]


class AskingUser(msgspec.Struct, frozen=True):
    """The user that sent the object to the API server."""

    username: str = ""


class AdmissionQuestion(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The ``request`` of an AdmissionReview. An object that the API server left out is JSON ``null``."""

    uid: str
    operation: str = ""
    namespace: str = ""
    name: str = ""
    sub_resource: str = ""
    user_info: AskingUser = AskingUser()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


class _Review(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    api_version: str
    kind: str
    request: AdmissionQuestion


_DECODER = msgspec.json.Decoder(_Review)


def read_review(body: bytes) -> AdmissionQuestion:
    """Return the request of an AdmissionReview.

    Users can store any JSON value in the parameters of a claim, and some values cannot be decoded. The review is then
    decoded without that value (``repaired``). Refusing to answer would be worse: the failure policy of claims is
    ``Ignore``, so the API server admits a claim for which it gets no answer.

    Raises:
        CalabashError: BAD_REQUEST for anything but an AdmissionReview of version 1.
    """
    try:
        review = _decoded(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _bad(str(error)) from error
    if review.api_version != _API_VERSION or review.kind != "AdmissionReview":
        raise _bad(f"{review.kind} of {review.api_version}")
    return review.request


def _decoded(body: bytes) -> _Review:
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _DECODER.decode(repaired(body))


def _bad(what: str) -> CalabashError:
    return CalabashError(
        f"the body is not an AdmissionReview: {what[:256]}", hint=f"POST {_API_VERSION} AdmissionReview"
    )


def answer_mutate(question: AdmissionQuestion, namespace: NamespaceTerms, settings: AdmissionSettings) -> Mutation:
    """Return the changes to a pod that is being created.

    Raises:
        CalabashError: the pod is denied.
    """
    if question.operation != "CREATE" or question.sub_resource or question.object == _NULL:
        return NOTHING
    return mutate(_pod(question, question.object), namespace, settings)


def answer_validate(question: AdmissionQuestion, namespace: NamespaceTerms, settings: AdmissionSettings) -> Mutation:
    """Check a pod that is created or changed; return an empty mutation.

    Raises:
        CalabashError: the pod is denied.
    """
    if question.object != _NULL and question.operation in ("CREATE", "UPDATE"):
        old = _pod(question, question.old_object) if question.old_object != _NULL else None
        validate(old, _pod(question, question.object), question.user_info.username, namespace, settings)
    return NOTHING


def _pod(question: AdmissionQuestion, raw: msgspec.Raw) -> AskingPod:
    """Return the pod with its namespace, which the object may lack when it is created."""
    pod = read_pod(raw)
    if pod.metadata.namespace == question.namespace:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, namespace=question.namespace)
    return msgspec.structs.replace(pod, metadata=metadata)


def allowed(question: AdmissionQuestion, mutation: Mutation) -> bytes:
    """Return the response that admits the object, with the patch and the warnings."""
    response: dict[str, object] = {"uid": question.uid, "allowed": True}
    if mutation.patch:
        patch = msgspec.json.encode(mutation.patch)
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if mutation.warnings:
        response["warnings"] = [f"calabash: {warning}"[:_WARNING_MAX] for warning in mutation.warnings]
    return _answer(response)


_STATUS = {Reason.NOT_PERMITTED: (403, "Forbidden"), Reason.API_DOWN: (503, "ServiceUnavailable")}


def denied(question: AdmissionQuestion, error: CalabashError) -> bytes:
    """Return the response that denies the object.

    The status of the response has one line with the message and the hint of the error, and an HTTP code: 403 if the
    user is not permitted, 503 if the API server did not answer, else 422.
    """
    hint = f"; hint: {error.hint}"[:_MESSAGE_MAX] if error.hint else ""
    line = error.message[: _MESSAGE_MAX - len(hint)] + hint
    code, reason = _STATUS.get(error.reason, (422, "Invalid"))
    status = {"code": code, "reason": reason, "message": line}
    return _answer({"uid": question.uid, "allowed": False, "status": status})


def _answer(response: dict[str, object]) -> bytes:
    return msgspec.json.encode({"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response})


def with_name(facts: NamespaceTerms | None, question: AdmissionQuestion) -> NamespaceTerms:
    """Return the terms of the question's namespace with its name filled in; default terms if ``facts`` is None."""
    return replace(facts, name=question.namespace) if facts is not None else NamespaceTerms(name=question.namespace)
