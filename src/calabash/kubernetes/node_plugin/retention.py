"""Retention of allocations: for how long the agent keeps the allocation of a pod or of a claim.

The allocation of a pod's container is kept as long as the container may run, according to the last known state of the
pod. The allocation of a claim is kept until the claim is unprepared or deallocated. The caller keeps any allocation
that has member processes.
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
    """Retention of the allocations of pods; implements ``node.allocations.retention.RetentionPolicy``.

    All allocations are kept until the agent knows the pods of the node.

    Args:
        pods: the pods of the node.
        since_s: returns the time at which the current sandbox of a pod started, by the pod's UID
            (``ContainerMembership.sandbox_since_s``).
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
        """Return True if the container will not run again, or if the sandbox in which it was started has ended.

        In the next sandbox of the pod, all containers start again and get new allocations.
        """
        sandbox = Process(pid=record.client_pid, start_time=record.client_start_time)
        return (record.client_pid > 0 and not alive(sandbox)) or not self.retains(record, 0)

    def _is_over(self, pod: Pod, allocation: AllocationId) -> bool:
        """Return True if the allocation belongs to an init container that will not start again in the pod's sandbox."""
        for name in init_names(pod):
            if container_allocation(pod.metadata.uid, name) == allocation:
                since_s = self._since_s(pod.metadata.uid)
                return done(pod, name, since_s) or _main_runs(pod, since_s)
        return False


class ClaimTenure:
    """Retention of the allocations of claims, which several pods can use one after the other.

    Args:
        store: the prepared claims of the node.
    """

    def __init__(self, store: ClaimStore) -> None:
        self._store = store

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        del held_ns
        return self._store.holds(record.id)

    def is_abandoned(self, record: AllocationRecord) -> bool:
        return not self._store.holds(record.id)


class NodeTenure:
    """Retention of all allocations of a node: applies one policy to allocations of pods and one to those of claims."""

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
