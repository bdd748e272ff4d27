"""Shards of a cluster: the nodes, queues, lease and scheduler of each planner if there are several planners.

A planner plans all nodes, the nodes of one pool (label ``calabash.dev/pool``), or the nodes that belong to no pool. A
label has one value on a node, so two different shards share no node unless one of them has all nodes. Other label
selectors are refused, because they could overlap. Each shard has its own lease, whose name identifies the shard, its
own kube-scheduler, and the queues that are labelled with its pool. A pod belongs to the shard of its queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from calabash.kubernetes.objects.names import POOL, SCHEDULER
from calabash.model.errors import CalabashError, Reason

_LEASE = "calabash-planner"
_REST = f"{_LEASE}.rest"  # nodes without a pool; pool names contain no dots
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_DEPTH_MAX = 32  # greatest depth of a queue tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a cluster that one planner plans.

    Args:
        pool: name of the pool whose nodes the shard has; "" for the nodes without a pool.
        everything: True for all nodes, with and without a pool.
    """

    pool: str = ""
    everything: bool = False

    @classmethod
    def from_selector(cls, selector: str) -> Shard:
        """Return the shard whose nodes a label selector selects; the selector "" selects all nodes.

        Raises:
            CalabashError: BAD_REQUEST for any other selector.
        """
        words = selector.strip()
        if not words:
            return ALL
        if words == f"!{POOL}":
            return cls()
        key, _, pool = words.partition("=")
        if key == POOL and _NAME.fullmatch(pool):
            return cls(pool=pool)
        raise CalabashError(
            f"nodes {selector[:100]!r}: expected {POOL}=NAME, !{POOL} for nodes without a pool, or empty for all nodes",
            reason=Reason.BAD_REQUEST,
            hint="a pool's name has at most 40 lower-case letters, digits and hyphens",
        )

    @classmethod
    def of_lease(cls, name: str) -> Shard | None:
        """Return the shard of the planner whose Lease has this name; None if it is not the Lease of a planner."""
        if name == _LEASE:
            return ALL
        if name == _REST:
            return cls()
        pool = name.removeprefix(f"{_LEASE}-")
        return cls(pool=pool) if pool != name and _NAME.fullmatch(pool) else None

    @property
    def selector(self) -> str:
        """The label selector of the shard's nodes; "" for all nodes."""
        if self.everything:
            return ""
        return f"{POOL}={self.pool}" if self.pool else f"!{POOL}"

    @property
    def lease(self) -> str:
        """The name of the lease by which planners of the shard elect a leader."""
        if self.everything:
            return _LEASE
        return f"{_LEASE}-{self.pool}" if self.pool else _REST

    @property
    def scheduler(self) -> str:
        """The ``schedulerName`` of pods that belong to the shard."""
        return scheduler_of(self.pool)

    def overlaps(self, other: Shard) -> bool:
        """Return True if a node may be in both shards."""
        return self.everything or other.everything or self.pool == other.pool

    def has_queue_of(self, pool: str) -> bool:
        """Return True if the queues of a pool belong to the shard; ``pool`` "" is for queues without a pool."""
        return self.everything or pool == self.pool


ALL = Shard(everything=True)


def scheduler_of(pool: str) -> str:
    """Return the ``schedulerName`` of pods whose queue is in the pool; an invalid pool name counts as no pool."""
    return f"{SCHEDULER}-{pool}" if _NAME.fullmatch(pool) else SCHEDULER


def is_ours(scheduler: str) -> bool:
    """Return True if a scheduler with this name is one of Calabash's own."""
    return scheduler == SCHEDULER or scheduler.startswith(f"{SCHEDULER}-")


def pool_of_queue(name: str, queues: Mapping[str, tuple[str, str]]) -> str:
    """Return the pool of a queue, which is that of the root of its tree.

    Args:
        name: name of the queue.
        queues: name of the parent and value of the pool label of each queue; "" for none.
    """
    for _ in range(_DEPTH_MAX):
        parent, pool = queues.get(name, ("", ""))
        if not parent or parent not in queues:
            return pool if _NAME.fullmatch(pool) else ""
        name = parent
    return ""  # a cycle; planners ignore such queues
