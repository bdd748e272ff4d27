"""Which slices a container has: the rule of whoever decides. Here for pods that the planner knows: what their plan says."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.node_plugin.containers.device_id_owners import Claimant
from calabash.kubernetes.node_plugin.pods import NodePods, refusal
from calabash.kubernetes.objects.names import PLAN
from calabash.kubernetes.objects.plan import PlannedContainer, read_plan
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId


class Placing(Protocol):
    """Asked before every start of a container, and answers the same for one that holds its slices."""

    def pod(self, claimant: Claimant) -> Pod:
        """The pod of a container that is about to be made; may wait a moment for it. Raises CalabashError(NOT_FOUND)."""
        ...

    def of(self, pod: Pod, container: str, tokens: int, instead_of: Collection[AllocationId]) -> PlannedContainer:
        """What it has. Raises CalabashError, which the pod's owner reads.

        Args:
            tokens: how many devices it asks for.
            instead_of: allocations whose devices are its own as well, for their containers never run beside it.
        """
        ...


class ByPlan:
    """What the planner wrote into the pod."""

    def __init__(self, pods: NodePods, node: str) -> None:
        self._pods = pods
        self._node = node

    def pod(self, claimant: Claimant) -> Pod:
        return self._pods.find_planned(uid=claimant.pod_uid, name=claimant.pod)

    def of(self, pod: Pod, container: str, tokens: int, instead_of: Collection[AllocationId]) -> PlannedContainer:
        del instead_of  # the planner has thought of it
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        text = pod.metadata.annotations.get(PLAN)
        if text is None and (told := refusal(pod)):
            raise CalabashError(f"pod {name} has no plan: {told}", reason=Reason.NO_CAPACITY)
        if text is None:
            raise CalabashError(
                f"pod {name} has no plan: the planner has not placed it",
                reason=Reason.BAD_REQUEST,
                hint="leave out spec.nodeName and spec.schedulerName, so that it goes through admission and the planner",
            )
        plan = read_plan(text)
        if plan.pod_uid != pod.metadata.uid or plan.node != self._node:
            raise CalabashError(
                f"the plan of pod {name} is for pod {plan.pod_uid} on node {plan.node}, this is {pod.metadata.uid}"
                f" on {self._node}",
                reason=Reason.CONFLICT,
                hint="delete the pod; its owner makes it again",
            )
        planned = plan.container(container)
        if planned is None or len(planned.slices) != tokens:
            count = 0 if planned is None else len(planned.slices)
            raise CalabashError(
                f"the plan gives container {container} of pod {name} {count} devices, its spec asks for {tokens}",
                reason=Reason.CONFLICT,
                hint="delete the pod; its owner makes it again",
            )
        return planned
