"""The tree of queues: what each deserves, what it may have at most, what it uses, and how long it has used it.

Jobs belong to leaves; a parent's use is the sum of its children's. Limits hold at every level. ``shares`` answers what
each queue is guaranteed and what is fair now (``fairshare``), cached until use, demand or the tree changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calabash.model.errors import CalabashError, Reason
from calabash.sched.queues.fairshare import EPSILON, RESOURCES, ZERO, Amount, QueueShares, Tree, divide

UNLIMITED = Amount(1 << 60, 1 << 60, 1 << 60)
ROOT = ""


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
    used: int
    asked: int
    limit: int


class QueueTree:
    """Resident tree; amounts are charged to leaves and counted in all their ancestors."""

    def __init__(self, specs: Iterable[QueueSpec] = (), *, half_life_s: float = 0.0) -> None:
        self.half_life_s = half_life_s
        self._specs: dict[str, QueueSpec] = {}
        self._rows: list[QueueSpec] = []
        self._managed: tuple[bool, ...] = (False,) * RESOURCES
        self._index: dict[str, int] = {}
        self._paths: list[tuple[int, ...]] = []
        self._children: list[list[int]] = []
        self._used: list[list[int]] = []
        self._waiting: list[list[int]] = []
        self._past: list[float] = []
        self._past_at_s = 0.0
        self._capacity = ZERO
        self._division: QueueShares | None = None
        self.replace(specs)

    # ---- the tree -------------------------------------------------------------------------------------------------

    def replace(self, specs: Iterable[QueueSpec]) -> None:
        """Set all queues. Use, demand and past of queues that stay are kept; a queue in use must stay.

        Raises CalabashError: duplicate, unknown parent, circle, job on a queue that is removed or becomes a parent.
        """
        wanted: dict[str, QueueSpec] = {}
        for spec in specs:
            if spec.name in wanted:
                raise CalabashError(f"queue {spec.name} is defined twice", hint="names are unique in the whole tree")
            wanted[spec.name] = spec
        order = _parents_first(wanted)
        parents = {spec.parent for spec in wanted.values()}
        old = {name: (self._used[i], self._waiting[i], self._past[i]) for name, i in self._index.items()}
        for name, (used, waiting, _) in old.items():
            was_leaf = name in self._specs and not self._children[self._index[name]]
            if was_leaf and (any(used) or any(waiting)) and (name not in wanted or name in parents):
                raise CalabashError(
                    f"queue {name} has jobs and cannot be removed or become a parent",
                    reason=Reason.CONFLICT,
                    hint="let its jobs end or cancel them first",
                )
        self._specs = {name: wanted[name] for name in order}
        self._rows = list(self._specs.values())
        self._managed = tuple(any(spec.deserved[r] > 0 for spec in self._rows) for r in range(RESOURCES))
        self._index = {ROOT: 0, **{name: i for i, name in enumerate(order, 1)}}
        count = len(order) + 1
        self._children = [[] for _ in range(count)]
        self._paths = [(0,)] * count
        self._used = [[0] * RESOURCES for _ in range(count)]
        self._waiting = [[0] * RESOURCES for _ in range(count)]
        self._past = [0.0] * count
        for name in order:
            i, up = self._index[name], self._index[self._specs[name].parent]
            self._children[up].append(i)
            self._paths[i] = (i, *self._paths[up])
        for name in order:
            i = self._index[name]
            if name in old and not self._children[i]:
                used, waiting, past = old[name]
                self._add(self._used, i, used, 1)
                self._add(self._waiting, i, waiting, 1)
                for level in self._paths[i]:
                    self._past[level] += past
        self._division = None

    @property
    def specs(self) -> tuple[QueueSpec, ...]:
        return tuple(self._specs.values())

    @property
    def managed(self) -> tuple[bool, ...]:
        """Per resource whether any queue deserves some of it; what nobody deserves is in nobody's quota."""
        return self._managed

    def leaves(self) -> tuple[str, ...]:
        return tuple(name for name in self._specs if not self._children[self._index[name]])

    def require_leaf(self, name: str) -> None:
        """Raises CalabashError when jobs cannot be put on that queue."""
        i = self._index.get(name)
        if i is None or i == 0:
            raise CalabashError(
                f"queue {name!r} does not exist",
                reason=Reason.NOT_FOUND,
                hint=f"one of: {', '.join(sorted(self.leaves())) or 'none is defined'}",
            )
        if self._children[i]:
            raise CalabashError(
                f"queue {name} is a parent: jobs go to its children",
                reason=Reason.BAD_REQUEST,
                hint=f"one of: {', '.join(sorted(n for n in self.leaves() if i in self._paths[self._index[n]]))}",
            )

    # ---- amounts --------------------------------------------------------------------------------------------------

    def set_capacity(self, capacity: Amount) -> None:
        """What there is to divide: the sum over usable nodes."""
        if capacity != self._capacity:
            self._capacity = capacity
            self._division = None

    @property
    def capacity(self) -> Amount:
        return self._capacity

    def charge(self, name: str, amount: Amount) -> None:
        self._add(self._used, self._index[name], amount, 1)
        self._division = None

    def refund(self, name: str, amount: Amount) -> None:
        self._add(self._used, self._index[name], amount, -1)
        self._division = None

    def wait(self, name: str, amount: Amount) -> None:
        """The amount joins the demand of the queue."""
        self._add(self._waiting, self._index[name], amount, 1)
        self._division = None

    def unwait(self, name: str, amount: Amount) -> None:
        self._add(self._waiting, self._index[name], amount, -1)
        self._division = None

    def start(self, name: str, amount: Amount) -> None:
        """From waiting to used: the demand, and so the shares, stay."""
        self._add(self._waiting, self._index[name], amount, -1)
        self._add(self._used, self._index[name], amount, 1)

    def stop(self, name: str, amount: Amount) -> None:
        """From used back to waiting (eviction)."""
        self._add(self._used, self._index[name], amount, -1)
        self._add(self._waiting, self._index[name], amount, 1)

    def used(self, name: str) -> Amount:
        return Amount(*self._used[self._index[name]])

    def waiting(self, name: str) -> Amount:
        return Amount(*self._waiting[self._index[name]])

    def over_limit(self, name: str, amount: Amount) -> OverLimit | None:
        """The first queue from the leaf up whose limit ``amount`` more would break."""
        for i in self._paths[self._index[name]][:-1]:
            spec = self._spec_at(i)
            for r in range(RESOURCES):
                if amount[r] > 0 and self._used[i][r] + amount[r] > spec.limit[r]:
                    return OverLimit(
                        queue=spec.name, resource=r, used=self._used[i][r], asked=amount[r], limit=spec.limit[r]
                    )
        return None

    # ---- shares ---------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Bring the decayed past up to ``now_s``; use has been constant since the last call."""
        elapsed_s = now_s - self._past_at_s
        self._past_at_s = max(now_s, self._past_at_s)
        if self.half_life_s <= 0 or elapsed_s <= 0 or not any(self._capacity):
            return
        keep = 0.5 ** (elapsed_s / self.half_life_s)
        gained_s = (1.0 - keep) * self.half_life_s / math.log(2.0)
        for i in range(1, len(self._past)):
            above = self._dominant([max(0, u - d) for u, d in zip(self._used[i], self._deserved(i), strict=True)])
            self._past[i] = self._past[i] * keep + above * gained_s
        self._division = None

    def past(self) -> tuple[tuple[str, float], ...]:
        """Decayed use of every queue, for a snapshot."""
        return tuple((name, self._past[i]) for name, i in self._index.items() if i)

    def set_past(self, past: Iterable[tuple[str, float]], at_s: float) -> None:
        for name, value in past:
            if name in self._index:
                self._past[self._index[name]] = value
        self._past_at_s = at_s
        self._division = None

    def division(self) -> QueueShares:
        if self._division is None:
            self._division = self._divide(self._past)
        return self._division

    def entitled(self) -> dict[str, list[float]]:
        """Fair shares of the leaves as if nobody had a past: what fairness is measured against."""
        fair = self._divide([0.0] * len(self._past)).fair
        return {name: fair[self._index[name]] for name in self.leaves()}

    def _divide(self, past: Sequence[float]) -> QueueShares:
        count = len(self._paths)
        demand: list[list[float]] = [[0.0] * RESOURCES for _ in range(count)]
        for i in range(count - 1, 0, -1):
            below = self._children[i]
            limit = self._spec_at(i).limit
            for r in range(RESOURCES):
                wanted = sum(demand[c][r] for c in below) if below else float(self._used[i][r] + self._waiting[i][r])
                demand[i][r] = min(wanted, float(limit[r]))
        tree = Tree(
            children=self._children,
            deserved=[[float(v) for v in self._deserved(i)] for i in range(count)],
            demand=demand,
            weights=[0.0, *(spec.over_quota_weight for spec in self._specs.values())],
            past=past,
        )
        return divide(tree, self._capacity)

    def guaranteed(self, name: str) -> list[float]:
        return self.division().guaranteed[self._index[name]]

    def fair(self, name: str) -> list[float]:
        return self.division().fair[self._index[name]]

    def dominant_ratio(self, amount: Sequence[float]) -> float:
        """Dominant share of the capacity, 0..1."""
        return self._dominant(amount)

    def pressure(self, name: str, amount: Amount = ZERO) -> tuple[float, ...]:
        """Who goes first: smaller first. Compared level by level from the top, so that siblings compete with each
        other before their parents do: in-quota use before borrowing, then use in proportion to the fair share.

        Args:
            amount: what would be added to the queue.
        """
        division = self.division()
        key: list[float] = []
        for i in reversed(self._paths[self._index[name]][:-1]):
            used = [u + a for u, a in zip(self._used[i], amount, strict=True)]
            in_quota = all(
                u <= g + EPSILON
                for u, g, a, managed in zip(used, division.guaranteed[i], amount, self._managed, strict=True)
                if a > 0 and managed
            )
            key.append(0.0 if in_quota else 1.0)
            fair = division.fair[i]
            key.append(
                max((u / f if f > EPSILON else math.inf for u, f in zip(used, fair, strict=True) if u > 0), default=0.0)
            )
        return tuple(key)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _spec_at(self, i: int) -> QueueSpec:
        return self._rows[i - 1]

    def _deserved(self, i: int) -> tuple[int, ...]:
        if i == 0:
            return self._capacity
        own = self._spec_at(i).deserved
        if any(own) or not self._children[i]:
            return own
        below = [self._deserved(c) for c in self._children[i]]
        return tuple(sum(amounts) for amounts in zip(*below, strict=True))

    def _dominant(self, amount: Sequence[float]) -> float:
        return max((a / c for a, c in zip(amount, self._capacity, strict=True) if c > 0), default=0.0)

    def _add(self, table: list[list[int]], i: int, amount: Sequence[int], sign: int) -> None:
        for level in self._paths[i]:
            row = table[level]
            for r in range(RESOURCES):
                row[r] += sign * amount[r]


def _parents_first(wanted: dict[str, QueueSpec]) -> list[str]:
    order: list[str] = []
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            circle = " -> ".join((*trail[trail.index(name) :], name))
            raise CalabashError(f"queues form a circle: {circle}", hint="a parent cannot be below its child")
        if state.get(name):
            return
        spec = wanted[name]
        if spec.parent != ROOT:
            if spec.parent not in wanted:
                raise CalabashError(
                    f"queue {name}: parent {spec.parent} does not exist",
                    reason=Reason.NOT_FOUND,
                    hint="define the parent too",
                )
            visit(spec.parent, (*trail, name))
        state[name] = 1
        order.append(name)

    for name in wanted:
        visit(name, ())
    return order
