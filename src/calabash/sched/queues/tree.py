"""The queue tree: use, limits, guaranteed and fair shares, and the pressure that orders the queues.

Jobs belong to leaf queues; the use of a parent is the sum of its children's (``use``). Limits hold at every level. Shares are
computed by ``fairshare`` and cached until the demand, the capacity, past use or the queues change. Past use is counted by
``past_use``, which also decides when the shares take account of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.sched.amounts import EPSILON, RESOURCES, ZERO, Amount
from calabash.sched.queues.fairshare import FairShareInput, QueueShares, divide, effective_weights
from calabash.sched.queues.hierarchy import Hierarchy
from calabash.sched.queues.past_use import PastUse
from calabash.sched.queues.spec import OverLimit, QueueSpec
from calabash.sched.queues.use import QueueUse

AMOUNTS_KEPT_MAX = 256
ROUNDING = 1e-9


class QueueTree:
    """All queues with their use and shares.

    Args:
        half_life_s: half-life of past use, which corrects the over-quota weights; 0 ignores past use.

    Attributes:
        form: structure of the tree. use: amounts used and waiting, by queue.
        capacity: amount that is divided among the queues.
        past_use: past use by queue number.
    """

    def __init__(self, specs: Iterable[QueueSpec] = (), *, half_life_s: float = 0.0) -> None:
        self.form = Hierarchy.build(specs)
        self.use = QueueUse(self.form)
        self.capacity = ZERO
        self.past_use = PastUse(len(self.form.paths), half_life_s)
        self._shares: QueueShares | None = None
        self._shares_of = -1
        self._plain: tuple[QueueShares, QueueShares] | None = None  # ``shares``, and what they were without past use
        # Cache of ``pressure_term`` for ``_terms_of``, by amount and queue number: the use it was computed for, and the term.
        self._terms: dict[Amount, dict[int, tuple[list[float], tuple[float, ...]]]] = {}
        self._terms_of: QueueShares | None = None

    def replace(self, specs: Iterable[QueueSpec]) -> None:
        """Replace all queues. The use and demand of leaf queues, and the past use of all queues that remain, are kept.

        A parent that is new has the sum of its children's.

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
        self.past_use.resize(len(form.paths))
        self._set_past(past)

    def _set_past(self, past: Mapping[str, float]) -> None:
        """Set the past use of the queues that ``past`` names; a parent that it does not name gets the sum of its children's."""
        form = self.form
        for i in range(len(form.paths) - 1, 0, -1):  # children come after their parents
            own = past.get(form.spec(i).name)
            self.past_use.set(i, sum(self.past_use.at(c) for c in form.children[i]) if own is None else own)
        self.past_use.count()
        self._shares = None

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

    @property
    def half_life_s(self) -> float:
        """Return the half-life of past use; 0 if past use does not count."""
        return self.past_use.half_life_s

    def advance(self, now_s: float) -> None:
        """Update past use to ``now_s``, taking the use since the last call as constant. Does nothing without a half-life."""
        if self.past_use.advance(now_s, self.use, self.form.deserved, self.capacity):
            self._shares = None

    def past(self) -> tuple[tuple[str, float], ...]:
        """Return for each queue its past use above its deserved amount in device-seconds; see ``past_use``."""
        return tuple((name, self.past_use.at(i)) for name, i in self.form.index.items() if i)

    def past_of(self, name: str) -> float:
        """Return the past use of one queue in device-seconds."""
        return self.past_use.at(self.form.index[name])

    def restore_past(self, past: Mapping[str, float], at_s: float) -> None:
        """Set the past use that the queues had at ``at_s``, which may be before the first call of ``advance``.

        Queues that do not exist any more are ignored. The next call of ``advance`` counts the present use from ``at_s`` on.
        """
        self.past_use.start_at(at_s)
        self._set_past(past)

    def effective_weight(self, name: str) -> float:
        """Return the over-quota weight of a queue after the correction by past use, if all its siblings had demand."""
        number = self.form.index[name]
        siblings = self.form.children[self.form.paths[number][1]]
        weights = [self.form.spec(i).over_quota_weight for i in siblings]
        past = [self.past_use.counted[i] for i in siblings]
        return effective_weights(weights, past)[siblings.index(number)]

    def ahead_by_past(self, name: str, amount: Amount) -> tuple[str, str] | None:
        """Return the names of two siblings of which the second comes first only because the first used more in the past.

        The first is the queue or an ancestor of it; requests wait in the second. None if there are no such queues.

        Args:
            amount: amount that would be added to the use of either queue.
        """
        if self.half_life_s <= 0 or not any(self.past_use.counted):
            return None
        plain = self._without_past()
        for number in reversed(self.form.paths[self.form.index[name]][:-1]):
            now, then = self.pressure_term(number, amount), self._pressure_term(number, amount, plain)
            ahead = [
                (term, i)
                for i in self.form.children[self.form.paths[number][1]]
                if i != number
                and any(self.use.demand_at(i, r) > self.use.used_at(i)[r] for r in range(RESOURCES))
                and _is_before(term := self.pressure_term(i, amount), now)
                and not _is_before(self._pressure_term(i, amount, plain), then)
            ]
            if ahead:
                return self.form.spec(number).name, self.form.spec(min(ahead)[1]).name
        return None

    # ---- shares ---------------------------------------------------------------------------------------------------

    def shares(self) -> QueueShares:
        """Return the current guaranteed and fair amounts of all queues."""
        if self._shares is None or self._shares_of != self.use.version:
            self._shares = self._divide(self.past_use.counted)
            self._shares_of = self.use.version
        return self._shares

    def guaranteed(self, name: str) -> list[float]:
        return self.shares().guaranteed[self.form.index[name]]

    def fair(self, name: str) -> list[float]:
        return self.shares().fair[self.form.index[name]]

    def entitled(self) -> dict[str, list[float]]:
        """Return the fair shares of the leaf queues without the correction for past use, to measure fairness against."""
        fair = self._without_past().fair
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

    def _without_past(self) -> QueueShares:
        """Return the shares without the correction for past use."""
        shares = self.shares()
        if self._plain is None or self._plain[0] is not shares:
            self._plain = shares, self._divide([0.0] * len(self.form.paths))
        return self._plain[1]

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


def _is_before(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return True if a term of ``pressure`` is less than another one by more than a rounding error."""
    return one[0] < other[0] or (one[0] == other[0] and one[1] < other[1] * (1.0 - ROUNDING))
