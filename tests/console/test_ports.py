"""Programs of other users on other ports, or on the console's port after the pool has ended, get nothing usable.

A browser that is logged in to the console sends neither of them a credential.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench._console_session import http_ask
from tests.console.conftest import PATIENCE_MS, settled, settling
from tests.daemons.world import World, until
from tests.recorder import Received, recorder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_SIGN = """async path => {
    const session = await new Promise((resolve, reject) => {
        const opening = indexedDB.open("calabash", 1);
        opening.onerror = reject;
        opening.onsuccess = () => {
            const asked = opening.result.transaction("session").objectStore("session").get("current");
            asked.onsuccess = () => resolve(asked.result);
        };
    });
    const exported = await crypto.subtle.exportKey("raw", session.key).then(() => "exported", error => error.name);
    const hex = bytes => [...new Uint8Array(bytes)].map(byte => byte.toString(16).padStart(2, "0")).join("");
    const empty = hex(await crypto.subtle.digest("SHA-256", new Uint8Array()));
    const nonce = "0".repeat(32), proofs = [];
    for (const start of ["", "guess"]) for (let at = 0; at < 200; at += 10) {
        const parts = ["calabash request", start, "GET", location.host, path, at * 1000, nonce, empty];
        const mac = await crypto.subtle.sign("HMAC", session.key, new TextEncoder().encode(parts.join("\\n")));
        proofs.push(at * 1000 + "." + nonce + "." + hex(mac));
    }
    return [exported, session.id, proofs];
}"""


@pytest.fixture
def world(browser: Browser, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home", "1xT4", options=("--console", "127.0.0.1:0"))
    made.up()
    yield made
    made.close()


@pytest.fixture
def page(world: World, browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = settling(context.new_page())
    page.goto(f"{_address(world)}/login#{_code(world)}")
    page.wait_for_url(f"{_address(world)}/")
    yield settled(page)
    context.close()


def _address(world: World) -> str:
    address: str = world.client.get("/v1/status")["console"]
    return address


def _code(world: World) -> str:
    code: str = world.client.post("/v1/tokens", {"login": True})["secret"]
    return code


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_server_on_another_port_gets_no_credential(world: World, page: Page, tmp_path: Path) -> None:
    with recorder(tmp_path / "record") as other:
        tab = page.context.new_page()
        tab.goto(f"http://127.0.0.1:{other.address[1]}/")
        assert tab.evaluate("indexedDB.databases().then(found => found.length)") == 0
        assert tab.evaluate("localStorage.length + sessionStorage.length") == 0
        received = other.received()
    assert received
    names = {name.lower() for request in received for name, _ in request.headers}
    assert not {n for n in names if n.startswith("calabash") or n in {"cookie", "authorization"}}
    assert page.context.cookies() == []


def test_later_owner_of_the_port_gets_nothing_that_the_next_pool_accepts(
    world: World, page: Page, browser: Browser, tmp_path: Path
) -> None:
    address = _address(world)
    place = _place(address)
    page.get_by_role("link", name="Queues").click()
    second = settling(page.context.new_page())
    second.goto(f"{address}/tenants")
    world.kill()
    with recorder(tmp_path / "record", port=place[1]) as squatter:
        live = "the open page to ask the other server"
        until(lambda: any(r.path == "/queues" for r in squatter.received()), what=live)
        page.get_by_role("alert").wait_for()
        assert "forged" not in page.content()
        page.get_by_role("link", name="Devices", exact=True).click()
        second.get_by_role("button", name="New tenant").click()
        second.get_by_role("dialog").get_by_label("Name").fill("speech")
        second.get_by_role("button", name="Create").click()
        until(lambda: any(r.method == "POST" for r in squatter.received()), what="the form to be sent")
        for one in (page, second):
            assert "forged" not in one.content()
            assert one.evaluate("window.forged") is None
        second.reload()  # from now on the other server's page runs in the browser
        assert second.evaluate("window.forged") == 1
        exported, session, signed = second.evaluate(_SIGN, "/queues")
        assert exported == "InvalidAccessError"
        received = squatter.received()
    assert {r.path for r in received} >= {"/queues", "/devices", "/do/tenant"}
    world.options = ("--console", f"{place[0]}:{place[1]}")
    world.up()
    for request in received:
        _refused_in_every_form(place, request)
    for proof in signed:
        shown = {"calabash-session": session, "calabash-proof": proof}
        assert http_ask(place, "GET", "/queues", headers=shown).status == 401
    assert "speech" not in {t["name"] for t in world.client.get("/v1/tenants")["items"]}
    page.get_by_role("alert").filter(has_text="You are not logged in").wait_for()
    code = _code(world)
    page.goto(f"{address}/login#{code}")
    page.wait_for_url(f"{address}/")
    assert settled(page).get_by_role("heading", level=1).inner_text() == "Overview"


def _refused_in_every_form(place: tuple[str, int], request: Received) -> None:
    headers = {name.lower(): value for name, value in request.headers if name.lower() != "content-length"}
    assert "cookie" not in headers
    assert "authorization" not in headers
    if "calabash-session" in headers:
        assert http_ask(place, request.method, request.path, request.body, headers=headers).status == 401
    words = {word for value in headers.values() for word in (value, *value.split(".")) if len(word) >= 8}
    for word in words & {w for v in ("calabash-session", "calabash-proof") for w in headers.get(v, "").split(".")}:
        for shown in ({"authorization": f"Bearer {word}"}, {"cookie": f"calabash_session={word}"}):
            assert http_ask(place, "GET", "/v1/me", headers=shown).status in {401, 403}
            assert http_ask(place, "GET", "/queues?format=json", headers=shown).status == 401
