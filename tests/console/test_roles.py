"""Each action of the console by clicking, as each role that may; other roles are not offered it and are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from tests.console.deeds import DEEDS, PAGES_OF, Deed
from tests.console.people import ROLES
from tests.console.test_console import _address, _post, _said
from tests.daemons.test_jobs import _with_token, jobs
from tests.daemons.world import World, until

from calabash.gateway.web.form_networks import NETWORKS
from calabash.gateway.web.form_notices import NOTICES
from calabash.gateway.web.form_table import FORMS
from calabash.model.errors import CalabashError

if TYPE_CHECKING:
    from playwright.sync_api import Page

Console = Callable[..., "Page"]


_CONTENT = "path => calabash.ask(path).then(answer => [...new Uint8Array(answer.content)])"
_TEXT = "path => calabash.ask(path).then(answer => new TextDecoder().decode(answer.content))"


class Preparing:
    """Preparation of actions. Each method creates an object for a user and returns its name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ask = world.client

    def drained(self, user: str) -> str:
        self._ask.post("/v1/devices/1/drain", {"reason": user})
        return "1"

    def runs(self, user: str) -> str:
        """Start a job of mia's and return its allocation."""
        name = self.job(user)
        return str(until(lambda: self._job(name)["allocation"], what="the job to have its slice"))

    def waits(self, user: str) -> str:
        """Start a job of mia's that waits for devices of another job of hers; return its request."""
        self.job(user)
        name = self._started(user, "true", gpus=2, mode="exclusive")
        return str(until(lambda: self._job(name)["allocation"], what="the job to wait"))

    def job(self, user: str) -> str:
        name = self._started(user, "sleep 1000")
        until(lambda: self._job(name)["state"] != "waiting", what="the job to run")
        assert self._job(name)["state"] == "running", str(self._job(name))
        return name

    def queue(self, user: str) -> str:
        self._ask.put(f"/v1/queues/{user}-queue", {})
        return f"{user}-queue"

    def tenant(self, user: str) -> str:
        self._ask.put(f"/v1/tenants/{user}-firm", {})
        return f"{user}-firm"

    def project(self, user: str) -> str:
        self._ask.put(f"/v1/tenants/vision/projects/{user}-part", {})
        return f"{user}-part"

    def guest(self, user: str) -> str:
        self._ask.put("/v1/users/guest", {})
        return user

    def member(self, user: str) -> str:
        self.guest(user)
        self._ask.put("/v1/members", {"user": "guest", "role": "viewer", "tenant": "vision"})
        return user

    def user(self, user: str) -> str:
        self._ask.put(f"/v1/users/{user}-friend", {})
        return f"{user}-friend"

    def token(self, user: str) -> str:
        return str(self._ask.post("/v1/tokens", {"user": user})["id"])

    def tariff(self, user: str) -> str:
        prices = [{"name": "hour", "measure": "guaranteed", "price": "2.00"}]
        tariff = {"name": "plain", "currency": "EUR", "valid_from": "2020-01-01", "prices": prices}
        commitments = [{"of": "hour", "hours": "10", "price": "1.00"}]  # so that a tenant without use has a draft
        self._ask.put("/v1/tariffs", tariff | {"tenants": ["vision"], "commitments": commitments})
        return user

    def draft(self, user: str) -> str:
        self.tariff(user)
        drafted = self._ask.post("/v1/invoices", {"month": "2026-02", "tenant": "vision"}, timeout_s=120)["items"]
        return str(drafted[0]["number"])

    def issued(self, user: str) -> str:
        self.tariff(user)
        for invoice in self._ask.rows("/v1/invoices?month=2025-12"):
            if invoice["kind"] == "invoice" and invoice["state"] == "issued":
                return str(invoice["number"])
        drafted = self._ask.post("/v1/invoices", {"month": "2025-12", "tenant": "vision"}, timeout_s=120)["items"]
        return str(self._ask.post(f"/v1/invoices/{drafted[0]['number']}/issue", {})["number"])

    def _started(self, user: str, command: str, **amounts: Any) -> str:
        secret = self._ask.post("/v1/tokens", {"user": "mia", "note": f"for {user}"})["secret"]
        before = {job["id"] for job in jobs(self._world)}
        order = {"command": command.split(), "tenant": "vision", "memory_mib": 100, "cores": 1, **amounts}
        if "mode" in amounts:
            del order["memory_mib"], order["cores"]
        assert _with_token(self._world, secret, order) == 201
        (name,) = {job["id"] for job in jobs(self._world)} - before
        return str(name)

    def _job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask.get(f"/v1/jobs/{name}")["job"]
        return found


