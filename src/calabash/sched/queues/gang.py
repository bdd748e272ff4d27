"""Gangs of requests that start together (start groups) and are evicted together (units).

A request without a gang is a gang of one. A gang has a *core* of ``min_member`` members, which are started together and
evicted together, and *surplus* members beyond it, which are started and evicted one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calabash.sched.amounts import Amount, total
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import GangKey, Request, Running

Rank = tuple[int, bool, float, GangKey, str]
EquivalenceKey = tuple[str, int, Shape, int]
"""Queue, priority, shape, and number of core members that have not started."""


@dataclass(slots=True)
class Gang:
    """Waiting and running members of one gang.

    Attributes:
        evicted_at_s: time of the last eviction of a member; None if none was evicted.
        priority: highest priority of the members. submitted_at_s: earliest submission.
        start_groups, units: caches of ``start_groups_of`` and ``units_of``.
        ended: number of members that have run and ended.
        version: increased with every change of the members.
    """

    key: GangKey
    queue: str
    owner: str = ""
    min_member: int = 1
    waiting: dict[str, Request] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    evicted_at_s: float | None = None
    priority: int = 0
    submitted_at_s: float = 0.0
    start_groups: list[StartGroup] | None = None
    units: list[Unit] | None = None
    ended: int = 0
    version: int = 0

    @property
    def required(self) -> int:
        """Return the number of members that must run together: ``min_member`` minus the ended members, at least 1."""
        return max(1, self.min_member - self.ended)

    @property
    def missing(self) -> int:
        """Return the number of members that must still start until the core is complete."""
        return max(0, self.required - len(self.running))

    @property
    def incomplete(self) -> int:
        """Return the number of core members that have not been submitted yet."""
        if self.min_member == 1 and self.waiting:  # fast path for the most frequent case
            return 0
        return max(0, self.required - len(self.running) - len(self.waiting))

    def changed(self) -> None:
        """Drop the cached start groups and units, because a member was added, removed, started or stopped."""
        self.start_groups = self.units = None
        self.version += 1

    def refresh(self) -> None:
        """Recompute priority, submission time and ``min_member`` from the members."""
        self.changed()
        requests = [*self.waiting.values(), *(r.request for r in self.running.values())]
        if requests:
            self.priority = max(a.priority for a in requests)
            self.submitted_at_s = min(a.submitted_at_s for a in requests)
            self.min_member = max(a.min_member for a in requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Running members that can only be evicted together: the core of a gang, or one surplus member.

    Attributes:
        amount: charge of all members.
        order: eviction order, smaller first: lower priority, then surplus before core, then the youngest.
        slices: slices of all members; a whole device counts as one.
        in_quota: the unit is within the guaranteed amount of its queue.
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
class StartGroup:
    """Waiting members that are started in one attempt: the core of a gang, or one surplus member.

    Treated as immutable; not frozen because thousands are created and frozen classes are slower to create.
    """

    gang: Gang
    requests: tuple[Request, ...]
    rank: Rank
    _equivalence_key: EquivalenceKey | None
    _version: int

    @property
    def waits_for_core(self) -> bool:
        """Return True if the start group is a surplus member of a gang whose core has not started."""
        return self.gang.min_member > 1 and len(self.requests) < self.gang.missing

    @property
    def equivalence_key(self) -> EquivalenceKey | None:
        """Return a key that is equal for start groups that can be started under the same conditions.

        Start groups of equal keys may still differ in their reservations and in the time of their last eviction. The key is
        None for a start group of several members, or with a topology, which is equivalent to no other.
        """
        gang = self.gang
        if self._version == gang.version:
            return self._equivalence_key
        return _equivalence_key(gang, self.requests, gang.missing)


def start_groups_of(gang: Gang) -> list[StartGroup]:
    """Return the waiting start groups of a gang, surplus members first. Cached until the gang changes."""
    if gang.start_groups is None:
        waiting = sorted(
            gang.waiting.values(), key=lambda a: (-a.priority, a.submitted_at_s, -1 if a.rank is None else a.rank, a.id)
        )
        missing = gang.missing
        core, surplus = tuple(waiting[:missing]), waiting[missing:]
        gang.start_groups = [
            StartGroup(
                gang,
                (r,),
                (-r.priority, True, r.submitted_at_s, gang.key, r.id),
                _equivalence_key(gang, (r,), missing),
                gang.version,
            )
            for r in surplus
        ]
        if core:
            rank = (-gang.priority, False, gang.submitted_at_s, gang.key, core[0].id)
            gang.start_groups.append(StartGroup(gang, core, rank, _equivalence_key(gang, core, missing), gang.version))
    return gang.start_groups


def _start_order(request: Request) -> tuple[int, float, int, str]:
    return (-request.priority, request.submitted_at_s, -1 if request.rank is None else request.rank, request.id)


def _equivalence_key(gang: Gang, requests: tuple[Request, ...], missing: int) -> EquivalenceKey | None:
    if len(requests) > 1 or missing > 1 or gang.incomplete or requests[0].topology is not None:
        return None
    return (gang.queue, requests[0].priority, requests[0].shape, missing)


def start_group_of(gang: Gang, request_id: str) -> StartGroup | None:
    """Return the start group that contains a waiting member; None if the member does not wait."""
    return next((p for p in start_groups_of(gang) if any(r.id == request_id for r in p.requests)), None)


def units_of(gang: Gang) -> list[Unit]:
    """Return the units of a gang, the core first; the oldest members form the core. Cached until the members change."""
    if gang.units is None:
        gang.units = _units_of(gang)
    return gang.units


def _units_of(gang: Gang) -> list[Unit]:
    if not gang.running:
        return []
    if len(gang.running) == 1:  # fast path for the most frequent case
        return [unit_of(gang, tuple(gang.running.values()), core=True)]
    members = sorted(gang.running.values(), key=lambda r: (r.started_at_s, r.sequence))
    core, surplus = members[: gang.required], members[gang.required :]
    return [unit_of(gang, tuple(core), core=True), *(unit_of(gang, (m,), core=False) for m in surplus)]


def unit_of(gang: Gang, members: tuple[Running, ...], *, core: bool) -> Unit:
    """Return a unit of some members of a gang, with ``in_quota`` unset; ``core``: the members are the core."""
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
    """Return the number of slices that a shape takes on all of its devices; a whole device counts as one."""
    return shape.gpu_count * max(1, shape.gpu_slices)
