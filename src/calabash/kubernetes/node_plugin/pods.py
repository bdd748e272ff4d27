"""Store of the pods of this node, and predicates on pods: ended pods, finished init containers, start order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import lru_cache

from calabash.adapters.kube import KubeClient, Mirror, MirrorChange, MirrorObserver
from calabash.adapters.kube.objects.core import POD, Pod
from calabash.kubernetes.object_limits import keep_node_pod
from calabash.kubernetes.objects.names import PLAN, PLANNED
from calabash.kubernetes.objects.plan import PodPlan, read_plan
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import PodReference
from calabash.model.request import AllocationId
from calabash.node.membership.container import container_allocation, is_of_claim, pod_digits

PLAN_WAIT_S = 3.0
WAIT_S = 2.0  # the kubelet may learn of a pod slightly before the agent does
ENDED_PHASES = frozenset({"Succeeded", "Failed"})


class NodePods:
    """The pods of one node, updated by a mirror of the API server's objects and read from any thread.

    The pods are incomplete until ``synced`` is True.

    Args:
        client: client of the API server.
        node: name of the node.
        observer: gets the failures of the mirror.
        users: returns the UIDs of the pods that may use the allocation of a claim; None if they are not known.
        plan_wait_s: seconds for which ``find_planned`` waits for the plan of a pod.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        *,
        observer: MirrorObserver | None = None,
        users: Callable[[AllocationId], Collection[str] | None] = lambda _claim: None,
        plan_wait_s: float = PLAN_WAIT_S,
    ) -> None:
        self._client = client
        self._users = users
        self._plan_wait_s = plan_wait_s
        self._by_digits: dict[str, Pod] = {}  # key: prefix of the IDs of the pod's allocations
        self._news = threading.Condition()
        self._mirror: Mirror[Pod] = Mirror(
            client,
            POD,
            on_change=self.changed,
            observer=observer,
            keep=keep_node_pod,
            field_selector=f"spec.nodeName={node}",
        )

    def start(self) -> None:
        """Start to watch the pods."""
        self._mirror.start()

    def stop(self) -> None:
        self._mirror.stop()

    @property
    def synced(self) -> bool:
        """Return True if all pods of the node have been received."""
        return self._mirror.synced()

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """Read a pod from the API server, also one that has not been received yet; None if it does not exist.

        Raises:
            CalabashError: the API server does not answer.
        """
        return self._client.get(POD, name, namespace)

    def changed(self, change: MirrorChange[Pod]) -> None:
        """Insert, update or delete a pod, and wake the threads that wait for one. The mirror calls this method."""
        with self._news:
            if change.after is not None:
                self._by_digits[pod_digits(change.after.metadata.uid)] = change.after
            elif change.before is not None:
                self._by_digits.pop(pod_digits(change.before.metadata.uid), None)
            self._news.notify_all()

    def of_allocation(self, allocation: AllocationId) -> Pod | None:
        """Return the pod of an allocation; for a claim's allocation, any pod on this node that may use it."""
        digits = [allocation.partition("-")[0]]
        if is_of_claim(allocation):
            digits = [pod_digits(uid) for uid in self._users(allocation) or ()]
        with self._news:
            return next((pod for one in digits if (pod := self._by_digits.get(one)) is not None), None)

    def deleted_by_force(self, allocation: AllocationId) -> bool:
        """Return True if the pod of the allocation was deleted with a grace period of 0 and its object still exists."""
        pod = self.of_allocation(allocation) if not is_of_claim(allocation) else None
        return pod is not None and pod.metadata.deletion_grace_period_seconds == 0

    def known(self, uid: str) -> Pod | None:
        """Return the pod with a UID, or with the hexadecimal digits of a UID; None if it is not known."""
        with self._news:
            return self._by_digits.get(pod_digits(uid))

    def any_leaves(self, allocations: Iterable[AllocationId]) -> bool:
        """Return True if an allocation will soon be released because its pods are deleted, ended or terminating.

        The allocation of a pod may still exist then, because the pod's processes can outlive its object. The allocation
        of a claim is released when the kubelet unprepares the claim, which it does when all pods of the claim have
        ended.
        """
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
        """Return True if a container of the pod with this UID may still start; True for all pods until ``synced``."""
        with self._news:
            pod = self._by_digits.get(pod_digits(uid))
        return not self.synced or (pod is not None and not ended(pod))

    def promised(self, *, but: str = "") -> dict[DeviceUuid, PodReference]:
        """Return the devices that the plans of this node's pods name, without pods that have ended.

        Args:
            but: UID of a pod whose plan is ignored; "" for none.

        Returns:
            For each device, the name of one pod whose plan names it.
        """
        with self._news:
            pods = [pod for pod in self._by_digits.values() if pod.metadata.uid != but and not ended(pod)]
        return {
            DeviceUuid(part.device): PodReference(f"{pod.metadata.namespace}/{pod.metadata.name}")
            for pod in pods
            if (plan := _plan_of(pod)) is not None and plan.node == pod.spec.node_name
            for container in plan.containers
            for part in container.slices
        }

    def find_planned(self, *, uid: str = "", name: str = "") -> Pod:
        """Return a pod as ``find`` does, but wait until it has a plan or a condition that says why it gets none.

        A pod that another scheduler bound without asking the planner gets its plan only after it was bound. If there is
        neither plan nor condition after ``plan_wait_s`` seconds, the pod is returned as it is.

        Raises:
            CalabashError: NOT_FOUND if the pod is not known.
        """
        found = self.find(uid=uid, name=name)
        with self._news:
            self._news.wait_for(
                lambda: (pod := self._known_pod(uid, name)) is None or _is_decided(pod), self._plan_wait_s
            )
            return self._known_pod(uid, name) or found

    def find(self, *, uid: str = "", name: str = "") -> Pod:
        """Return a pod by its UID or, if ``uid`` is "", by its name. Wait up to ``WAIT_S`` seconds for it.

        Args:
            uid: UID of the pod.
            name: ``namespace/name`` of the pod.

        Raises:
            CalabashError: NOT_FOUND if the pod is not known.
        """
        with self._news:
            self._news.wait_for(lambda: self._known_pod(uid, name) is not None, WAIT_S)
            found = self._known_pod(uid, name)
        if found is None and name:
            namespace, _, pod = name.partition("/")
            found = self.fetch(namespace, pod)
        if found is None:
            raise CalabashError(
                f"pod {uid or name} is not known to the agent of this node",
                reason=Reason.NOT_FOUND,
                hint="static pods cannot have devices; for other pods the kubelet tries again",
            )
        return found

    def _known_pod(self, uid: str, name: str) -> Pod | None:
        if uid:
            return self._by_digits.get(pod_digits(uid))
        namespace, _, pod = name.partition("/")
        found = (p for p in self._by_digits.values() if p.metadata.name == pod and p.metadata.namespace == namespace)
        return max(found, key=lambda p: p.metadata.creation_timestamp or "", default=None)


