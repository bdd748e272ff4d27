"""Choice of the slices of a container: the interface of such a choice, and the choice for pods that have a plan."""

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
    """Policy that chooses the slices of a container. It returns the same slices for the same container at each call."""

    def pod(self, claimant: Claimant) -> Pod:
        """Return the pod of a container that is about to be created.

        May block until the agent has received the pod object.

        Raises:
            CalabashError: NOT_FOUND if the pod object does not arrive in time.
        """
        ...

    def slices_for(
        self, pod: Pod, container: str, tokens: int, instead_of: Collection[AllocationId]
    ) -> PlannedContainer:
        """Return the slices of a container.

        Args:
            pod: the pod of the container.
            container: name of the container.
            tokens: number of device IDs that the container has, which is the number of devices that it asks for.
            instead_of: allocations of containers of the pod that never run at the same time as this one. The container
                may get their devices.

        Raises:
            CalabashError: the container gets no slices; the message appears in the events of the pod.
        """
        ...


class ByPlan:
    """Choice for pods that have a plan: a container gets the slices that the plan names."""

    def __init__(self, pods: NodePods, node: str) -> None:
        self._pods = pods
        self._node = node

    def pod(self, claimant: Claimant) -> Pod:
        return self._pods.find_planned(uid=claimant.pod_uid, name=claimant.pod)

    def slices_for(
        self, pod: Pod, container: str, tokens: int, instead_of: Collection[AllocationId]
    ) -> PlannedContainer:
        """Return the slices that the plan names for the container.

        Raises:
            CalabashError: NO_CAPACITY if the pod has no plan because the planner refused it, BAD_REQUEST if it has no
                plan for another reason, CONFLICT if the plan is for another pod or node or has another number of
                devices.
        """
        del instead_of  # the plan already shares these devices
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        text = pod.metadata.annotations.get(PLAN)
        if text is None and (told := refusal(pod)):
            raise CalabashError(f"pod {name} has no plan: {told}", reason=Reason.NO_CAPACITY)
        if text is None:
            raise CalabashError(
                f"pod {name} has no plan: it did not go through admission and the planner",
                reason=Reason.BAD_REQUEST,
                hint="remove spec.nodeName and spec.schedulerName from the pod, and create it again",
            )
        plan = read_plan(text)
        if plan.pod_uid != pod.metadata.uid or plan.node != self._node:
            raise CalabashError(
                f"the plan of pod {name} is for pod {plan.pod_uid} on node {plan.node}, this is {pod.metadata.uid}"
                f" on {self._node}",
                reason=Reason.CONFLICT,
                hint="delete the pod; its controller creates it again",
            )
        planned = plan.container(container)
        if planned is None or len(planned.slices) != tokens:
            count = 0 if planned is None else len(planned.slices)
            raise CalabashError(
                f"the plan of pod {name} has {count} devices for container {container}, its spec asks for {tokens}",
                reason=Reason.CONFLICT,
                hint="delete the pod; its controller creates it again",
            )
        return planned
