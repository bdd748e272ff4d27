"""Describe the pool's devices as the server's API does, and select the devices that a lease request accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calabash.broker.filters import CardFacts, CardFilter
from calabash.broker.messages import LeaseOrder, RemoteCard
from calabash.model.errors import CalabashError, Reason
from calabash.model.nominal import nominal_memory_mib
from calabash.model.units import format_mib
from calabash.sharing.vgpu import guaranteed_percent

UUIDS_MAX = 64  # per allocation request to the pool
_ROUNDED_MIB = 256  # tolerance for memory that the pool reserves beside a slice


def card_of(device: Mapping[str, Any], leases: Mapping[str, str]) -> RemoteCard:
    """Return the description of a device in the server's API.

    Args:
        device: description of the device in the pool's API.
        leases: IDs of leases by the ID of their allocation.
    """
    return RemoteCard(
        uuid=device["uuid"],
        index=device["index"],
        model=device["model"],
        memory_mib=device["memory_mib"],
        memory_free_mib=device["memory_free_mib"],
        memory_used_mib=device["memory_used_mib"],
        cores_free_percent=max(0, 100 - device["core_allocated_percent"]),
        utilization_percent=device["utilization_percent"],
        compute_capability=device.get("compute_capability", ""),
        health=device["health"],
        leases=[leases[name] for name in device["allocations"] if name in leases],
    )


def facts_of(card: RemoteCard, *, server: str, driver: str, cuda: str = "") -> CardFacts:
    """Return the properties of a device that filters compare."""
    return CardFacts(
        memory=nominal_memory_mib(card.memory_mib, card.model),
        free_memory=card.memory_free_mib,
        model=card.model,
        compute_capability=card.compute_capability,
        driver=driver,
        cuda=cuda,
        server=server,
        uuid=card.uuid,
    )


def acceptable(
    cards: Sequence[RemoteCard], order: LeaseOrder, wanted: CardFilter, *, server: str, driver: str
) -> list[RemoteCard]:
    """Return the devices that the filter and the requested models accept, whether they are free or not.

    Args:
        cards: devices of the server.
        order: the request, with the number of devices and their models.
        wanted: filter of the request.
        server: name of the server, which a filter can name.
        driver: driver version of the server.

    Raises:
        CalabashError: SELECTOR_MISMATCH if there are fewer matching devices than the request needs.
    """
    models = [model.lower() for model in order.models]
    found = [
        card
        for card in cards
        if wanted.accepts(facts_of(card, server=server, driver=driver))
        and (not models or any(model in card.model.lower() for model in models))
    ]
    if len(found) < order.gpus:
        asked = " and ".join(filter(None, [str(wanted), f"model {' or '.join(order.models)}" if models else ""]))
        raise CalabashError(
            f"{len(found)} of {len(cards)} devices of {server} match"
            + (f" ({asked})" if asked else "")
            + f", {order.gpus} requested",
            reason=Reason.SELECTOR_MISMATCH,
            hint=f"available: {_listed(cards)}" if cards else "the server has no devices",
        )
    return found


def fits_now(card: RemoteCard, order: LeaseOrder) -> bool:
    """Return True if the device is healthy and reports enough free memory and compute for one slice of the request.

    The result is an estimate that helps to choose a server. The pool of the server decides.
    """
    request = order.request
    promised = guaranteed_percent(request.core_percent, request.policy)
    if card.health != "healthy" or card.cores_free_percent < promised:
        return False
    wanted_mib = order.memory_mib
    if wanted_mib is None:
        wanted_mib = card.memory_mib * request.core_percent // 100 - _ROUNDED_MIB
    return card.memory_free_mib >= wanted_mib


def memory_bound_mib(cards: Sequence[RemoteCard], order: LeaseOrder) -> int:
    """Return the most memory in MiB that a request can occupy on the devices, summed over all its slices."""
    if order.memory_mib is not None:
        return order.gpus * order.memory_mib
    largest = max((card.memory_mib for card in cards), default=0)
    return order.gpus * -(-largest * order.request.core_percent // 100)


def _listed(cards: Sequence[RemoteCard]) -> str:
    kinds: dict[str, int] = {}
    for card in cards:
        kind = f"{card.model} {format_mib(card.memory_mib)}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in list(kinds.items())[:4])
