"""Tests of admission of claims: invalid parameters of the driver are refused at creation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from calabash.kubernetes.admission.claims import answer_claims
from calabash.kubernetes.admission.mutate import NOTHING
from calabash.kubernetes.admission.review import AdmissionQuestion, denied, read_review
from calabash.kubernetes.admission.scope import NamespaceTerms
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.model.errors import CalabashError


def ask(obj: Any, operation: str = "CREATE") -> None:
    raw = msgspec.Raw(msgspec.json.encode(obj))
    question = AdmissionQuestion(uid="1", operation=operation, object=raw)
    assert answer_claims(question, NamespaceTerms(name="ml"), AdmissionSettings()) == NOTHING


def claim(*, driver: str = "calabash.dev", **said: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "calabash.dev/v1", "kind": "SliceConfig", **said}
    config = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": [], "config": config}}}


def template(**said: Any) -> dict[str, Any]:
    return {"kind": "ResourceClaimTemplate", "spec": {"spec": claim(**said)["spec"]}}


@pytest.mark.parametrize("made", [claim, template])
def test_what_can_be_followed_passes_and_what_cannot_is_refused_with_what_can(made: Any) -> None:
    ask(made(policy="burst", spill="4Gi"))
    with pytest.raises(CalabashError, match="policy") as refused:
        ask(made(policy="most"))
    assert "best-effort" in refused.value.hint


def test_words_for_other_drivers_are_theirs_and_changes_are_not_read() -> None:
    ask(claim(driver="example.com", policy="most"))
    ask(claim(policy="most"), "UPDATE")


@pytest.mark.parametrize("broken", [[], {"kind": "ResourceClaim", "spec": {"devices": 3}}, {"kind": 7}])
def test_what_is_no_claim_is_refused(broken: Any) -> None:
    with pytest.raises(CalabashError, match="cannot be read"):
        ask(broken)


@pytest.mark.parametrize(
    "parameters",
    [
        b'{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","a":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","a":"\\ud800"}',
        b'{"apiVersion":"calabash.dev/v1","kind":"SliceConfig","a":1' + b"0" * 400 + b"}",
    ],
)
def test_parameters_that_no_decoder_reads_are_refused_and_do_not_end_the_question(parameters: bytes) -> None:
    """The webhook of claims fails open: the API server would store a claim for which it gets no answer."""
    stored = msgspec.json.encode(claim()).split(b'"parameters":')[0] + b'"parameters":' + parameters + b"}}]}}}"
    head = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","object":'
    question = read_review(head + stored + b"}}")
    assert question.uid == "1"
    with pytest.raises(CalabashError) as refused:
        answer_claims(question, NamespaceTerms(name="ml"), AdmissionSettings())
    assert refused.value.hint


def test_hint_of_a_refusal_is_told_however_long_the_value_is() -> None:
    question = AdmissionQuestion(
        uid="1", operation="CREATE", object=msgspec.Raw(msgspec.json.encode(claim(policy="x" * 9000)))
    )
    with pytest.raises(CalabashError) as refused:
        answer_claims(question, NamespaceTerms(name="ml"), AdmissionSettings())
    for error in (refused.value, CalabashError("x" * 9000, hint="say less")):
        message = msgspec.json.decode(denied(question, error))["response"]["status"]["message"]
        assert len(message) <= 2048
        assert message.endswith(error.hint)
