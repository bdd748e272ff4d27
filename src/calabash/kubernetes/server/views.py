"""Build the replies of the HTTP API for a cluster: devices, queues, and pods shown as allocations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeDevice, GpuNodeDeviceSpec, GpuNodeSlice, KubeQueue
from calabash.api import replies
from calabash.kubernetes.objects.tenants import TenantMap
from calabash.kubernetes.planner.watch.facts_from_objects import seconds
from calabash.kubernetes.server.state import ServedPod
from calabash.model.allocation import AllocationState
from calabash.model.device import Health
from calabash.model.errors import Reason
from calabash.model.messages import Name, QueueName, Text, render
from calabash.model.request import GpuRequest
from calabash.sharing.exclusive import MODE as EXCLUSIVE

PENDING, RUNNING, GRANTED = "pending", AllocationState.RUNNING.value, AllocationState.GRANTED.value
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_REASONS = {reason.value for reason in Reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedDevice:
    """A device of the cluster with the number under which the API shows it; numbers count over all nodes."""

    number: int
    node: GpuNode
    device: GpuNodeDevice

    @property
    def spec(self) -> GpuNodeDeviceSpec:
        return self.node.spec.devices.get(self.device.uuid, GpuNodeDeviceSpec())


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """A slice that a pod has of a device.

    Args:
        number: number of the device (``NumberedDevice``).
        device: the device in the status of its ``GpuNode``.
        part: the slice in the status of the device.
    """

    number: int
    device: GpuNodeDevice
    part: GpuNodeSlice


def numbered(nodes: Iterable[GpuNode]) -> list[NumberedDevice]:
    """Return the devices of all nodes, numbered in the order of the nodes and of the devices' indices on each node."""
    found = [(node, device) for node in nodes for device in sorted(node.status.devices, key=lambda d: d.index)]
    return [NumberedDevice(number=i, node=node, device=device) for i, (node, device) in enumerate(found)]


def parts_by_pod(devices: Iterable[NumberedDevice]) -> dict[str, list[HeldPart]]:
    """Return the slices that agents have granted, by the pod's UID."""
    found: dict[str, list[HeldPart]] = {}
    for one in devices:
        for part in one.device.slices:
            found.setdefault(part.pod_uid, []).append(HeldPart(number=one.number, device=one.device, part=part))
    return found


# -- devices ---------------------------------------------------------------------------------------------------


def device_view(one: NumberedDevice) -> replies.DeviceView:
    device = one.device
    memory_mib = min(device.memory_mib, sum(_resident_mib(part, device) for part in device.slices))
    whole = any(part.mode == EXCLUSIVE.name for part in device.slices)
    core_percent = 100 if whole else min(100, sum(part.promised_percent for part in device.slices))
    drained = one.spec.drained
    return replies.DeviceView(
        uuid=device.uuid,
        index=one.number,
        vendor="nvidia",
        model=device.model,
        compute_capability="",
        memory_mib=device.memory_mib,
        memory_used_mib=device.memory_used_mib or 0,
        memory_allocated_mib=memory_mib,
        memory_free_mib=0 if whole else max(0, device.memory_mib - memory_mib - device.foreign_mib),
        core_allocated_percent=core_percent,
        utilization_percent=device.utilization_percent or 0,
        temperature_c=0,
        power_w=0.0,
        health=device.health,
        cause=(one.spec.reason if drained else device.reason) or ("its node is cordoned" if _cordoned(one) else ""),
        mode=device.mode,
        pinned=device.modes[0] if len(device.modes) == 1 else "",
        replicas=device.replicas,
        interval="",
        spill_mib=device.spill_mib,
        allocations=list(dict.fromkeys(part.pod_uid for part in device.slices)),
        unmanaged_processes=[],
        node=one.node.metadata.name,
    )


def device_detail(one: NumberedDevice) -> replies.DeviceDetail:
    """Return the details of a device. The history is empty because a cluster's server keeps none."""
    spec, device = one.spec, one.device
    return replies.DeviceDetail(
        device=device_view(one),
        since=None,
        needs="" if device.health == Health.HEALTHY else "operator",
        drained=spec.drained or _cordoned(one),
        drained_why=spec.reason or ("its node is cordoned" if _cordoned(one) else ""),
        evict_at=None,
        hold_until=None,
        figures={},
        parts=[],
        history=[],
    )


def _cordoned(one: NumberedDevice) -> bool:
    return one.node.spec.unschedulable


def _resident_mib(part: GpuNodeSlice, device: GpuNodeDevice) -> int:
    return max(0, part.memory_mib - part.spill_mib) if part.memory_mib else device.memory_mib


# -- pods ------------------------------------------------------------------------------------------------------


