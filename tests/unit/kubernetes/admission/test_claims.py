"""What claims say to the driver is refused when they are created, where nobody could follow it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from calabash.kubernetes.admission.claims import answer_claims
from calabash.kubernetes.admission.mutate import NOTHING
from calabash.kubernetes.admission.review import AdmissionQuestion
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
