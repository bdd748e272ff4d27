"""Input and output types of the scheduler: requests, options, decisions and explanations, all frozen values.

A ``Request`` is the request of one container or program: its shape, its queue and its submission time. Members of a gang are
requests that share owner, tenant, ``queue`` and ``gang``. The first ``min_member`` of them start together or not at all;
further members are elastic, and are started and evicted one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from sys import intern

from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import ModelName, Text, with_models
from calabash.sched.amounts import ZERO, Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.topology import GangTopology

GangKey = tuple[str, str, str]
"""(owner and tenant, queue, name of the gang)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for devices, waiting or running.

    Args:
        id: unique among the waiting and running requests.
        queue: a leaf of the queue tree.
        priority: requests of higher priority go first within their queue.
        tenant, owner: tenant and user of the request. Owners of one queue and priority alternate. The members of a gang have
            one owner and tenant.
        run_time_s: estimated run time; None if unknown.
        submitted_at_s: submission time on the caller's clock.
        gang: name of the gang; "" for a request without a gang.
        min_member: number of members of the gang that must start together.
        movable: may be moved while it runs (defragmentation), if it is evictable too.
        evictable: may be evicted for other requests.
        guarded: may not be moved, and may not be evicted while it is within the guaranteed amount of its queue. If it is
            borrowed, it is evicted last, and only for a queue that reclaims its guaranteed amount.
        topology: domains of the network in which the gang must or should be; None if it may be anywhere.
        rank: number of the member in its gang, from 0. Members of near ranks are placed near each other. None if unknown:
            the natural order of the IDs is taken then.
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
    topology: GangTopology | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise CalabashError("request has no ID", hint="give every request a unique ID")
        if self.min_member < 1:
            raise CalabashError(
                f"request {self.id}: min_member {self.min_member} is out of range", hint="min_member must be at least 1"
            )
        if self.run_time_s is not None and not self.run_time_s > 0:
            raise CalabashError(
                f"request {self.id}: run time {self.run_time_s} s is out of range",
                hint="set a run time of more than 0 s, or leave it out",
            )

    @property
    def behalf(self) -> str:
        """Return the name by which use within the queue is counted: the owner, or the tenant if there is no owner."""
        return self.owner or self.tenant

    @property
    def gang_key(self) -> GangKey:
        """Return the key of the request's gang. A request without a gang is a gang of its own."""
        behalf = intern(":".join(filter(None, (self.owner, self.tenant))))
        return (behalf, self.queue, self.gang or "\0" + self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A reason for which some nodes cannot take a request.

    Args:
        nodes: number of nodes.
        text: for example "largest free fraction 0.19, asked 0.81".
        asked: requested amount of the resource that is short.
        largest: largest free amount of the resource on any of the nodes, in the unit of ``asked``.
    """

    reason: Reason
    nodes: int
    text: Text
    asked: float = 0.0
    largest: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of why a request waits.

    Args:
        reason: code of the dominant cause, which CLI, events and metrics share.
        summary: one line, for example "0/1213 nodes are available: 549 insufficient GPU fraction, ...".
        causes: causes by number of nodes, most nodes first.
        changes: changes of the request that would let it start, the smallest first: "would fit if memory <= 12GiB".
        blocked_by: IDs of the requests for which suitable devices are reserved.
        reserved: one line for each of these reservations, with its requests and its end.
        estimated_start_s: start of the request's own reservation on the caller's clock; None without a reservation.
        past_use: which other queue comes first because this one used more in the past; "" if none does.
    """

    reason: Reason
    summary: Text
    causes: tuple[Cause, ...] = ()
    changes: tuple[Text, ...] = ()
    blocked_by: tuple[str, ...] = ()
    reserved: tuple[Text, ...] = ()
    estimated_start_s: float | None = None
    past_use: Text = ""

    def with_models(self, display: Callable[[ModelName], str]) -> Explanation:
        """Return the explanation with the names of device models in its texts replaced by ``display``."""
        causes = tuple(replace(cause, text=with_models(cause.text, display)) for cause in self.causes)
        return replace(self, causes=causes, changes=tuple(with_models(change, display) for change in self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Start the request at a placement.

    Args:
        after: IDs of the requests that must have been evicted or moved before.
    """

    id: str
    node: str
    placement: NodePlacement
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Stop the request; it waits in its queue again.

    Args:
        reason: preempt (within a queue) or reclaim (by another queue).
        by: ID of the request that it is evicted for.
        owed: the evicted request was borrowed, and ``by`` is within the guaranteed amount of its queue.
    """

    id: str
    reason: Reason
    by: str
    owed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Stop the request and start it at another placement, because ``by`` needs its devices."""

    id: str
    node: str
    placement: NodePlacement
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """The request waits. This decision is returned when the reason changes, not in every cycle."""

    id: str
    reason: Reason
    explanation: Explanation


Decision = Bind | Evict | Move | Defer


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the scheduler.

    Args:
        half_life_s: half-life of past use in fair shares; 0 ignores past use.
        min_run_time_s: run time before which a request is neither evicted nor moved.
        reclaim: let queues below their deserved amount reclaim it from borrowers.
        reclaim_fair_share: let queues below their fair share reclaim surplus from queues above theirs.
        preempt: let requests preempt requests of lower priority in their queue.
        evict_ratio_max: largest ratio of evicted to requested device milli for a request that borrows.
        reservations: number of blocked gangs that may have a reservation.
        reservation_hold_s: time for which a reservation of unknown start may hold idle devices. A start is unknown if a
            request that must end first gave no run time or has exceeded it.
        reservation_pause_s: time after such a reservation has expired before the gang may have another.
        default_run_time_s: run time assumed for requests without an estimate.
        defragment_moves_max: most moves for one request; 0 switches defragmentation off.
        defragment_cost_max_milli: highest cost of the moves for one request.
        move_cost_milli: cost of one move, in addition to the device milli that the moved request occupies.
        defragment_gpu_count_min: fewest whole devices of a request that may cause moves.
        defragment_wait_s: time that a request must have waited before it may cause moves.
        defragment_rest_s: time for which a request is not moved after it started.
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
    """A request that runs.

    Args:
        node: name of the node of the placement.
        charge: amount that its queue is charged while it runs.
        sequence: number of the start; a later start has a larger number.
    """

    request: Request
    placement: NodePlacement
    node: str
    started_at_s: float
    charge: Amount = ZERO
    sequence: int = 0
