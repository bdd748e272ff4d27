"""Actions of the audit log in words."""

from __future__ import annotations

import pytest

from calabash.api import endpoints
from calabash.api.audit_actions import action_in_words, phrase_of
from calabash.api.endpoints import Endpoint
from calabash.api.routes import ROUTES


@pytest.mark.parametrize(
    ("action", "target", "words"),
    [
        ("PUT", "/v1/queues/prod", ("set queue", "prod")),
        ("PUT", "/v1/queues/vision/train", ("set queue", "vision/train")),
        ("DELETE", "/v1/tenants/vision/projects/train", ("delete project", "vision train")),
        ("POST", "/v1/devices/0/drain", ("drain device", "0")),
        ("POST", "/v1/allocations", ("request slice", "")),
        ("PUT", "/v1/allocations/a1/queue/prod", ("move request to queue", "a1 prod")),
        ("PUT", "/v1/members ann", ("grant role", "ann")),
        ("PUT", "/v1/networks/objects vpc red", ("set network object", "vpc red")),
        ("POST", "/v1/tokens", ("create token", "")),
        ("POST", "/v1/invoices/2026-11/issue", ("issue invoice", "2026-11")),
        ("GET", "/v1/audit", ("read audit log", "")),
        ("GET", "/v1/tenants/other", ("read tenant", "other")),
        ("restore", "12 rows of 7", ("restore backup", "12 rows of 7")),
        ("over-use", "a1", ("over-use", "a1")),
        ("GET", "/nosuch", ("GET", "/nosuch")),
    ],
)
def test_action_is_a_verb_with_its_noun_and_the_object(action: str, target: str, words: tuple[str, str]) -> None:
    assert action_in_words(action, target) == words


@pytest.mark.parametrize("endpoint", [route.endpoint for route in ROUTES], ids=repr)
def test_every_route_has_words_without_method_or_path(endpoint: Endpoint) -> None:
    words = phrase_of(endpoint)
    assert len(words.split()) >= 2
    assert not set("/{}") & set(words)
    assert not {"GET", "PUT", "POST", "DELETE"} & set(words.split())


def test_changes_have_words_of_their_own() -> None:
    changing = [e for e in vars(endpoints).values() if isinstance(e, Endpoint) and e.method != "GET"]
    words = [phrase_of(endpoint) for endpoint in changing]
    assert sorted(words) == sorted(set(words))
