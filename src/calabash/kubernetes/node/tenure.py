"""How long a pod's allocations are kept: as long as its container may run, by the API server's last word."""

from __future__ import annotations

from calabash.agent.membership_container import container_allocation
from calabash.kubernetes.node.pods import NodePods, done, ended, init_names
from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId
from calabash.seams.kube.objects import Pod


class PodTenure:
    """See ``agent.tenure.Tenure``. Before the pods of the node are known, everything is kept."""

    def __init__(self, pods: NodePods) -> None:
        self._pods = pods

    def holds(self, record: AllocationRecord, held_ns: int) -> bool:
        del held_ns
        if not self._pods.synced:
            return True
        pod = self._pods.of_allocation(record.id)
        return pod is not None and not ended(pod) and not self._is_over(pod, record.id)

    def _is_over(self, pod: Pod, allocation: AllocationId) -> bool:
        """Whether it is of an init container that never starts again."""
        for name in init_names(pod):
            if container_allocation(pod.metadata.uid, name) == allocation:
                return done(pod, name) or _main_runs(pod)
        return False


def _main_runs(pod: Pod) -> bool:
    return any(s.state.running is not None for s in pod.status.container_statuses)
