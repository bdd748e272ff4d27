"""What a pod asks for in the binder's words: its bundle, its queue, its gang, where it may go."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from calabash.binder.cluster.cluster import BundleRequest
from calabash.binder.cluster.moves import set_movable
from calabash.kubernetes.dialects.translate import with_least_isolation
from calabash.kubernetes.planner.state.affinity import HOSTNAME
from calabash.kubernetes.planner.state.budgets import Budgets
from calabash.kubernetes.planner.state.bundles import bundle_of
from calabash.kubernetes.planner.state.facts import PodSeen
from calabash.kubernetes.planner.state.gang_permits import GangName
from calabash.kubernetes.planner.state.node_backoff import Shunned
from calabash.kubernetes.planner.state.queues import KubeQueues
from calabash.kubernetes.planner.state.store import Book, Entry, Stage
from calabash.kubernetes.pod_request import GangSource, PodRequest, isolation_named
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE

SYSTEM_PRIORITY_MIN = 2_000_000_000  # system-cluster-critical and above are never stopped for others
SYSTEM_NAMESPACES = frozenset(("kube-system", "calabash-system"))

_at_least_kept = lru_cache(maxsize=4096)(with_least_isolation)  # requests of one job are the same


def _at_least(asked: PodRequest, word: str) -> PodRequest:
    return _at_least_kept(asked, isolation_named(word))


def has_begun(facts: PodSeen) -> bool:
    """Return True if the pod is on a node with a plan for it: what it holds is counted as it is."""
    return bool(facts.node) and facts.plan is not None and facts.plan.node == facts.node


GroupName = tuple[str, str, str]
"""Source, namespace and name."""


class Wishes:
    """See the module's description.

    Attributes:
        groups: members that each gang object asks for.
        budgets: whom disruption budgets keep.
        riders: members of gangs that ask for nothing themselves.
        resized: gangs of which the scheduler is to wait for more or fewer members than it was told.
        shunned: nodes that kube-scheduler refused to an owner's pods.
    """

    def __init__(self, book: Book, queues: KubeQueues, system_namespaces: frozenset[str]) -> None:
        self._book = book
        self._queues = queues
        self._system_namespaces = system_namespaces
        self.groups: dict[GroupName, int] = {}
        self.budgets = Budgets()
        self.shunned = Shunned()
        self.riders: dict[GangName, set[str]] = {}
        self.resized: set[GangName] = set()

    def describe(self, entry: Entry) -> bool:
        """What it asks for, in the binder's words; False when it was put aside for want of it."""
        book, facts = self._book, entry.facts
        if facts.request is None and not facts.rides:
            book.put_aside(entry, Reason.BAD_REQUEST, facts.fault)
            return False
        size = self._size(entry)
        if size is None:
            return False
        if facts.waits_for:
            book.put_aside(entry, Reason.NOT_FOUND, facts.waits_for)
            return False
        if facts.request is None or facts.rides:
            entry.bundle = None
            return False
        try:
            entry.bundle = bundle_of(
                self._isolated(facts),
                tenant=facts.namespace,
                queue=self._queue(facts),
                priority=self.priority(facts),
                gang_size=size,
            )
        except CalabashError as error:
            book.put_aside(entry, error.reason, f"{error.message}; {error.hint}" if error.hint else error.message)
            return False
        return True

    def _size(self, entry: Entry) -> int | None:
        """How many members of its gang the scheduler waits for; None when it was put aside for want of the gang."""
        book, facts = self._book, entry.facts
        if facts.request is None:
            return 1
        first = facts.request.containers[0].request
        size = first.gang_size
        if facts.request.gang_source not in (GangSource.NONE, GangSource.ANNOTATION):
            known = self.groups.get((facts.request.gang_source, facts.namespace, first.gang))
            if known is None and not facts.node:
                book.put_aside(
                    entry, Reason.GANG_INCOMPLETE, f"there is no {facts.request.gang_source} group {first.gang}"
                )
                return None
            size = known or 1
        if not first.gang:
            return size
        gang = (facts.namespace, first.gang)
        self._join(entry, gang, size)
        return max(1, size - len(self.riders.get(gang, ())))

    def _join(self, entry: Entry, gang: GangName, size: int) -> None:
        """It is a member. One that rides asks the scheduler for nothing, which must not wait for it."""
        entry.gang = gang
        self._book.permits.join(entry.facts.uid, gang, size)
        riders = self.riders.setdefault(gang, set()) if entry.facts.rides else self.riders.get(gang)
        if riders is None or (entry.facts.uid in riders) is entry.facts.rides:
            return
        riders ^= {entry.facts.uid}
        self.resized.add(gang)

    def forget(self, entry: Entry) -> None:
        """It is gone."""
        riders = self.riders.get(entry.gang) if entry.gang is not None else None
        if riders is not None and entry.gang is not None and entry.facts.uid in riders:
            riders.discard(entry.facts.uid)
            self.resized.add(entry.gang)

    def _queue(self, facts: PodSeen) -> str:
        """Its queue. A pod that has its plan is counted, whatever became of its queue; one that others bound past the planner
        needs a queue that it may use.
        """
        try:
            queue = self._queues.of(facts)
        except CalabashError:
            if not has_begun(facts):
                raise
            queue = DEFAULT_QUEUE
        if has_begun(facts) and queue not in self._book.scheduler.scheduler.tree.form.leaves:
            queue = DEFAULT_QUEUE
        return queue

    def _isolated(self, facts: PodSeen) -> PodRequest:
        """The request at the least level of its namespace. What has its plan keeps the level that it was given."""
        assert facts.request is not None
        namespace = self._queues.namespaces.get(facts.namespace)
        if namespace is None or not namespace.isolation or has_begun(facts):
            return facts.request
        try:
            return _at_least(facts.request, namespace.isolation)
        except CalabashError as error:
            raise CalabashError(
                f"namespace {facts.namespace} demands isolation {namespace.isolation[:64]}: {error.message}",
                reason=error.reason,
                hint=error.hint,
            ) from error

    def request(self, entry: Entry, now_s: float = 0.0) -> BundleRequest:
        facts = entry.facts
        assert entry.bundle is not None
        shunned = () if facts.own or facts.confined else self.shunned.selector(facts.owner)
        pinned = (
            (f"{HOSTNAME} in ({','.join(self._book.hostnames.get(n, n) for n in facts.pins)})",) if facts.pins else ()
        )
        more = (*shunned, *pinned)
        wish = replace(facts.wish, selector=(*facts.wish.selector, *more)) if more else facts.wish
        return BundleRequest(
            id=entry.id,
            bundle=entry.bundle,
            wish=wish,
            submitted_at_s=facts.created_at_s,
            owner=facts.namespace,
            evictable=self.evictable(entry, now_s),
            guarded=self.guarded(entry),
        )

    def evictable(self, entry: Entry, now_s: float) -> bool:
        """Return True if it may be stopped for others now, at least where it borrows (``guarded``)."""
        return not (self.priority(entry.facts) >= SYSTEM_PRIORITY_MIN or entry.protected_until_s > now_s)

    def guarded(self, entry: Entry) -> bool:
        """Return True if a disruption budget keeps it, as far as it is within what its queue is guaranteed."""
        return bool(self.budgets.keeps(entry.facts))

    def marks(self, entry: Entry, now_s: float) -> tuple[bool, bool]:
        """Return ``evictable`` and ``guarded``."""
        return self.evictable(entry, now_s), self.guarded(entry)

    def priority(self, facts: PodSeen) -> int:
        """Return the pod's priority. Every user may name a class of the system's: it counts in the system's namespaces only."""
        if facts.priority >= SYSTEM_PRIORITY_MIN and facts.namespace not in self._system_namespaces:
            return 0
        return facts.priority

    def eviction_grace_s(self, entry: Entry) -> int:
        """Return the longest time that the pod has to end when it is evicted: its queue's."""
        return self._queues.eviction_grace_s(entry.bundle.request.queue if entry.bundle is not None else DEFAULT_QUEUE)

    def mark_movable(self, entry: Entry) -> None:
        """Whether it may be stopped to start elsewhere: it runs, and is no member of a gang, which would have to go as a
        whole."""
        facts = entry.facts
        if facts.movable:
            alone = entry.gang is None and not self._book.claims.sharers(facts.uid)
            movable = entry.stage is Stage.BOUND and not facts.leaving and alone and entry.bundle is not None
            wish = self.request(entry).wish if movable else facts.wish
            set_movable(self._book.scheduler, entry.id, movable=movable, wish=wish)