@pytest.fixture
def prepared(world: World) -> Iterator[Preparing]:
    yield Preparing(world)
    for job in jobs(world):
        until(partial(_forgotten, world, job["id"]), what="jobs to be forgotten")
    for held in world.allocations():
        world.client.delete(f"/v1/allocations/{held['id']}?force=1")
    until(lambda: not world.allocations(), what="the pool to be empty")
    world.client.post("/v1/devices/1/undrain")
    until(lambda: world.devices()[1]["health"] == "healthy", what="the device to be back")


def _forgotten(world: World, name: str) -> bool:
    return bool(world.client.delete(f"/v1/jobs/{name}")["state"] == "forgotten")


def test_every_form_of_the_console_is_in_the_table() -> None:
    elsewhere = {"keep", *(form.name for form in (*NOTICES, *NETWORKS))}  # tested elsewhere
    assert {deed.form for deed in DEEDS} | elsewhere == set(FORMS)


@pytest.mark.parametrize("user", ROLES)
def test_each_role_does_what_it_may_by_clicking_and_is_refused_the_rest(
    world: World, console: Console, prepared: Preparing, user: str
) -> None:
    page = console(user)
    for deed in DEEDS:
        made = getattr(prepared, deed.prepare)(user) if deed.prepare else ""
        fill = {"user": user, "made": quote(made, safe="")}
        fields = {name: value.format(**fill) for name, value in deed.fields.items()}
        fixed = {name: value.format(user=user, made=made) for name, value in deed.fixed.items()}
        page.goto(_address(world) + deed.page.format(**fill))
        offered = _forms(page, deed, fixed).count() > 0
        assert offered == (user in (deed.offered or deed.users)), f"{deed.form} is offered to {user}: {offered}"
        if user in deed.users:
            _click_through(page, deed, fields, fixed)
            said = page.locator("main").inner_text()
            assert deed.told in said, f"{deed.form} as {user}: {said[:300]}"
        else:
            status = _post(page, f"/do/{deed.form}", **{"place": "vision", **fixed, **fields})
            assert status in {403, 404}, f"{deed.form} as {user}: {status}"
        if deed.form in {"undrain", "reset"}:
            world.client.post("/v1/devices/1/undrain")
            until(lambda: world.devices()[1]["health"] == "healthy", what="the device to be back")


def _forms(page: Page, deed: Deed, fixed: dict[str, str]) -> Any:
    found = page.locator(f'form[action="/do/{deed.form}"]')
    for name, value in fixed.items():
        found = found.filter(has=page.locator(f'input[type="hidden"][name="{name}"][value="{value}"]'))
    return found


def _click_through(page: Page, deed: Deed, fields: dict[str, str], fixed: dict[str, str]) -> None:
    form = _forms(page, deed, fixed).first
    dialog = form.evaluate("form => form.closest('dialog')?.id || ''")
    if dialog:
        page.locator(f'[data-dialog="{dialog}"]').first.click()
    for name, value in fields.items():
        box = form.locator(f'[name="{name}"]')
        if box.evaluate("box => box.tagName") == "SELECT":
            box.select_option(value)
        else:
            box.fill(value)
    with page.expect_navigation():
        form.locator("button:not([data-close])").last.click()


@pytest.mark.parametrize("user", ROLES)
def test_page_outside_of_a_role_is_refused_and_not_in_its_navigation(world: World, console: Console, user: str) -> None:
    page = console(user)
    for path, users in PAGES_OF.items():
        assert (page.locator(f'nav a[href="{path}"]').count() > 0) == (user in users), (
            f"{path} in the navigation of {user}"
        )
        status = page.evaluate("path => calabash.ask(path).then(answer => answer.status)", path)
        assert (status == 200) == (user in users), f"{path} as {user}: {status}"


