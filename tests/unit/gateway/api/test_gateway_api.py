"""Tests of the API through the gateway: forwarded requests and their tokens, and requests that the pool never gets."""

from __future__ import annotations

import pytest
from tests.unit.gateway.standin import CODE, GATEWAY, TOKEN, GatewayWorld, strict

from calabash.api import requests
from calabash.api.routes import ROUTES
from calabash.gateway.api.routing import RouteTable
from calabash.gateway.serving import request_guard

BEARER = f"Bearer {TOKEN}"


@pytest.fixture
def gateway() -> GatewayWorld:
    return GatewayWorld()


def test_request_goes_to_the_pool_with_the_token_of_its_user(gateway: GatewayWorld) -> None:
    shown = gateway("GET", "/v1/queues?after=a%2Fb", authorization=BEARER)
    assert (shown.status, shown.json()["reason"]) == (404, "not_found")  # the stand-in knows no such page
    assert [(a.path, a.token) for a in gateway.pool.asked] == [("/v1/me", TOKEN), ("/v1/queues?after=a%2Fb", TOKEN)]


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer "}, {"cookie": "calabash_session="}]
)
def test_without_a_token_nothing_reaches_the_pool(gateway: GatewayWorld, headers: dict[str, str]) -> None:
    shown = gateway("GET", "/v1/queues", given=headers)
    assert shown.status in {401, 403}
    assert gateway.pool.asked == []


def test_unknown_token_is_answered_with_a_challenge(gateway: GatewayWorld) -> None:
    shown = gateway("GET", "/v1/queues", authorization="Bearer cal_other_token")
    assert (shown.status, shown.headers["www-authenticate"]) == (401, 'Bearer realm="calabash"')


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/queues/../status", "/v1", "/v1/", "/v1//queues"])
def test_what_is_no_route_is_not_passed_on(gateway: GatewayWorld, path: str) -> None:
    assert gateway("GET", path, authorization=BEARER).status == 404
    assert gateway.pool.asked == []


def test_a_method_that_a_path_has_not_says_which_it_has(gateway: GatewayWorld) -> None:
    shown = gateway("PATCH", "/v1/queues/default", authorization=BEARER)
    assert shown.status == 405
    assert "PUT" in shown.headers["allow"]


def test_every_route_of_the_api_is_passed_on() -> None:
    table = RouteTable(ROUTES)
    for route in ROUTES:
        path = "/".join("x" if word.startswith("{") else word for word in route.path.split("/"))
        assert table.find(route.method, path).route in {r for r in ROUTES if r.method == route.method}, route.name


def test_a_reply_that_has_not_changed_is_not_sent_again(gateway: GatewayWorld) -> None:
    first = gateway("GET", "/v1/queues", authorization=BEARER)
    again = gateway("GET", "/v1/queues", authorization=BEARER, if_none_match=first.headers["etag"])
    assert (again.status, again.content) == (304, b"")
    gateway.pool.answers["/v1/queues"] = {"items": [{"name": "new"}]}
    changed = gateway("GET", "/v1/queues", authorization=BEARER, if_none_match=first.headers["etag"])
    assert (changed.status, changed.json()["items"][0]["name"]) == (200, "new")


def test_a_login_code_is_exchanged_with_the_gateways_word_and_nobody_is_vouched_for(gateway: GatewayWorld) -> None:
    shown = gateway("POST", "/v1/sessions", b'{"code": "%s"}' % CODE.encode())
    assert (shown.status, shown.json()["secret"]) == (201, TOKEN)
    assert gateway.pool.asked[0].token == GATEWAY
    for body in (
        b'{"subject": "https://idp|root"}',
        b'{"code": "x", "subject": "y"}',
        b'{"code": "x", "console": true}',
        b"{}",
        b"[]",
        b"nonsense",
    ):
        assert gateway("POST", "/v1/sessions", body).status in {400, 403}
    assert len(gateway.pool.asked) == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:7432", 200),
        ("127.0.0.1", 200),
        ("[::1]:7432", 200),
        ("10.1.2.3:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:7432", 421),
        ("", 421),
    ],
)
def test_host_name_of_another_site_is_refused_although_it_resolves_to_the_gateway(
    gateway: GatewayWorld, host: str, status: int
) -> None:
    assert gateway("GET", "/v1/queues", authorization=BEARER, host=host).status == status


@pytest.mark.parametrize("path", ["/v1/tokens", "/v1/nothing", "/login", "/do/tenant", "/devices", "/nowhere"])
@pytest.mark.parametrize("chunk", [0, 1000])
def test_too_large_body_is_refused_by_what_it_says_and_by_what_it_is(
    gateway: GatewayWorld, path: str, chunk: int
) -> None:
    large = b"x" * (requests.BODY_BYTES_MAX + 1)
    gateway.chunk_bytes = chunk
    said = gateway("POST", path, b"", authorization=BEARER, content_length=str(len(large)))
    assert said.status == 413
    shown = gateway("POST", path, large, authorization=BEARER)
    assert (shown.status, shown.json()["reason"]) == (413, "bad_request")
    assert gateway.page("POST", "/do/tenant", large[:-1]).status < 500
    proofs = gateway.proofs("POST", path, large)
    assert gateway("POST", path, large, given=proofs).status == 413
    assert gateway.pool.asked == [a for a in gateway.pool.asked if a.path == "/v1/me"]


@pytest.mark.parametrize("length", ["-1", "x", "1" * 400, "+5", "٣", ""])
def test_malformed_content_length_is_refused(gateway: GatewayWorld, length: str) -> None:
    shown = gateway("POST", "/v1/tokens", b"", authorization=BEARER, content_length=length)
    assert shown.status in {400, 413}


def test_who_asks_too_much_is_told_when_to_come_again_and_others_are_served() -> None:
    gateway = strict(requests_per_second=1, requests_at_once=3)
    answers = [gateway("GET", "/v1/queues", authorization=BEARER) for _ in range(4)]
    assert [a.status for a in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    gateway.pool.tokens.add("cal_somebodyel_se")
    assert gateway("GET", "/v1/queues", authorization="Bearer cal_somebodyel_se").status == 200


def test_refused_tokens_delay_only_their_own_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[float] = []

    async def sleep(delay_s: float) -> None:
        held.append(delay_s)

    monkeypatch.setattr(request_guard, "sleep", sleep)
    gateway = strict(refused_per_minute=3)
    guesses = [gateway("GET", "/v1/queues", authorization=f"Bearer cal_guess_{n:08}").status for n in range(50)]
    assert guesses == [401] * 50
    assert held == [request_guard.REFUSAL_S] * 47
    assert gateway("GET", "/v1/queues", authorization=BEARER).status == 200
    assert gateway.page("GET", "/queues").status == 200
    assert len(held) == 47
    gateway("GET", "/v1/queues", authorization="Bearer cal_guess_of_another", address="10.0.0.2")
    assert len(held) == 47, "an address that had none refused waits"


def test_every_answer_has_the_headers_that_keep_a_browser_safe(gateway: GatewayWorld) -> None:
    for path in ("/login", "/v1/queues", "/nowhere", "/static/none.css"):
        shown = gateway("GET", path)
        assert "script-src 'self'" in shown.headers["content-security-policy"]
        assert "unsafe" not in shown.headers["content-security-policy"]
        assert shown.headers["x-content-type-options"] == "nosniff"
        assert "strict-transport-security" not in shown.headers
    assert "strict-transport-security" in gateway("GET", "/login", scheme="https").headers
