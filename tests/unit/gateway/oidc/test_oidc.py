"""Tests of logins with OpenID Connect: an honest provider succeeds; a lying one, forged and stolen answers fail."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import msgspec
import pytest
from tests.unit.gateway.provider import CLIENT, SECRET, LyingProvider, back, ec_key, lying_provider, rsa_key
from tests.unit.gateway.standin import SESSION, GatewayWorld, Shown

from calabash.api.gateway import ConsoleSettings, OidcGroup, OidcSettings, checked_oidc
from calabash.gateway.oidc.attempt import LIFE_S, Attempts
from calabash.model.errors import CalabashError


@pytest.fixture
def provider() -> Iterator[LyingProvider]:
    with lying_provider() as made:
        yield made


@pytest.fixture
def gateway(provider: LyingProvider, tmp_path: Path) -> GatewayWorld:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET + "\n")
    oidc = OidcSettings(
        issuer=provider.issuer,
        client_id=CLIENT,
        client_secret_file=str(secret),
        name="the institute",
        groups=[OidcGroup(group="gpu", role="viewer")],
    )
    made = GatewayWorld(settings=ConsoleSettings(oidc=oidc))
    made.pool.subjects = {f"{provider.issuer}|4711"}
    return made


JSON = {"content-type": "application/json", "accept": "application/json"}
CALLBACK = "/login/oidc/callback"


def _begun(gateway: GatewayWorld, to: str = "/queues", **options: str) -> tuple[str, dict[str, str], str]:
    """Return the URL to which the browser is sent, its query, and the ticket that the page keeps."""
    shown = gateway("POST", "/login/oidc", msgspec.json.encode({"to": to}), given=JSON, **options)
    assert (shown.status, shown.cookies) == (200, ()), shown.content
    url = shown.json()["url"]
    return url, {n: v[0] for n, v in parse_qs(urlsplit(url).query).items()}, shown.json()["ticket"]


def _back(gateway: GatewayWorld, path: str, ticket: str) -> Shown:
    """Return the reply to the page to which the provider redirects."""
    opened = gateway("GET", path)
    assert (opened.status, b'id="entering"' in opened.content) == (200, True)
    query = {n: v[0] for n, v in parse_qs(urlsplit(path).query).items()}
    return gateway("POST", "/login/oidc/session", msgspec.json.encode({"ticket": ticket, "query": query}), given=JSON)


def _login(gateway: GatewayWorld, provider: LyingProvider, to: str = "/queues") -> Shown:
    url, asked, ticket = _begun(gateway, to)
    code = provider.authorize(url)
    return _back(gateway, back(asked["state"], code, provider.issuer), ticket)


def test_the_button_is_there_only_where_a_provider_is_named(gateway: GatewayWorld) -> None:
    assert b"Log in with the institute" in gateway("GET", "/login").content
    without = GatewayWorld()
    assert b"/login/oidc" not in without("GET", "/login").content
    assert without("POST", "/login/oidc", b"{}", given=JSON).status == 404


def test_a_browser_is_sent_off_with_a_challenge_and_comes_back_to_a_session(
    gateway: GatewayWorld, provider: LyingProvider
) -> None:
    _, asked, _ = _begun(gateway)
    assert (asked["response_type"], asked["code_challenge_method"], asked["client_id"]) == ("code", "S256", CLIENT)
    assert asked["redirect_uri"] == "http://127.0.0.1:7432/login/oidc/callback"
    shown = _login(gateway, provider)
    assert (shown.status, shown.cookies) == (200, ())
    assert shown.json() == {"session": SESSION, "key": gateway.sessions.key(SESSION), "to": "/queues"}
    order = msgspec.json.decode(gateway.pool.asked[-1].body)
    assert order["subject"] == f"{provider.issuer}|4711"
    assert order["console"]
    assert order["groups"] == ["gpu"]  # from what the provider says of users, since the token does not say it


def test_user_whom_only_the_provider_knows_is_told_to_ask_an_administrator(
    gateway: GatewayWorld, provider: LyingProvider
) -> None:
    gateway.pool.subjects = set()
    shown = _login(gateway, provider)
    assert shown.status == 403
    assert b"ask an administrator" in shown.content
    assert "key" not in shown.json()


WRONG: dict[str, dict[str, Any]] = {
    "it was made for another audience": {"aud": "another"},
    "it is for several and another is authorized": {"aud": [CLIENT, "another"], "azp": "another"},
    "it is for several and says not who is authorized": {"aud": [CLIENT, "another"]},
    "another party is authorized": {"azp": "another"},
    "it is of another issuer": {"iss": "https://evil.example"},
    "it has expired": {"exp": int(time.time()) - 600},
    "it is not good yet": {"nbf": int(time.time()) + 6000},
    "it belongs to another attempt": {"nonce": "another"},
    "its nonce is no text": {"nonce": 7},
    "it says nobody": {"sub": ""},
    "its subject is no text": {"sub": 7},
    "its subject has a line end": {"sub": "a\nb"},
}


@pytest.mark.parametrize("claims", WRONG.values(), ids=WRONG.keys())
def test_a_token_is_refused_when(gateway: GatewayWorld, provider: LyingProvider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    _refused(gateway, provider)


@pytest.mark.parametrize("name", ["iss", "sub", "aud", "exp", "iat", "nonce"])
def test_a_token_is_refused_without(gateway: GatewayWorld, provider: LyingProvider, name: str) -> None:
    provider.left_out = {name}
    _refused(gateway, provider)


def _refused(gateway: GatewayWorld, provider: LyingProvider) -> bytes:
    before = len(gateway.pool.asked)
    shown = _login(gateway, provider)
    assert shown.status == 401, shown.content
    assert "key" not in shown.json()
    assert len(gateway.pool.asked) == before, "the pool was asked"
    return bytes(shown.content)


def test_a_token_that_nobody_signed_is_refused(gateway: GatewayWorld, provider: LyingProvider) -> None:
    def part(content: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    claims = {
        "iss": provider.issuer,
        "sub": "4711",
        "aud": CLIENT,
        "exp": int(time.time()) + 60,
        "iat": int(time.time()),
    }
    for algorithm in ("none", "None", "nOnE", ""):
        provider.token = f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims)}."
        assert b"algorithm" in _refused(gateway, provider)


def test_a_public_key_is_not_taken_for_a_shared_secret(gateway: GatewayWorld, provider: LyingProvider) -> None:
    provider.token = jwt.encode({"sub": "4711"}, provider.keys[0]["x"].encode(), "HS256", headers={"kid": "one"})
    assert b"HS256" in _refused(gateway, provider)


def test_a_key_of_another_that_calls_itself_the_providers_is_refused(
    gateway: GatewayWorld, provider: LyingProvider
) -> None:
    provider.key, _ = ec_key()
    assert b"Signature" in _refused(gateway, provider)


def test_a_key_that_is_too_short_is_refused(gateway: GatewayWorld, provider: LyingProvider) -> None:
    provider.key, shown = rsa_key(1024)
    provider.keys, provider.kid, provider.algorithm = [shown], "rsa", "RS256"
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        assert b"1024 bits" in _refused(gateway, provider)


def test_a_provider_may_change_its_keys(gateway: GatewayWorld, provider: LyingProvider) -> None:
    clock = [1000.0]
    assert gateway.oidc is not None
    gateway.oidc._provider._clock = lambda: clock[0]
    assert _login(gateway, provider).status == 200
    provider.key, shown = ec_key("two")
    provider.keys, provider.kid = [shown], "two"
    clock[0] += 60.0
    assert _login(gateway, provider).status == 200
    provider.kid = "three"
    asked = len(provider.asked)
    _refused(gateway, provider)
    _refused(gateway, provider)
    assert [a for a in provider.asked[asked:] if a == "GET /keys"] == [], (
        "it was asked for its keys at each forged token"
    )


def test_answer_without_the_ticket_of_its_own_page_is_refused(gateway: GatewayWorld, provider: LyingProvider) -> None:
    url, asked, ticket = _begun(gateway)
    _, other, _ = _begun(gateway)
    code = provider.authorize(url)
    forged = ticket.rpartition(".")[0] + "." + "A" * 43
    for state, shown in ((asked["state"], ""), (other["state"], ticket), ("", ticket), (asked["state"], forged)):
        assert _back(gateway, back(state, code, provider.issuer), shown).status == 401
    assert "POST /token" not in provider.asked
    assert _back(gateway, back(asked["state"], code, provider.issuer), ticket).status == 200


def test_an_answer_is_taken_once_and_so_is_a_code(gateway: GatewayWorld, provider: LyingProvider) -> None:
    url, asked, ticket = _begun(gateway)
    code = provider.authorize(url)
    assert _back(gateway, back(asked["state"], code, provider.issuer), ticket).status == 200
    assert b"has been used" in _back(gateway, back(asked["state"], code, provider.issuer), ticket).content
    _, again, ticket = _begun(gateway)
    shown = _back(gateway, back(again["state"], code, provider.issuer), ticket)
    assert (shown.status, b"invalid_grant" in shown.content) == (401, True)


def test_a_code_that_was_given_for_another_attempt_is_worth_nothing(
    gateway: GatewayWorld, provider: LyingProvider
) -> None:
    stolen = provider.authorize(_begun(gateway)[0])
    _, asked, ticket = _begun(gateway)
    assert _back(gateway, back(asked["state"], stolen, provider.issuer), ticket).status == 401


def test_an_answer_of_another_provider_is_refused_before_its_code_is_shown_to_anybody(
    gateway: GatewayWorld, provider: LyingProvider
) -> None:
    for issuer in ("https://evil.example", ""):
        _, asked, ticket = _begun(gateway)
        shown = _back(gateway, back(asked["state"], "code", issuer), ticket)
        assert (shown.status, b"another provider" in shown.content) == (401, True)
    assert "POST /token" not in provider.asked


def test_a_provider_that_is_another_than_was_named_is_not_used(gateway: GatewayWorld, provider: LyingProvider) -> None:
    provider.described = {"issuer": "https://evil.example"}
    assert gateway("POST", "/login/oidc", b"{}", given=JSON).status == 502
    provider.described = {"token_endpoint": "http://10.0.0.1/token"}
    assert gateway("POST", "/login/oidc", b"{}", given=JSON).status == 502


def test_what_it_says_of_another_user_is_not_taken(gateway: GatewayWorld, provider: LyingProvider) -> None:
    provider.userinfo = {"sub": "1", "groups": ["admins"]}
    shown = _login(gateway, provider)
    assert (shown.status, b"for another user than" in shown.content) == (502, True)


def test_an_answer_without_end_is_not_read(gateway: GatewayWorld, provider: LyingProvider) -> None:
    provider.large = b" " * (1 << 20)
    shown = gateway("POST", "/login/oidc", b"{}", given=JSON)
    assert (shown.status, b"more than" in shown.content) == (502, True)


def test_a_refusal_of_the_provider_is_told_and_never_as_markup(gateway: GatewayWorld, provider: LyingProvider) -> None:
    _, asked, ticket = _begun(gateway)
    path = f"{CALLBACK}?state={asked['state']}&iss={provider.issuer}&error=%3Cscript%3Edenied"
    shown = _back(gateway, path, ticket)
    assert (shown.status, shown.headers["content-type"]) == (401, "application/json")
    assert "<script>denied" in shown.json()["message"]
    assert b"denied" not in gateway("GET", path).content


@pytest.mark.parametrize("to", ["https://evil.example", "//evil.example", "/\\evil.example", "x", "/" + "a" * 600])
def test_a_login_leads_to_no_other_site(gateway: GatewayWorld, provider: LyingProvider, to: str) -> None:
    assert _login(gateway, provider, to).json()["to"] == "/"


def test_logging_out_offers_to_log_out_of_the_provider_too(gateway: GatewayWorld, provider: LyingProvider) -> None:
    shown = gateway("GET", "/login?left")
    assert b"Log out of the institute as well" in shown.content
    to = gateway("GET", "/login/oidc/end").headers["location"]
    assert to.startswith(f"{provider.issuer}/end?client_id={CLIENT}&post_logout_redirect_uri=http%3A%2F%2F127.0.0.1")


def test_an_attempt_lasts_ten_minutes() -> None:
    attempts = Attempts(b"k" * 32)
    attempt = attempts.begin(to="/", now_s=1000.0)
    ticket = attempts.ticket(attempt)
    with pytest.raises(CalabashError, match="older than 10 minutes"):
        attempts.take(ticket, attempt.state, now_s=1000.0 + LIFE_S + 1)
    with pytest.raises(CalabashError, match="was not started in this browser"):
        Attempts(b"l" * 32).take(ticket, attempt.state, now_s=1000.0)
    assert attempts.take(ticket, attempt.state, now_s=1000.0) == attempt


def test_a_secret_that_others_can_read_is_refused(gateway: GatewayWorld, tmp_path: Path) -> None:
    os.chmod(tmp_path / "secret", 0o644)
    with pytest.raises(CalabashError, match="can be read by others"):
        GatewayWorld(settings=gateway.settings)


@pytest.mark.parametrize(
    "settings",
    [
        OidcSettings(issuer="http://login.example", client_id="x"),
        OidcSettings(issuer="https://login.example?x", client_id="x"),
        OidcSettings(issuer="https://login.example"),
        OidcSettings(issuer="https://login.example", client_id="x", url="http://gpu.example"),
        OidcSettings(issuer="https://login.example", client_id="x", groups=[OidcGroup(group="a", role="member")]),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: OidcSettings) -> None:
    with pytest.raises(CalabashError):
        checked_oidc(settings)
