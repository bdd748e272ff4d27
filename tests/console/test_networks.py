"""Networks created and deleted by clicking, by users of their tenant; other users are not offered it and do not see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.console.test_console import _address, _post, _said
from tests.daemons.world import World

from calabash.gateway.web.form_networks import NETWORKS

if TYPE_CHECKING:
    from playwright.sync_api import Page

Console = Callable[..., "Page"]


def _filled(page: Page, button: str, fields: dict[str, str], done: str = "Create") -> str:
    """Fill in and submit a dialog; return the text of the page afterwards."""
    page.get_by_role("button", name=button, exact=True).click()
    form = page.locator("dialog[open]")
    for name, value in fields.items():
        box = form.locator(f'[name="{name}"]')
        if box.evaluate("box => box.tagName") == "SELECT":
            box.select_option(value)
        else:
            box.fill(value)
    with page.expect_navigation():
        form.get_by_role("button", name=done, exact=True).click()
    return _said(page)


@pytest.mark.parametrize("user", ["mia", "ada"])
def test_a_network_is_made_and_taken_away_by_clicking(world: World, console: Console, user: str) -> None:
    page, name = console(user), f"{user}s"
    page.get_by_role("link", name="Networks", exact=True).click()
    made = {"label": name, "tenant": "vision", "cidrs": "10.0.0.0/16"}
    assert f"Network {name} created" in _filled(page, "New network", made)
    assert "No objects" in page.locator("main").inner_text() or "Security groups" in page.locator("main").inner_text()
    subnet = {"label": "b", "cidrs": "10.0.2.0/24", "dhcp": "on"}
    assert f"Subnet {name}/b created" in _filled(page, "New subnet", subnet)
    port = {"subnet": "b", "label": "web1", "addresses": "10.0.2.11"}
    assert f"Port {name}/b/web1 created" in _filled(page, "New port", port)
    balancer = {"label": "web", "vip": "10.0.2.100", "vip_number": "80", "backends": "b/web1:8080"}
    assert f"Load balancer {name}/web created" in _filled(page, "New balancer", balancer)
    assert f"Gateway {name}/out created" in _filled(page, "New gateway", {"label": "out"})
    assert f"Outside address {name}/one created" in _filled(page, "New outside address", {"label": "one"})
    shown = page.locator("main").inner_text()
    for words in ("10.0.2.11", "10.0.2.100:80", "b/web1:8080", "198.51.100.", "waits"):
        assert words in shown, words
    found = world.client.get(f"/v1/networks/objects/lb?name={name}/web")["spec"]
    assert found["backends"] == [{"port": f"{name}/b/web1", "number": 8080}]
    row = page.locator("tr", has=page.get_by_role("rowheader", name="one", exact=True))
    with page.expect_navigation():
        row.get_by_role("button", name="Delete").click()
    assert f"{name}/one deleted" in _said(page)
    row = page.locator("tr", has=page.get_by_role("rowheader", name="b/web1", exact=True))
    with page.expect_navigation():
        row.get_by_role("button", name="Delete").click()
    assert f"is used by load balancer {name}/web" in page.get_by_role("alert").inner_text(), "a refusal is told"
    page.goto(f"{_address(world)}/networks/{name}")
    with page.expect_navigation():
        page.locator(".head").get_by_role("button", name="Delete").click()
    assert f"Network {name} and all its objects deleted" in _said(page)
    assert name not in {v["name"] for v in world.client.get("/v1/networks/objects?kind=vpc")["items"]}


@pytest.mark.parametrize("user", ["ola", "vera", "lea"])
def test_user_without_the_right_to_change_a_network_sees_it_without_forms_and_is_refused(
    world: World, console: Console, user: str
) -> None:
    page = console(user)
    page.goto(f"{_address(world)}/networks/red")
    assert "web1" in page.locator("main").inner_text()
    assert page.locator('form[action^="/do/network"]').count() == 0
    fields = {"vpc": "red", "kind": "port", "name": "red/a/web1", "label": "x", "cidrs": "10.0.3.0/24", "subnet": "a"}
    fields |= {"cascade": "on", "tenant": "vision", "vip": "10.0.1.9", "vip_number": "80", "backends": "a/web1:80"}
    for form in NETWORKS:
        assert _post(page, f"/do/{form.name}", **fields) in {403, 404}, form.name


def test_network_of_another_tenant_is_not_found(world: World, console: Console) -> None:
    world.client.put("/v1/users/outsider", {})
    page = console("outsider")
    page.goto(_address(world) + "/networks")
    assert "red" not in page.locator("main").inner_text()
    page.goto(_address(world) + "/networks/red")
    assert "there is no vpc red" in page.get_by_role("alert").inner_text()
