"""Routes of cards that MIG can cut: how they are, what would be, and how they are to stay."""

from __future__ import annotations

from litestar import get, post

from calabash.api import replies, requests
from calabash.model.access import Action
from calabash.operations.handlers.asked import Asked, body_of, caller_of, sight_of, work
from calabash.standalone import mig_views, views
from calabash.standalone.handlers.asked import pool_of
from calabash.standalone.pool import Pool


@get("/v1/mig")
async def list_cards(request: Asked) -> replies.MigCards:
    sight = sight_of(request)

    def shown(pool: Pool) -> replies.MigCards:
        cards = mig_views.mig_cards(pool.agent.cutting.cards())
        return replies.MigCards(items=[sight.shown_card(card) for card in cards.items])

    return await work(request, shown, pool_of(request))


@post("/v1/mig/plan", status_code=200)
async def plan(request: Asked) -> replies.MigPlaces:
    caller_of(request)
    asked = requests.decode(await body_of(request), requests.MigQuestion)

    def answer(pool: Pool) -> replies.MigPlaces:
        return mig_views.mig_places(pool.agent.cutting.plan(asked.profiles))

    return await work(request, answer, pool_of(request))


@post("/v1/mig/apply", status_code=200)
async def apply(request: Asked) -> replies.MigPlaces:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, "cut devices")
    asked = requests.decode(await body_of(request), requests.MigLayout)

    def change(pool: Pool) -> replies.MigPlaces:
        agent = pool.agent
        wanted = [(agent.care.find(c.device), [(i.profile, i.start) for i in c.instances]) for c in asked.cards]
        complete = [(device, agent.cutting.checked(device, places)) for device, places in wanted]
        if not asked.check:
            agent.cutting.apply(complete)
        return mig_views.mig_layout(complete)

    return await work(request, change, pool)


@post("/v1/devices/{name:str}/mode", status_code=200)
async def keep_mode(request: Asked, name: str) -> replies.DeviceDetail:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, "set the mode of devices")
    asked = requests.decode(await body_of(request), requests.DeviceMode)

    def change(pool: Pool) -> replies.DeviceDetail:
        pool.agent.cutting.keep(pool.agent.care.find(name), asked.mode)
        return views.device(pool.agent, name, sight_of(request))

    return await work(request, change, pool)


MIG = (list_cards, plan, apply, keep_mode)
