"""Sessions, pages and files of the console through the gateway."""

from __future__ import annotations

import re

import pytest
from tests.unit.server.standin import CODE, SESSION, GatewayWorld

from calabash.server.credentials import csrf_of
from calabash.server.static import FOREVER, StaticFiles

COOKIE = f"calabash_session={SESSION}"
FORM = "application/x-www-form-urlencoded"
OWN = "http://localhost:7432"


@pytest.fixture
def gateway() -> GatewayWorld:
    return GatewayWorld()


def test_whoever_is_not_logged_in_is_asked_to_and_comes_back_to_the_page(gateway: GatewayWorld) -> None:
    shown = gateway("GET", "/devices")
    assert (shown.status, shown.headers["location"]) == (303, "/login?next=/devices")
    assert b'name="next" value="/devices"' in gateway("GET", "/login?next=/devices").content
    assert gateway.pool.asked == []


def test_a_login_code_becomes_a_session_that_scripts_cannot_read(gateway: GatewayWorld) -> None:
    body = f"code={CODE}&next=/queues".encode()
    shown = gateway("POST", "/login", body, content_type=FORM, origin=OWN)
    assert (shown.status, shown.headers["location"]) == (303, "/queues")
    assert shown.headers["set-cookie"] == f"calabash_session={SESSION}; Path=/; HttpOnly; SameSite=Strict"
    secure = gateway("POST", "/login", body, content_type=FORM, scheme="https")
    assert secure.headers["set-cookie"].startswith("__Host-calabash_session=")
    assert secure.headers["set-cookie"].endswith("; Secure")


def test_a_code_that_is_wrong_gives_no_session(gateway: GatewayWorld) -> None:
    shown = gateway("POST", "/login", b"code=wrong", content_type=FORM, origin=OWN)
    assert shown.status == 401
    assert "calabash_session=cal" not in shown.headers.get("set-cookie", "")


def test_another_sites_page_cannot_log_anybody_in(gateway: GatewayWorld) -> None:
    body = f"code={CODE}".encode()
    assert gateway("POST", "/login", body, content_type=FORM, origin="http://evil.example").status == 403
    assert gateway("POST", "/login", body, content_type="application/json", origin=OWN).status == 400
    assert gateway.pool.asked == []


@pytest.mark.parametrize(
    "to", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "x"]
)
def test_nobody_is_led_to_another_site(gateway: GatewayWorld, to: str) -> None:
    shown = gateway("POST", "/login", f"code={CODE}&next={to}".encode(), content_type=FORM, origin=OWN)
    assert shown.headers["location"] == "/"


def test_logging_out_ends_the_session_at_the_pool_and_needs_the_pages_token(gateway: GatewayWorld) -> None:
    assert gateway("POST", "/logout", b"", content_type=FORM, cookie=COOKIE).status == 403
    assert gateway.pool.asked == []
    shown = gateway("POST", "/logout", f"csrf={csrf_of(SESSION)}".encode(), content_type=FORM, cookie=COOKIE)
    assert (shown.status, shown.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in shown.headers["set-cookie"]
    assert [(a.method, a.path, a.token) for a in gateway.pool.asked] == [("DELETE", "/v1/sessions/current", SESSION)]


def test_a_session_that_has_ended_leads_to_the_login_page_and_htmx_is_told_in_its_way(gateway: GatewayWorld) -> None:
    old = {"cookie": "calabash_session=cal_anoldsessi_on"}
    shown = gateway("GET", "/queues", given=old)
    assert (shown.status, "Max-Age=0" in shown.headers["set-cookie"]) == (303, True)
    told = gateway("GET", "/queues", hx_request="true", given=old)
    assert (told.status, told.headers["hx-redirect"]) == (200, "/login?next=/queues")


def test_a_page_shows_what_the_pool_answered_and_the_same_as_json(gateway: GatewayWorld) -> None:
    page = gateway("GET", "/queues", cookie=COOKIE)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f'"X-CSRF-Token": "{csrf_of(SESSION)}"' in page.content.decode()
    assert page.headers["cache-control"] == "no-store"
    assert isinstance(gateway("GET", "/queues?format=json", cookie=COOKIE).json(), dict)


def test_what_the_pool_refuses_is_shown_with_its_reason(gateway: GatewayWorld) -> None:
    shown = gateway("GET", "/devices/9", cookie=COOKIE)
    assert shown.status == 404
    assert "not_found" in shown.content.decode()
    assert gateway("GET", "/devices/9?format=json", cookie=COOKIE).json()["reason"] == "not_found"
    assert gateway("GET", "/nowhere", cookie=COOKIE).status == 404


def test_pages_hold_no_script_and_no_style_of_their_own(gateway: GatewayWorld) -> None:
    for path in ("/login", "/queues"):
        text = gateway("GET", path, cookie=COOKIE).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text), path


def test_files_are_kept_for_ever_by_a_name_that_changes_with_them(gateway: GatewayWorld) -> None:
    url = StaticFiles().url("console.css")
    shown = gateway("GET", url)
    assert (shown.status, shown.headers["cache-control"]) == (200, FOREVER)
    assert shown.headers["content-type"] == "text/css; charset=utf-8"
    assert gateway("GET", "/static/console.css").status == 404
    assert gateway("GET", "/static/../__main__.py").status == 404
    assert gateway("HEAD", url).content == b""
