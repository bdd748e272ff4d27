"""Queue tree from the API server's queue objects, and the choice of each pod's queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.state.facts import NamespaceFacts, PodFacts, QueueFacts
from calabash.kubernetes.planner.state.pod_lifecycle import PodEvent, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE
from calabash.sched import QUEUE_DEPTH_MAX, UNLIMITED, Amount, QueueSpec, queue_levels, queue_too_deep

EVICTION_GRACE_S = 300
DEFAULT = QueueSpec(name=DEFAULT_QUEUE)


class KubeQueues:
    """Queues and namespaces of the API server, from which the scheduler's queue tree is built.

    A deleted queue stays in the tree, without quota, while pods in it run. Queues that are nested deeper than
    QUEUE_DEPTH_MAX levels are not in the tree, but in ``too_deep`` with the error for their pods.

    Args:
        shard: the part of the cluster for which the planner decides. Queues of other parts are not in the tree.
    """

    def __init__(self, shard: Shard = ALL) -> None:
        self._shard = shard
        self._of_other_planners: dict[str, QueueFacts] = {}
        self.own: dict[str, QueueFacts] = {}
        self.too_deep: dict[str, CalabashError] = {}
        self.namespaces: dict[str, NamespaceFacts] = {}
        self.fault = ""

    def set_queues(self, queues: Iterable[QueueFacts]) -> None:
        """Replace all queues."""
        self.own, self._of_other_planners, self.too_deep = {}, {}, {}
        found = list(queues)
        level = queue_levels({queue.name: queue.parent for queue in found})
        for queue in found:
            if level[queue.name] > QUEUE_DEPTH_MAX:
                self.too_deep[queue.name] = queue_too_deep(queue.name, level[queue.name])
            elif self._shard.has_queue_of(queue.pool):
                self.own[queue.name] = queue
            else:
                self._of_other_planners[queue.name] = queue

    def put_namespace(self, facts: NamespaceFacts) -> bool:
        """Insert or update a namespace; return True if it has changed."""
        changed = self.namespaces.get(facts.name) != facts
        self.namespaces[facts.name] = facts
        return changed

    def specs(self, in_use: Collection[str] = ()) -> list[QueueSpec]:
        """Return the queues for the scheduler. Deleted queues are included if ``in_use`` names them."""
        specs = {name: spec_of(facts) for name, facts in self.own.items()}
        specs.setdefault(DEFAULT_QUEUE, DEFAULT)
        for name in in_use:
            specs.setdefault(name, QueueSpec(name=name, over_quota_weight=0.0))
        return list(specs.values())

    def apply(self, store: PodStore, kept: Collection[str] = ()) -> None:
        """Replace the scheduler's queue tree, and set pods aside that wait in a deleted queue.

        If the new tree is invalid, the old one stays and ``fault`` explains the error.

        Args:
            kept: queues that must stay in the tree although no pod of the store uses them.
        """
        waiting = [e for e in store.entries.values() if e.stage is Stage.WAITING and e.bundle]
        gone = [e for e in waiting if e.bundle and not self.is_known(e.bundle.request.queue)]
        for entry in gone:
            error = self.too_deep.get(entry.bundle.request.queue) if entry.bundle else None
            text = error.message if error else "the queue of the pod was deleted"
            store.set_aside(entry, PodEvent.UNPLANNABLE)
            store.list_aside(entry, Reason.NOT_FOUND, text)
        used = {e.bundle.request.queue for e in store.entries.values() if e.bundle and e.id in store.scheduler.known}
        try:
            store.scheduler.set_queues(self.specs({*used, *kept}))
        except CalabashError as error:
            self.fault = error.message
        else:
            self.fault = ""

    def eviction_grace_s(self, name: str) -> int:
        """Return the longest termination grace period of evicted pods of a queue, in seconds."""
        for _ in range(QUEUE_DEPTH_MAX):
            queue = self.own.get(name)
            if queue is None:
                break
            if queue.eviction_grace_s is not None:
                return queue.eviction_grace_s
            name = queue.parent
        return EVICTION_GRACE_S

    def is_known(self, name: str) -> bool:
        """Return True if this planner decides about pods of the queue."""
        return name in self.own or (
            name == DEFAULT_QUEUE and name not in self._of_other_planners and name not in self.too_deep
        )

    def queue_of(self, pod: PodFacts) -> str:
        """Return the queue of a pod.

        Raises:
            CalabashError: the queue does not exist, is nested too deeply, or belongs to another planner, or the pod's
                namespace may not use it.
        """
        namespace = self.namespaces.get(pod.namespace) or NamespaceFacts(name=pod.namespace)
        own = pod.request.queue if pod.request else ""
        given = namespace.queue or DEFAULT_QUEUE
        if own and own != given and namespace.allowed.isdisjoint((own, "*")):
            raise CalabashError(
                f"namespace {pod.namespace} is in queue {given}, the pod names {own}",
                reason=Reason.NOT_PERMITTED,
                hint=f"leave the queue out, or have the namespace allow {own}",
            )
        name = own or given
        if name in self.too_deep:
            raise self.too_deep[name]
        if name in self._of_other_planners:
            pool = self._of_other_planners[name].pool
            raise CalabashError(
                f"queue {name} is of {f'pool {pool}' if pool else 'no pool'}, this planner has nodes {self._shard.selector}",
                reason=Reason.CONFLICT,
                hint="recreate the pod: it is then assigned to the planner of its queue",
            )
        if not self.is_known(name):
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
        found = self.own.get(queue) or self._of_other_planners.get(queue)
        return found.tenant if found is not None else ""


def common_past_use(
    past: Mapping[str, tuple[float, float]], now_s: float, half_life_s: float
) -> tuple[dict[str, float], float]:
    """Return the past use of queues at one time, the latest at which one of them was counted, and this time.

    Args:
        past: past use in device-seconds, and the time at which it was counted, by queue. Times after ``now_s`` are taken
            as ``now_s``, because the planner that wrote them may have had another clock.
    """
    if half_life_s <= 0 or not past:
        return {}, now_s
    at_s = min(now_s, max(counted_at_s for _, counted_at_s in past.values()))
    return {
        name: device_s * 0.5 ** (max(0.0, at_s - counted_at_s) / half_life_s)
        for name, (device_s, counted_at_s) in past.items()
    }, at_s


def spec_of(queue: QueueFacts) -> QueueSpec:
    """Return the queue in the scheduler's form, in which one device is 1000 ``gpu_milli``."""
    limit = UNLIMITED if queue.limit is None else UNLIMITED._replace(gpu_milli=round(queue.limit * 1000))
    return QueueSpec(
        name=queue.name,
        parent=queue.parent,
        deserved=Amount(gpu_milli=round(queue.deserved * 1000)),
        limit=limit,
        over_quota_weight=queue.weight,
    )
