"""The tree of queues: what each is guaranteed, what is fair now, and whose turn it is.

Jobs belong to leaves; a parent's use is the sum of its children's (``use``). Limits hold at every level. Shares are divided
by ``fairshare`` and kept until use, demand, the past or the form of the tree changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.sched.queues.fairshare import EPSILON, RESOURCES, ZERO, Amount, QueueShares, Tree, divide
from calabash.sched.queues.hierarchy import Hierarchy
from calabash.sched.queues.spec import OverLimit, QueueSpec
from calabash.sched.queues.use import QueueUse

AMOUNTS_KEPT_MAX = 256


class QueueTree:
    """Resident tree. ``form`` is its hierarchy, ``use`` what is charged to it, ``capacity`` what there is to divide."""

    def __init__(self, specs: Iterable[QueueSpec] = (), *, half_life_s: float = 0.0) -> None:
        self.half_life_s = half_life_s
        self.form = Hierarchy.of(specs)
        self.use = QueueUse(self.form)
        self.capacity = ZERO
        self._past = [0.0] * len(self.form.paths)
        self._past_at_s = 0.0
        self._shares: QueueShares | None = None
        self._shares_of = -1
        # Of ``part``, by amount and number: the part, and the use for which it holds.
        self._parts: dict[Amount, dict[int, tuple[list[float], tuple[float, ...]]]] = {}
        self._parts_of: QueueShares | None = None

    def replace(self, specs: Iterable[QueueSpec]) -> None:
        """Set all queues. Use, demand and past of queues that stay are kept; a queue in use must stay.

        Raises CalabashError: duplicate, unknown parent, circle, too many levels, job on a queue that is removed or becomes
        a parent.
        """
        form = Hierarchy.of(specs)
        past = dict(self.past())
        for name in self.form.leaves:
            in_use = any(self.use.used(name)) or any(self.use.waiting(name))
            if in_use and name not in form.leaves:
                raise CalabashError(
                    f"queue {name} has jobs and cannot be removed or become a parent",
                    reason=Reason.CONFLICT,
                    hint="let its jobs end or cancel them first",
                )
        self.use = self.use.carried_to(form)
        self.form = form
        self._past = [0.0] * len(form.paths)
        for name in form.leaves:
            for level in form.paths[form.index[name]]:
                self._past[level] += past.get(name, 0.0)

    def set_capacity(self, capacity: Amount) -> None:
        """What there is to divide: the sum over usable nodes."""
        if capacity != self.capacity:
            self.capacity = capacity
            self._shares = None

    def used(self, name: str) -> Amount:
        """What runs in the queue."""
        return self.use.used(name)

    def waiting(self, name: str) -> Amount:
        """What waits in the queue."""
        return self.use.waiting(name)

    def is_limited(self, name: str) -> bool:
        """Return True if the queue or one above it has a limit."""
        return bool(self.form.limited[self.form.index[name]])

    def over_limit(self, name: str, amount: Amount, freed: Amount = ZERO) -> OverLimit | None:
        """Return the first queue from the leaf up whose limit ``amount`` more would break once ``freed`` is given back."""
        for i in self.form.limited[self.form.index[name]]:
            spec, used = self.form.spec(i), self.use.used_at(i)
            for r in range(RESOURCES):
                left = used[r] - freed[r]
                if amount[r] > 0 and left + amount[r] > spec.limit[r]:
                    return OverLimit(queue=spec.name, resource=r, used=left, asked=amount[r], limit=spec.limit[r])
        return None

    # ---- the past -------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Bring the decayed past up to ``now_s``; use has been constant since the last call."""
        elapsed_s = now_s - self._past_at_s
        self._past_at_s = max(now_s, self._past_at_s)
        if self.half_life_s <= 0 or elapsed_s <= 0 or not any(self.capacity):
            return
        keep = 0.5 ** (elapsed_s / self.half_life_s)
        gained_s = (1.0 - keep) * self.half_life_s / math.log(2.0)
        for i in range(1, len(self._past)):
            deserved = self.form.own_deserved(i)
            above = [max(0, u - d) for u, d in zip(self.use.used_at(i), deserved, strict=True)]
            dominant = max((a / c for a, c in zip(above, self.capacity, strict=True) if c > 0), default=0.0)
            self._past[i] = self._past[i] * keep + dominant * gained_s
        self._shares = None

    def past(self) -> tuple[tuple[str, float], ...]:
        """Decayed use of every queue above what it deserves, in cluster seconds."""
        return tuple((name, self._past[i]) for name, i in self.form.index.items() if i)

    # ---- shares ---------------------------------------------------------------------------------------------------

    def shares(self) -> QueueShares:
        """Guaranteed and fair amounts of all queues now."""
        if self._shares is None or self._shares_of != self.use.version:
            self._shares = self._divide(self._past)
            self._shares_of = self.use.version
        return self._shares

    def guaranteed(self, name: str) -> list[float]:
        return self.shares().guaranteed[self.form.index[name]]

    def fair(self, name: str) -> list[float]:
        return self.shares().fair[self.form.index[name]]

    def entitled(self) -> dict[str, list[float]]:
        """Fair shares of the leaves as if nobody had a past: what fairness is measured against."""
        fair = self._divide([0.0] * len(self._past)).fair
        return {name: fair[self.form.index[name]] for name in self.form.leaves}

    def within_guaranteed(self, name: str, used: Amount, need: Amount) -> bool:
        """Whether ``need`` beside ``used`` stays in quota; False when nothing of it is managed."""
        guaranteed = self.guaranteed(name)
        asked = [r for r, on in enumerate(self.form.managed) if on and need[r] > 0]
        return bool(asked) and all(used[r] + need[r] <= guaranteed[r] + EPSILON for r in asked)

    def pressure(self, name: str, amount: Amount = ZERO) -> tuple[float, ...]:
        """Who goes first: smaller first. Compared level by level from the top, so that siblings compete with each
        other before their parents do: in-quota use before borrowing, then use in proportion to the fair share.

        Args:
            amount: what would be added to the queue.
        """
        path = self.form.paths[self.form.index[name]]
        return tuple(value for number in reversed(path) for value in self.part(number, amount))

    def part(self, number: int, amount: Amount) -> tuple[float, ...]:
        """Return the part of ``pressure`` that one queue on the path has, by its number; the root has none."""
        shares = self.shares()
        if self._parts_of is not shares or len(self._parts) > AMOUNTS_KEPT_MAX:
            self._parts, self._parts_of = {}, shares
        parts, used = self._parts.setdefault(amount, {}), self.use.used_at(number)
        known = parts.get(number)
        if known is None or known[0] != used:
            known = parts[number] = ([*used], self._part(number, amount, shares) if number else ())
        return known[1]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _part(self, i: int, amount: Amount, shares: QueueShares) -> tuple[float, ...]:
        """Compute the same."""
        used = [u + a for u, a in zip(self.use.used_at(i), amount, strict=True)]
        in_quota = all(
            u <= g + EPSILON
            for u, g, a, managed in zip(used, shares.guaranteed[i], amount, self.form.managed, strict=True)
            if a > 0 and managed
        )
        highest = max(
            (u / f if f > EPSILON else math.inf for u, f in zip(used, shares.fair[i], strict=True) if u > 0),
            default=0.0,
        )
        return (0.0 if in_quota else 1.0, highest)

    def _divide(self, past: Sequence[float]) -> QueueShares:
        form, count = self.form, len(self.form.paths)
        demand: list[list[float]] = [[0.0] * RESOURCES for _ in range(count)]
        for i in range(count - 1, 0, -1):
            below, limit = form.children[i], form.spec(i).limit
            for r in range(RESOURCES):
                wanted = sum(demand[c][r] for c in below) if below else float(self.use.demand_at(i, r))
                demand[i][r] = min(wanted, float(limit[r]))
        tree = Tree(
            children=form.children,
            deserved=[
                [float(v) for v in self.capacity],
                *([float(v) for v in form.own_deserved(i)] for i in range(1, count)),
            ],
            demand=demand,
            weights=[0.0, *(spec.over_quota_weight for spec in form.specs)],
            past=past,
        )
        return divide(tree, self.capacity)
