"""Routes of MIG cards: show partitions, plan and apply layouts, and pin the mode of a device."""

from __future__ import annotations

from calabash.api import devices as device_requests
from calabash.api import endpoints, replies, requests
from calabash.api import mig as mig_messages
from calabash.model.access import Action
from calabash.platform.handlers.request import Asked, body_of, caller_of, visibility_of, work
from calabash.pool.handlers.context import pool_of
from calabash.pool.pool import Pool
from calabash.pool.views import mig as views_mig
from calabash.pool.views import resources as views_resources
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_MIG)
async def list_cards(request: Asked) -> mig_messages.MigCards:
    visibility = visibility_of(request)

    def shown(pool: Pool) -> mig_messages.MigCards:
        cards = views_mig.mig_cards(pool.agent.mig_layouts.cards())
        return mig_messages.MigCards(items=[visibility.shown_card(card) for card in cards.items])

    return await work(request, shown, pool_of(request))


@handles(endpoints.PLAN_MIG)
async def plan(request: Asked) -> mig_messages.MigPlaces:
    caller_of(request)
    asked = requests.decode(await body_of(request), mig_messages.MigQuestion)

    def answer(pool: Pool) -> mig_messages.MigPlaces:
        return views_mig.mig_places(pool.agent.mig_layouts.plan(asked.profiles))

    return await work(request, answer, pool_of(request))


@handles(endpoints.APPLY_MIG)
async def apply(request: Asked) -> mig_messages.MigPlaces:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, "cut devices")
    asked = requests.decode(await body_of(request), mig_messages.MigLayout)

    def change(pool: Pool) -> mig_messages.MigPlaces:
        agent = pool.agent
        wanted = [
            (agent.administration.find(c.device), [(i.profile, i.start) for i in c.instances]) for c in asked.cards
        ]
        complete = [(device, agent.mig_layouts.checked(device, places)) for device, places in wanted]
        if not asked.check:
            agent.mig_layouts.apply(complete)
        return views_mig.mig_layout(complete)

    return await work(request, change, pool)


@handles(endpoints.SET_DEVICE_MODE)
async def keep_mode(request: Asked, device: str) -> replies.DeviceDetail:
    pool, caller = pool_of(request), caller_of(request)
    pool.permission.require(caller.principal, Action.OPERATE, "set the mode of devices")
    asked = requests.decode(await body_of(request), device_requests.DeviceMode)

    def change(pool: Pool) -> replies.DeviceDetail:
        pool.agent.mig_layouts.set_mode(pool.agent.administration.find(device), asked.mode)
        return views_resources.device(pool.agent, device, visibility_of(request))

    return await work(request, change, pool)


MIG = (list_cards, plan, apply, keep_mode)
