"""Publication of the state of the node in its ``GpuNode`` object.

The object is written when the state has changed. The amounts of memory and compute that programs use change all the
time, so ``usage.UseReportLimit`` decides when they have changed enough for a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from calabash.adapters.kube import KubeClient, KubeError
from calabash.adapters.kube.objects.core import Condition, Pod
from calabash.adapters.kube.objects.resources import (
    GPU_NODE,
    GpuNodeDevice,
    GpuNodeMigInstance,
    GpuNodeMigPart,
    GpuNodeMigProfile,
    GpuNodeOutcome,
    GpuNodeSlice,
    GpuNodeSummary,
)
from calabash.kubernetes.node_plugin.pods import NodePods, allocations_of
from calabash.kubernetes.node_plugin.reports.usage import NO_USE, UseReportLimit, Uses, read_uses
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import GROUP, VERSION
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, Health
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.node.membership.container import is_of_claim
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.sharing.registry import SHARING_MODES

MANAGER = "calabash-agent"
_MODEL_CHARACTERS_MAX = 60
POD_MODES = tuple(sorted(SHARING_MODES))
_REASON_CHARACTERS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """State of the agent that is published beside that of the devices.

    Args:
        agent_version, driver_version: versions of the agent and of the GPU driver.
        ready: True if the node grants new allocations.
        reason, message: reason and message of the condition ``Ready``.
        orders: outcomes of orders for single devices (``devices.maintenance``), by device UUID.
        allocation_api: the allocation API of the node.
        claims: text about devices that cannot be offered to claims in full; "" if all devices are offered, None if the
            node offers no devices to claims.
    """

    agent_version: str
    driver_version: str
    ready: bool
    reason: str
    message: str
    orders: Mapping[str, GpuNodeOutcome] = field(default_factory=dict)
    allocation_api: AllocationApi = AllocationApi.TOKENS
    claims: str | None = None


class Publisher:
    """Write the status of the ``GpuNode`` of one node by server-side apply.

    Args:
        client: client of the API server.
        node: name of the node.
        report_limit: decides when used amounts are written; None for the default limit.
    """

    def __init__(self, client: KubeClient, node: str, report_limit: UseReportLimit | None = None) -> None:
        self._client = client
        self._node = node
        self._report_limit = report_limit or UseReportLimit()
        self._written: dict[str, Any] | None = None
        self._since: dict[str, tuple[str, str]] = {}  # status and transition time of each condition
        self._observed = ""

    def publish(self, snapshot: NodeSnapshot, pods: NodePods, facts: NodeFacts) -> bool:
        """Write the status if it differs from the last write, or if used amounts are due.

        Returns:
            True if the status was written.

        Raises:
            KubeError: the API server refuses the write or does not answer.
        """
        status = _status(snapshot, pods, facts, {})
        uses = read_uses(snapshot)
        changed = status != self._written
        if not changed and not self._report_limit.due(uses):
            return False
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if changed:
            self._observed = now
        body = {**status, "conditions": self._timed(status["conditions"], now), "observedAt": self._observed}
        if self._report_limit.enabled:
            body |= {"devices": _status(snapshot, pods, facts, uses)["devices"], "usedAt": now}
        self._apply({"status": body})
        self._written = status
        self._report_limit.reported(uses)
        return True

    def _timed(self, conditions: Sequence[Mapping[str, Any]], now: str) -> list[dict[str, Any]]:
        for one in conditions:
            status, _ = self._since.get(one["type"], ("", ""))
            if status != one["status"]:
                self._since[one["type"]] = (one["status"], now)
        return [{**one, "lastTransitionTime": self._since[one["type"]][1]} for one in conditions]

    def _apply(self, body: Mapping[str, Any]) -> None:
        try:
            self._patch(body)
        except KubeError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            names = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "GpuNode", "metadata": {"name": self._node}}
            self._client.patch(GPU_NODE, self._node, body=names, style="apply", field_manager=MANAGER, force=True)
            self._patch(body)

    def _patch(self, body: Mapping[str, Any]) -> None:
        self._client.patch(
            GPU_NODE,
            self._node,
            body=body,
            style="apply",
            subresource="status",
            field_manager=MANAGER,
            force=True,
        )


def _status(snapshot: NodeSnapshot, pods: NodePods, facts: NodeFacts, uses: Uses) -> dict[str, Any]:
    """Return the status of the ``GpuNode`` without its times.

    Args:
        uses: used amounts; amounts that it does not contain are left out of the status.
    """
    records = {a.record.id: a.record for a in snapshot.allocations}
    devices = []
    for state in snapshot.devices:
        slices = []
        for name in state.allocations:
            record = records.get(name)
            if record is not None:
                slices += _slices(record, state, pods.of_allocation(name), uses)
        devices.append(_device(state, slices, uses, facts))
    ready = Condition(
        type="Ready", status="True" if facts.ready else "False", reason=facts.reason, message=facts.message
    )
    return {
        "agentVersion": facts.agent_version,
        "driverVersion": facts.driver_version,
        "door": facts.allocation_api.value,
        "conditions": [msgspec.to_builtins(one) for one in (ready, *_claims(facts))],
        "summary": msgspec.to_builtins(_summary(devices)),
        "devices": [msgspec.to_builtins(device) for device in devices],
    }


def _claims(facts: NodeFacts) -> tuple[Condition, ...]:
    """Return the condition ``Claims``, which is False if some devices cannot be offered to claims in full.

    Returns an empty tuple if the node offers no devices to claims.
    """
    if facts.claims is None:
        return ()
    reason = "Degraded" if facts.claims else "Published"
    return (Condition(type="Claims", status="False" if facts.claims else "True", reason=reason, message=facts.claims),)


def _summary(devices: Sequence[GpuNodeDevice]) -> GpuNodeSummary:
    """Return the summary that ``kubectl get gpunodes`` prints."""
    healthy = sum(device.health == "healthy" for device in devices)
    given = sum(part.memory_mib - part.spill_mib for device in devices for part in device.slices)
    total = sum(device.memory_mib for device in devices)
    models = dict.fromkeys(device.model for device in devices)
    return GpuNodeSummary(
        devices=f"{healthy}/{len(devices)}",
        model=", ".join(models)[:_MODEL_CHARACTERS_MAX],
        memory=f"{given / 1024:.0f}/{total / 1024:.0f} GiB",
        slices=sum(len(device.slices) for device in devices),
    )


def _slices(record: AllocationRecord, state: DeviceSnapshot, pod: Pod | None, uses: Uses) -> list[GpuNodeSlice]:
    container = allocations_of(pod).get(record.id, "") if pod is not None else ""
    use = uses.get((record.id, state.device.uuid), NO_USE)
    return [
        GpuNodeSlice(
            pod=record.user,
            pod_uid=pod.metadata.uid if pod is not None else "",
            container=container or (record.command[0] if record.command else ""),
            mode=record.placement.mode,
            policy=record.request.policy.value,
            allocation=record.id,
            memory_mib=part.memory_mib,
            spill_mib=part.spill_mib,
            core_percent=part.core_percent,
            memory_used_mib=use.memory_mib,
            core_used_percent=use.percent,
            profile=part.profile,
            start=part.start,
            part=part.part,
        )
        for part in record.placement.slices
        if part.device == state.device.uuid
    ]


def _device(state: DeviceSnapshot, slices: Sequence[GpuNodeSlice], uses: Uses, facts: NodeFacts) -> GpuNodeDevice:
    """Return a device of the status.

    While the node makes no new grants, all devices are shown as unhealthy, so that the planner places nothing on them.
    """
    device, refusal = state.device, _other_api_message(state, facts.allocation_api) if facts.ready else facts.message
    use = uses.get(("", device.uuid), NO_USE)
    healthy = device.health is Health.HEALTHY and state.takes_work and not refusal
    return GpuNodeDevice(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        health="healthy" if healthy else "unhealthy",
        numa_node=device.numa_node,
        pci_bus_id=device.pci_bus_id,
        nvlink_peers=tuple(device.nvlink_peers),
        reason="" if healthy else in_full(state.cause or refusal or device.health.value)[:_REASON_CHARACTERS_MAX],
        state="" if device.health is Health.HEALTHY else device.health.value,
        order=facts.orders.get(device.uuid),
        modes=(device.pinned,) if device.pinned else POD_MODES,
        mode=state.mode or "",
        slices=tuple(slices),
        foreign_mib=state.foreign_mib,
        spill_mib=device.spill_mib,
        replicas=device.replicas,
        memory_used_mib=use.memory_mib,
        utilization_percent=use.percent,
        mig_profiles=_profiles(device),
        mig_instances=tuple(
            GpuNodeMigInstance(
                profile=i.profile,
                start=i.start,
                fixed=i.fixed,
                foreign=i.foreign,
                parts=tuple(GpuNodeMigPart(start=start, compute=compute) for start, compute in i.kept),
            )
            for i in device.mig_instances
        ),
    )


def _other_api_message(state: DeviceSnapshot, api: AllocationApi) -> str:
    """Return the reason why a device must get no further allocations after the node's allocation API has changed.

    The reason is "" if no allocation of the device was made by the other allocation API.
    """
    count = sum(is_of_claim(name) is not (api is AllocationApi.CLAIMS) for name in state.allocations)
    other = "tokens" if api is AllocationApi.CLAIMS else "claims"
    return (
        f"{count} allocations by {other} are still on the device, and the node now offers devices by {api}"
        if count
        else ""
    )


def _profiles(device: Device) -> tuple[GpuNodeMigProfile, ...]:
    """Return the MIG profiles of a device."""
    return tuple(
        GpuNodeMigProfile(
            name=p.name,
            compute=p.compute,
            slices=p.slices,
            starts=p.starts,
            limit=p.limit,
            memory_mib=p.memory_mib,
            media=p.media,
        )
        for p in (device.mig.profiles if device.mig else ())
    )