def allocation_view(pod: ServedPod, held: Sequence[HeldPart], tenants: TenantMap, queue: str) -> replies.AllocationView:
    """Return the view of a pod as an allocation: the ID is the pod's UID, the command is the pod's namespace and name.

    Args:
        pod: the pod.
        held: the slices that its node has granted to it; empty before that.
        tenants: the queues of tenants, and the names that users see for them.
        queue: name of the object of the pod's queue in the API server.
    """
    facts, place = pod.facts, tenants.place(queue)
    request = facts.request.containers[0].request if facts.request is not None else GpuRequest()
    state = state_of(pod, held)
    reason, explanation = waiting_reason(pod, state)
    return replies.AllocationView(
        id=facts.uid,
        tenant=place.tenant,
        queue=place.queue,
        user=user_of(pod),
        uid=-1,
        command=[f"{facts.namespace}/{facts.name}"],
        mode=held[0].part.mode if held else request.mode,
        policy=held[0].part.policy if held else request.policy,
        priority=facts.priority,
        gang=request.gang,
        state=state,
        reason=reason,
        explanation=displayed(explanation, tenants),
        created_at=facts.created_at_s,
        started_at=(seconds(pod.begun_at) or None) if state == RUNNING else None,
        ended_at=None,
        pids=[],
        slices=[_slice(one) for one in held],
    )


def user_of(pod: ServedPod) -> str:
    """Return the user that is shown for a pod: ``namespace:NAME``.

    Kubernetes does not record the user that created a pod. No user of the HTTP API can have a name with a colon, so the
    pod belongs to no user.
    """
    return f"namespace:{pod.facts.namespace}"


def state_of(pod: ServedPod, held: Sequence[HeldPart]) -> str:
    """Return the state of a pod as the API shows it.

    A pod is pending while it has no node, ``granted`` while it has a node whose agent has granted no device yet, and
    ``running`` after that.
    """
    if not pod.facts.node:
        return PENDING
    return RUNNING if held else GRANTED


def waiting_reason(pod: ServedPod, state: str) -> tuple[str, Text]:
    """Return the reason why a pod waits or is being ended, as a code and a message; both are "" for other pods.

    Args:
        pod: the pod.
        state: state of the pod, from ``state_of``.

    Returns:
        The code, which is "" if there is none for this reason, and the message.
    """
    facts = pod.facts
    if facts.leaving:
        return "ending", "its containers are being ended"
    if state != PENDING:
        return "", ""
    if facts.fault:
        return Reason.BAD_REQUEST.value, facts.fault
    if facts.plan is not None:
        return "", f"it is planned for node {facts.plan.node} and not bound yet"
    if pod.waits is None or not pod.message or pod.waits.reason == "SchedulingGated":
        return "", "it waits for its plan"
    code = _CAPITAL.sub("_", pod.waits.reason).lower()
    return (code if code in _REASONS else ""), pod.message


def displayed(text: Text, tenants: TenantMap) -> str:
    """Return a message with the names of queues that users see.

    A tenant's queue is called ``tenant.project`` in the API server and ``tenant/project`` for users.
    """
    return render(text, _QueueDisplay(tenants))


class _QueueDisplay:
    """The readers of a message that names only objects which they may see."""

    def __init__(self, tenants: TenantMap) -> None:
        self._tenants = tenants

    def named(self, names: Sequence[Name]) -> str:
        """Return the names, joined by commas; queues have the names that users see."""
        return ", ".join(
            self._tenants.displayed_name(name.value) if isinstance(name, QueueName) else name.value for name in names
        )


def _slice(one: HeldPart) -> replies.SliceUseView:
    part, device = one.part, one.device
    whole = part.mode == EXCLUSIVE.name
    return replies.SliceUseView(
        device=device.uuid,
        device_index=one.number,
        memory_mib=part.memory_mib or device.memory_mib,
        core_percent=100 if whole else part.core_percent,
        memory_used_mib=part.memory_used_mib or 0,
        core_used_percent=float(part.core_used_percent or 0),
        denied=0,
        throttled_s=0.0,
        profile=part.profile,
        start=part.start,
        part=part.part,
        spill_mib=part.spill_mib,
    )


# -- queues ----------------------------------------------------------------------------------------------------


def queue_view(queue: KubeQueue, tenants: TenantMap) -> replies.QueueView:
    spec, status = queue.spec, queue.status
    return replies.QueueView(
        name=tenants.displayed_name(queue.metadata.name),
        parent=tenants.displayed_name(spec.parent) if spec.parent else "",
        guarantee=spec.deserved,
        deserved=spec.deserved,
        limit=spec.limit,
        weight=spec.weight,
        allocated=status.allocated,
        pending=status.pending,
        users=list(spec.users),
        groups=list(spec.groups),
        fair_share=status.fair_share,
        half_life_s=status.half_life_seconds or 0.0,
        past_use_device_s=status.past_use_device_seconds or 0.0,
        effective_weight=status.effective_weight,
    )
