"""Choice of whole devices for pods without a plan: containers that ask for ``nvidia.com/gpu`` where admission is off.

Theory of operation. Another scheduler placed such a pod and considered only the number of devices. The agent therefore
chooses the devices when the container is about to be created. It uses the function with which the planner places a pod
that another scheduler bound to a node. A device may be given if it is healthy, has no allocation, and is in no plan of
a pod that is bound to this node. The allocation is journalled like any other and reported in the ``GpuNode`` at once,
so that the planner learns of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.containers.device_id_owners import Claimant
from calabash.kubernetes.node_plugin.containers.slice_choice import Placing
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.objects.names import GPUS
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice
from calabash.kubernetes.objects.shards import is_ours
from calabash.kubernetes.objects.visibility import for_namespace
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, PodReference, RequestName, Text, joined
from calabash.model.request import DEFAULT_QUEUE, AllocationId, GpuRequest
from calabash.node.audit.process_census import describe_process
from calabash.node.membership.container import container_allocation
from calabash.node.snapshot import DeviceSnapshot
from calabash.sharing.exclusive import MODE as EXCLUSIVE
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import fits

WHOLE = GpuRequest(mode=EXCLUSIVE.name)
_NAMED_MAX = 8
Promised = Mapping[DeviceUuid, PodReference]
"""Devices in plans of pods, each with the name of a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """The devices that may be given whole now.

    Args:
        devices: these devices.
        others: for each other device of the node, the reason why it may not be given.
    """

    devices: tuple[Device, ...]
    others: Mapping[DeviceUuid, Text]


def spare_cards(states: Sequence[DeviceSnapshot], promised: Promised, but: Collection[AllocationId] = ()) -> Spare:
    """Return the devices that may be given whole.

    Args:
        states: the devices of the node.
        promised: devices that are in plans of pods.
        but: allocations that are ignored, because the container may use their devices.
    """
    reasons = {state.device.uuid: _why_not(state, promised, but) for state in states}
    return Spare(
        devices=tuple(state.device for state in states if not reasons[state.device.uuid]),
        others={uuid: why for uuid, why in reasons.items() if why},
    )


def _why_not(state: DeviceSnapshot, promised: Promised, but: Collection[AllocationId]) -> Text:
    device = state.device
    if device.health is not Health.HEALTHY:
        cause = Message("is {health}: {cause}", health=device.health, cause=state.cause)
        return cause if state.cause else f"is {device.health}"
    if state.orphans:
        return Message(
            "is used by {allocation}, which the journal does not know", allocation=RequestName(state.orphans[0])
        )
    if state.unmanaged:
        return Message("is in use: {process} without a slice", process=describe_process(state.unmanaged[0]))
    held = [name for name in state.allocations if name not in but]
    if held:
        return "is held whole" if state.mode == EXCLUSIVE.name else f"has {len(held)} of others on it ({state.mode})"
    if device.uuid in promised:
        return Message("is planned for pod {pod}", pod=promised[device.uuid])
    answer = fits(device, *state.beside(but), WHOLE)
    return answer.message if isinstance(answer, Misfit) else ""


class NodeCards(Protocol):
    """The operations of the node agent that the choice of whole devices needs."""

    node: NodeName

    def devices(self) -> tuple[DeviceSnapshot, ...]: ...

    def record(self, allocation: AllocationId) -> AllocationRecord | None: ...