_CACHED_MAX = 4096  # longest plan that is cached, in characters
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
    """Return the planner's reason for giving no plan to a pod that another scheduler bound; "" if there is none."""
    return next((c.message for c in pod.status.conditions if c.type == PLANNED and c.status == "False"), "")


def _is_decided(pod: Pod) -> bool:
    return PLAN in pod.metadata.annotations or bool(refusal(pod))


def ended(pod: Pod) -> bool:
    """Return True if no container of the pod will run again."""
    return pod.status.phase in ENDED_PHASES


def init_names(pod: Pod) -> tuple[str, ...]:
    """Return the names of the init containers, without sidecars, in their order."""
    return tuple(c.name for c in pod.spec.init_containers if c.restart_policy != "Always")


def start_order(pod: Pod) -> dict[str, int]:
    """Return the position of each container in the order in which the kubelet starts them, by container name.

    Init containers and sidecars start one after the other. All main containers have the same, last position.
    """
    order = {c.name: number for number, c in enumerate(pod.spec.init_containers)}
    return order | {c.name: len(order) for c in pod.spec.containers}


def done(pod: Pod, container: str, since_s: float = 0.0) -> bool:
    """Return True if an init container has succeeded in the current sandbox, so that it does not start again.

    Args:
        pod: the pod.
        container: name of the init container.
        since_s: start of the pod's current sandbox, in seconds since the epoch. In a new sandbox, all init containers
            run again.
    """
    for status in pod.status.init_container_statuses:
        ended_now = status.state.terminated
        if status.name == container and ended_now is not None:
            return ended_now.exit_code == 0 and is_since(ended_now.finished_at, since_s)
    return False


def is_since(when: str | None, since_s: float) -> bool:
    """Return True if a time in an API object is ``since_s`` or later, or if it is None or invalid.

    The API server cuts off fractions of a second, so the actual time may be up to one second later than the written
    one. In doubt the result is True.
    """
    try:
        return when is None or datetime.fromisoformat(when).timestamp() + 1 >= since_s
    except ValueError:
        return True


def never_together(pod: Pod, container: str) -> tuple[str, ...]:
    """Return the containers whose devices this container may get, because the two never run at the same time.

    For an init container these are the other init containers and all later containers. For another container these are
    the init containers before it. Sidecars run together with other containers.
    """
    order = start_order(pod)
    at = order.get(container, len(order))
    if container in init_names(pod):
        return tuple(n for n in order if n != container and (n in init_names(pod) or order[n] > at))
    return tuple(n for n in init_names(pod) if order[n] < at)


def allocations_of(pod: Pod) -> dict[AllocationId, str]:
    """Return the allocation ID that each container of a pod gets if it is granted devices, with its name."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return {container_allocation(pod.metadata.uid, c.name): c.name for c in containers}
