"""Disruption budgets, watched beforehand: a pod that a budget keeps makes way last, and only with what it borrows.

A budget protects a pod within what its queue is guaranteed. Such a pod is no victim: others are chosen, or the pod that wants
the place waits and is told why. Devices that a kept pod borrows go back to a queue that takes back what it is guaranteed, when
nothing else frees enough; the executor then overrules the budget. In all other cases a budget that changes between a decision
and its eviction is the API server's to enforce; see ``Decisions.blocked``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calabash.binder.cluster.upkeep import set_evictable
from calabash.kubernetes.objects.visibility import budget_mention
from calabash.kubernetes.planner.state.facts import PodSeen
from calabash.kubernetes.planner.state.store import Book, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTerm:
    """``key operator values``, operator one of In, NotIn, Exists, DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSeen:
    """A budget. ``terms`` None selects no pod, none of them selects all; ``allowed`` is how many may be stopped now."""

    namespace: str
    name: str
    terms: tuple[LabelTerm, ...] | None
    allowed: int

    def covers(self, pod: PodSeen) -> bool:
        return self.terms is not None and all(term.holds(pod.labels) for term in self.terms)


class Budgets:
    """All budgets, and which pods of the book they keep."""

    def __init__(self) -> None:
        self._in: dict[str, dict[str, BudgetSeen]] = {}
        self._stale: set[str] = set()
        self._kept: dict[str, str] = {}

    def see(self, budget: BudgetSeen) -> None:
        there = self._in.setdefault(budget.namespace, {})
        before = there.get(budget.name)
        there[budget.name] = budget
        if before is None or (before.terms, before.allowed > 0) != (budget.terms, budget.allowed > 0):
            self._stale.add(budget.namespace)

    def gone(self, namespace: str, name: str) -> None:
        there = self._in.get(namespace, {})
        if there.pop(name, None) is not None:
            self._stale.add(namespace)
        if not there:
            self._in.pop(namespace, None)

    def keeps(self, pod: PodSeen) -> str:
        """What keeps a pod from being stopped now, marked as a mention; "" when nothing does."""
        there = self._in.get(pod.namespace)
        if not there:
            return ""
        found = [budget for budget in there.values() if budget.covers(pod)]
        if len(found) > 1:
            return budget_mention(pod.namespace, "")  # the API server then evicts nobody
        if found and found[0].allowed <= 0:
            return budget_mention(pod.namespace, found[0].name)
        return ""

    # ---- the book -------------------------------------------------------------------------------------------------

    def check(self, book: Book, entry: Entry, marks: Callable[[Entry], tuple[bool, bool]]) -> None:
        """A pod that has its node is otherwise than it was."""
        if self._in or entry.facts.uid in self._kept:
            self._mark(book, entry, marks)

    def apply(self, book: Book, marks: Callable[[Entry], tuple[bool, bool]]) -> None:
        """Have the scheduler know what changed."""
        if not self._stale:
            return
        for entry in book.entries.values():
            if entry.facts.namespace in self._stale and entry.facts.node:
                self._mark(book, entry, marks)
        self._stale.clear()

    def forget(self, uid: str) -> None:
        self._kept.pop(uid, None)

    def note(self, book: Book, entry: Entry) -> str:
        """Which pods could make way for one that waits if budgets allowed it; "" when there are none."""
        bundle = entry.bundle
        if bundle is None or not self._kept:
            return ""
        tree, mine = book.scheduler.scheduler.tree, bundle.request
        by: dict[str, int] = {}
        for uid, text in self._kept.items():
            other = book.entries.get(uid)
            if other is None or other.bundle is None:
                continue
            theirs = other.bundle.request
            if theirs.queue == mine.queue:
                could = theirs.priority < mine.priority
            elif theirs.queue in tree.form.index and mine.queue in tree.form.index:
                lent = tree.used(theirs.queue).gpu_milli - tree.guaranteed(theirs.queue)[0]
                could = lent > 0 and tree.used(mine.queue).gpu_milli < tree.guaranteed(mine.queue)[0]
            else:
                could = False
            if could:
                by[text] = by.get(text, 0) + 1
        if not by:
            return ""
        whose = ", ".join(sorted(by))
        return f". {sum(by.values())} that could make way may not be stopped now: {whose}"

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _mark(self, book: Book, entry: Entry, marks: Callable[[Entry], tuple[bool, bool]]) -> None:
        kept = self.keeps(entry.facts)
        if kept:
            self._kept[entry.facts.uid] = kept
        else:
            self._kept.pop(entry.facts.uid, None)
        evictable, guarded = marks(entry)
        set_evictable(book.scheduler, entry.id, evictable=evictable, guarded=guarded)