class WholeCards:
    """Choose whole devices for containers of pods without a plan.

    Args:
        agent: the devices and allocations of the node.
        pods: the pods of the node.
        planned: chooses the slices of pods that the product's own scheduler placed, which have a plan.
        closed: returns the reason why no device is given now, which is a cordon or missing information; "" if devices
            are given.
    """

    def __init__(
        self,
        agent: NodeCards,
        pods: NodePods,
        planned: Placing,
        *,
        closed: Callable[[], str],
    ) -> None:
        self._agent = agent
        self._pods = pods
        self._planned = planned
        self._closed = closed

    def spare(self) -> tuple[Device, ...]:
        """Return the devices that may be given whole now."""
        return () if self._closed() else spare_cards(self._agent.devices(), self._pods.promised()).devices

    def pod(self, claimant: Claimant) -> Pod:
        found = self._pods.find(uid=claimant.pod_uid, name=claimant.pod)
        return self._planned.pod(claimant) if _is_ours(found) else found

    def slices_for(
        self, pod: Pod, container: str, tokens: int, instead_of: Collection[AllocationId]
    ) -> PlannedContainer:
        if _is_ours(pod):
            return self._planned.slices_for(pod, container, tokens, instead_of)
        _require_one_language(pod, container)
        held = self._agent.record(container_allocation(pod.metadata.uid, container))
        if held is not None:
            slices = [(s.device, s.memory_mib) for s in held.placement.slices]
        else:
            chosen = self._choose(pod, container, tokens, instead_of)
            slices = [(device.uuid, device.memory_mib) for device in chosen]
        return PlannedContainer(
            name=container,
            mode=EXCLUSIVE.name,
            slices=tuple(PlannedSlice(device=uuid, memory_mib=mib, core_percent=100) for uuid, mib in slices),
        )

    def _choose(self, pod: Pod, container: str, count: int, instead_of: Collection[AllocationId]) -> list[Device]:
        closed = self._closed()
        if closed:
            raise CalabashError(f"no whole device is given: {closed}", reason=Reason.NO_CAPACITY)
        states = self._agent.devices()
        spare = spare_cards(states, self._pods.promised(but=pod.metadata.uid), instead_of)
        mine = [d for d in spare.devices if any(s.device.uuid == d.uuid and s.allocations for s in states)]
        taken = mine[:count]  # of an earlier container of the pod
        if len(taken) < count:
            rest = [device for device in spare.devices if device not in mine]
            found = choose_whole(self._agent.node, states, rest, count - len(taken))
            if found is None:
                raise _no_room(pod, container, count, states, spare)
            taken += found
        return taken


def choose_whole(
    node: str,
    states: Sequence[DeviceSnapshot],
    spare: Sequence[Device],
    count: int,
) -> list[Device] | None:
    """Return the ``count`` spare devices that the planner would choose on this node; None if there are too few.

    Args:
        node: name of the node.
        states: all devices of the node.
        spare: the devices that may be given.
    """
    from calabash.binder.cluster.bundle import Bundle  # noqa: PLC0415  # imports numpy; few agents need it
    from calabash.binder.cluster.cluster import BundleRequest, ClusterScheduler  # noqa: PLC0415
    from calabash.binder.cluster.device_kinds import NodeDevice  # noqa: PLC0415
    from calabash.binder.cluster.nodes import ClusterNode  # noqa: PLC0415
    from calabash.binder.cluster.upkeep import start_on  # noqa: PLC0415
    from calabash.sched import QueueSpec  # noqa: PLC0415

    free = {device.uuid: device for device in spare}
    if len(free) < count:
        return None
    devices = tuple(
        NodeDevice(device=replace(state.device, health=Health.HEALTHY if state.device.uuid in free else Health.LOST))
        for state in states
    )
    alone = ClusterNode(name=NodeName(node), devices=devices, labels={})
    scheduler = ClusterScheduler([alone], [QueueSpec(name=DEFAULT_QUEUE)])
    bundle = Bundle.single("whole", replace(WHOLE, count=count))
    request = BundleRequest(id=AllocationId("whole"), bundle=bundle, submitted_at_s=0.0)
    start = start_on(scheduler, request, [node], 0.0, bound=True)
    return [free[part.device] for part in start.placements[0].slices] if start is not None else None


def _is_ours(pod: Pod) -> bool:
    return is_ours(pod.spec.scheduler_name)


def _require_one_language(pod: Pod, container: str) -> None:
    """Check that a container which asks for ``nvidia.com/gpu`` does not also ask for ``calabash.dev/gpus``.

    A container can have one allocation only.

    Raises:
        CalabashError: BAD_REQUEST if it asks for both.
    """
    asked = next((c for c in (*pod.spec.init_containers, *pod.spec.containers) if c.name == container), None)
    if asked is not None and GPUS in asked.resources.limits:
        raise CalabashError(
            f"container {container} asks for {GPU} and for {GPUS}",
            reason=Reason.BAD_REQUEST,
            hint="keep one of the two",
        )


def _no_room(pod: Pod, container: str, count: int, states: Sequence[DeviceSnapshot], spare: Spare) -> CalabashError:
    namespace = pod.metadata.namespace
    why = [
        Message("device {device} {why}", device=s.device.index, why=spare.others[s.device.uuid])
        for s in states
        if s.device.uuid in spare.others
    ]
    more = f"; and {len(why) - _NAMED_MAX} more" if len(why) > _NAMED_MAX else ""
    return CalabashError(
        f"container {container} of pod {namespace}/{pod.metadata.name} asks for {count} whole devices,"
        f" {len(spare.devices)} of {len(states)} are free: {for_namespace(joined('; ', why[:_NAMED_MAX]), namespace)}{more}",
        reason=Reason.NO_CAPACITY,
        hint="the container starts when devices are free; or delete the pod, so that its controller creates another",
    )
