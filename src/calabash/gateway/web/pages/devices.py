"""Pages of all devices with their slices, and of one device with its health, settings and MIG layout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from calabash.api import mig as mig_messages
from calabash.api import pool_routes, replies
from calabash.gateway.web.drawing import HeldSlice, by_device, compute_lane, held_of, memory_lane, mig_lane
from calabash.gateway.web.lists import ListPart, choices, matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.model.errors import CalabashError

FACETS = {
    "model": lambda d: d.model,
    "health": lambda d: str(d.health),
    "mode": lambda d: d.mode,
    "index": lambda d: str(d.index),
    "uuid": lambda d: d.uuid,
}


def listed(
    devices: Sequence[replies.DeviceView], slices: Mapping[str, Sequence[HeldSlice]], query: Mapping[str, str]
) -> Shown:
    """Return the data of the list: devices that match the filter in the URL, each with its memory lane."""
    found = sorted(matching(devices, query, FACETS), key=lambda d: d.index)
    part: ListPart = part_of(found, query, total=len(devices))
    return {
        "part": part,
        "lanes": {d.uuid: memory_lane(d, slices.get(d.uuid, ())) for d in part.items},
        "counts": {d.uuid: len(slices.get(d.uuid, ())) for d in part.items},
        "models": choices(devices, FACETS["model"]),
        "healths": choices(devices, FACETS["health"]),
        "modes": choices(devices, FACETS["mode"]),
    }


def single(
    detail: replies.DeviceDetail,
    allocations: Sequence[replies.AllocationView],
    cards: Sequence[mig_messages.MigCardView],
) -> Shown:
    """Return the data of one device: its lanes, slices, health and history."""
    device = detail.device
    slices = held_of(device, allocations)
    card = next((c for c in cards if c.uuid == device.uuid), None)
    return {
        "detail": detail,
        "device": device,
        "slices": slices,
        "memory": memory_lane(device, slices),
        "compute": compute_lane(slices),
        "card": card,
        "mig": mig_lane(card, slices) if card and card.enabled else [],
        "history": list(reversed(detail.history)),
    }


async def _listed(visit: Visit) -> Shown:
    devices, allocations = await asyncio.gather(
        visit.pool.get(pool_routes.LIST_DEVICES),
        visit.pool.pages(pool_routes.LIST_ALLOCATIONS),
    )
    return listed(devices.items, by_device(allocations), visit.query)


async def _single(visit: Visit) -> Shown:
    detail, allocations, cards = await asyncio.gather(
        visit.pool.get(pool_routes.SHOW_DEVICE, visit.path["id"]),
        visit.pool.pages(pool_routes.LIST_ALLOCATIONS),
        _cards(visit),
    )
    return single(detail, allocations, cards)


async def _cards(visit: Visit) -> list[Any]:
    try:
        return list((await visit.pool.get(pool_routes.LIST_MIG)).items)
    except CalabashError:
        return []  # the page is shown without the MIG layout


DEVICE_PAGES = (
    ConsolePage(path="/devices", title="Devices", template="devices.html", read=_listed, section="devices"),
    ConsolePage(path="/devices/{id}", title="Device", template="device.html", read=_single, section="devices"),
)
