"""Page of queues as a tree, with the guarantee, allocation, borrowing and waiting requests of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.api import pool_routes, replies
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.gateway.web.words import share


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """Queue as a row of the page, with its lane: a horizontal bar that shows its devices.

    Args:
        queue: the queue.
        depth: depth in the tree of queues; 0 for a root.
        own: devices allocated within the guarantee, in percent of the lane.
        borrowed: devices allocated above the guarantee, in percent of the lane.
        guarantee_at: position of the guarantee in percent of the lane.
    """

    queue: replies.QueueView
    depth: int
    own: float
    borrowed: float
    guarantee_at: float


def tree(queues: Sequence[replies.QueueView], devices: int) -> list[QueueRow]:
    """Return the rows of all queues: a parent before its children, and siblings by name.

    A queue whose parent does not exist is a root.

    Args:
        queues: the queues.
        devices: number of devices of the pool, which is the width of a lane unless a queue has more.
    """
    names = {q.name for q in queues}
    children: dict[str, list[replies.QueueView]] = {}
    for queue in sorted(queues, key=lambda q: q.name):
        children.setdefault(queue.parent if queue.parent in names and queue.parent != queue.name else "", []).append(
            queue
        )
    scale = max([float(devices), *(q.allocated for q in queues), *(q.guarantee for q in queues), 1.0])
    rows: list[QueueRow] = []
    left = [(queue, 0) for queue in reversed(children.get("", []))]
    while left:
        queue, depth = left.pop()
        own = min(queue.allocated, queue.guarantee)
        rows.append(
            QueueRow(
                queue=queue,
                depth=depth,
                own=share(own, scale),
                borrowed=share(queue.allocated - own, scale),
                guarantee_at=share(queue.guarantee, scale),
            )
        )
        left += [(child, depth + 1) for child in reversed(children.get(queue.name, []))]
    return rows


async def _listed(visit: Visit) -> Shown:
    queues = await visit.pool.get(pool_routes.LIST_QUEUES)
    status = await visit.pool.get(pool_routes.SHOW_STATUS)
    return {"rows": tree(queues.items, status.devices), "devices": status.devices}


QUEUE_PAGES = (ConsolePage(path="/queues", title="Queues", template="queues.html", read=_listed, section="queues"),)
