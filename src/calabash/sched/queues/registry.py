"""Gangs: who waits and who runs together, and how members are placed all or nothing.

Theory of operation. The book groups asks by gang; an ask without a gang is a gang of one. A gang has a *core* of
``min_member`` members that start together and die together, and *surplus* members beyond it that come and go singly.
Placing a core is a transaction on the resident cluster arrays (``Board``): members are placed one after another, the
largest first, each by the policy's score with its predecessors already in place; if one finds no room the log is
played backwards, so that the arrays are what they were to the last integer. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.decisions import Request, Running
from calabash.sched.queues.fairshare import Amount

GangKey = tuple[str, str, str]


class Room(Protocol):
    """What is needed of the cluster and its engine."""

    def choose(self, shape: Shape) -> NodePlacement | None:
        """The best place for the shape now, not taken yet."""
        ...

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        """The same on one node."""
        ...

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        """Take the place."""
        ...

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        """Give the place back."""
        ...

    def fits_at(self, shape: Shape, placement: NodePlacement) -> bool:
        """Whether exactly this place could be taken now."""
        ...


class Board:
    """A ``Room`` with a log: everything since a mark can be undone."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._log: list[tuple[bool, Shape, NodePlacement]] = []

    def mark(self) -> int:
        return len(self._log)

    def place(self, shape: Shape, placement: NodePlacement) -> None:
        self.room.place(shape, placement)
        self._log.append((True, shape, placement))

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        self.room.release(shape, placement)
        self._log.append((False, shape, placement))

    def rollback(self, mark: int) -> None:
        while len(self._log) > mark:
            placed, shape, placement = self._log.pop()
            if placed:
                self.room.release(shape, placement)
            else:
                self.room.place(shape, placement)

    def commit(self) -> None:
        self._log.clear()


