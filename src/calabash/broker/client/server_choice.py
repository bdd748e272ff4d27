"""Choose a server for a lease request, or divide the request among several servers. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from calabash.broker.devices import acceptable, fits_now
from calabash.broker.filters import CardFilter, parse_filters
from calabash.broker.messages import LeaseOrder, ServerView
from calabash.model.errors import CalabashError, Reason


def rank(views: Sequence[ServerView], order: LeaseOrder) -> list[int]:
    """Return the indexes of the servers that can serve the whole request, best first.

    Servers that have enough free devices now come before servers at which the request must wait. Within each of the two
    groups, the server whose devices would have the least free memory comes first, so that larger free devices remain
    for others.

    Raises:
        CalabashError: SELECTOR_MISMATCH if no server has enough matching devices.
    """
    wanted = parse_filters(order.filters)
    fitting: list[tuple[bool, int, int]] = []
    refusals: list[CalabashError] = []
    for number, view in enumerate(views):
        try:
            fitting.append((*_fit(view, order, wanted), number))
        except CalabashError as error:
            refusals.append(error)
    if not fitting:
        if len(refusals) == 1:
            raise refusals[0]
        raise CalabashError(
            f"none of {len(views)} servers has {order.gpus} matching devices: "
            + "; ".join(r.message for r in refusals),
            reason=Reason.SELECTOR_MISMATCH,
            hint="list the devices with `calabash remote list`",
        )
    return [number for _, _, number in sorted(fitting)]


def _fit(view: ServerView, order: LeaseOrder, wanted: CardFilter) -> tuple[bool, int]:
    """Return two values by which servers are sorted, the best server first.

    The first is True if the request must wait at the server. The second is the free memory in MiB of the devices that
    the request would use there.

    Raises:
        CalabashError: DRAINED if the server accepts no leases, SELECTOR_MISMATCH if it has too few matching devices.
    """
    if view.draining:
        raise CalabashError(
            f"server {view.name} is being drained",
            reason=Reason.DRAINED,
            hint="use another server, or wait until it accepts leases again",
        )
    cards = acceptable(view.cards, order, wanted, server=view.name, driver=view.driver)
    ready = sorted(card.memory_free_mib for card in cards if fits_now(card, order))
    return len(ready) < order.gpus, sum(ready[: order.gpus])


def divide(
    views: Sequence[ServerView], order: LeaseOrder, *, most: Mapping[int, int] | None = None
) -> list[tuple[int, int]]:
    """Divide a request among servers whose devices are free now.

    Uses one server if that is enough, and otherwise as few as possible. The last server is the one with the least free
    memory that has enough devices for the rest.

    Args:
        views: the servers with their devices.
        order: the request.
        most: largest number of devices to request of a server, by the index of the server in ``views``. The caller sets
            it for a server that reported enough free devices and refused them. None: no such limits.

    Returns:
        Pairs of the index of a server in ``views`` and the number of devices to request of it.

    Raises:
        CalabashError: SELECTOR_MISMATCH if all servers together have too few matching devices, NO_CAPACITY if too few
            are free.
    """
    wanted = parse_filters(order.filters)
    one = msgspec.structs.replace(order, gpus=1)
    there, ready = 0, dict[int, list[int]]()
    for number, view in enumerate(views):
        if view.draining:
            continue
        try:
            cards = acceptable(view.cards, one, wanted, server=view.name, driver=view.driver)
        except CalabashError:
            continue
        there += len(cards)
        free = sorted(card.memory_free_mib for card in cards if fits_now(card, order))
        ready[number] = free[: (most or {}).get(number, len(free))]
    if there < order.gpus:
        raise CalabashError(
            f"{len(views)} servers together have {there} matching devices, {order.gpus} requested",
            reason=Reason.SELECTOR_MISMATCH,
            hint="list the devices with `calabash remote list`",
        )
    if sum(map(len, ready.values())) < order.gpus:
        raise CalabashError(
            f"{sum(map(len, ready.values()))} of {there} matching devices of {len(views)} servers are free, "
            f"{order.gpus} requested",
            reason=Reason.NO_CAPACITY,
            hint="wait for free devices with --wait 10m, or request fewer; `calabash remote list` shows what is free",
        )
    return _fewest(ready, order.gpus)


def _fewest(ready: Mapping[int, Sequence[int]], wanted: int) -> list[tuple[int, int]]:
    """Choose as few servers as possible; return pairs of a server's index and the number of devices to request there.

    The server with the most free devices is chosen first. As soon as one server has enough for the rest, the one with
    the least free memory is chosen.

    Args:
        ready: free memory in MiB of each free device, by the index of the server.
        wanted: number of devices to choose.
    """
    chosen: list[tuple[int, int]] = []
    left = {number: free for number, free in ready.items() if free}
    while wanted:
        enough = [number for number, free in left.items() if len(free) >= wanted]
        if enough:
            number = min(enough, key=lambda n: (sum(left[n][:wanted]), len(left[n]), n))
        else:
            number = max(left, key=lambda n: (len(left[n]), -n))
        taken = min(wanted, len(left.pop(number)))
        chosen.append((number, taken))
        wanted -= taken
    return chosen
