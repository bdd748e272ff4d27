"""Reads of the journal for a principal leave out exactly the events and allocations that the principal may not see."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.contract.test_store import _record

from calabash.adapters.store import Store
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId, GpuRequest
from calabash.model.tenancy import Member, Principal, Role, Tenant, TokenKind, TokenScope
from calabash.platform.access.permission import Permission
from calabash.platform.access.visibility import PUBLIC_EVENTS, Held, Visibility
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.owners import AllocationOwners

TENANTS = ("vision", "speech", "ann", "ann2", "")
WHO = (
    Principal(user="ann", uid=1000, own="ann"),
    Principal(user="ann", uid=-1, roles=(Member(user="ann", tenant="vision", role=Role.VIEWER),), token="t"),
    Principal(user="bob", uid=1001, roles=(Member(user="bob", tenant="speech", role=Role.TENANT_ADMIN),)),
    Principal(user="eve", uid=-1, token="t", kind=TokenKind.API, scopes=(TokenScope.RUN,), own="eve"),
    Principal(user="eve", uid=-1, token="t", kind=TokenKind.LOGIN, own="eve"),
    Principal(user="root", uid=0, roles=(Member(user="root", role=Role.ADMIN),)),
    Principal(user=""),
)


def _random_record(chance: random.Random, name: str) -> AllocationRecord:
    uid = chance.choice((-1, 1000, 1001, 0))
    record = _record(name, user=chance.choice(("ann", "bob", "eve", "root", "")), uid=uid)
    return replace(record, request=GpuRequest(tenant=chance.choice(TENANTS)), created_at=chance.random())


def _visibility_of(who: Principal, store: Store, waiting: list[Held]) -> Visibility:
    return Visibility(
        who,
        people=TenancyDirectory(tenants={name: Tenant(name=name) for name in ("vision", "speech")}),
        live=lambda: waiting,
        queues=[],
        owner=AllocationOwners(store.allocation).owner_of,
        permission=Permission(0, everybody=True),
    )


@pytest.mark.parametrize("seed", range(3))
def test_journal_leaves_out_exactly_the_invisible_objects(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    records = [_random_record(chance, f"a{n}") for n in range(30)]
    for record in records:
        store.grant(record)
        if chance.random() < 0.6:
            store.release(record.id, at=chance.random(), reason="done", explanation="")
    waiting: list[Held] = [
        (r.id, r.request, r.uid, r.user) for r in (_random_record(chance, f"w{n}") for n in range(10))
    ]
    names = [*(r.id for r in records), *(name for name, *_ in waiting), "nobody", "", "", ""]
    kinds = [*PUBLIC_EVENTS, "granted", "pending", "over_budget"]
    store.add_events(
        [{"at": float(n), "kind": chance.choice(kinds), "allocation": chance.choice(names)} for n in range(300)]
    )
    everything = store.events()
    assert len(everything) == 300
    for who in WHO:
        visible = _visibility_of(who, store, waiting)
        seen = [e for e in everything if visible.all or _event(visible, e.allocation, e.kind)]
        assert store.events(seen=visible.events_seen()) == seen, who
        mine = {r.id for r in records if visible.record(r)}
        found = store.allocations(ended=True, seen=visible.allocations_seen())
        assert {r.id for r in found} == mine, who
        ended = store.ended_before(AllocationId(""), limit=1000, seen=visible.allocations_seen())
        assert {r.id for r in ended} == {r.id for r in found if r.ended_at}, who
        held = store.allocations(seen=visible.allocations_seen())
        assert {r.id for r in held} == {r.id for r in found if not r.ended_at}, who


def _event(visible: Visibility, allocation: str, kind: str) -> bool:
    return visible.allocation(allocation) if allocation else kind in PUBLIC_EVENTS
