"""Login by OpenID Connect at a real, certified provider in a process of its own, by clicking in a browser."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.console.conftest import PATIENCE_MS, REQUIRED
from tests.daemons.world import World
from tools import provider as oidc_provider
from tools.web import AbsentError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SECRET = "of the console"
SETTINGS = """
[console.oidc]
issuer = "{issuer}"
client_id = "calabash"
client_secret_file = "{secret}"
name = "the institute"
scopes = ["profile", "email", "groups"]

[[console.oidc.groups]]
group = "seers"
tenant = "vision"
role = "tenant-admin"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Institute:
    """A pool whose console uses the provider for logins."""

    world: World
    console: str
    issuer: str


@pytest.fixture(scope="module")
def institute(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Institute]:
    try:
        directory = oidc_provider.install()
    except AbsentError as error:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("institute")
    secret = root / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    with subprocess.Popen(
        ["node", "provider.mjs"], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        issuer = process.stdout.readline().strip()
        world = World(root / "home", "1xT4", options=("--console", "127.0.0.1:0"))
        world.home.mkdir(exist_ok=True)
        (world.home / "pool.toml").write_text(SETTINGS.format(issuer=issuer, secret=secret))
        try:
            console = world.up()["console"]
            world.client.put("/v1/tenants/vision", {"guarantee": 0.5})
            world.client.put("/v1/users/rob", {"subject": f"{issuer}|rob"})
            told = {"client": "calabash", "secret": SECRET, "console": console}
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == "serves"
            yield Institute(world=world, console=console, issuer=issuer)
        finally:
            world.close()
            process.stdin.close()
            process.wait(timeout=60)


@pytest.fixture
def visit(browser: Browser, institute: Institute) -> Iterator[Callable[[], Page]]:
    """Open the login page in a fresh browser that reaches only ports of this machine."""
    contexts: list[Any] = []

    def open_() -> Page:
        context = browser.new_context()
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.route(lambda url: "//127.0.0.1:" not in url, lambda route: route.abort())
        page = context.new_page()
        page.goto(f"{institute.console}/login?next=/queues")
        return page

    yield open_
    for context in contexts:
        context.close()


def _log_in(page: Page, name: str) -> None:
    page.get_by_role("link", name="Log in with the institute").click()
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()


def test_user_logs_in_and_out_by_clicking(institute: Institute, visit: Callable[[], Page]) -> None:
    page = visit()
    _log_in(page, "rob")
    page.wait_for_url(f"{institute.console}/queues")
    assert page.get_by_role("heading", level=1).inner_text() == "Queues"
    assert not [c for c in page.context.cookies() if c["name"].startswith("calabash")]
    assert page.evaluate("sessionStorage.length") == 0
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{institute.console}/login?left")
    page.get_by_role("link", name="Log out of the institute as well").click()
    page.wait_for_url(f"{institute.issuer}/**")
    page.goto(f"{institute.console}/queues")
    page.wait_for_url(f"{institute.console}/login?next=/queues")


def test_a_group_of_the_provider_makes_a_user_the_administrator_of_a_tenant(
    institute: Institute, visit: Callable[[], Page]
) -> None:
    page = visit()
    _log_in(page, "ann+seers")
    page.wait_for_url(f"{institute.console}/queues")
    user = institute.world.client.get("/v1/users/ann@127.0.0.1")
    assert user["subject"] == f"{institute.issuer}|ann+seers"
    assert [(r["tenant"], r["role"]) for r in user["roles"]] == [("vision", "tenant-admin")]


def test_login_without_a_user_of_the_pool_is_refused_with_a_hint(
    institute: Institute, visit: Callable[[], Page]
) -> None:
    page = visit()
    _log_in(page, "eve+guests")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "you have no account here" in alert.inner_text()
    assert "calabash user create NAME --subject" in alert.inner_text()
    assert page.evaluate("calabash.current().then(session => session === undefined)")


def test_the_code_of_one_browser_is_of_no_use_in_another(institute: Institute, visit: Callable[[], Page]) -> None:
    page, thief = visit(), visit()
    caught: list[str] = []
    page.on("request", lambda request: caught.append(request.url) if "/login/oidc/callback?" in request.url else None)
    _log_in(page, "rob")
    page.wait_for_url(f"{institute.console}/queues")
    thief.goto(caught[0])
    assert "was not started in this browser" in thief.get_by_role("alert").inner_text()
    thief.goto(f"{institute.console}/login")
    with thief.expect_request(lambda request: request.url.startswith(institute.issuer)) as sent:
        thief.get_by_role("link", name="Log in with the institute").click()
    state = parse_qs(urlsplit(sent.value.url).query)["state"][0]
    stolen = parse_qs(urlsplit(caught[0]).query)
    forged = caught[0].replace(stolen["state"][0], state)
    thief.goto(forged)
    assert "invalid_grant" in thief.get_by_role("alert").inner_text()
    assert thief.evaluate("calabash.current().then(session => session === undefined)")


def test_the_client_secret_is_in_no_command_line_environment_or_log(institute: Institute) -> None:
    world = institute.world
    assert world.daemon is not None
    log = Path(world.home / "pool.log").read_text()
    assert SECRET not in log
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                told = (process / "cmdline").read_bytes()
                told += (process / "environ").read_bytes() if b"calabash" in told else b""
            except OSError:
                continue
            assert SECRET.encode() not in told
