"""The configuration of a queue (``QueueSpec``), and the description of an exceeded limit (``OverLimit``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calabash.model.errors import CalabashError
from calabash.sched.amounts import ZERO, Amount

UNLIMITED = Amount(1 << 60, 1 << 60, 1 << 60)
ROOT = ""
QUEUE_DEPTH_MAX = 32
"""Most levels of the queue tree; a queue at the top is at level 1. The cost of a start grows with the level of its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """Configuration of a queue.

    Args:
        name: unique name; jobs name a leaf queue.
        parent: name of the parent, "" for the top level.
        deserved: guaranteed amounts (quota); a resource of amount 0 is not guaranteed. A parent whose deserved amounts
            are all 0 deserves the sum of its children's.
        limit: most that the queue may use, borrowed amounts included.
        over_quota_weight: weight of the queue's share of the surplus; a queue of weight 0 has no share of it.
    """

    name: str
    parent: str = ROOT
    deserved: Amount = ZERO
    limit: Amount = UNLIMITED
    over_quota_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or self.name == self.parent:
            raise CalabashError(
                f"queue name {self.name!r} is empty or the name of its parent", hint="give the queue a name of its own"
            )
        if min(self.deserved) < 0 or min(self.limit) < 0:
            raise CalabashError(
                f"queue {self.name}: negative amount in guarantee or limit",
                hint="guarantee and limit must be 0 or more",
            )
        if not self.deserved.within(self.limit):
            raise CalabashError(
                f"queue {self.name}: the guarantee of {self.deserved.gpu_milli / 1000:g} GPUs exceeds the limit of"
                f" {self.limit.gpu_milli / 1000:g}",
                hint="raise the limit or lower the guarantee",
            )
        if not (math.isfinite(self.over_quota_weight) and self.over_quota_weight >= 0):
            raise CalabashError(
                f"queue {self.name}: weight {self.over_quota_weight} is negative or not finite",
                hint="over_quota_weight must be 0 or more",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverLimit:
    """A queue limit that a request would exceed.

    Attributes:
        queue: the queue whose limit is exceeded: the request's own queue or an ancestor.
        resource: index of the resource in ``Amount``.
        used, asked, limit: amounts of the resource.
    """

    queue: str
    resource: int
    used: float
    asked: float
    limit: float
