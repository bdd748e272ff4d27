"""The pods of this node, as the API server last said, and what their specs mean for the order of containers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import lru_cache

from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.objects.names import PLAN, PLANNED
from calabash.kubernetes.objects.plan import PodPlan, read_plan
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import Mentioned, mention
from calabash.model.request import AllocationId
from calabash.node.membership.container import container_allocation, is_of_claim, pod_digits

PLAN_WAIT_S = 3.0
WAIT_S = 2.0  # the kubelet may hear of a pod a moment before us
ENDED_PHASES = frozenset({"Succeeded", "Failed"})


class NodePods:
    """Fed by a mirror of the node's pods; asked from any thread.

    Args:
        fetch: asks the API server for a pod by namespace and name; for what the mirror has not seen yet.
        users: UIDs of the pods that share what a claim was allocated; None: it is not known.
        plan_wait_s: how long a pod that was bound without a plan is waited for to have one.
    """

    def __init__(
        self,
        fetch: Callable[[str, str], Pod | None],
        *,
        users: Callable[[AllocationId], Collection[str] | None] = lambda _claim: None,
        plan_wait_s: float = PLAN_WAIT_S,
    ) -> None:
        self._fetch = fetch
        self._users = users
        self._plan_wait_s = plan_wait_s
        self._by_digits: dict[str, Pod] = {}  # by what the identifiers of its allocations begin with
        self._news = threading.Condition()
        self.synced = False

    def changed(self, change: MirrorChange[Pod]) -> None:
        """The mirror saw a change."""
        with self._news:
            if change.after is not None:
                self._by_digits[pod_digits(change.after.metadata.uid)] = change.after
            elif change.before is not None:
                self._by_digits.pop(pod_digits(change.before.metadata.uid), None)
            self._news.notify_all()

    def of_allocation(self, allocation: AllocationId) -> Pod | None:
        """The pod that holds it; of those that share a claim's any that is here."""
        digits = [allocation.partition("-")[0]]
        if is_of_claim(allocation):
            digits = [pod_digits(uid) for uid in self._users(allocation) or ()]
        with self._news:
            return next((pod for one in digits if (pod := self._by_digits.get(one)) is not None), None)

    def deleted_by_force(self, allocation: AllocationId) -> bool:
        """Return True if its pod was deleted with a grace period of 0 and its object is still there, as with a finalizer."""
        pod = self.of_allocation(allocation) if not is_of_claim(allocation) else None
        return pod is not None and pod.metadata.deletion_grace_period_seconds == 0

    def known(self, uid: str) -> Pod | None:
        """A pod by its UID, if it has been heard of."""
        with self._news:
            return self._by_digits.get(pod_digits(uid))

    def any_leaves(self, allocations: Iterable[AllocationId]) -> bool:
        """Whether the pod of any of these is gone or going: its object may end before its processes do. What a claim has is
        kept whatever its pods do, but the kubelet gives it back when all of them have gone."""
        return self.synced and any(map(self._leaves, allocations))

    def _leaves(self, allocation: AllocationId) -> bool:
        digits = [allocation.partition("-")[0]]
        if is_of_claim(allocation):
            users = self._users(allocation)
            if users is None:
                return False
            digits = [pod_digits(uid) for uid in users]
        with self._news:
            pods = [self._by_digits.get(one) for one in digits]
        return all(pod is None or ended(pod) or pod.metadata.deletion_timestamp is not None for pod in pods)

    def may_start(self, uid: str) -> bool:
        """Whether a container of it may still be started; every pod may before the pods of the node are known."""
        with self._news:
            pod = self._by_digits.get(pod_digits(uid))
        return not self.synced or (pod is not None and not ended(pod))

    def promised(self, *, but: str = "") -> dict[DeviceUuid, str]:
        """Devices in plans of pods that may still start, each with the mention of a pod.

        Args:
            but: the UID of a pod that does not count.
        """
        with self._news:
            pods = [pod for pod in self._by_digits.values() if pod.metadata.uid != but and not ended(pod)]
        return {
            DeviceUuid(part.device): mention(Mentioned.POD, f"{pod.metadata.namespace}/{pod.metadata.name}")
            for pod in pods
            if (plan := _plan_of(pod)) is not None and plan.node == pod.spec.node_name
            for container in plan.containers
            for part in container.slices
        }

    def find_planned(self, *, uid: str = "", name: str = "") -> Pod:
        """The same, waited for a moment longer until it has a plan or is told why it has none: who bound it may not have asked
        the planner."""
        found = self.find(uid=uid, name=name)
        with self._news:
            self._news.wait_for(lambda: (pod := self._here(uid, name)) is None or _is_decided(pod), self._plan_wait_s)
            return self._here(uid, name) or found

    def find(self, *, uid: str = "", name: str = "") -> Pod:
        """The pod, waited for a moment. Raises CalabashError(NOT_FOUND).

        Args:
            uid: its UID, or
            name: ``namespace/name``.
        """
        with self._news:
            self._news.wait_for(lambda: self._here(uid, name) is not None, WAIT_S)
            found = self._here(uid, name)
        if found is None and name:
            namespace, _, pod = name.partition("/")
            found = self._fetch(namespace, pod)
        if found is None:
            raise CalabashError(
                f"the API server has not told this node of pod {uid or name}",
                reason=Reason.NOT_FOUND,
                hint="static pods cannot have devices; for others this is tried again",
            )
        return found

    def _here(self, uid: str, name: str) -> Pod | None:
        if uid:
            return self._by_digits.get(pod_digits(uid))
        namespace, _, pod = name.partition("/")
        found = (p for p in self._by_digits.values() if p.metadata.name == pod and p.metadata.namespace == namespace)
        return max(found, key=lambda p: p.metadata.creation_timestamp or "", default=None)


