"""Usage, tariffs and invoices of a real pool: which users may read and which may change them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.daemons.test_pool_users import refusal_of
from tests.daemons.users import ANN, BOB, EVE, User, as_user, open_way
from tests.daemons.world import World, until

from calabash.adapters.store import open_store
from calabash.adapters.store.database import Database
from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.platform.home.directory import DATABASE_FILE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

LAST = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=15)
MONTH = f"{LAST:%Y-%m}"
TARIFF: dict[str, Any] = {
    "name": "standard",
    "currency": "EUR",
    "valid_from": "2026-01-01",
    "prices": [{"name": "gpu", "measure": "borrowed", "price": "2.00"}],
}


def used(allocation: str, tenant: str, user: User, hours: float) -> UsageRecord:
    return UsageRecord(
        allocation=AllocationId(allocation),
        device=DeviceUuid("GPU-1"),
        tenant=tenant,
        queue=tenant,
        from_s=LAST.timestamp(),
        to_s=LAST.timestamp() + hours * 3600,
        memory_mib=0,
        core_percent=100,
        allocated_gpu_s=hours * 3600,
        used_gpu_s=0.0,
        memory_mib_s=0.0,
        user=user.name,
    )


@pytest.fixture
def world_of_teams(make_world: Any) -> World:
    """Start a pool with two tenants and usage of the last month.

    Tenant vision has member ann and administrator eve; tenant speech has member bob.
    """
    world: World = make_world("1xT4")
    world.up()
    open_way(world.home)
    root = world.client
    for name, users in (("vision", [ANN.name]), ("speech", [BOB.name])):
        root.put(f"/v1/tenants/{name}", {"guarantee": 0, "users": users})
    root.put("/v1/members", {"user": EVE.name, "role": "tenant-admin", "tenant": "vision"})
    store = open_store(f"sqlite:///{world.home / DATABASE_FILE}")
    store.add_usage([used("a", "vision", ANN, 3), used("b", "vision", EVE, 2), used("c", "speech", BOB, 4)])
    store.close()
    root.put("/v1/tariffs", TARIFF)
    root.put(
        "/v1/tariffs",
        TARIFF | {"name": "own", "tenants": ["vision", "speech"], "prices": []} | {"valid_from": "2099-01-01"},
    )
    root.put("/v1/tariffs", TARIFF | {"name": "secret", "tenants": ["speech"], "valid_from": "2099-01-01"})
    return world


def test_tenants_see_what_was_issued_to_them_and_members_what_they_used(world_of_teams: World) -> None:
    world, root = world_of_teams, world_of_teams.client
    drafts = root.post("/v1/invoices", {"month": MONTH}, timeout_s=120)["items"]
    assert {(d["tenant"], d["net"], d["state"]) for d in drafts} == {
        ("vision", "10.00", "draft"),
        ("speech", "8.00", "draft"),
    }
    assert as_user(EVE, lambda: world.client.get("/v1/invoices")["items"]) == [], "a draft is not for tenants"
    issued = {t: root.post(f"/v1/invoices/draft-{MONTH}-{t}/issue", {})["number"] for t in ("speech", "vision")}
    seen = as_user(EVE, lambda: world.client.get("/v1/invoices")["items"])
    assert [(i["number"], i["total"]) for i in seen] == [(issued["vision"], "10.00")]
    assert as_user(EVE, lambda: world.client.get(f"/v1/invoices/{issued['vision']}"))["lines"][0]["amount"] == "10.00"
    assert as_user(ANN, lambda: world.client.get("/v1/invoices")["items"]) == [], "a member sees no bills"

    window = f"from={LAST.timestamp() - 10}&to={LAST.timestamp() + 86_400}"

    def hours(user: User) -> dict[str, float]:
        found = as_user(user, lambda: world.client.get(f"/v1/usage?by=tenant,user&{window}"))["items"]
        return {f"{i['tenant']}/{i['user']}": i["gpu_hours"] for i in found}

    assert hours(EVE) == {f"vision/{ANN.name}": 3, f"vision/{EVE.name}": 2}
    assert hours(ANN) == {f"vision/{ANN.name}": 3}
    tariffs = {t["name"]: t["tenants"] for t in as_user(ANN, lambda: world.client.get("/v1/tariffs"))["items"]}
    assert tariffs == {"standard": [], "own": ["vision"]}


def test_what_belongs_to_others_does_not_exist_and_what_changes_bills_is_refused(world_of_teams: World) -> None:
    world, root = world_of_teams, world_of_teams.client
    root.post("/v1/invoices", {"month": MONTH}, timeout_s=120)
    number = root.post(f"/v1/invoices/draft-{MONTH}-speech/issue", {})["number"]
    draft = f"draft-{MONTH}-vision"

    def refused(user: User, method: str, path: str, body: Any = None) -> Reason:
        return as_user(user, lambda: refusal_of(lambda: world.client.call(method, path, body)).reason)

    for name in (number, draft, "draft-2020-01-nobody", "2026-999999", "%00", "a%20b", "x" * 500):
        assert refused(EVE, "GET", f"/v1/invoices/{name}") is Reason.NOT_FOUND
    for user in (ANN, EVE):
        for method, path, body in (
            ("PUT", "/v1/tariffs", TARIFF),
            ("POST", "/v1/invoices", {"month": MONTH}),
            ("POST", f"/v1/invoices/{draft}/issue", {}),
            ("POST", f"/v1/invoices/{number}/void", {}),
            ("POST", f"/v1/invoices/{draft}/void", {}),
        ):
            assert refused(user, method, path, body) is Reason.NOT_PERMITTED
    for path in ("/v1/usage?from=5&to=1", "/v1/usage?from=1&to=2&by=colour", "/v1/usage", "/v1/invoices?month=2026-13"):
        assert refused(ANN, "GET", path) is Reason.BAD_REQUEST
    with pytest.raises(CalabashError, match="currency 'eur'"):
        root.put("/v1/tariffs", TARIFF | {"currency": "eur"})
    assert root.get(f"/v1/invoices/{draft}")["state"] == "draft"
    assert root.get(f"/v1/invoices/{number}")["state"] == "issued"


def test_draft_command_names_the_tenant_that_failed_and_drafts_the_others(world_of_teams: World) -> None:
    world = world_of_teams
    later = {"name": "us", "currency": "USD", "tenants": ["speech"], "valid_from": f"{LAST + timedelta(days=2):%F}"}
    commitments = [{"of": "gpu", "hours": "1", "price": "1.00"}]
    world.client.put("/v1/tariffs", TARIFF | later | {"commitments": commitments})
    code, said, told = command(world, "invoice", "draft", MONTH, "-o", "json")
    assert code == 1
    assert [(i["tenant"], i["net"]) for i in json.loads(said)["items"]] == [("vision", "10.00")]
    assert "tenant speech has tariffs in EUR and USD in one month" in told
    assert "hint:" in told
    code, said, told = command(world, "invoice", "draft", "2026-01", "--tenant", "vision")
    assert (code, said) == (3, "")
    assert "vision has neither usage nor a commitment in 2026-01" in told


def test_invoice_is_itemised_and_verified_by_commands_and_by_its_tenant(world_of_teams: World) -> None:
    world, root = world_of_teams, world_of_teams.client
    root.post("/v1/invoices", {"month": MONTH}, timeout_s=120)
    number = root.post(f"/v1/invoices/draft-{MONTH}-vision/issue", {})["number"]
    code, said, _ = command(world, "invoice", "items", number, "-o", "csv")
    head, *rows = [row.split(",") for row in said.splitlines()]
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert (code, len(table)) == (0, 2)
    assert [(r["allocation"], r["user"], r["share_percent"], r["hours"], r["amount"]) for r in table] == [
        ("a", ANN.name, "100", "3.000000", "6.000000"),
        ("b", EVE.name, "100", "2.000000", "4.000000"),
    ]
    assert table[0]["from"] == LAST.isoformat()
    assert table[0]["to"] == (LAST + timedelta(hours=3)).isoformat()
    code, said, _ = command(world, "invoice", "items", number, "-o", "json")
    assert (code, len(json.loads(said)["items"])) == (0, 2)
    code, said, _ = command(world, "invoice", "items", number)
    assert code == 0
    assert said.splitlines()[0].split()[:4] == ["ALLOCATION", "USER", "DEVICE", "SHARE"]
    seen = as_user(EVE, lambda: world.client.get(f"/v1/invoices/{number}/items"))["items"]
    assert [item["user"] for item in seen] == [ANN.name, EVE.name]

    def refused(user: User, path: str) -> Reason:
        return as_user(user, lambda: refusal_of(lambda: world.client.get(f"/v1/invoices/{path}"))).reason

    assert refused(BOB, f"{number}/items") is Reason.NOT_FOUND
    assert refused(EVE, f"draft-{MONTH}-speech/items") is Reason.NOT_FOUND
    assert refused(ANN, f"{number}/items") is Reason.NOT_FOUND
    assert refused(EVE, f"{number}/verify") is Reason.NOT_PERMITTED
    code, said, _ = command(world, "invoice", "verify", MONTH, "-o", "json")
    assert (code, [c["state"] for c in json.loads(said)["items"]]) == (0, ["ok"] * 3)
    database = Database(f"sqlite:///{world.home / DATABASE_FILE}")
    with database.transaction() as connection:
        connection.execute(sa.text("DROP TRIGGER usage_no_update"))
        connection.execute(sa.text("UPDATE usage SET core_percent = 10 WHERE allocation = 'a'"))
    database.close()
    code, said, told = command(world, "invoice", "verify", number)
    assert code == 1
    assert "usage" in said
    assert "changed" in said
    assert f"1 of 1 invoices differ from their seals: {number}" in told


def test_pdf_of_an_invoice_is_the_same_file_again_and_after_a_restart_of_the_pool(
    world_of_teams: World, tmp_path: Path
) -> None:
    world = world_of_teams
    world.client.post("/v1/invoices", {"month": MONTH}, timeout_s=120)
    number = world.client.post(f"/v1/invoices/draft-{MONTH}-vision/issue", {})["number"]

    def shown(fmt: str) -> bytes:
        file = tmp_path / f"invoice.{fmt}"
        assert command(world, "invoice", "show", number, "-o", fmt, "--output-file", str(file))[0] == 0
        return file.read_bytes()

    before = {fmt: shown(fmt) for fmt in ("pdf", "html", "csv")}
    assert before["pdf"].startswith(b"%PDF-")
    assert {fmt: shown(fmt) for fmt in before} == before
    world.kill()
    world.up()
    assert {fmt: shown(fmt) for fmt in before} == before


def test_credit_command_is_for_administrators_and_stands_in_the_audit_log(world_of_teams: World) -> None:
    world, root = world_of_teams, world_of_teams.client
    root.post("/v1/invoices", {"month": MONTH}, timeout_s=120)
    number = root.post(f"/v1/invoices/draft-{MONTH}-vision/issue", {})["number"]
    order = {"amount": "1.00", "reason": "mine"}
    refused = as_user(EVE, lambda: refusal_of(lambda: world.client.post(f"/v1/invoices/{number}/credit", order)))
    assert refused.reason is Reason.NOT_PERMITTED
    words = ("invoice", "credit", number, "--amount", "2.50", "--reason", "network down")
    code, said, told = command(world, *words, "-o", "json")
    assert (code, told) == (0, "")
    note = json.loads(said)["items"][0]
    assert (note["net"], note["open"], note["credits"], note["reason"]) == ("-2.50", "2.50", number, "network down")
    lines = world.client.get("/v1/audit?limit=1000")["items"]
    credit = [line for line in lines if f"/v1/invoices/{number}/credit" in line["target"]]
    assert [(line["outcome"], line["tenant"]) for line in credit][-1:] == [(201, "vision")]
    assert credit[-1]["target"].endswith(f"{note['number']} -2.50 EUR: network down")
    assert credit[0]["outcome"] == 403
    code, _, told = command(world, "invoice", "credit", number, "--amount", "-1", "--reason", "x")
    assert (code, "hint:" in told) == (2, True)
    code, _, told = command(world, "invoice", "credit", number, "--amount", "99", "--reason", "x")
    assert (code, "the limit is 7.50 EUR" in told) == (2, True)
    code, said, _ = command(world, "invoice", "show", note["number"])
    assert (code, "network down" in said) == (0, True)
    code, said, _ = command(world, "invoice", "show", note["number"], "-o", "html")
    assert "Credit note C" in said
    assert "no tariff" not in said


def command(world: World, *words: str) -> tuple[int, str, str]:
    """Run a command against the pool; return exit status, output and error output."""
    done = subprocess.run(
        [sys.executable, "-m", "calabash.cli.main", *words],
        env={**world.environment, "CALABASH_HOME": str(world.home)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_usage_and_draft_have_a_tenant_that_holds_cards_since_a_moment(make_world: Any) -> None:
    world: World = make_world("3xT4")
    world.up()
    root = world.client
    root.put("/v1/tenants/vision", {"guarantee": 0})
    root.put("/v1/tariffs", TARIFF)

    def usage() -> dict[str, Any]:
        found: dict[str, Any] = root.get(f"/v1/usage?by=tenant&from={time.time() - 3600}&to={time.time() + 3600}")
        return found

    began_s = time.time()
    world.running(gpus=3, mode="exclusive", tenant="vision")
    held_s = time.time()

    def current() -> bool:
        asked_s = time.time()
        found = usage()
        assert asked_s - 2 <= found["counted_to_s"] <= time.time()
        hours = {row["tenant"]: row["gpu_hours"] for row in found["items"]}
        known_s = float(found["counted_to_s"]) - held_s
        return known_s > 0 and hours["vision"] >= 3 * known_s / 3600

    until(current)
    assert usage()["items"][0]["gpu_hours"] <= 3 * (time.time() - began_s) / 3600
    for _ in range(20):
        usage()
    assert rows(world) == 0, "asking writes no records"
    asked_s = time.time()
    (draft,) = root.post("/v1/invoices", {"month": f"{datetime.now(UTC):%Y-%m}"}, timeout_s=120)["items"]
    assert draft["tenant"] == "vision"
    assert asked_s - 2 <= draft["counted_to_s"] <= time.time()
    assert rows(world) == 3
    with pytest.raises(CalabashError, match="is not over in UTC") as early:
        root.post(f"/v1/invoices/{draft['number']}/issue", {})
    assert early.value.hint
    moment = datetime.fromtimestamp(draft["counted_to_s"]).astimezone().isoformat(timespec="seconds")
    listed = command(world, "invoice", "list")[1]
    assert "USAGE UNTIL" in listed.splitlines()[0]
    assert moment in listed
    assert f"usage until: {moment}" in command(world, "invoice", "show", draft["number"])[1]
    assert "Usage counted up to" in command(world, "invoice", "show", draft["number"], "-o", "html")[1]


def rows(world: World) -> int:
    """Return the number of usage records in the database of a pool."""
    database = Database(f"sqlite:///{world.home / DATABASE_FILE}")
    with database.reading() as connection:
        found = int(connection.execute(sa.text("SELECT count(*) FROM usage")).scalar_one())
    database.close()
    return found
