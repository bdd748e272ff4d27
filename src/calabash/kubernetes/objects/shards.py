"""Which part of a cluster a planner plans, where one planner is not enough for all of it.

A planner has all nodes, those of one pool (label ``calabash.dev/pool``), or those of no pool. A node has one value of a
label, so two of these share no node unless they are the same or one of them is all: no other selectors are taken, for of
those nobody could say. Each part has its own lease, whose name says which nodes it is for, its own kube-scheduler and the
queues that are labelled with its pool; a pod is given to the part of its queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from calabash.kubernetes.objects.names import POOL, SCHEDULER
from calabash.model.errors import CalabashError, Reason

_LEASE = "calabash-planner"
_REST = f"{_LEASE}.rest"  # no pool's: these have no dots
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_DEPTH_MAX = 32  # of a tree of queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a cluster.

    Args:
        pool: the nodes of that pool; "": those of none.
        everything: all nodes, whatever pool they are in.
    """

    pool: str = ""
    everything: bool = False

    @classmethod
    def of(cls, selector: str) -> Shard:
        """By its label selector; "" is all nodes. Raises CalabashError: any other selector."""
        words = selector.strip()
        if not words:
            return ALL
        if words == f"!{POOL}":
            return cls()
        key, _, pool = words.partition("=")
        if key == POOL and _NAME.fullmatch(pool):
            return cls(pool=pool)
        raise CalabashError(
            f"nodes {selector[:100]!r}: a planner has the nodes of one pool, {POOL}=NAME, those of none, !{POOL}, or all",
            reason=Reason.BAD_REQUEST,
            hint="a pool's name has at most 40 lower-case letters, digits and hyphens",
        )

    @classmethod
    def of_lease(cls, name: str) -> Shard | None:
        """By the name of its lease; None for the lease of somebody who is no planner."""
        if name == _LEASE:
            return ALL
        if name == _REST:
            return cls()
        pool = name.removeprefix(f"{_LEASE}-")
        return cls(pool=pool) if pool != name and _NAME.fullmatch(pool) else None

    @property
    def selector(self) -> str:
        """The label selector of its nodes; "" for all."""
        if self.everything:
            return ""
        return f"{POOL}={self.pool}" if self.pool else f"!{POOL}"

    @property
    def lease(self) -> str:
        """The lease by which its planners agree."""
        if self.everything:
            return _LEASE
        return f"{_LEASE}-{self.pool}" if self.pool else _REST

    @property
    def scheduler(self) -> str:
        """The ``schedulerName`` of its pods."""
        return scheduler_of(self.pool)

    def overlaps(self, other: Shard) -> bool:
        """Whether any node may be in both."""
        return self.everything or other.everything or self.pool == other.pool

    def has_queue_of(self, pool: str) -> bool:
        """Whether queues of that pool are its own."""
        return self.everything or pool == self.pool


ALL = Shard(everything=True)


def scheduler_of(pool: str) -> str:
    """The ``schedulerName`` of pods whose queue is of that pool; a pool that can have no planner is none."""
    return f"{SCHEDULER}-{pool}" if _NAME.fullmatch(pool) else SCHEDULER


def is_ours(scheduler: str) -> bool:
    """Whether a scheduler of that name asks a planner."""
    return scheduler == SCHEDULER or scheduler.startswith(f"{SCHEDULER}-")


def pool_of_queue(name: str, queues: Mapping[str, tuple[str, str]]) -> str:
    """The pool of a queue: that of the tree's first queue, for a tree cannot be in two.

    Args:
        queues: parent and label of each.
    """
    for _ in range(_DEPTH_MAX):
        parent, pool = queues.get(name, ("", ""))
        if not parent or parent not in queues:
            return pool if _NAME.fullmatch(pool) else ""
        name = parent
    return ""  # a circle, which no planner takes
