"""Gangs: what starts together, and what can only be evicted as a whole.

A request without a gang is a gang of one. A gang has a *core* of ``min_member`` members that start together and die
together, and *surplus* members beyond it that come and go singly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import GangKey, Request, Running
from calabash.sched.queues.fairshare import Amount, total

Rank = tuple[int, bool, float, GangKey, str]
Alike = tuple[str, int, Shape, int]
"""Queue, priority, shape, and how many members were missing."""


@dataclass(slots=True)
class Gang:
    """Members of one gang that wait and that run."""

    key: GangKey
    queue: str
    owner: str = ""
    min_member: int = 1
    waiting: dict[str, Request] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    evicted_at_s: float | None = None
    priority: int = 0
    submitted_at_s: float = 0.0
    portions: list[Portion] | None = None
    units: list[Unit] | None = None
    ended: int = 0
    version: int = 0

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
        if self.min_member == 1 and self.waiting:  # as of most gangs that are asked
            return 0
        return max(0, self.required - len(self.running) - len(self.waiting))

    def changed(self) -> None:
        """Members came, went, started or stopped."""
        self.portions = self.units = None
        self.version += 1

    def refresh(self) -> None:
        """Compute again what depends on the members."""
        self.changed()
        requests = [*self.waiting.values(), *(r.request for r in self.running.values())]
        if requests:
            self.priority = max(a.priority for a in requests)
            self.submitted_at_s = min(a.submitted_at_s for a in requests)
            self.min_member = max(a.min_member for a in requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What can only be evicted as a whole: the core of a gang, or one surplus member.

    ``order`` sorts units by how soon they go: lower priority first, then surplus, then the youngest. ``slices`` are those of
    all members, whole devices included.
    """

    gang: GangKey
    queue: str
    members: tuple[Running, ...]
    core: bool
    priority: int
    started_at_s: float
    sequence: int
    amount: Amount
    order: tuple[int, int, float, int]
    slices: int
    in_quota: bool = False


@dataclass(slots=True)
class Portion:
    """What of a gang is started at once: its core together, surplus members singly. Never changed; thousands are made."""

    gang: Gang
    requests: tuple[Request, ...]
    rank: Rank
    _alike: Alike | None
    _version: int

    @property
    def waits_for_core(self) -> bool:
        """Return True if these are surplus of a gang whose first members have not started."""
        return self.gang.min_member > 1 and len(self.requests) < self.gang.missing

    @property
    def alike(self) -> Alike | None:
        """Portions of which this is equal differ in nothing that decides whether they start, but in promises and in how
        lately they were evicted. None: this one is unlike any other."""
        gang = self.gang
        return self._alike if self._version == gang.version else _alike(gang, self.requests, gang.missing)


def portions_of(gang: Gang) -> list[Portion]:
    """The portions that wait, kept until the gang changes."""
    if gang.portions is None:
        waiting = sorted(gang.waiting.values(), key=lambda a: (-a.priority, a.submitted_at_s, a.id))
        missing = gang.missing
        core, surplus = tuple(waiting[:missing]), waiting[missing:]
        gang.portions = [
            Portion(
                gang,
                (r,),
                (-r.priority, True, r.submitted_at_s, gang.key, r.id),
                _alike(gang, (r,), missing),
                gang.version,
            )
            for r in surplus
        ]
        if core:
            rank = (-gang.priority, False, gang.submitted_at_s, gang.key, core[0].id)
            gang.portions.append(Portion(gang, core, rank, _alike(gang, core, missing), gang.version))
    return gang.portions


def _alike(gang: Gang, requests: tuple[Request, ...], missing: int) -> Alike | None:
    if len(requests) > 1 or missing > 1 or gang.incomplete:
        return None
    return (gang.queue, requests[0].priority, requests[0].shape, missing)


def portion_of(gang: Gang, request_id: str) -> Portion | None:
    """What would be started together with a waiting member; None when it does not wait."""
    return next((p for p in portions_of(gang) if any(r.id == request_id for r in p.requests)), None)


def units_of(gang: Gang) -> list[Unit]:
    """Return the gang's running members as units, kept until they change; the core keeps the oldest members."""
    if gang.units is None:
        gang.units = _units_of(gang)
    return gang.units


def _units_of(gang: Gang) -> list[Unit]:
    if not gang.running:
        return []
    if len(gang.running) == 1:  # as of most gangs
        return [unit_of(gang, tuple(gang.running.values()), core=True)]
    members = sorted(gang.running.values(), key=lambda r: (r.started_at_s, r.sequence))
    core, surplus = members[: gang.required], members[gang.required :]
    return [unit_of(gang, tuple(core), core=True), *(unit_of(gang, (m,), core=False) for m in surplus)]


def unit_of(gang: Gang, members: tuple[Running, ...], *, core: bool) -> Unit:
    """Return these members of the gang as one unit, not in quota."""
    priority = gang.priority if core else members[0].request.priority
    if len(members) == 1:
        member = members[0]
        started_at_s, sequence, amount = member.started_at_s, member.sequence, member.charge
    else:
        started_at_s, sequence = max(m.started_at_s for m in members), max(m.sequence for m in members)
        amount = total(m.charge for m in members)
    return Unit(
        gang=gang.key,
        queue=gang.queue,
        members=members,
        core=core,
        priority=priority,
        started_at_s=started_at_s,
        sequence=sequence,
        amount=amount,
        order=(priority, int(core), -started_at_s, -sequence),
        slices=sum([slices_of(m.request.shape) for m in members]),
    )


def slices_of(shape: Shape) -> int:
    """Return how many slices a shape has on all of its devices: a whole device counts as one."""
    return shape.gpu_count * max(1, shape.gpu_slices)
