"""Which server a request goes to: where it fits now and leaves least behind, else where it could fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.remote.cards import acceptable, fits_now
from calabash.remote.filters import CardFilter, parse_filters
from calabash.remote.shapes import LeaseOrder, ServerView


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
