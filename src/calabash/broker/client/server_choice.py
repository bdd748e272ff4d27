"""Which server a request goes to: where it fits now and leaves least behind, else where it could fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from calabash.broker.devices import acceptable, fits_now
from calabash.broker.filters import CardFilter, parse_filters
from calabash.broker.messages import LeaseOrder, ServerView
from calabash.model.errors import CalabashError, Reason


def rank(views: Sequence[ServerView], order: LeaseOrder) -> list[int]:
    """Positions of the servers to be asked, best first: all cards of a run come from one server.

    Raises CalabashError when none has enough cards such as asked.
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
            f"none of {len(views)} servers has {order.gpus} such cards: " + "; ".join(r.message for r in refusals),
            reason=Reason.SELECTOR_MISMATCH,
            hint="see `calabash remote list` for what there is",
        )
    return [number for _, _, number in sorted(fitting)]


def _fit(view: ServerView, order: LeaseOrder, wanted: CardFilter) -> tuple[bool, int]:
    """Whether it must be waited for, and what is left free of the cards that it would take."""
    if view.draining:
        raise CalabashError(
            f"server {view.name} is being drained", reason=Reason.DRAINED, hint="use another, or wait until it is back"
        )
    cards = acceptable(view.cards, order, wanted, server=view.name, driver=view.driver)
    ready = sorted(card.memory_free_mib for card in cards if fits_now(card, order))
    return len(ready) < order.gpus, sum(ready[: order.gpus])


def divide(
    views: Sequence[ServerView], order: LeaseOrder, *, most: Mapping[int, int] | None = None
) -> list[tuple[int, int]]:
    """How many cards of which server, when all must be free now: of one server where that is enough, else of as few as
    can be, and leaving least behind on the last. ``most``: no more of these servers, whatever seems to be free.

    Raises CalabashError: SELECTOR_MISMATCH when all servers together have too few such cards, NO_CAPACITY when they are not
    free.
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
            f"{len(views)} servers together have {there} such cards, {order.gpus} wanted",
            reason=Reason.SELECTOR_MISMATCH,
            hint="see `calabash remote list` for what there is",
        )
    if sum(map(len, ready.values())) < order.gpus:
        raise CalabashError(
            f"{sum(map(len, ready.values()))} of {there} such cards of {len(views)} servers are free, {order.gpus} wanted",
            reason=Reason.NO_CAPACITY,
            hint="wait for room with --wait 10m, or ask for less; see `calabash remote list` for what is free",
        )
    return _fewest(ready, order.gpus)


def _fewest(ready: Mapping[int, Sequence[int]], wanted: int) -> list[tuple[int, int]]:
    """The largest first: no choice needs fewer servers. The last is the smallest that has what is left."""
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
