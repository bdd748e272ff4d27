"""Retention of allocations: for how long the allocation of a pod or of a claim is kept.

A pod's allocation is kept as long as its container may run, by the last known state of the pod; a claim's until it is
unprepared or deallocated. An allocation with member processes is always kept.
"""

from __future__ import annotations

from collections.abc import Callable

from calabash.adapters.host.processes import Process, alive
from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.node_plugin.claims.store import ClaimStore
from calabash.kubernetes.node_plugin.pods import NodePods, done, ended, init_names, is_since
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId
from calabash.node.allocations.retention import RetentionPolicy
from calabash.node.membership.container import container_allocation, is_of_claim


class PodTenure:
    """Retention of allocations of pods, see ``node.allocations.retention.RetentionPolicy``.

    Everything is kept until the pods of the node are known.

    Args:
        since_s: return the start of the sandbox of a pod, by its UID (``ContainerMembership.sandbox_since_s``).
    """

    def __init__(self, pods: NodePods, since_s: Callable[[str], float] = lambda _uid: 0.0) -> None:
        self._pods = pods
        self._since_s = since_s

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        del held_ns
        if not self._pods.synced:
            return True
        pod = self._pods.of_allocation(record.id)
        return pod is not None and not ended(pod) and not self._is_over(pod, record.id)

    def is_abandoned(self, record: AllocationRecord) -> bool:
        """Return True if the container will not run again, or if the sandbox of the allocation has ended.

        In the next sandbox of the pod all containers start again, with new allocations.
        """
        sandbox = Process(pid=record.client_pid, start_time=record.client_start_time)
        return (record.client_pid > 0 and not alive(sandbox)) or not self.retains(record, 0)

    def _is_over(self, pod: Pod, allocation: AllocationId) -> bool:
        """Return True if the allocation belongs to an init container that never starts again."""
        for name in init_names(pod):
            if container_allocation(pod.metadata.uid, name) == allocation:
                since_s = self._since_s(pod.metadata.uid)
                return done(pod, name, since_s) or _main_runs(pod, since_s)
        return False


class ClaimTenure:
    """Retention of allocations of claims, which outlive single pods."""

    def __init__(self, store: ClaimStore) -> None:
        self._store = store

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        del held_ns
        return self._store.holds(record.id)

    def is_abandoned(self, record: AllocationRecord) -> bool:
        return not self._store.holds(record.id)


class NodeTenure:
    """Retention by the kind of the allocation: of a claim or of a pod."""

    def __init__(self, pods: RetentionPolicy, claims: RetentionPolicy) -> None:
        self._pods, self._claims = pods, claims

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        return self._of(record).retains(record, held_ns)

    def is_abandoned(self, record: AllocationRecord) -> bool:
        return self._of(record).is_abandoned(record)

    def _of(self, record: AllocationRecord) -> RetentionPolicy:
        return self._claims if is_of_claim(record.id) else self._pods


def _main_runs(pod: Pod, since_s: float) -> bool:
    running = (s.state.running for s in pod.status.container_statuses)
    return any(state is not None and is_since(state.started_at, since_s) for state in running)
