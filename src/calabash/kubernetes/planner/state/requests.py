"""Convert pods to requests of the binder: bundle, queue, gang, priority and placement constraints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from calabash.binder.cluster.bundle import Bundle, Part
from calabash.binder.cluster.cluster import BundleRequest
from calabash.binder.cluster.moves import set_movable
from calabash.kubernetes.dialects.translate import with_least_isolation
from calabash.kubernetes.objects.names import HOSTNAME
from calabash.kubernetes.planner.state.budgets import Budgets
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.state.gang_members import WaitingRiders, stated_gang
from calabash.kubernetes.planner.state.gang_permits import GangName
from calabash.kubernetes.planner.state.node_backoff import NodeBackoff
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.planner.state.queues import KubeQueues
from calabash.kubernetes.planner.state.store import PodStore
from calabash.kubernetes.pod_request import ContainerKind, GangSource, PodRequest, isolation_named
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE
from calabash.sched import NODE_LEVEL, GangTopology

SYSTEM_PRIORITY_MIN = 2_000_000_000  # system-cluster-critical and above are never evicted for others
SYSTEM_NAMESPACES = frozenset(("kube-system", "calabash-system"))

_at_least_kept = lru_cache(maxsize=4096)(with_least_isolation)  # requests of one job are the same


def _at_least(asked: PodRequest, word: str) -> PodRequest:
    return _at_least_kept(asked, isolation_named(word))


def has_begun(facts: PodFacts) -> bool:
    """Return True if the pod is bound and has a plan for its node.

    Such a pod may be running, so its devices are counted even if its queue or namespace would not permit them now.
    """
    return bool(facts.node) and facts.plan is not None and facts.plan.node == facts.node


GroupName = tuple[str, str, str]
"""Source, namespace and name."""


class PodRequests:
    """Converter of pods to the binder's requests, with the rules that a request depends on.

    Attributes:
        groups: number of members that must start together, by gang group object.
        budgets: disruption budgets, and the pods that they protect.
        riders: UIDs of members that request no devices (stage RIDING), by gang.
        waiting_riders: those of them that wait for the plans of the others.
        node_backoff: nodes on which kube-scheduler refused pods of a controller.
    """

    def __init__(self, store: PodStore, queues: KubeQueues, system_namespaces: frozenset[str]) -> None:
        self._store = store
        self._queues = queues
        self._system_namespaces = system_namespaces
        self.groups: dict[GroupName, int] = {}
        self.budgets = Budgets()
        self.node_backoff = NodeBackoff()
        self.riders: dict[GangName, set[str]] = {}
        self.waiting_riders = WaitingRiders(store)
        self._resized_gangs: set[GangName] = set()

    def set_bundle(self, entry: PodEntry) -> bool:
        """Set the entry's bundle (its request to the scheduler) from the pod's facts; return True if it has one.

        A pod that needs no devices of its own (``PodFacts.rides``) has no bundle. If the pod's request, queue or gang
        is invalid or unknown, the pod is added to ``PodStore.aside`` instead.
        """
        store, facts = self._store, entry.facts
        if facts.request is None and not facts.rides:
            store.list_aside(entry, Reason.BAD_REQUEST, facts.fault)
            return False
        size = self._size(entry)
        if size is None:
            return False
        if facts.waits_for:
            store.list_aside(entry, Reason.NOT_FOUND, facts.waits_for)
            return False
        if facts.request is None or facts.rides:
            store.set_bundle(entry, None)
            return False
        try:
            bundle = bundle_of(
                self._isolated(facts),
                tenant=facts.namespace,
                queue=self._queue(facts),
                priority=self.priority(facts),
                gang_size=size,
            )
        except CalabashError as error:
            store.list_aside(entry, error.reason, f"{error.message}; {error.hint}" if error.hint else error.message)
            return False
        store.set_bundle(entry, bundle)
        return True

    def _size(self, entry: PodEntry) -> int | None:
        """Return the number of gang members for which the scheduler waits; members without devices do not count.

        If the pod's gang group does not exist, the pod is added to ``PodStore.aside``, and the result is None.
        """
        store, facts = self._store, entry.facts
        name, source, size = stated_gang(facts)
        if source not in (GangSource.NONE, GangSource.ANNOTATION):
            known = self.groups.get((source, facts.namespace, name))
            if known is None and not (facts.node or (facts.rides and facts.member is None)):
                store.list_aside(entry, Reason.GANG_INCOMPLETE, f"{source} group {name} does not exist")
                return None
            size = known or 1
        if not name:
            return size
        gang = (facts.namespace, name)
        self._join(entry, gang, size)
        return max(1, size - len(self.riders.get(gang, ())))

    def _join(self, entry: PodEntry, gang: GangName, size: int) -> None:
        """Add the pod to its gang, of which ``size`` members must start together.

        The scheduler does not wait for members that request no devices (``riders``).
        """
        self._store.set_gang(entry, gang, size)
        riders = self.riders.setdefault(gang, set()) if entry.facts.rides else self.riders.get(gang)
        if riders is None or (entry.facts.uid in riders) is entry.facts.rides:
            return
        riders ^= {entry.facts.uid}
        self._resized_gangs.add(gang)

    def set_group(self, name: GroupName, needed: int | None) -> None:
        """Insert or update a gang group object, of which ``needed`` pods must start together; None deletes it."""
        if needed is None:
            self.groups.pop(name, None)
        else:
            self.groups[name] = needed

    def take_resized_gangs(self) -> set[GangName]:
        """Return and forget the gangs in which the number of members without devices (``riders``) has changed.

        The waiting members of these gangs must be submitted to the scheduler again.
        """
        resized, self._resized_gangs = self._resized_gangs, set()
        return resized

    def pod_deleted(self, entry: PodEntry) -> None:
        """Remove a deleted pod from the members of its gang that request no devices (``riders``)."""
        riders = self.riders.get(entry.gang) if entry.gang is not None else None
        if riders is not None and entry.gang is not None and entry.facts.uid in riders:
            riders.discard(entry.facts.uid)
            self._resized_gangs.add(entry.gang)

    def _queue(self, facts: PodFacts) -> str:
        """Return the pod's queue.

        A pod that is bound with a plan (``has_begun``) is counted in the default queue if its own queue was deleted.
        Raises CalabashError for any other pod if its queue does not exist or its namespace may not use it.
        """
        try:
            queue = self._queues.queue_of(facts)
        except CalabashError:
            if not has_begun(facts):
                raise
            queue = DEFAULT_QUEUE
        if has_begun(facts) and queue not in self._store.scheduler.scheduler.tree.form.leaves:
            queue = DEFAULT_QUEUE
        return queue

    def _isolated(self, facts: PodFacts) -> PodRequest:
        """Return the request with at least the isolation level of the pod's namespace.

        A pod that is bound with a plan keeps the level with which it started. Raises CalabashError if the pod requests
        something that this level does not permit.
        """
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

    def bundle_request(self, entry: PodEntry, now_s: float = 0.0) -> BundleRequest:
        """Return the request that is submitted to the scheduler. The entry must have a bundle."""
        facts = entry.facts
        assert entry.bundle is not None
        node_backoff = (
            () if facts.uses_our_scheduler or facts.candidate_nodes else self.node_backoff.selector(facts.owner)
        )
        pinned = (
            (f"{HOSTNAME} in ({','.join(self._store.hostnames.get(n, n) for n in facts.pins)})",) if facts.pins else ()
        )
        more = (*node_backoff, *pinned)
        constraints = (
            replace(facts.constraints, selector=(*facts.constraints.selector, *more)) if more else facts.constraints
        )
        return BundleRequest(
            id=entry.id,
            bundle=entry.bundle,
            constraints=constraints,
            submitted_at_s=facts.created_at_s,
            owner=facts.namespace,
            evictable=self.evictable(entry, now_s),
            guarded=self.guarded(entry),
            topology=topology_of(facts, self._store.scheduler.scheduler.cluster.levels),
            rank=facts.member.topology.rank if facts.member is not None and facts.member.topology is not None else None,
        )

    def evictable(self, entry: PodEntry, now_s: float) -> bool:
        """Return True if the pod may be evicted for other pods now, apart from disruption budgets (``guarded``)."""
        return not (self.priority(entry.facts) >= SYSTEM_PRIORITY_MIN or entry.protected_until_s > now_s)

    def guarded(self, entry: PodEntry) -> bool:
        """Return True if a disruption budget protects the pod; it is then evicted only if its devices are borrowed."""
        return bool(self.budgets.blocking_budget(entry.facts))

    def eviction_marks(self, entry: PodEntry, now_s: float) -> tuple[bool, bool]:
        """Return the values of ``evictable`` and ``guarded`` for the pod."""
        return self.evictable(entry, now_s), self.guarded(entry)

    def priority(self, facts: PodFacts) -> int:
        """Return the pod's priority.

        A system priority counts only in system namespaces and is replaced by 0 elsewhere, because any user may name one
        in a pod and would otherwise be protected from eviction.
        """
        if facts.priority >= SYSTEM_PRIORITY_MIN and facts.namespace not in self._system_namespaces:
            return 0
        return facts.priority

    def eviction_grace_s(self, entry: PodEntry) -> int:
        """Return the longest termination grace period for the pod's eviction in seconds, which its queue sets."""
        return self._queues.eviction_grace_s(entry.bundle.request.queue if entry.bundle is not None else DEFAULT_QUEUE)

    def mark_movable(self, entry: PodEntry) -> None:
        """Tell the scheduler whether a movable pod may be moved now.

        The pod must be bound. Members of gangs and pods that share claims are not moved, because they would have to be
        moved together.
        """
        facts = entry.facts
        if facts.movable:
            alone = entry.gang is None and not self._store.claims.sharers(facts.uid)
            movable = entry.stage is Stage.BOUND and not facts.leaving and alone and entry.bundle is not None
            constraints = self.bundle_request(entry).constraints if movable else facts.constraints
            set_movable(self._store.scheduler, entry.id, movable=movable, constraints=constraints)


