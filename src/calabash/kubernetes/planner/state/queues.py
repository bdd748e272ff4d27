"""The tree of queues as the API server has it, and which queue a pod is in."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.state.facts import NamespaceSeen, PodSeen, QueueSeen
from calabash.kubernetes.planner.state.store import Book, Stage
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE
from calabash.sched import QUEUE_DEPTH_MAX, UNLIMITED, Amount, QueueSpec, queue_levels, queue_too_deep

EVICTION_GRACE_S = 300
DEFAULT = QueueSpec(name=DEFAULT_QUEUE)


class KubeQueues:
    """KubeQueues and namespaces. A queue whose object is gone stays, without rights, until nothing of it runs.

    Queues below QUEUE_DEPTH_MAX levels are in ``set_aside`` with the error, and are not in the scheduler's tree.

    Args:
        shard: the part of the cluster; queues of others are known by name only.
    """

    def __init__(self, shard: Shard = ALL) -> None:
        self._shard = shard
        self._elsewhere: dict[str, QueueSeen] = {}
        self.wanted: dict[str, QueueSeen] = {}
        self.set_aside: dict[str, CalabashError] = {}
        self.namespaces: dict[str, NamespaceSeen] = {}
        self.fault = ""

    def see(self, queues: Iterable[QueueSeen]) -> None:
        """All queues that there are."""
        self.wanted, self._elsewhere, self.set_aside = {}, {}, {}
        found = list(queues)
        level = queue_levels({queue.name: queue.parent for queue in found})
        for queue in found:
            if level[queue.name] > QUEUE_DEPTH_MAX:
                self.set_aside[queue.name] = queue_too_deep(queue.name, level[queue.name])
            elif self._shard.has_queue_of(queue.pool):
                self.wanted[queue.name] = queue
            else:
                self._elsewhere[queue.name] = queue

    def specs(self, in_use: Collection[str] = ()) -> list[QueueSpec]:
        """The tree; ``in_use`` names queues that must be in it."""
        specs = {name: spec_of(facts) for name, facts in self.wanted.items()}
        specs.setdefault(DEFAULT_QUEUE, DEFAULT)
        for name in in_use:
            specs.setdefault(name, QueueSpec(name=name, over_quota_weight=0.0))
        return list(specs.values())

    def apply(self, book: Book, kept: Collection[str] = ()) -> None:
        """Give the scheduler the tree; what stands in a queue that is gone is put aside. A tree that cannot be keeps the
        old one, and ``fault`` says why. Queues in ``kept`` are in use as well."""
        waiting = [e for e in book.entries.values() if e.stage is Stage.WAITING and e.bundle]
        gone = [e for e in waiting if e.bundle and not self.is_there(e.bundle.request.queue)]
        for entry in gone:
            book.scheduler.finished(entry.id)
            book.newcomers.pop(entry.id, None)
            error = self.set_aside.get(entry.bundle.request.queue) if entry.bundle else None
            book.put_aside(entry, Reason.NOT_FOUND, error.message if error else "its queue is gone")
        used = {e.bundle.request.queue for e in book.entries.values() if e.bundle and e.id in book.scheduler.known}
        try:
            book.scheduler.set_queues(self.specs({*used, *kept}))
        except CalabashError as error:
            self.fault = error.message
        else:
            self.fault = ""

    def eviction_grace_s(self, name: str) -> int:
        """Return the longest time that an evicted pod of a queue has to end."""
        for _ in range(QUEUE_DEPTH_MAX):
            queue = self.wanted.get(name)
            if queue is None:
                break
            if queue.eviction_grace_s is not None:
                return queue.eviction_grace_s
            name = queue.parent
        return EVICTION_GRACE_S

    def is_there(self, name: str) -> bool:
        """Return True if the planner decides about pods of the queue."""
        return name in self.wanted or (
            name == DEFAULT_QUEUE and name not in self._elsewhere and name not in self.set_aside
        )

    def of(self, pod: PodSeen) -> str:
        """The queue of a pod. Raises CalabashError: it is not there, or the namespace does not allow it."""
        namespace = self.namespaces.get(pod.namespace) or NamespaceSeen(name=pod.namespace)
        own = pod.request.queue if pod.request else ""
        given = namespace.queue or DEFAULT_QUEUE
        if own and own != given and namespace.allowed.isdisjoint((own, "*")):
            raise CalabashError(
                f"namespace {pod.namespace} is in queue {given}, the pod names {own}",
                reason=Reason.NOT_PERMITTED,
                hint=f"leave the queue out, or have the namespace allow {own}",
            )
        name = own or given
        if name in self.set_aside:
            raise self.set_aside[name]
        if name in self._elsewhere:
            pool = self._elsewhere[name].pool
            raise CalabashError(
                f"queue {name} is of {f'pool {pool}' if pool else 'no pool'}, this planner has nodes {self._shard.selector}",
                reason=Reason.CONFLICT,
                hint="make the pod anew: it is then given to the planner of its queue",
            )
        if not self.is_there(name):
            raise CalabashError(f"queue {name} does not exist", reason=Reason.NOT_FOUND, hint="kubectl get queues")
        tenant = self._tenant(name)
        if tenant and tenant != self._tenant(given):
            raise CalabashError(
                f"queue {name} belongs to a tenant, and namespace {pod.namespace} is in a queue of no or another tenant",
                reason=Reason.NOT_PERMITTED,
                hint="leave the queue out, or have the namespace's label name a queue of that tenant",
            )
        return name

    def _tenant(self, queue: str) -> str:
        found = self.wanted.get(queue) or self._elsewhere.get(queue)
        return found.tenant if found is not None else ""


def spec_of(queue: QueueSeen) -> QueueSpec:
    """In the scheduler's words."""
    limit = UNLIMITED if queue.limit is None else UNLIMITED._replace(gpu_milli=round(queue.limit * 1000))
    return QueueSpec(
        name=queue.name,
        parent=queue.parent,
        deserved=Amount(gpu_milli=round(queue.deserved * 1000)),
        limit=limit,
        over_quota_weight=queue.weight,
    )