def test_job_is_started_and_its_output_is_read_by_permitted_users(
    world: World, console: Console, prepared: Preparing
) -> None:
    page = console("mia")
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("button", name="New job").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Command").fill("""sh -c 'echo "<b>two words</b>"; id -un; exit 3'""")
    form.get_by_label("Memory each").fill("100MiB")
    page.get_by_role("button", name="Start").click()
    assert "started." in _said(page)
    until(lambda: jobs(world)[0]["state"] not in {"waiting", "running"}, what="the job to be over")
    assert jobs(world)[0]["exit_code"] == 3, str(jobs(world)[0])
    page.get_by_text("ended with 3").first.wait_for()
    assert page.locator("pre").inner_text() == "<b>two words</b>\nnobody\n"
    address = page.url
    for user, shown in (("tom", True), ("vera", True), ("ola", True)):
        other = console(user)
        other.goto(address)
        assert (other.locator("pre").count() == 1) == shown
    world.client.put("/v1/users/stranger", {})
    other_user = console("stranger")
    other_user.goto(address)
    assert "there is no job" in other_user.get_by_role("alert").inner_text()
    page.get_by_role("button", name="Delete").click()
    assert "forgotten" in _said(page)


def test_invalid_command_line_of_a_job_is_refused(console: Console, world: World) -> None:
    page = console("mia")
    page.goto(_address(world) + "/jobs")
    page.get_by_role("button", name="New job").click()
    page.get_by_role("dialog").get_by_label("Command").fill("echo 'half")
    page.get_by_role("button", name="Start").click()
    assert "close the quotation marks" in page.get_by_role("alert").inner_text()


def test_a_reservation_is_made_kept_on_and_given_back(world: World, console: Console, prepared: Preparing) -> None:
    page = console("ola")
    page.get_by_role("link", name="Workloads", exact=True).click()
    page.get_by_role("button", name="Reserve devices").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Memory each").fill("1GiB")
    form.get_by_label("Duration").fill("8h")
    form.get_by_label("Purpose").fill("the visit of Monday")
    page.get_by_role("button", name="Reserve", exact=True).click()
    assert "created." in _said(page)
    (held,) = world.allocations()
    assert (held["user"], held["command"], held["mode"]) == ("ola", ["reservation", "the visit of Monday"], "brokered")
    page.get_by_role("button", name="Extend").click()
    assert "extended." in _said(page)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Stop workload").click()
    assert "was stopped" in _said(page)
    until(lambda: not world.allocations(), what="the devices to be free")


def test_an_invoice_is_downloaded_in_every_form(world: World, console: Console, prepared: Preparing) -> None:
    number = prepared.draft("ada")
    page = console("ada")
    page.goto(f"{_address(world)}/invoices/{number}")
    begins = {"PDF": b"%PDF-", "HTML": b"<!doctype html>", "CSV": b"project,measure", "JSON": b"{"}
    for form, begin in begins.items():
        with page.expect_download() as awaited:
            page.get_by_role("link", name=form, exact=True).click()
        assert awaited.value.suggested_filename == f"{number}.{form.lower()}"
        content = bytes(page.evaluate(_CONTENT, f"/invoices/{number}?format={form.lower()}"))
        assert content.lower().startswith(begin.lower()), form
    other = console("lea")
    path = f"/invoices/{number}?format=pdf"
    assert other.evaluate("path => calabash.ask(path).then(answer => answer.status)", path) in {403, 404}
    with pytest.raises(CalabashError):
        world.client.get("/v1/invoices/no-such")


def test_tenants_page_shows_the_spent_part_of_a_budget(world: World, console: Console) -> None:
    world.client.put("/v1/tenants/vision", {"budget": "5000EUR"})
    page = console("tom")
    page.goto(_address(world) + "/tenants/vision")
    assert "5000EUR" in page.locator("main").inner_text()
    shown = json.loads(page.evaluate(_TEXT, "/tenants?format=json"))["rows"]["vision"]["quota"]
    assert {"budget", "spent"} <= shown.keys()
    world.client.put("/v1/tenants/vision", {"budget": ""})
