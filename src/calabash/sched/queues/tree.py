"""The queue tree: use, limits, guaranteed and fair shares, and the pressure that orders the queues.

Jobs belong to leaf queues; the use of a parent is the sum of its children's (``use``). Limits hold at every level. Shares are
computed by ``fairshare`` and cached until the demand, the capacity, past use or the queues change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.sched.amounts import EPSILON, RESOURCES, ZERO, Amount
from calabash.sched.queues.fairshare import FairShareInput, QueueShares, divide
from calabash.sched.queues.hierarchy import Hierarchy
from calabash.sched.queues.spec import OverLimit, QueueSpec
from calabash.sched.queues.use import QueueUse

AMOUNTS_KEPT_MAX = 256


class QueueTree:
    """All queues with their use and shares.

    Args:
        half_life_s: half-life of past use, which corrects the over-quota weights; 0 ignores past use.

    Attributes:
        form: structure of the tree. use: amounts used and waiting, by queue.
        capacity: amount that is divided among the queues.
    """

    def __init__(self, specs: Iterable[QueueSpec] = (), *, half_life_s: float = 0.0) -> None:
        self.half_life_s = half_life_s
        self.form = Hierarchy.build(specs)
        self.use = QueueUse(self.form)
        self.capacity = ZERO
        self._past = [0.0] * len(self.form.paths)
        self._past_at_s = 0.0
        self._shares: QueueShares | None = None
        self._shares_of = -1
        # Cache of ``pressure_term`` for ``_terms_of``, by amount and queue number: the use it was computed for, and the term.
        self._terms: dict[Amount, dict[int, tuple[list[float], tuple[float, ...]]]] = {}
        self._terms_of: QueueShares | None = None

    def replace(self, specs: Iterable[QueueSpec]) -> None:
        """Replace all queues. The use, demand and past use of leaf queues that remain are kept.

        Raises:
            CalabashError: a duplicate name, an unknown parent, a cycle, too many levels, or a queue with jobs that is removed
                or becomes a parent. Nothing is changed then.
        """
        form = Hierarchy.build(specs)
        past = dict(self.past())
        for name in self.form.leaves:
            in_use = any(self.use.used(name)) or any(self.use.waiting(name))
            if in_use and name not in form.leaves:
                raise CalabashError(
                    f"queue {name} has jobs and cannot be removed or become a parent",
                    reason=Reason.CONFLICT,
                    hint="let its jobs end or cancel them first",
                )
        self.use = self.use.copy_to(form)
        self.form = form
        self._past = [0.0] * len(form.paths)
        for name in form.leaves:
            for level in form.paths[form.index[name]]:
                self._past[level] += past.get(name, 0.0)

    def set_capacity(self, capacity: Amount) -> None:
        """Set the amount that is divided among the queues: the sum over the usable nodes."""
        if capacity != self.capacity:
            self.capacity = capacity
            self._shares = None

    def used(self, name: str) -> Amount:
        """Return the amount that runs in the queue and below it."""
        return self.use.used(name)

    def waiting(self, name: str) -> Amount:
        """Return the amount that waits in the queue and below it."""
        return self.use.waiting(name)

    def is_limited(self, name: str) -> bool:
        """Return True if the queue or one of its ancestors has a limit."""
        return bool(self.form.limited[self.form.index[name]])

    def over_limit(self, name: str, amount: Amount, freed: Amount = ZERO) -> OverLimit | None:
        """Return the first limit, from the queue up to the root, that starting ``amount`` would exceed; None if none.

        Args:
            freed: amount that the queue uses now and that would be freed first, by evictions.
        """
        for i in self.form.limited[self.form.index[name]]:
            spec, used = self.form.spec(i), self.use.used_at(i)
            for r in range(RESOURCES):
                left = used[r] - freed[r]
                if amount[r] > 0 and left + amount[r] > spec.limit[r]:
                    return OverLimit(queue=spec.name, resource=r, used=left, asked=amount[r], limit=spec.limit[r])
        return None

    # ---- past use -------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Update past use to ``now_s``, taking the use since the last call as constant. Does nothing without a half-life."""
        elapsed_s = now_s - self._past_at_s
        self._past_at_s = max(now_s, self._past_at_s)
        if self.half_life_s <= 0 or elapsed_s <= 0 or not any(self.capacity):
            return
        keep = 0.5 ** (elapsed_s / self.half_life_s)
        gained_s = (1.0 - keep) * self.half_life_s / math.log(2.0)
        for i in range(1, len(self._past)):
            deserved = self.form.deserved[i]
            above = [max(0, u - d) for u, d in zip(self.use.used_at(i), deserved, strict=True)]
            dominant = max((a / c for a, c in zip(above, self.capacity, strict=True) if c > 0), default=0.0)
            self._past[i] = self._past[i] * keep + dominant * gained_s
        self._shares = None

    def past(self) -> tuple[tuple[str, float], ...]:
        """Return for each queue its past use above its deserved amount, older use counting less (``half_life_s``).

        The unit is a second in which the queue uses all capacity of the cluster.
        """
        return tuple((name, self._past[i]) for name, i in self.form.index.items() if i)

    # ---- shares ---------------------------------------------------------------------------------------------------

    def shares(self) -> QueueShares:
        """Return the current guaranteed and fair amounts of all queues."""
        if self._shares is None or self._shares_of != self.use.version:
            self._shares = self._divide(self._past)
            self._shares_of = self.use.version
        return self._shares

    def guaranteed(self, name: str) -> list[float]:
        return self.shares().guaranteed[self.form.index[name]]

    def fair(self, name: str) -> list[float]:
        return self.shares().fair[self.form.index[name]]

    def entitled(self) -> dict[str, list[float]]:
        """Return the fair shares of the leaf queues without the correction for past use, to measure fairness against."""
        fair = self._divide([0.0] * len(self._past)).fair
        return {name: fair[self.form.index[name]] for name in self.form.leaves}

    def within_guaranteed(self, name: str, used: Amount, need: Amount) -> bool:
        """Return True if ``used`` plus ``need`` is within the guaranteed amount of the queue.

        Only resources that ``need`` contains are compared, and only if some queue has a deserved amount of them. The
        result is False if there are no such resources.
        """
        guaranteed = self.guaranteed(name)
        asked = [r for r, on in enumerate(self.form.managed) if on and need[r] > 0]
        return bool(asked) and all(used[r] + need[r] <= guaranteed[r] + EPSILON for r in asked)

    def pressure(self, name: str, amount: Amount = ZERO) -> tuple[float, ...]:
        """Return the sort key of a queue; the queue with the smallest key is scheduled first.

        Keys are compared level by level from the root, so that queues compete with their siblings. At each level, a queue
        in quota comes before one that borrows, then the queue with the smaller use in proportion to its fair share.

        Args:
            amount: amount that would be added to the use of the queue.
        """
        path = self.form.paths[self.form.index[name]]
        return tuple(value for number in reversed(path) for value in self.pressure_term(number, amount))

    def pressure_term(self, number: int, amount: Amount) -> tuple[float, ...]:
        """Return the term that one queue, the leaf or an ancestor, adds to ``pressure``; empty for the root.

        Args:
            number: number of the queue. amount: amount that would be added to its use.
        """
        shares = self.shares()
        if self._terms_of is not shares or len(self._terms) > AMOUNTS_KEPT_MAX:
            self._terms, self._terms_of = {}, shares
        terms, used = self._terms.setdefault(amount, {}), self.use.used_at(number)
        known = terms.get(number)
        if known is None or known[0] != used:
            known = terms[number] = ([*used], self._pressure_term(number, amount, shares) if number else ())
        return known[1]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _pressure_term(self, i: int, amount: Amount, shares: QueueShares) -> tuple[float, ...]:
        """Compute the term of ``pressure`` for one queue.

        The term is a pair: 0 if the queue would be in quota or 1 if it would borrow, and the highest ratio of its use
        to its fair share over all resources.

        Args:
            i: number of the queue.
            amount: amount that would be added to the use of the queue.
        """
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
        tree = FairShareInput(
            children=form.children,
            deserved=[
                [float(v) for v in self.capacity],
                *([float(v) for v in form.deserved[i]] for i in range(1, count)),
            ],
            demand=demand,
            weights=[0.0, *(spec.over_quota_weight for spec in form.specs)],
            past=past,
        )
        return divide(tree, self.capacity)
