"""Queues as their owners describe them, and the refusal that names the queue whose limit would be broken."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calabash.model.errors import CalabashError
from calabash.sched.queues.fairshare import ZERO, Amount

UNLIMITED = Amount(1 << 60, 1 << 60, 1 << 60)
ROOT = ""
QUEUE_DEPTH_MAX = 32
"""Levels of the queue tree: a queue at the top is at level 1. What a start costs grows with the levels above its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A queue as its owner describes it.

    Args:
        name: unique; leaves are named by jobs.
        parent: name of the parent, "" for the top level.
        deserved: guaranteed amounts; a resource left at 0 has no guarantee. A parent whose deserved amount is all 0
            deserves the sum of its children's.
        limit: most it may hold, borrowed or not.
        over_quota_weight: width of its share of the surplus; 0 never borrows.
    """

    name: str
    parent: str = ROOT
    deserved: Amount = ZERO
    limit: Amount = UNLIMITED
    over_quota_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or self.name == self.parent:
            raise CalabashError(
                f"queue name {self.name!r} is not usable", hint="give it a name that is not its parent's"
            )
        if min(self.deserved) < 0 or min(self.limit) < 0:
            raise CalabashError(f"queue {self.name}: negative amount", hint="deserved and limit are zero or more")
        if not self.deserved.within(self.limit):
            raise CalabashError(
                f"queue {self.name}: deserves {self.deserved.gpu_milli / 1000:g} GPUs but is limited to"
                f" {self.limit.gpu_milli / 1000:g}",
                hint="raise the limit or lower the deserved amount",
            )
        if not (math.isfinite(self.over_quota_weight) and self.over_quota_weight >= 0):
            raise CalabashError(f"queue {self.name}: weight {self.over_quota_weight} is not zero or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverLimit:
    """Which queue on the way to the root refuses, and in what."""

    queue: str
    resource: int
    used: float
    asked: float
    limit: float
