"""What the scheduler is asked and what it answers: requests in, decisions out, all of them frozen values.

A ``Request`` is what one container or program wants, as the scheduler sees it: its shape, its queue and when it came.
Members of a gang are requests that share owner, tenant, ``queue`` and ``gang``; the first ``min_member`` start together or
not at all, members beyond that are elastic: they come and go one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from sys import intern

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.queues.fairshare import ZERO, Amount

GangKey = tuple[str, str, str]
"""Owner and tenant, queue, name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that waits or runs.

    Args:
        id: unique among everything that waits or runs.
        queue: a leaf of the queue tree.
        priority: larger goes first within its queue.
        tenant, owner: on whose behalf; owners of one queue and priority take turns, and a gang is of one owner and tenant.
        run_time_s: estimate of how long it will run; None when unknown.
        submitted_at_s: when it joined its queue, on the caller's clock.
        gang, min_member: name of its gang and how many members must start together; "" stands alone.
        movable: may be placed elsewhere while it runs (defragmentation), as long as it is evictable.
        evictable: may be evicted for others; False for what must never stop.
        guarded: may not be evicted within what its queue is guaranteed, nor be moved. What it borrows goes, if nothing else
            does, to a queue that takes back what it is guaranteed.
    """

    id: str
    shape: Shape
    queue: str
    priority: int = 0
    run_time_s: float | None = None
    tenant: str = ""
    owner: str = ""
    submitted_at_s: float = 0.0
    gang: str = ""
    min_member: int = 1
    movable: bool = True
    evictable: bool = True
    guarded: bool = False

    def __post_init__(self) -> None:
        if not self.id:
            raise CalabashError("a request without an id", hint="give every request a unique id")
        if self.min_member < 1:
            raise CalabashError(f"{self.id}: min_member {self.min_member} is out of range", hint="at least 1")
        if self.run_time_s is not None and not self.run_time_s > 0:
            raise CalabashError(f"{self.id}: run time {self.run_time_s} s is out of range", hint="more than 0 or none")

    @property
    def behalf(self) -> str:
        """Who takes turns with others: the owner, else the tenant."""
        return self.owner or self.tenant

    @property
    def gang_key(self) -> GangKey:
        """Names the gang: members have one owner, tenant and queue; a request without a gang is a gang of its own."""
        behalf = intern(":".join(filter(None, (self.owner, self.tenant))))
        return (behalf, self.queue, self.gang or "\0" + self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One class of nodes that refuses for one reason, in numbers.

    Args:
        nodes: how many nodes.
        largest: the best that any of them has of what is short, in the unit of ``asked``.
        text: "largest free fraction 0.19, asked 0.81".
    """

    reason: Reason
    nodes: int
    text: str
    asked: float = 0.0
    largest: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a request waits.

    Args:
        reason: the dominant cause; the stable code that CLI, events and metrics share.
        summary: one line, "0/1213 nodes are available: 549 insufficient GPU fraction, ...".
        causes: per node class, most nodes first.
        changes: what would make it start, the smallest change first: "would fit if memory <= 12GiB".
        blocked_by: ids of the requests for which devices that would do are reserved.
        reserved: for whom and until when they are, one line for each reservation.
        estimated_start_s: when its reservation begins, on the caller's clock; None without one.
    """

    reason: Reason
    summary: str
    causes: tuple[Cause, ...] = ()
    changes: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    estimated_start_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Start it there. ``after`` names the requests that must be gone (or moved) first."""

    id: str
    node: str
    placement: NodePlacement
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Stop it; it waits in its queue again. ``by`` is the request that takes its place; ``owed``: it was borrowed, and a queue
    takes back what it is guaranteed."""

    id: str
    reason: Reason
    by: str
    owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Stop it where it is and start it there, to make room for ``by``."""

    id: str
    node: str
    placement: NodePlacement
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """It waits. Reported when the reason changes, not every cycle."""

    id: str
    reason: Reason
    explanation: Explanation


Decision = Bind | Evict | Move | Defer


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the scheduler decides.

    Args:
        half_life_s: how fast past use is forgotten in fair shares; 0 never looks back.
        min_run_time_s: nobody is evicted or moved before it has run this long.
        reclaim: queues below what they deserve take it back from borrowers.
        reclaim_fair_share: queues below their fair share take surplus from queues above theirs.
        preempt: higher priority replaces lower within a queue.
        evict_ratio_max: evicted over asked device milli that borrowed room may cost.
        reservations: gangs that find no room and are promised a start.
        reservation_hold_s: how long a reservation may hold idle devices whose start is not known, because something that
            must end first gave no run time or has exceeded it.
        reservation_pause_s: how long others may then pass before the gang is promised a start again.
        default_run_time_s: assumed where a request gives no estimate.
        defragment_moves_max: moves per request; 0 switches defragmentation off.
        defragment_cost_max_milli: most occupied device milli that is moved for one request.
        move_cost_milli: cost of a move beside the milli it occupies.
        defragment_gpu_count_min: only requests for at least that many whole devices defragment.
        defragment_wait_s: only what has waited this long defragments: room may come by itself.
        defragment_rest_s: nobody is moved before it has been where it is this long.
        fraction_memory_mib: card memory at which a memory-only slice counts as a whole device in quotas; 0 takes the
            smallest card of the cluster.
    """

    half_life_s: float = 0.0
    min_run_time_s: float = 0.0
    reclaim: bool = True
    reclaim_fair_share: bool = True
    preempt: bool = True
    evict_ratio_max: float = 1.2
    reservations: int = 1
    reservation_hold_s: float = 600.0
    reservation_pause_s: float = 600.0
    default_run_time_s: float = 86_400.0
    defragment_moves_max: int = 0
    defragment_cost_max_milli: int = 16_000
    move_cost_milli: int = 200
    defragment_gpu_count_min: int = 1
    defragment_wait_s: float = 0.0
    defragment_rest_s: float = 0.0
    fraction_memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A request that holds devices: what its queue is charged while it runs, and the order of starts."""

    request: Request
    placement: NodePlacement
    node: str
    started_at_s: float
    charge: Amount = ZERO
    sequence: int = 0
