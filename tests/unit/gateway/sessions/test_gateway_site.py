"""Tests of sessions, pages and files of the console through the gateway."""

from __future__ import annotations

import re

import pytest
from tests.unit.gateway.standin import CODE, GATEWAY, HOST, SESSION, TOKEN, GatewayWorld

from calabash.api.gateway import SESSION_HEADER
from calabash.gateway.serving.static import FOREVER, StaticFiles
from calabash.gateway.sessions.store import (
    CLOCK_HEADER,
    LOCATION_HEADER,
    NONCES_MAX,
    PROOF_HEADER,
    VALID_MS,
    Question,
    Sessions,
)

FORM = "application/x-www-form-urlencoded"
JSON = {"content-type": "application/json", "accept": "application/json"}


@pytest.fixture
def gateway() -> GatewayWorld:
    return GatewayWorld()


def test_opened_page_is_a_shell_without_data(gateway: GatewayWorld) -> None:
    shown = gateway("GET", "/devices", accept="text/html,*/*;q=0.8")
    assert (shown.status, b"data-shell" in shown.content) == (200, True)
    assert gateway.pool.asked == []
    assert shown.headers["cache-control"] == "no-store"
    assert gateway("GET", "/devices?format=json").status == 401
    assert gateway.pool.asked == []


def test_page_under_a_name_leads_to_the_address_itself(gateway: GatewayWorld) -> None:
    for path in ("/devices?q=a", "/login"):
        shown = gateway("GET", path, host="localhost:7432")
        assert (shown.status, shown.headers["location"]) == (303, f"http://127.0.0.1:7432{path}")
    assert gateway("GET", "/login", host="localhost", scheme="https").status == 200


def test_login_code_becomes_a_session_and_no_cookie(gateway: GatewayWorld) -> None:
    shown = gateway("POST", "/login", b'{"code": "%s"}' % CODE.encode(), given=JSON)
    assert (shown.status, shown.cookies) == (200, ())
    assert shown.json() == {"session": SESSION, "key": gateway.sessions.key(SESSION), "to": "/"}
    assert (gateway.pool.asked[0].token, gateway.pool.asked[0].session) == (GATEWAY, "")


def test_wrong_code_gives_no_session(gateway: GatewayWorld) -> None:
    shown = gateway("POST", "/login", b'{"code": "wrong"}', given=JSON)
    assert (shown.status, shown.json()["reason"]) == (401, "not_authenticated")


def test_form_of_another_site_cannot_log_anybody_in(gateway: GatewayWorld) -> None:
    assert gateway("POST", "/login", b"code=%s" % CODE.encode(), content_type=FORM).status == 400
    assert gateway("POST", "/login", b"[" * 5000, given=JSON).status == 400
    assert gateway("POST", "/login", b'{"code": "x", "subject": "y"}', given=JSON).status == 400
    assert gateway.pool.asked == []


def test_logout_ends_the_session_at_the_pool(gateway: GatewayWorld) -> None:
    assert gateway("POST", "/logout", b"", content_type=FORM).status == 401
    assert gateway.pool.asked == []
    shown = gateway.page("POST", "/logout")
    assert (shown.status, shown.headers[LOCATION_HEADER]) == (200, "/login")
    asked = gateway.pool.asked[-1]
    assert (asked.method, asked.path, asked.token, asked.session) == (
        "DELETE",
        "/v1/sessions/current",
        GATEWAY,
        SESSION,
    )


def test_ended_session_is_answered_401_with_proof(gateway: GatewayWorld) -> None:
    gateway.pool.sessions.clear()
    assert gateway.page("GET", "/queues").status == 401


def test_page_shows_the_answer_of_the_pool_and_the_same_as_json(gateway: GatewayWorld) -> None:
    page = gateway.page("GET", "/queues")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-store"
    assert isinstance(gateway.page("GET", "/queues?format=json").json(), dict)
    assert {(a.token, a.session) for a in gateway.pool.asked} == {(GATEWAY, SESSION)}


def test_refusal_of_the_pool_is_shown_with_its_reason(gateway: GatewayWorld) -> None:
    shown = gateway.page("GET", "/devices/9")
    assert shown.status == 404
    assert "not_found" in shown.content.decode()
    assert gateway.page("GET", "/devices/9?format=json").json()["reason"] == "not_found"
    assert gateway.page("GET", "/nowhere").status == 404


@pytest.mark.parametrize("form", [{"authorization": f"Bearer {SESSION}"}, {"cookie": f"calabash_session={SESSION}"}])
def test_session_id_alone_is_no_credential(gateway: GatewayWorld, form: dict[str, str]) -> None:
    for shown in ({**form}, {**form, SESSION_HEADER: SESSION}):
        assert gateway("GET", "/v1/queues", given=shown).status in {401, 403}
        assert gateway("GET", "/queues?format=json", given=shown).status == 401
    assert {a.path for a in gateway.pool.asked} <= {"/v1/me"}, "the user of what is shown, with what is shown"
    assert {(a.token, a.session) for a in gateway.pool.asked} <= {(SESSION, "")}


def test_token_is_no_session(gateway: GatewayWorld) -> None:
    assert gateway("GET", "/queues?format=json", authorization=f"Bearer {TOKEN}").status == 401
    given = {"authorization": f"Bearer {TOKEN}", SESSION_HEADER: SESSION}
    assert gateway("GET", "/v1/queues", given=given).status == 200
    assert gateway.pool.asked[-1].session == "", "the header of a client reaches the pool"


