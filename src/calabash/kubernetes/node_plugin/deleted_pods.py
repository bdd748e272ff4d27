"""End the allocations of pods that were deleted from the API server while their containers still run, after a limited time.

A pod's object can end before its processes do: a forced deletion removes it at once, while the kubelet still grants the
processes the grace period of an earlier deletion, of whatever length. Nobody is charged for such a pod any more, so its
processes must not keep its devices. They get ``GONE_S`` to end by themselves; then the agent ends the allocation, which sends
SIGTERM and, a few seconds later, kills the control group of the container. Where a finalizer has kept the object after a
forced deletion, the time counts from that deletion: nothing else is waited for when the finalizer is removed. While the
object is there, its queue is charged for the pod, and the kubelet ends the processes.

A pod that only this node's mirror lacks is not gone: the API server is asked for each pod before its processes are ended.
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
    """The operations of the agent that the removal of departed pods needs."""

    def records(self) -> list[AllocationRecord]:
        """Return the records of all allocations that are held."""
        ...

    def end(self, allocation: AllocationId, *, reason: str, explanation: str) -> bool:
        """End the programs of an allocation, and release it."""
        ...


class DeletedPods:
    """End the allocations of pods that were deleted more than ``GONE_S`` seconds ago.

    Args:
        exists: ask the API server if the pod of an allocation exists; raises CalabashError if it does not
            answer.
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
        """End the allocations of pods that have been gone for ``GONE_S`` seconds. ``now_s`` is monotonic time."""
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
        """Return True if no known pod may use the allocation."""
        if not is_of_claim(allocation):
            return self._pods.of_allocation(allocation) is None
        if not self._claims.holds(allocation):
            return True
        users = self._claims.users(allocation)
        return users is not None and self._pods.of_allocation(allocation) is None


def pod_exists(record: AllocationRecord, fetch: Callable[[str, str], Pod | None]) -> bool:
    """Return True if the pod of a record exists in the API server; always False for the record of a claim."""
    namespace, _, name = record.user.partition("/")
    if is_of_claim(record.id) or not name:
        return False
    found = fetch(namespace, name)
    return found is not None and pod_digits(found.metadata.uid) == record.id.partition("-")[0]
