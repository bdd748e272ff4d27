"""End, after a limited time, the allocations of pods that were deleted while their containers still run.

A pod object can disappear before the processes of the pod end: a forced deletion removes the object at once, while the
kubelet may still grant the processes the grace period of an earlier deletion, which can be of any length. No queue is
charged for a pod without an object, so its processes must not keep its devices. They have ``GONE_S`` seconds to end by
themselves. After that the agent ends the allocation: it sends SIGTERM and, a few seconds later, kills the control group
of the container. While the pod object exists, its queue is charged for the pod and the kubelet ends the processes.

A finalizer can keep the object after a forced deletion. The ``GONE_S`` seconds then count from the forced deletion, and
the allocation is ended as soon as the finalizer has been removed and they have passed.

Before the agent ends the processes of a pod, it asks the API server for the pod, because the agent's own copy of the
pods may be incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.node_plugin.claims.store import ClaimStore
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.membership.container import is_of_claim, pod_digits

log = structlog.get_logger(__name__)

GONE_S = 30.0


class HeldAllocations(Protocol):
    """The operations of the node agent that ``DeletedPods`` needs."""

    def records(self) -> list[AllocationRecord]:
        """Return the records of all allocations that are held."""
        ...

    def end(self, allocation: AllocationId, *, reason: str, explanation: str) -> bool:
        """End the processes of an allocation and release it; return True if the allocation existed."""
        ...


class DeletedPods:
    """End the allocations of pods that were deleted more than ``GONE_S`` seconds ago.

    Args:
        agent: the allocations of the node.
        pods: the agent's copy of the pods of the node.
        claims: the prepared claims of the node, with the pods that may use them.
        exists: asks the API server if the pod of an allocation exists; raises CalabashError if it does not answer.
    """

    def __init__(
        self,
        agent: HeldAllocations,
        pods: NodePods,
        claims: ClaimStore,
        exists: Callable[[AllocationRecord], bool],
    ) -> None:
        self._agent = agent
        self._pods = pods
        self._claims = claims
        self._exists = exists
        self._since_s: dict[AllocationId, float] = {}
        self._forced_s: dict[AllocationId, float] = {}  # time of forced deletion of pods that exist

    def reconcile(self, now_s: float) -> None:
        """End the allocations whose pods have not existed for ``GONE_S`` seconds.

        Args:
            now_s: monotonic time in seconds.
        """
        if not self._pods.synced:
            self._since_s.clear()
            self._forced_s.clear()
            return
        records = self._agent.records()
        gone = {record.id: record for record in records if self._is_gone(record.id)}
        self._since_s = {name: self._since_s.get(name, self._forced_s.get(name, now_s)) for name in gone}
        forced = [record.id for record in records if self._pods.deleted_by_force(record.id)]
        self._forced_s = {name: self._forced_s.get(name, now_s) for name in forced}
        for name in self._due(now_s):
            try:
                if self._exists(gone[name]):
                    self._since_s[name] = now_s
                    continue
            except CalabashError as error:
                log.warning(
                    "cannot ask the API server for a pod that seems to be gone", allocation=name, error=error.message
                )
                self._since_s[name] = now_s
                continue
            explanation = f"its pod was deleted {GONE_S:.0f} s ago, and its processes have not ended"
            log.warning("ending the processes of a deleted pod", allocation=name)
            self._agent.end(name, reason=Reason.RECLAIM, explanation=explanation)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _due(self, now_s: float) -> Iterable[AllocationId]:
        return [name for name, since_s in self._since_s.items() if now_s >= since_s + GONE_S]

    def _is_gone(self, allocation: AllocationId) -> bool:
        """Return True if no pod in the agent's copy may use the allocation."""
        if not is_of_claim(allocation):
            return self._pods.of_allocation(allocation) is None
        if not self._claims.holds(allocation):
            return True
        users = self._claims.users(allocation)
        return users is not None and self._pods.of_allocation(allocation) is None


def pod_exists(record: AllocationRecord, fetch: Callable[[str, str], Pod | None]) -> bool:
    """Return True if the pod of an allocation record exists in the API server; always False for a claim's allocation.

    Args:
        fetch: reads a pod from the API server by namespace and name; returns None if it does not exist.
    """
    namespace, _, name = record.user.partition("/")
    if is_of_claim(record.id) or not name:
        return False
    found = fetch(namespace, name)
    return found is not None and pod_digits(found.metadata.uid) == record.id.partition("-")[0]