def _question(method: str = "POST", path: str = "/do/tenant", body: bytes = b"name=a", host: str = HOST) -> Question:
    return Question(method=method, host=host, target=path, body=body)


@pytest.mark.parametrize(
    "asked",
    [
        _question(method="PUT"),
        _question(path="/do/user"),
        _question(path="/do/tenant?x"),
        _question(body=b"name=b"),
        _question(host="127.0.0.1:7433"),
        _question(host="[::1]:7432"),
    ],
)
def test_recorded_proof_is_refused_for_another_request(asked: Question) -> None:
    sessions = Sessions("credential")
    proof = sessions.example(_question())
    assert sessions.proven(proof, asked, scheme="http") is None
    assert sessions.proven(proof, _question(), scheme="http") is not None


def test_proof_is_accepted_once_and_for_a_minute() -> None:
    now = [1000.0]
    sessions = Sessions("credential", clock=lambda: now[0])
    early, late, ahead = (sessions.example(_question()) for _ in range(3))
    assert sessions.proven(early, _question(), scheme="http") is not None
    assert sessions.proven(early, _question(), scheme="http") is None
    now[0] += VALID_MS / 1000 - 1
    assert sessions.proven(early, _question(), scheme="http") is None
    assert sessions.proven(late, _question(), scheme="http") is not None
    now[0] += 2
    assert sessions.proven(ahead, _question(), scheme="http") is None
    now[0] -= 2 * VALID_MS / 1000
    assert sessions.proven(ahead, _question(), scheme="http") is None, "a proof of the future is accepted"


def test_nonces_of_one_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calabash.gateway.sessions.store.NONCES_MAX", 50)
    assert NONCES_MAX > 50
    now = [1000.0]
    sessions = Sessions("credential", clock=lambda: now[0])
    answers = [sessions.proven(sessions.example(_question()), _question(), scheme="http") for _ in range(60)]
    assert [a is not None for a in answers] == [True] * 50 + [False] * 10
    now[0] += 2 * VALID_MS / 1000
    assert sessions.proven(sessions.example(_question()), _question(), scheme="http") is not None


def test_session_ends_with_the_pool_and_outlives_a_restart_of_the_gateway() -> None:
    before = Sessions("credential of one start of the pool")
    recorded = before.example(_question())
    again = Sessions("credential of one start of the pool")
    assert again.key("abcdefghjk") == before.key("abcdefghjk")
    assert again.proven(recorded, _question(), scheme="http") is None, "a request of before the restart is replayed"
    other = Sessions("credential of the next start")
    assert other.key("abcdefghjk") != before.key("abcdefghjk")
    other.start = before.start  # the most that an attacker can know
    assert other.proven(recorded, _question(), scheme="http") is None


def test_plain_page_under_a_name_has_no_session() -> None:
    sessions = Sessions("credential")
    for host, scheme, accepted in (
        ("localhost:7432", "http", False),
        ("localhost", "https", True),
        ("[::1]:7432", "http", True),
    ):
        asked = _question(host=host)
        assert (sessions.proven(sessions.example(asked), asked, scheme=scheme) is not None) == accepted, host


@pytest.mark.parametrize(
    "proof",
    [
        "",
        "1",
        "1.2.3",
        "a" * 5000,
        f"-1.{'0' * 32}.{'0' * 64}",
        f"{'9' * 400}.{'0' * 32}.{'0' * 64}",
        f"٣.{'0' * 32}.{'0' * 64}",
    ],
)
def test_malformed_proof_is_answered_401_with_the_clock(gateway: GatewayWorld, proof: str) -> None:
    given = {SESSION_HEADER: SESSION, PROOF_HEADER: proof.encode("ascii", "replace").decode()}
    shown = gateway("GET", "/queues", given=given)
    assert shown.status == 401
    assert shown.headers[CLOCK_HEADER].split()[0] == gateway.sessions.start
    assert PROOF_HEADER not in shown.headers
    assert gateway.pool.asked == []


def test_pages_hold_no_script_and_no_style_of_their_own(gateway: GatewayWorld) -> None:
    for path in ("/login", "/queues", "/devices/9"):
        text = gateway("GET", path).content.decode() + gateway.page("GET", path).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text), path


def test_files_are_kept_for_ever_by_a_name_that_changes_with_them(gateway: GatewayWorld) -> None:
    url = StaticFiles().url("console.css")
    shown = gateway("GET", url)
    assert (shown.status, shown.headers["cache-control"]) == (200, FOREVER)
    assert shown.headers["content-type"] == "text/css; charset=utf-8"
    assert gateway("GET", "/static/console.css").status == 404
    assert gateway("GET", f"/static/{gateway.sessions.start}/" + url.rpartition("/")[2]).status == 200
    assert gateway("GET", "/static/../__main__.py").status == 404
    assert gateway("HEAD", url).content == b""


@pytest.mark.parametrize("page", ["devices", "jobs", "invoices", "tenants", "workloads"])
def test_a_name_in_the_address_of_a_page_stays_one_segment_of_the_address_at_the_pool(
    gateway: GatewayWorld, page: str
) -> None:
    hostile = f"x%20HTTP%201.1%0D%0A{SESSION_HEADER}%3A%20other%0D%0AX%3A%3F%23"
    assert gateway.page("GET", f"/{page}/{hostile}").status in {404, 409}
    asked = [a.path for a in gateway.pool.asked]
    assert any(path.split("/")[3:4] == [hostile] for path in asked), asked
    assert [path for path in asked if set(path) & set(" \r\n#")] == []