@dataclass(slots=True)
class Gang:
    """Members of one gang that wait and that run."""

    key: GangKey
    queue: str
    min_member: int = 1
    waiting: dict[str, Request] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    evicted_at_s: float | None = None
    priority: int = 0
    submitted_at_s: float = 0.0
    portions: list[Portion] | None = None
    ended: int = 0

    @property
    def required(self) -> int:
        """How many members must run together; those that have run and ended need not come back."""
        return max(1, self.min_member - self.ended)

    @property
    def missing(self) -> int:
        """How many members must still start before the core is complete."""
        return max(0, self.required - len(self.running))

    @property
    def incomplete(self) -> int:
        """How many members have not even been submitted yet."""
        return max(0, self.required - len(self.running) - len(self.waiting))

    def refresh(self) -> None:
        """Compute again what depends on the members."""
        self.portions = None
        requests = [*self.waiting.values(), *(r.request for r in self.running.values())]
        if requests:
            self.priority = max(a.priority for a in requests)
            self.submitted_at_s = min(a.submitted_at_s for a in requests)
            self.min_member = max(a.min_member for a in requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What can only be evicted as a whole: the core of a gang, or one surplus member.

    ``order`` sorts units by how soon they go: lower priority first, then surplus, then the youngest.
    """

    gang: GangKey
    queue: str
    members: tuple[Running, ...]
    core: bool
    priority: int
    started_at_s: float
    sequence: int
    amount: Amount
    in_quota: bool = False

    @property
    def order(self) -> tuple[int, int, float, int]:
        return (self.priority, int(self.core), -self.started_at_s, -self.sequence)


class GangRegistry:
    """Every gang, those that have members in line, and where every id is."""

    def __init__(self) -> None:
        self.gangs: dict[GangKey, Gang] = {}
        self.queued: dict[GangKey, Gang] = {}
        self._gang_of: dict[str, Gang] = {}
        self.on_node: dict[int, dict[str, Running]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._gang_of

    def gang_of(self, request_id: str) -> Gang:
        gang = self._gang_of.get(request_id)
        if gang is None:
            raise CalabashError(
                f"request {request_id!r} is not known", reason=Reason.NOT_FOUND, hint="it may have ended already"
            )
        return gang

    def request(self, request_id: str) -> Request:
        gang = self.gang_of(request_id)
        return gang.waiting[request_id] if request_id in gang.waiting else gang.running[request_id].request

    def running(self, request_id: str) -> Running | None:
        gang = self._gang_of.get(request_id)
        return gang.running.get(request_id) if gang else None

    def add(self, request: Request) -> Gang:
        if request.id in self._gang_of:
            raise CalabashError(
                f"request {request.id} is there already", reason=Reason.CONFLICT, hint="ids are unique while they live"
            )
        gang = self.gangs.setdefault(request.gang_key, Gang(key=request.gang_key, queue=request.queue))
        gang.waiting[request.id] = request
        self.queued[gang.key] = gang
        self._gang_of[request.id] = gang
        gang.refresh()
        return gang

    def start(self, running: Running) -> None:
        gang = self._gang_of[running.request.id]
        del gang.waiting[running.request.id]
        if not gang.waiting:
            del self.queued[gang.key]
        gang.portions = None
        gang.running[running.request.id] = running
        self.on_node.setdefault(running.placement.node, {})[running.request.id] = running

    def stop(self, request_id: str) -> Running:
        """From running back to waiting."""
        gang = self._gang_of[request_id]
        running = gang.running.pop(request_id)
        gang.waiting[request_id] = running.request
        self.queued[gang.key] = gang
        gang.portions = None
        self._leave(running)
        return running

    def move(self, running: Running) -> None:
        """Replace a running entry by the same ask elsewhere."""
        gang = self._gang_of[running.request.id]
        self._leave(gang.running[running.request.id])
        gang.running[running.request.id] = running
        self.on_node.setdefault(running.placement.node, {})[running.request.id] = running

    def remove(self, request_id: str) -> Running | Request:
        gang = self.gang_of(request_id)
        del self._gang_of[request_id]
        gone: Running | Request
        if request_id in gang.waiting:
            gone = gang.waiting.pop(request_id)
            if not gang.waiting:
                del self.queued[gang.key]
        else:
            gone = gang.running.pop(request_id)
            gang.ended += 1
            self._leave(gone)
        if gang.waiting or gang.running:
            gang.refresh()
        else:
            del self.gangs[gang.key]
        return gone

    def _leave(self, running: Running) -> None:
        here = self.on_node[running.placement.node]
        del here[running.request.id]
        if not here:
            del self.on_node[running.placement.node]


@dataclass(frozen=True, slots=True)
class Portion:
    """What of a gang is started at once: its core together, surplus members singly."""

    gang: Gang
    requests: tuple[Request, ...]
    rank: tuple[int, bool, float, GangKey, str]


def portions_of(gang: Gang) -> list[Portion]:
    """The portions that wait, kept until the gang changes."""
    if gang.portions is None:
        waiting = sorted(gang.waiting.values(), key=lambda a: (-a.priority, a.submitted_at_s, a.id))
        core, surplus = tuple(waiting[: gang.missing]), waiting[gang.missing :]
        gang.portions = [Portion(gang, (r,), (-r.priority, True, r.submitted_at_s, gang.key, r.id)) for r in surplus]
        if core:
            place = (-gang.priority, False, gang.submitted_at_s, gang.key, core[0].id)
            gang.portions.append(Portion(gang, core, place))
    return gang.portions


def portion_of(gang: Gang, request_id: str) -> tuple[Request, ...]:
    """What would be started together with a waiting member; nothing when it does not wait."""
    return next((p.requests for p in portions_of(gang) if any(a.id == request_id for a in p.requests)), ())


def units_of(gang: Gang) -> list[Unit]:
    """The gang's running members as units; the core keeps the oldest members."""
    members = sorted(gang.running.values(), key=lambda r: (r.started_at_s, r.sequence))
    if not members:
        return []
    core, surplus = members[: gang.required], members[gang.required :]
    return [_unit(gang, tuple(core), core=True), *(_unit(gang, (m,), core=False) for m in surplus)]


def _unit(gang: Gang, members: tuple[Running, ...], *, core: bool) -> Unit:
    return Unit(
        gang=gang.key,
        queue=gang.queue,
        members=members,
        core=core,
        priority=gang.priority if core else members[0].request.priority,
        started_at_s=max(m.started_at_s for m in members),
        sequence=max(m.sequence for m in members),
        amount=total(m.charge for m in members),
    )


def total(amounts: Iterable[Amount]) -> Amount:
    gpu_milli = cpu_milli = host_memory_mib = 0
    for amount in amounts:
        gpu_milli += amount[0]
        cpu_milli += amount[1]
        host_memory_mib += amount[2]
    return Amount(gpu_milli, cpu_milli, host_memory_mib)


def largest_first(requests: Iterable[Request]) -> list[Request]:
    """The order in which members are placed: what is hardest to place goes first."""
    return sorted(requests, key=lambda a: (-a.shape.gpu_total_milli, -a.shape.gpu_memory_mib, -a.shape.cpu_milli, a.id))


def place_together(board: Board, requests: Sequence[Request]) -> list[tuple[Request, NodePlacement]] | None:
    """Place all or nothing: on None the board is exactly as it was."""
    mark = board.mark()
    placed = []
    for request in largest_first(requests):
        placement = board.room.choose(request.shape)
        if placement is None:
            board.rollback(mark)
            return None
        board.place(request.shape, placement)
        placed.append((request, placement))
    return placed
