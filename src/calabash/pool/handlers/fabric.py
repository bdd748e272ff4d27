"""Routes of fabrics for RDMA."""

from __future__ import annotations

import time

from calabash.api import endpoints, requests
from calabash.api import fabric as shapes
from calabash.model.access import Action
from calabash.model.device import DeviceUuid
from calabash.model.fabric import FabricCondition
from calabash.platform.handlers.request import Asked, body_of, caller_of, work
from calabash.pool.handlers.context import pool_of
from calabash.pool.networks.fabric import FabricHolds
from calabash.transport.web.routing import handles


@handles(endpoints.SHOW_FABRIC)
async def list_cards(request: Asked) -> shapes.FabricList:
    return _shown(_holds(request, "see fabrics"))


@handles(endpoints.LIST_FABRIC_USES)
async def list_uses(request: Asked) -> shapes.FabricUses:
    moment = await work(request, _holds(request, "see who has which card").moment)
    uses = [shapes.FabricUseView(device=use.device, tenant=use.tenant) for use in moment.uses]
    return shapes.FabricUses(pool=moment.pool, number=moment.number, uses=uses)


@handles(endpoints.REPORT_FABRIC_STATUS)
async def report(request: Asked) -> shapes.FabricList:
    holds, binder = _holds(request, "report the state of fabrics"), pool_of(request).binder
    told = requests.decode(await body_of(request), shapes.FabricReport)
    found = [
        FabricCondition(
            plane=card.plane,
            device=DeviceUuid(card.device),
            state=card.state,
            standing=None if card.standing is None else tuple(card.standing),
            tenant=card.tenant,
            number=card.number,
            message=card.message,
        )
        for card in told.cards
    ]

    def store_report() -> None:
        holds.report(told.pool, told.number, found, now_s=time.time())
        binder.room_may_have_appeared()  # cards that were held back may be granted now

    await work(request, store_report)
    return _shown(holds)


def _holds(request: Asked, what: str) -> FabricHolds:
    pool = pool_of(request)
    pool.permission.require(caller_of(request).principal, Action.MANAGE_UPLINKS, what)
    return pool.fabric


def _shown(holds: FabricHolds) -> shapes.FabricList:
    items = [
        shapes.FabricCardView(
            plane=one.plane,
            device=one.device,
            state=one.state,
            standing=None if one.standing is None else list(one.standing),
            tenant=one.tenant,
            number=one.number,
            message=one.message,
        )
        for one in holds.conditions()
    ]
    return shapes.FabricList(items=items, hold=holds.hold, told_at=holds.told_at)


FABRIC = (list_cards, list_uses, report)