def topology_of(facts: PodFacts, levels: Collection[str]) -> GangTopology | None:
    """Return the topology request of a member of a gang; None if it has none of levels that the planner knows.

    Args:
        levels: levels of the scheduler. Admission writes only levels of the cluster, but the setting may have changed.
    """
    asked = facts.member.topology if facts.member is not None else None
    if asked is None:
        return None
    names = {HOSTNAME: NODE_LEVEL, **{level: level for level in levels}}
    slice_level = names.get(asked.slice_level, "") if asked.slice_size else ""
    required, preferred = names.get(asked.required, ""), names.get(asked.preferred, "")
    if not (required or preferred or slice_level):
        return None
    return GangTopology(
        required=required,
        preferred=preferred,
        slice_level=slice_level,
        slice_size=asked.slice_size if slice_level else 0,
        group=asked.group,
    )


@lru_cache(maxsize=256)
def phases_of(kinds: tuple[ContainerKind, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the phases of a pod: for each phase, the indexes of the containers that run at the same time.

    Each init container runs in a phase of its own, with the sidecars before it. In the last phase all main containers
    run with all sidecars.
    """
    phases: list[tuple[int, ...]] = []
    sidecars: list[int] = []
    main: list[int] = []
    for number, kind in enumerate(kinds):
        if kind is ContainerKind.SIDECAR:
            sidecars.append(number)
        elif kind is ContainerKind.INIT:
            phases.append((*sidecars, number))
        else:
            main.append(number)
    if sidecars or main:
        phases.append((*sidecars, *main))
    return tuple(phases)


@lru_cache(maxsize=4096)  # pods of one job ask for the same
def bundle_of(asked: PodRequest, *, tenant: str, queue: str, priority: int, gang_size: int) -> Bundle:
    """Return the bundle of a pod.

    Args:
        asked: the request as the pod states it.
        tenant, queue, priority, gang_size: values that replace those of the request.

    Raises:
        CalabashError: the containers disagree in selector, queue or gang.
    """
    parts = tuple(
        Part(
            name=c.container,
            request=replace(c.request, tenant=tenant, queue=queue, priority=priority, gang_size=gang_size),
        )
        for c in asked.containers
    )
    return Bundle(parts=parts, phases=phases_of(tuple(c.kind for c in asked.containers)))
