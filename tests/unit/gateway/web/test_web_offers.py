"""Tests of the actions that pages offer to each role, and that every page can be drawn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.unit.gateway import replies as made

from calabash.api import replies, tenancy
from calabash.api.overview import OverviewReply
from calabash.api.route import Route
from calabash.gateway.web.navigation import navigation
from calabash.gateway.web.offers import may, named, offered
from calabash.gateway.web.pages import PAGES
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.gateway.web.rendering import loaded_environment, render
from calabash.model.access import Action


def me(*roles: tuple[str, str], may: tuple[str, ...] = ()) -> tenancy.Me:
    return tenancy.Me(
        user="ann", uid=-1, token="t", kind="session", scopes=[], own="", may=list(may), tenants=[],
        roles=[tenancy.MemberView(user="ann", role=role, tenant=tenant, project="") for role, tenant in roles],
    )  # fmt: skip


def test_an_administrator_of_a_tenant_is_offered_its_members_and_no_devices() -> None:
    ann = me(("tenant-admin", "vision"))
    assert {"manage-members", "stop", "run"} <= offered(ann)
    assert not {"operate", "manage-tenants"} & offered(ann)
    assert may(ann, "manage-members", "vision")
    assert not may(ann, "manage-members", "speech")
    assert named(ann) == "ann, tenant-admin of vision"


def test_nobody_is_offered_nothing() -> None:
    assert offered(None) == frozenset()
    assert not may(None, "see", "vision")


def test_pages_that_only_some_may_use_are_shown_to_nobody_else() -> None:
    assert "users" not in {link.section for _, links in navigation(frozenset(), simulated=False) for link in links}
    assert "users" in {
        link.section for _, links in navigation(frozenset({"manage-users"}), simulated=False) for link in links
    }


class Pool:
    """Pool whose replies have a value in every field, so that templates draw everything."""

    def __init__(self, **known: Any) -> None:
        self._known = known

    async def get(self, route: Route[Any], *values: str, query: Mapping[str, str] | None = None) -> Any:
        route.endpoint.at(*values)
        assert query is None or set(query) <= set(route.query.__struct_encode_fields__ if route.query else ()), (
            route.name
        )
        return self._known.get(route.reply.__name__) or filled(route.reply)

    async def pages(self, route: Route[Any], *values: str, query: Mapping[str, str] | None = None) -> list[Any]:
        return list((await self.get(route, *values, query=query)).items)

    async def send(self, method: str, path: str, body: Any, shape: type[Any]) -> Any:
        return filled(shape)


async def _read(page: ConsolePage, visit: Visit) -> Shown:
    return await page.read(visit)


def filled(shape: type[Any]) -> Any:
    """Return a value of the type with something in every field."""
    return msgspec.convert(_plain(msgspec.inspect.type_info(shape)), shape)


def _plain(info: Any) -> Any:  # noqa: PLR0911 - a kind of type, a line
    kinds = msgspec.inspect
    simple: dict[Any, Any] = {
        kinds.IntType: 1, kinds.FloatType: 1.0, kinds.BoolType: True, kinds.NoneType: None,
        kinds.DecimalType: "1.50",
    }  # fmt: skip
    if isinstance(info, kinds.StrType):
        texts = ("x", "2026-11-01", "2026-11", "guaranteed", "mon")
        return next(text for text in texts if re.search(info.pattern or "", text))
    if isinstance(info, kinds.AnyType):
        return ["<x>", True, None]
    if type(info) in simple:
        return simple[type(info)]
    if isinstance(info, kinds.StructType):
        return {field.encode_name: _plain(field.type) for field in info.fields}
    if isinstance(info, kinds.ListType | kinds.VarTupleType):
        return [_plain(info.item_type)]
    if isinstance(info, kinds.DictType):
        return {_plain(info.key_type): _plain(info.value_type)}
    if isinstance(info, kinds.EnumType):
        return next(iter(info.cls)).value
    inner = info.types[0] if isinstance(info, kinds.UnionType) else info.type
    return _plain(inner)


SHOWN = {
    "QuotaList": tenancy.QuotaList(
        items=[
            tenancy.QuotaView(
                tenant="x",
                project=project,
                queue="x",
                guarantee=1.0,
                limit=None,
                allocated=2.0,
                borrowed=1.0,
                pending=1.0,
                budget="5EUR",
                spent="1.25EUR",
            )
            for project in ("", "x")
        ]
    ),
    "AllocationList": replies.AllocationList(
        items=[made.allocation("x", slices=[made.part()]), made.allocation("w", state="pending")]
    ),
    "DeviceList": replies.DeviceList(items=[made.device(0), made.device(1, health="lost")]),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
@pytest.mark.parametrize("admin", [True, False], ids=["administrator", "visitor"])
def test_every_page_can_be_shown_with_whatever_the_pool_says(page: ConsolePage, admin: bool) -> None:
    who = me(("admin", ""), may=tuple(str(action) for action in Action)) if admin else me(("viewer", "x"))
    path = dict.fromkeys(("id", "name", "number"), "x")
    visit = Visit(pool=Pool(**SHOWN), path=path, query={"q": "", "kind": "x"}, may=frozenset(who.may), now_s=2000.0)
    shown = asyncio.run(_read(page, visit))
    html = render(
        loaded_environment(),
        page.template,
        {
            "static": lambda name: f"/static/{name}",
            "clock": "start 1",
            "session": "x",
            "me": who,
            "flash": None,
            "path": "/",
            "query": {},
            "now_s": 2000.0,
            "page": page,
            **shown,
        },
    )
    assert html.count("<h1") == 1
    assert "style=" not in html
    assert " onclick" not in html
    assert msgspec.json.encode(shown)
    assert 'action="/logout"' in html


def test_what_the_pool_says_is_never_markup() -> None:
    page = next(p for p in PAGES if p.path == "/workloads")
    hostile = made.allocation("x", tenant="<script>", command=["</code><img src=x onerror=alert(1)>"])
    visit = Visit(
        pool=Pool(AllocationList=replies.AllocationList(items=[hostile])), path={}, query={}, may=frozenset(), now_s=1.0
    )
    html = render(
        loaded_environment(),
        page.template,
        {
            "static": str, "clock": "", "session": "", "me": None, "flash": None, "path": "/", "query": {"q": '"><script>'},
            "now_s": 1.0, "page": page, **asyncio.run(_read(page, visit)),
        },
    )  # fmt: skip
    assert "<script>" not in html.replace("<script src", "")
    assert "<img" not in html


def test_the_overview_of_a_pool_without_devices_says_so() -> None:
    empty = OverviewReply(
        at=1.0, devices=0, given=0.0, busy=0.0, memory_mib=0, memory_given_mib=0, memory_used_mib=0, power_w=0.0,
        allocations=0, slices=0, idle_held=0, idle_held_devices=0.0, unmanaged_processes=0, pending=0, pending_by_reason=[],
        unexplained=0, health=[], models=[], tenants=[], cells=[],
    )  # fmt: skip
    page = next(p for p in PAGES if p.path == "/")
    visit = Visit(pool=Pool(OverviewReply=empty), path={}, query={}, may=frozenset(), now_s=1.0)
    html = render(
        loaded_environment(),
        page.template,
        {
            "static": str, "clock": "", "session": "", "me": None, "flash": None, "path": "/", "query": {}, "now_s": 1.0,
            "page": page, **asyncio.run(_read(page, visit)),
        },
    )  # fmt: skip
    assert "This pool has no devices" in html
