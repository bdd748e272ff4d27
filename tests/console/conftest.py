"""Real pool with its console, and a browser to use it. Without a browser the tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.people import LOGINS, ROLES
from tests.daemons.users import open_way
from tests.daemons.world import World
from tools import web

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REQUIRED = "CALABASH_CONSOLE_TESTS"
PATIENCE_MS = 30_000  # an element that is not there by then does not come


def _chromium() -> str:
    """Return the path of Debian's browser; skip the test without it, or fail if it is required."""
    found = shutil.which("chromium")
    if found is None or find_spec("playwright") is None:
        missing = "no chromium, or no playwright: tools/bootstrap --tests brings both"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run a browser for one module only: an event loop runs in this thread meanwhile, and other tests need their own."""
    executable = _chromium()
    from playwright.sync_api import Locator, sync_playwright

    clicked = Locator.click

    def click(self: Locator, **options: Any) -> None:
        """Click and wait until the page's script has shown the result, as a click that opens another page does."""
        clicked(self, **options)
        settled(self.page)

    with sync_playwright() as playwright, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Locator, "click", click)
        launched = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def world(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run a pool with two cards, a tenant and one user of each role. Starts the browser first, so that tests skip early."""
    made = World(tmp_path_factory.mktemp("pool") / "home", "1xA100-40GB,1xT4", options=("--console", "127.0.0.1:0"))
    made.home.joinpath("pool.toml").write_text("[jobs]\nleast_user = 1\n")
    made.up()
    open_way(made.home)
    made.client.put("/v1/tenants/vision", {"guarantee": 1.0, "limit": 2.0})
    made.client.put("/v1/tenants/vision/projects/night", {})
    for user, (role, tenant) in ROLES.items():
        made.client.put(f"/v1/users/{user}", {"login": LOGINS[user]})
        made.client.put("/v1/members", {"user": user, "role": role, "tenant": tenant})
    for kind, name, spec in (
        ("vpc", "red", {"cidrs": ["10.0.0.0/16"], "tenant": "vision"}),
        ("subnet", "red/a", {"cidrs": ["10.0.1.0/24"]}),
        ("port", "red/a/web1", {}),
        ("uplink", "provider", {"cidr": "198.51.100.0/24", "gateway": "198.51.100.1"}),
    ):
        made.client.put("/v1/networks/objects", {"kind": kind, "name": name, "spec": spec})
    yield made
    made.close()


def settled(page: Page) -> Page:
    """Wait until the page's script has loaded and shown the content of the last request."""
    page.locator("html:not([data-state=busy])").wait_for()
    return page


def settling(page: Page) -> Page:
    """Make the page wait for its content whenever it is opened or loaded again."""
    goto, reload = page.goto, page.reload

    def opened(url: str, **options: Any) -> Any:
        answer = goto(url, **options)
        settled(page)
        return answer

    def reloaded(**options: Any) -> Any:
        answer = reload(**options)
        settled(page)
        return answer

    page.goto, page.reload = opened, reloaded  # type: ignore[method-assign]
    return page


@pytest.fixture
def console(world: World, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the console as a user, with a login link as ``calabash up`` prints it.

    An error message of the browser fails the test: a refused script, a style in a line, a page that is not there.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_(user: str = "", **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = settling(context.new_page())
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        address = world.client.get("/v1/status")["console"]
        code = world.client.post("/v1/tokens", {"login": True, "user": user})["secret"]
        page.goto(f"{address}/login#{code}")
        page.wait_for_url(f"{address}/")
        return settled(page)

    yield open_
    for context in contexts:
        context.close()
    refused = ("status of 4",)  # answers to requests for objects that are gone or not visible
    assert [c for c in complaints if not any(words in c for words in refused)] == []


@pytest.fixture(scope="module")
def axe(browser: Browser) -> str:
    """Return the script of the accessibility checker; only tests use it."""
    target = Path(__file__).resolve().parents[2] / "build" / "console-tests"
    try:
        web.install(target, (web.AXE,))
    except web.AbsentError as error:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return (target / "axe.min.js").read_text()
