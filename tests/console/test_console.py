"""Console in a browser on a real pool: each action by clicking, as each role, and each forbidden action refused."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.conftest import settled
from tests.console.people import PAGES
from tests.daemons.world import World, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

Console = Callable[..., "Page"]


def _address(world: World) -> str:
    address: str = world.client.get("/v1/status")["console"]
    return address


def _said(page: Page) -> str:
    text: str = settled(page).get_by_role("status").first.inner_text()
    return text


def _post(page: Page, path: str, **fields: str) -> int:
    """Return the status of the session's request for a form that the page may not offer."""
    status: int = page.evaluate(
        """async ([path, fields]) => {
            const answer = await calabash.ask(path, {method: "POST", body: new URLSearchParams(fields).toString()});
            return answer.location ? 303 : answer.status;
        }""",
        [path, fields],
    )
    return status


def _bearer(world: World, token: str) -> int:
    request = urllib.request.Request(_address(world) + "/v1/me", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_a_login_link_is_good_once(world: World, console: Console) -> None:
    page = console()
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"
    code = world.client.post("/v1/tokens", {"login": True})["secret"]
    for expected in (_address(world) + "/", _address(world) + "/login"):
        page.goto(f"{_address(world)}/login#{code}")
        page.wait_for_url(expected)
    assert "#" not in page.url


def test_an_operator_drains_a_device_and_puts_it_back(world: World, console: Console) -> None:
    page = console("ola")
    page.get_by_role("link", name="Devices", exact=True).click()
    page.get_by_role("link", name="Tesla T4").click()
    page.get_by_role("button", name="Drain").click()
    page.get_by_label("Reason").fill("a fan rattles")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    assert "is drained" in _said(page)
    assert "a fan rattles" in page.locator("#live").inner_text()
    assert world.client.get("/v1/devices/1")["drained"] is True
    page.get_by_role("button", name="Return to service").click()
    assert "returns to service" in _said(page)
    until(lambda: world.client.get("/v1/devices/1")["device"]["health"] == "healthy", what="the device to be back")


def test_an_operator_sets_the_mode_of_a_device_and_tests_it(world: World, console: Console) -> None:
    page = console("ola")
    page.goto(_address(world) + "/devices/1")
    page.get_by_role("button", name="Mode").click()
    page.get_by_role("dialog").locator("select").select_option("exclusive")
    page.get_by_role("button", name="Set mode").click()
    assert "pinned to mode exclusive" in _said(page)
    assert world.devices()[1]["pinned"] == "exclusive"
    world.client.post("/v1/devices/1/mode", {"mode": "auto"})
    page.get_by_role("button", name="Test", exact=True).click()
    assert "was tested" in _said(page)


def test_an_administrator_makes_a_team_by_clicking(world: World, console: Console) -> None:
    page = console()
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("button", name="New tenant").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("speech")
    form.get_by_label("Guaranteed").fill("0.5")
    form.get_by_label("Limit").fill("1")
    page.get_by_role("button", name="Create").click()
    assert "speech saved" in _said(page)
    page.get_by_role("button", name="New project").click()
    page.get_by_role("dialog").get_by_label("Name").fill("dialects")
    page.get_by_role("button", name="Create").click()
    assert world.client.get("/v1/tenants/speech/projects/dialects")["queue"] == "speech/dialects"
    page.get_by_role("button", name="Add member").click()
    page.get_by_label("User", exact=True).fill("mia")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    assert "mia has the role member" in _said(page)
    page.get_by_role("button", name="Change quota").click()
    page.get_by_role("dialog").get_by_label("Limit").fill("1.5")
    page.get_by_role("dialog").get_by_label("Network objects").fill("vpc=2 eip=4")
    page.get_by_role("button", name="Save").click()
    assert "saved" in _said(page)
    speech = world.client.get("/v1/tenants/speech")
    assert (speech["limit"], speech["networks"]) == (1.5, {"vpc": 2, "eip": 4})
    page.get_by_text("networks eip=4 vpc=2").wait_for()
    page.get_by_role("button", name="Remove").click()
    assert "removed from the members" in _said(page)
    page.get_by_role("button", name="Delete", exact=True).last.click()
    assert "dialects deleted" in _said(page)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete tenant").click()
    assert "speech deleted" in _said(page)
    assert "speech" not in {t["name"] for t in world.client.get("/v1/tenants")["items"]}


def test_form_with_an_invalid_value_shows_an_error_and_changes_nothing(world: World, console: Console) -> None:
    page = console()
    page.goto(_address(world) + "/tenants")
    page.get_by_role("button", name="New tenant").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("too-much")
    form.get_by_label("Guaranteed").fill("3")
    form.get_by_label("Limit").fill("1")
    page.get_by_role("button", name="Create").click()
    assert "guarantee" in page.get_by_role("alert").inner_text()
    assert "too-much" not in {t["name"] for t in world.client.get("/v1/tenants")["items"]}


def test_running_workload_is_stopped_and_waiting_one_shows_its_reason(world: World, console: Console) -> None:
    _, running = world.running("cat", memory_mib=4096, cores=20)
    waiting = world.run("cat", gpus=2, mode="exclusive", wait_s=600)
    name = until(
        lambda: next((a["id"] for a in world.allocations() if a["state"] == "pending"), ""), what="a request to wait"
    )
    page = console()
    page.get_by_role("link", name="Waiting", exact=True).click()
    row = page.get_by_role("row").filter(has_text=name)
    why = world.client.get(f"/v1/allocations/{name}/why")
    assert why["reason"] in row.inner_text()
    assert all(help_ in row.inner_text() for help_ in why["suggestions"][:1])
    row.get_by_role("link", name=name).click()
    page.get_by_role("button", name="Withdraw").click()
    assert "withdrawn" in _said(page)
    until(waiting.dead, what="the withdrawn request to be told")
    page.get_by_role("link", name="Devices", exact=True).click()
    page.locator(f"#d-{running['slices'][0]['device_index']}").click()
    page.locator("#live table").get_by_role("link", name=running["id"]).click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Stop workload").click()
    assert "was stopped" in _said(page)
    until(lambda: not world.allocations(), what="the workload to be gone")


def test_queues_are_made_and_changed(world: World, console: Console) -> None:
    page = console("ola")
    page.get_by_role("link", name="Queues").click()
    page.get_by_role("button", name="New queue").click()
    page.get_by_role("dialog").get_by_label("Name").fill("night")
    page.get_by_role("dialog").get_by_label("Guaranteed").fill("0.25")
    page.get_by_role("button", name="Create").click()
    assert "night saved" in _said(page)
    page.get_by_role("button", name="Change night").click()
    page.get_by_role("dialog").get_by_label("Limit").fill("1")
    page.get_by_role("button", name="Save").click()
    (queue,) = [q for q in world.client.get("/v1/queues")["items"] if q["name"] == "night"]
    assert (queue["guarantee"], queue["limit"]) == (0.25, 1.0)
    world.client.delete("/v1/queues/night")


def test_a_token_is_shown_once_works_and_is_revoked(world: World, console: Console) -> None:
    page = console("tom")
    page.get_by_role("link", name="Tokens").click()
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Purpose").fill("nightly")
    page.get_by_role("button", name="Create").click()
    secret = page.get_by_role("status").locator("code").inner_text()
    assert _bearer(world, secret) == 200
    page.reload()
    assert secret not in page.content()
    page.get_by_role("row").filter(has_text="nightly").get_by_role("button", name="Revoke").click()
    assert "revoked" in _said(page)
    assert _bearer(world, secret) == 401


def test_a_simulated_card_is_broken_and_healed(world: World, console: Console) -> None:
    page = console()
    page.get_by_role("link", name="Simulated node").click()
    page.get_by_role("button", name="Device 1: Lost").click()
    until(lambda: world.devices()[1]["health"] == "lost", what="the pool to see it")
    page.get_by_role("link", name="Devices", exact=True).click()
    page.get_by_role("row").filter(has_text="Tesla T4").filter(has_text="lost").wait_for()
    page.get_by_role("link", name="Simulated node").click()
    page.get_by_role("button", name="Device 1: Recover").click()
    until(lambda: world.devices()[1]["health"] == "healthy", what="the card to come back")


def test_no_tenant_sees_the_names_and_commands_of_another(world: World, console: Console) -> None:
    program, held = world.running("cat", memory_mib=1024, cores=10)
    page = console("tom")
    for path in ("/", "/workloads", "/devices/0", "/waiting", "/tenants"):
        page.goto(_address(world) + path)
        assert held["id"] not in page.content()
    page.goto(f"{_address(world)}/workloads/{held['id']}")
    assert page.get_by_role("alert").count() == 1
    assert _post(page, "/do/stop", id=held["id"], force="on") in {403, 404}
    assert program.alive()
    program.finish()


def test_a_form_without_the_proof_of_its_session_is_refused(world: World, console: Console) -> None:
    page = console()
    status = page.evaluate(
        """fetch("/do/tenant", {method: "POST", headers: {"Content-Type": "application/x-www-form-urlencoded"},
           body: "name=forged"}).then(answer => answer.status)"""
    )
    assert status == 401
    assert "forged" not in {t["name"] for t in world.client.get("/v1/tenants")["items"]}


def test_every_page_is_also_served_as_json(world: World, console: Console) -> None:
    page = console()
    for path in PAGES:
        answer: Any = page.evaluate(
            """async path => JSON.parse(new TextDecoder().decode((await calabash.ask(path)).content))""",
            f"{path}?format=json",
        )
        assert answer
        assert "reason" not in answer


def test_keyboard_shortcuts_and_colour_schemes(console: Console) -> None:
    page = console(color_scheme="light")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/devices")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("t4")
    page.keyboard.press("Enter")
    page.wait_for_url("**/devices?q=t4")
    assert page.locator("tbody tr").count() == 1
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark or light").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_a_live_part_refreshes_by_itself(world: World, console: Console) -> None:
    page = console()
    page.get_by_role("link", name="Workloads", exact=True).click()
    program, held = world.running("cat", memory_mib=1024, cores=10)
    page.get_by_role("link", name=held["id"]).wait_for()
    program.finish()
    page.get_by_role("link", name=held["id"]).wait_for(state="detached")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_pages_are_accessible_and_no_wider_than_the_window(
    world: World, console: Console, axe: str, scheme: str, width: int
) -> None:
    program, held = world.running("cat", memory_mib=4096, cores=20)
    page = console(color_scheme=scheme, viewport={"width": width, "height": 800})
    found = []
    for path in (*PAGES, f"/workloads/{held['id']}"):
        page.goto(_address(world) + path)
        page.evaluate(axe)
        wrong = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})")
        found += [f"{path}: {v['id']}: {v['nodes'][0]['html'][:160]}" for v in wrong["violations"]]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{path} is wider than {width}")
    assert found == []
    program.finish()
