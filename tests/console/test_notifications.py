"""Notifications set by clicking: by the administrator of a tenant, for that tenant alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.daemons.world import World

if TYPE_CHECKING:
    from playwright.sync_api import Page

Console = Callable[..., "Page"]


def test_the_administrator_of_a_tenant_sets_a_webhook_tests_it_and_deletes_it(world: World, console: Console) -> None:
    page = console("tom")
    page.get_by_role("link", name="Notifications", exact=True).click()
    page.get_by_role("button", name="New notification").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("alerts")
    form.get_by_label("URL").fill("https://localhost:1/hook")
    form.get_by_label("Events").fill("budget, over-use")
    form.get_by_role("button", name="Save").click()
    said = page.get_by_role("status").first.inner_text()
    assert "alerts saved" in said
    assert "whsec_" in said
    (made,) = world.client.get("/v1/notifications")["items"]
    assert (made["tenant"], made["target"], made["kinds"]) == (
        "vision",
        "https://localhost:1/hook",
        ["budget", "over-use"],
    )
    page.reload()
    assert "whsec_" not in page.content()
    page.get_by_role("button", name="Test", exact=True).click()
    said = page.get_by_role("status").first.inner_text()
    assert "The test failed: localhost may not be reached" in said
    page.get_by_role("button", name="Delete", exact=True).click()
    assert "alerts deleted" in page.get_by_role("status").first.inner_text()
    assert world.client.get("/v1/notifications")["items"] == []


def test_user_who_administers_no_tenant_is_not_offered_notifications(console: Console) -> None:
    page = console("mia")
    assert page.get_by_role("link", name="Notifications", exact=True).count() == 0
