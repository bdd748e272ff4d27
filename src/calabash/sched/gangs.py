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
from calabash.sched.decisions import Ask, Running
from calabash.sched.fairshare import Amount
from calabash.sched.shape import NodePlacement, Shape

GangKey = tuple[str, str]


class Room(Protocol):
    """What is needed of the cluster and its engine."""

    def choose(self, shape: Shape) -> NodePlacement | None:
        """The best place for the shape now, not taken yet."""
        ...

    def choose_on(self, shape: Shape, node: int) -> NodePlacement | None:
        """The same on one node."""
        ...

    def put(self, shape: Shape, placement: NodePlacement) -> None:
        """Take the place."""
        ...

    def take(self, shape: Shape, placement: NodePlacement) -> None:
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

    def put(self, shape: Shape, placement: NodePlacement) -> None:
        self.room.put(shape, placement)
        self._log.append((True, shape, placement))

    def take(self, shape: Shape, placement: NodePlacement) -> None:
        self.room.take(shape, placement)
        self._log.append((False, shape, placement))

    def rollback(self, mark: int) -> None:
        while len(self._log) > mark:
            placed, shape, placement = self._log.pop()
            if placed:
                self.room.take(shape, placement)
            else:
                self.room.put(shape, placement)

    def commit(self) -> None:
        self._log.clear()


@dataclass(slots=True)
class Gang:
    """Members of one gang that wait and that run."""

    key: GangKey
    queue: str
    min_member: int = 1
    waiting: dict[str, Ask] = field(default_factory=dict)
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
        asks = [*self.waiting.values(), *(r.ask for r in self.running.values())]
        if asks:
            self.priority = max(a.priority for a in asks)
            self.submitted_at_s = min(a.submitted_at_s for a in asks)
            self.min_member = max(a.min_member for a in asks)


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


class Book:
    """Every gang, those that have members in line, and where every id is."""

    def __init__(self) -> None:
        self.gangs: dict[GangKey, Gang] = {}
        self.in_line: dict[GangKey, Gang] = {}
        self._gang_of: dict[str, Gang] = {}
        self.on_node: dict[int, dict[str, Running]] = {}

    def __contains__(self, ask_id: str) -> bool:
        return ask_id in self._gang_of

    def gang_of(self, ask_id: str) -> Gang:
        gang = self._gang_of.get(ask_id)
        if gang is None:
            raise CalabashError(
                f"request {ask_id!r} is not known", reason=Reason.NOT_FOUND, hint="it may have ended already"
            )
        return gang

    def ask(self, ask_id: str) -> Ask:
        gang = self.gang_of(ask_id)
        return gang.waiting[ask_id] if ask_id in gang.waiting else gang.running[ask_id].ask

    def running(self, ask_id: str) -> Running | None:
        gang = self._gang_of.get(ask_id)
        return gang.running.get(ask_id) if gang else None

    def add(self, ask: Ask) -> Gang:
        if ask.id in self._gang_of:
            raise CalabashError(
                f"request {ask.id} is there already", reason=Reason.CONFLICT, hint="ids are unique while they live"
            )
        gang = self.gangs.setdefault(ask.gang_key, Gang(key=ask.gang_key, queue=ask.queue))
        gang.waiting[ask.id] = ask
        self.in_line[gang.key] = gang
        self._gang_of[ask.id] = gang
        gang.refresh()
        return gang

    def start(self, running: Running) -> None:
        gang = self._gang_of[running.ask.id]
        del gang.waiting[running.ask.id]
        if not gang.waiting:
            del self.in_line[gang.key]
        gang.portions = None
        gang.running[running.ask.id] = running
        self.on_node.setdefault(running.placement.node, {})[running.ask.id] = running

    def stop(self, ask_id: str) -> Running:
        """From running back to waiting."""
        gang = self._gang_of[ask_id]
        running = gang.running.pop(ask_id)
        gang.waiting[ask_id] = running.ask
        self.in_line[gang.key] = gang
        gang.portions = None
        self._leave(running)
        return running

    def move(self, running: Running) -> None:
        """Replace a running entry by the same ask elsewhere."""
        gang = self._gang_of[running.ask.id]
        self._leave(gang.running[running.ask.id])
        gang.running[running.ask.id] = running
        self.on_node.setdefault(running.placement.node, {})[running.ask.id] = running

    def remove(self, ask_id: str) -> Running | Ask:
        gang = self.gang_of(ask_id)
        del self._gang_of[ask_id]
        gone: Running | Ask
        if ask_id in gang.waiting:
            gone = gang.waiting.pop(ask_id)
            if not gang.waiting:
                del self.in_line[gang.key]
        else:
            gone = gang.running.pop(ask_id)
            gang.ended += 1
            self._leave(gone)
        if gang.waiting or gang.running:
            gang.refresh()
        else:
            del self.gangs[gang.key]
        return gone

    def _leave(self, running: Running) -> None:
        here = self.on_node[running.placement.node]
        del here[running.ask.id]
        if not here:
            del self.on_node[running.placement.node]


@dataclass(frozen=True, slots=True)
class Portion:
    """What of a gang is started at once: its core together, surplus members singly."""

    gang: Gang
    asks: tuple[Ask, ...]
    place_in_line: tuple[int, bool, float, GangKey, str]


def portions_of(gang: Gang) -> list[Portion]:
    """The portions that wait, kept until the gang changes."""
    if gang.portions is None:
        waiting = sorted(gang.waiting.values(), key=lambda a: (-a.priority, a.submitted_at_s, a.id))
        core, surplus = tuple(waiting[: gang.missing]), waiting[gang.missing :]
        gang.portions = [
            Portion(gang, (ask,), (-ask.priority, True, ask.submitted_at_s, gang.key, ask.id)) for ask in surplus
        ]
        if core:
            place = (-gang.priority, False, gang.submitted_at_s, gang.key, core[0].id)
            gang.portions.append(Portion(gang, core, place))
    return gang.portions


def portion_of(gang: Gang, ask_id: str) -> tuple[Ask, ...]:
    """What would be started together with a waiting member; nothing when it does not wait."""
    return next((p.asks for p in portions_of(gang) if any(a.id == ask_id for a in p.asks)), ())


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
        priority=gang.priority if core else members[0].ask.priority,
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


def largest_first(asks: Iterable[Ask]) -> list[Ask]:
    """The order in which members are placed: what is hardest to place goes first."""
    return sorted(asks, key=lambda a: (-a.shape.gpu_total_milli, -a.shape.gpu_memory_mib, -a.shape.cpu_milli, a.id))


def place_together(board: Board, asks: Sequence[Ask]) -> list[tuple[Ask, NodePlacement]] | None:
    """Place all or nothing: on None the board is exactly as it was."""
    mark = board.mark()
    placed = []
    for ask in largest_first(asks):
        placement = board.room.choose(ask.shape)
        if placement is None:
            board.rollback(mark)
            return None
        board.put(ask.shape, placement)
        placed.append((ask, placement))
    return placed
