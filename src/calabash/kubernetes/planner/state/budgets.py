"""Disruption budgets: pods that a budget protects are evicted last, and only for devices that their queue borrows.

A pod is protected if a disruption budget forbids to evict it now. While the pod's queue uses no more than its
guarantee, the scheduler does not choose a protected pod as a victim: it chooses other pods, or the pod that needs
devices waits and its condition explains why. If the queue borrows, the devices of a protected pod are reclaimed when
nothing else frees enough; the executor then overrules the budget. A budget may also change after the decision. The API
server then refuses the eviction; see ``Decisions.eviction_refused``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calabash.binder.cluster.upkeep import set_evictable
from calabash.kubernetes.objects.visibility import budget_reference
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.messages import BudgetReference, Message, Names, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTerm:
    """Requirement on a label: ``key operator values``; the operator is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if the labels meet the requirement; False for an unknown operator."""
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
class BudgetFacts:
    """A disruption budget.

    Args:
        terms: label requirements of the pods that the budget covers. An empty tuple covers all pods of the namespace,
            None covers no pod.
        allowed: number of covered pods that may be evicted now.
    """

    namespace: str
    name: str
    terms: tuple[LabelTerm, ...] | None
    allowed: int

    def covers(self, pod: PodFacts) -> bool:
        return self.terms is not None and all(term.matches(pod.labels) for term in self.terms)


class Budgets:
    """All disruption budgets, and the bound pods that they protect."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, BudgetFacts]] = {}
        self._stale: set[str] = set()
        self._protected: dict[str, BudgetReference] = {}

    def put(self, budget: BudgetFacts) -> None:
        """Insert or update a budget.

        The next ``mark_changed`` updates the pods of the budget's namespace if the budget is new, if its selector has
        changed, or if ``allowed`` has changed from zero to a positive number or back.
        """
        there = self._by_namespace.setdefault(budget.namespace, {})
        before = there.get(budget.name)
        there[budget.name] = budget
        if before is None or (before.terms, before.allowed > 0) != (budget.terms, budget.allowed > 0):
            self._stale.add(budget.namespace)

    def remove(self, namespace: str, name: str) -> None:
        """Delete a budget."""
        there = self._by_namespace.get(namespace, {})
        if there.pop(name, None) is not None:
            self._stale.add(namespace)
        if not there:
            self._by_namespace.pop(namespace, None)

    def blocking_budget(self, pod: PodFacts) -> BudgetReference | None:
        """Return the budget that forbids to evict the pod now; None if none does.

        If several budgets cover the pod, the API server never evicts the pod. The result then stands for all of them.
        """
        there = self._by_namespace.get(pod.namespace)
        if not there:
            return None
        found = [budget for budget in there.values() if budget.covers(pod)]
        if len(found) > 1:
            return budget_reference(pod.namespace, "")  # the API server then evicts none of its pods
        if found and found[0].allowed <= 0:
            return budget_reference(pod.namespace, found[0].name)
        return None

    # ---- the store -------------------------------------------------------------------------------------------------

    def pod_changed(self, store: PodStore, entry: PodEntry, marks: Callable[[PodEntry], tuple[bool, bool]]) -> None:
        """Tell the scheduler whether a changed, bound pod may be evicted.

        Args:
            marks: returns for a pod whether it is evictable, and whether a budget guards it.
        """
        if self._by_namespace or entry.facts.uid in self._protected:
            self._mark(store, entry, marks)

    def mark_changed(self, store: PodStore, marks: Callable[[PodEntry], tuple[bool, bool]]) -> None:
        """Tell the scheduler which bound pods may be evicted, in namespaces whose budgets have changed.

        Args:
            marks: returns for a pod whether it is evictable, and whether a budget guards it.
        """
        if not self._stale:
            return
        for entry in store.entries.values():
            if entry.facts.namespace in self._stale and entry.facts.node:
                self._mark(store, entry, marks)
        self._stale.clear()

    def pod_deleted(self, uid: str) -> None:
        """Delete the state that is kept of a deleted pod: whether a budget protects it."""
        self._protected.pop(uid, None)

    def protected_victims_note(self, store: PodStore, entry: PodEntry) -> Text:
        """Return a sentence that counts the protected pods which could otherwise be evicted for a waiting pod.

        Returns "" if there are none.
        """
        bundle = entry.bundle
        if bundle is None or not self._protected:
            return ""
        tree, mine = store.scheduler.scheduler.tree, bundle.request
        by: dict[BudgetReference, int] = {}
        for uid, budget in self._protected.items():
            other = store.entries.get(uid)
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
                by[budget] = by.get(budget, 0) + 1
        if not by:
            return ""
        return Message(
            ". {pods} pods that could be evicted are protected now: {budgets}",
            pods=sum(by.values()),
            budgets=Names(tuple(sorted(by, key=lambda budget: budget.value))),
        )

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _mark(self, store: PodStore, entry: PodEntry, marks: Callable[[PodEntry], tuple[bool, bool]]) -> None:
        """Tell the scheduler whether the pod may be evicted, and whether a disruption budget guards it."""
        kept = self.blocking_budget(entry.facts)
        if kept is not None:
            self._protected[entry.facts.uid] = kept
        else:
            self._protected.pop(entry.facts.uid, None)
        evictable, guarded = marks(entry)
        set_evictable(store.scheduler, entry.id, evictable=evictable, guarded=guarded)