_CACHED_MAX = 4096  # characters of a plan that is cached
_cached_plan = lru_cache(maxsize=1024)(read_plan)


def _read_plan(text: str) -> PodPlan:
    return _cached_plan(text) if len(text) <= _CACHED_MAX else read_plan(text)


def _plan_of(pod: Pod) -> PodPlan | None:
    text = pod.metadata.annotations.get(PLAN)
    try:
        plan = _read_plan(text) if text is not None else None
    except CalabashError:
        return None
    return plan if plan is not None and plan.pod_uid == pod.metadata.uid else None


def refusal(pod: Pod) -> str:
    """Why the planner gives a pod that was bound past it no devices; "" while it has not said so."""
    return next((c.message for c in pod.status.conditions if c.type == PLANNED and c.status == "False"), "")


def _is_decided(pod: Pod) -> bool:
    return PLAN in pod.metadata.annotations or bool(refusal(pod))


def ended(pod: Pod) -> bool:
    """Whether none of its containers will ever run again."""
    return pod.status.phase in ENDED_PHASES


def init_names(pod: Pod) -> tuple[str, ...]:
    """Init containers that end before the next one starts, in their order; sidecars are none."""
    return tuple(c.name for c in pod.spec.init_containers if c.restart_policy != "Always")


def start_order(pod: Pod) -> dict[str, int]:
    """When each container may start first; all main containers start together."""
    order = {c.name: number for number, c in enumerate(pod.spec.init_containers)}
    return order | {c.name: len(order) for c in pod.spec.containers}


def done(pod: Pod, container: str, since_s: float = 0.0) -> bool:
    """Whether an init container has ended well, so that it never starts again; ``since_s``: in a sandbox of that age."""
    for status in pod.status.init_container_statuses:
        ended_now = status.state.terminated
        if status.name == container and ended_now is not None:
            return ended_now.exit_code == 0 and is_since(ended_now.finished_at, since_s)
    return False


def is_since(when: str | None, since_s: float) -> bool:
    """Whether a moment that the API server tells, in whole seconds, is not before another; one that is not told is not."""
    try:
        return when is None or datetime.fromisoformat(when).timestamp() + 1 >= since_s
    except ValueError:
        return True


def never_together(pod: Pod, container: str) -> tuple[str, ...]:
    """Init containers that never run at the same time as this container; their devices are its devices as well."""
    order = start_order(pod)
    at = order.get(container, len(order))
    if container in init_names(pod):
        return tuple(n for n in order if n != container and (n in init_names(pod) or order[n] > at))
    return tuple(n for n in init_names(pod) if order[n] < at)


def allocations_of(pod: Pod) -> dict[AllocationId, str]:
    """What each container of a pod would hold: identifier -> container."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return {container_allocation(pod.metadata.uid, c.name): c.name for c in containers}
